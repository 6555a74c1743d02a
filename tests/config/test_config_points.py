"""A file becomes named points: what is given where, and what wins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from mhaprof.config import Config, ModelSource, PlannedPoint, load_config, parse_config
from mhaprof.errors import SpecError
from mhaprof.spec import AttentionSpec


def planned(text: str, **keywords: Any) -> Config:
    return parse_config("version: 1\n" + text, file="some/file.yaml", **keywords)


def specs(text: str, **keywords: Any) -> dict[str, AttentionSpec | None]:
    return {point.name: point.spec for point in planned(text, **keywords).entries}


def test_points_have_their_names_specs_implementations_and_places() -> None:
    config = planned(
        "defaults: {dim: 512, tokens: 1024, batch: 32, implementations: [eager]}\n"
        "points:\n"
        "  - {name: full head, heads: 1, out_proj: false}\n"
        "  - {name: eight, heads: 8, implementations: [eager, sdpa]}\n"
    )
    assert config.name == "file"
    assert config.entries == (
        PlannedPoint(
            name="full head",
            spec=AttentionSpec(dim=512, tokens=1024, batch=32, heads=1, out_proj=False),
            implementations=("eager",),
            skip=None,
            given={},
            model=None,
            module=None,
            line=4,
            column=5,
        ),
        PlannedPoint(
            name="eight",
            spec=AttentionSpec(dim=512, tokens=1024, batch=32, heads=8),
            implementations=("eager", "sdpa"),
            skip=None,
            given={},
            model=None,
            module=None,
            line=5,
            column=5,
        ),
    )


def test_what_is_left_out_is_not_given() -> None:
    config = planned("points: {heads: 4}")
    assert config.entries[0].implementations is None
    assert config.measure == ("flops",)
    assert config.reference
    assert config.settings.device is None


def test_points_without_a_name_are_named_by_what_they_give() -> None:
    text = "points: [{heads: 4, out_proj: false}, {window: null}, {}, {causal: true}]"
    names = list(specs(text))
    assert names == ["heads=4 out_proj=false", "window=none", "defaults", "causal=true"]


def test_a_sweep_is_the_product_of_its_lists() -> None:
    found = specs("sweep: {heads: [1, 2], tokens: {pow2: [64, 128]}, dim: 256}")
    assert list(found) == [
        "heads=1 tokens=64",
        "heads=1 tokens=128",
        "heads=2 tokens=64",
        "heads=2 tokens=128",
    ]
    assert found["heads=2 tokens=128"] == AttentionSpec(heads=2, tokens=128, dim=256)


def test_lists_may_hold_ranges_and_keep_each_value_once() -> None:
    found = specs("sweep: {tokens: [1, {range: [2, 6, 2]}, 4, 1e3]}")
    assert list(found) == ["tokens=1", "tokens=2", "tokens=4", "tokens=6", "tokens=1000"]


def test_a_list_may_hold_null_for_none() -> None:
    found = specs("defaults: {window: 8}\nsweep: {window: [null, 16], causal: true}")
    assert [spec.window for spec in found.values() if spec] == [None, 16]
    assert list(found) == ["window=none", "window=16"]


def test_a_sweep_of_single_values_is_named_by_all_of_them() -> None:
    assert list(specs("sweep: {heads: 4, dim: 64}")) == ["heads=4 dim=64"]


def test_several_sweeps_name_every_field_they_give() -> None:
    found = specs("sweep: [{heads: [1, 2], tokens: 8}, {heads: [1], tokens: [8, 16]}]")
    assert list(found) == ["heads=1 tokens=8", "heads=2 tokens=8", "heads=1 tokens=16"]


def test_other_points_of_one_name_get_a_number() -> None:
    found = planned(
        "points: [{name: heads=2, heads: 4}]\nsweep: [{heads: [1, 2]}, {heads: 2, "
        "implementations: sdpa}]"
    )
    assert [point.name for point in found.entries] == [
        "heads=2",
        "heads=1",
        "heads=2 (2)",
        "heads=2 (3)",
    ]


def test_zipped_fields_vary_together() -> None:
    found = specs("sweep: {tokens: [8, 16], zip: {heads: [8, 16], kv_heads: [8, 4]}}")
    assert list(found) == [
        "tokens=8 heads=8 kv_heads=8",
        "tokens=8 heads=16 kv_heads=4",
        "tokens=16 heads=8 kv_heads=8",
        "tokens=16 heads=16 kv_heads=4",
    ]


def test_zip_at_the_top_level_varies_in_every_sweep() -> None:
    groups = "zip: [{heads: [8, 16], kv_heads: [8, 4]}]\n"
    assert list(specs(groups)) == ["heads=8 kv_heads=8", "heads=16 kv_heads=4"]
    assert len(specs(groups + "sweep: {tokens: [1, 2, 3]}")) == 6


def skips(text: str, **keywords: Any) -> dict[str, tuple[str, str] | None]:
    return {point.name: point.skip for point in planned(text, **keywords).entries}


def test_excluded_and_impossible_combinations_are_skips_with_a_code() -> None:
    found = skips("sweep: {dim: 512, heads: [7, 8, 16, 24], exclude: [heads > 8 and heads < 20]}")
    assert found == {
        "heads=7": (
            "impossible_spec",
            "dim 512 is not divisible by heads 7; give head_dim",
        ),
        "heads=8": None,
        "heads=16": ("excluded", "excluded by 'heads > 8 and heads < 20'"),
        "heads=24": (
            "impossible_spec",
            "dim 512 is not divisible by heads 24; give head_dim",
        ),
    }


def test_a_condition_can_exclude_what_is_impossible_anyway() -> None:
    found = planned("sweep: {heads: [7, 8]}\nexclude: ['dim % heads != 0']")
    first, second = found.entries
    assert first.skip == ("excluded", "excluded by 'dim % heads != 0'")
    assert first.spec is None
    assert first.given == {"heads": 7}
    assert second.skip is None


def test_conditions_see_the_fields_as_they_are_resolved() -> None:
    text = "sweep: {heads: [8, 16], exclude: [head_dim < 64, kv_heads != heads, window > 0]}"
    assert [skip is None for skip in skips(text).values()] == [True, False]


def test_an_excluded_point_keeps_its_spec() -> None:
    (point,) = planned("sweep: {heads: 8, exclude: heads == 8}").entries
    assert point.spec == AttentionSpec(heads=8)


@pytest.mark.parametrize(
    ("text", "flags", "heads"),
    [
        ("points: [{name: p}]", {}, 8),
        ("defaults: {heads: 2}\npoints: [{name: p}]", {}, 2),
        ("defaults: {heads: 2}\npoints: [{name: p, heads: 4}]", {}, 4),
        ("defaults: {heads: 2}\nsweep: {heads: 4}", {}, 4),
        ("defaults: {heads: 2}\npoints: [{name: p, heads: 4}]", {"heads": [16]}, 16),
        ("defaults: {heads: 2}\nsweep: {heads: [4, 8]}", {"heads": [16]}, 16),
        ("sweep: {zip: {heads: [4, 8], tokens: [9, 9]}}", {"heads": [16]}, 16),
        ("defaults: {heads: 2}\npoints: [{name: p, heads: null}]", {}, 8),
        ("defaults: {heads: 2}\npoints: [{name: p, heads: 4}]", {"heads": [None]}, 8),
    ],
)
def test_later_wins_defaults_then_point_or_sweep_then_flags(
    text: str, flags: Mapping[str, Sequence[object]], heads: int
) -> None:
    (point,) = planned(text, overrides=flags).entries
    assert point.spec is not None
    assert point.spec.heads == heads


def test_a_flag_of_several_values_multiplies_every_point() -> None:
    text = "points: [{name: p}]\nsweep: {heads: [1, 2], tokens: [3, 4]}"
    assert list(specs(text, overrides={"tokens": [5, 6], "dim": [64]})) == [
        "p tokens=5",
        "p tokens=6",
        "heads=1 tokens=5",
        "heads=1 tokens=6",
        "heads=2 tokens=5",
        "heads=2 tokens=6",
    ]


def test_flags_of_a_wrong_type_are_spec_errors() -> None:
    with pytest.raises(SpecError) as caught:
        planned("points: {}", overrides={"heads": ["x"], "nose": [1], "dim": [1]})
    assert str(caught.value) == (
        "heads 'x' is not a whole number of at least 1; nose is not a field of an attention spec"
    )


def test_settings_are_checked_and_single_values_are_lists_of_one() -> None:
    settings = planned(
        "points: {}\n"
        "settings: {device: [cpu, 'cuda:1'], dtype: bfloat16, threads: 2, precision: 2%, "
        "min_time: 1, max_time: 2.5, cache: hot, tf32: true}"
    ).settings
    assert settings.device == ("cpu", "cuda:1")
    assert settings.dtype == ("bfloat16",)
    assert settings.threads == (2,)
    assert settings.precision == 0.02
    assert (settings.min_time, settings.max_time, settings.tf32) == (1, 2.5, True)
    assert settings.timer is None


def test_settings_that_are_given_over_others_win() -> None:
    settings = planned("points: {}\nsettings: {samples: 3, seed: 4}").settings
    over = planned("points: {}\nsettings: {samples: 5}").settings
    merged = settings.merged(over)
    assert (merged.samples, merged.seed, merged.cache) == (5, 4, None)


def test_null_sections_are_not_given() -> None:
    config = planned("points: {}\nsweep:\ndefaults:\nsettings:\nname: null\n")
    assert [point.name for point in config.entries] == ["defaults"]


def test_modules_are_planned_where_imports_are_allowed() -> None:
    text = (
        "points: [{name: mine, module: 'a.b:C', kwargs: {dim: 64, drop: 0.1}, "
        "inputs: ['2x8x64', '2x8:int64']}]\nmodule: x:Y\ninputs: 4\n"
    ).replace("inputs: 4\n", "inputs: '4'\n")
    mine, top = planned(text, allow_import=True).entries
    assert mine.module is not None
    assert mine.module.target == "a.b:C"
    assert mine.module.kwargs == {"dim": 64, "drop": 0.1}
    assert mine.module.inputs == ("2x8x64", "2x8:int64")
    assert mine.spec is None
    assert (top.name, top.module and top.module.inputs, top.line) == ("x:Y", ("4",), 3)


def test_implementations_are_named_once_and_equal_inputs_are_all_inputs() -> None:
    text = (
        "points: [{implementations: [eager, sdpa, eager]}, "
        "{module: a:B, inputs: [2x3, 2x3]}]\nmeasure: [latency, flops, latency]"
    )
    config = planned(text, allow_import=True)
    point, module = config.entries
    assert point.implementations == ("eager", "sdpa")
    assert module.module is not None
    assert module.module.inputs == ("2x3", "2x3")
    assert config.measure == ("latency", "flops")


def test_models_are_carried_with_their_place_and_fields() -> None:
    text = (
        "defaults: {batch: 1}\nmodel: models/config.json\nsweep: {tokens: [8, 16]}\n"
        "points: [{preset: llama}, {name: hub, model: 'hf:org/name'}]\n"
    )
    config = planned(text)
    assert [(point.name, dict(point.given)) for point in config.entries] == [
        ("llama", {"batch": 1}),
        ("hub", {"batch": 1}),
        ("tokens=8", {"batch": 1, "tokens": 8}),
        ("tokens=16", {"batch": 1, "tokens": 16}),
    ]
    llama, hub, swept, _ = (point.model for point in config.entries)
    assert llama is not None
    assert hub is not None
    assert swept is not None
    assert (llama.kind, llama.reference, llama.line, llama.column) == ("preset", "llama", 5, 19)
    assert (hub.kind, hub.reference) == ("hf", "org/name")
    assert (swept.kind, swept.path) == ("file", Path("some/models/config.json"))


def read_layers(source: ModelSource, fields: Mapping[str, Any]) -> Iterable[Any]:
    for heads in (4, 8):
        yield f"layer {heads}", AttentionSpec(**{**fields, "heads": heads})


def test_models_are_read_into_a_point_for_each_layer() -> None:
    text = "model: m.json\nsweep: {tokens: [8, 16], exclude: heads == 8 and tokens == 8}\n"
    config = planned(text, read_model=read_layers)
    assert [(point.name, point.skip is None) for point in config.entries] == [
        ("tokens=8 layer 4", True),
        ("tokens=8 layer 8", False),
        ("tokens=16 layer 4", True),
        ("tokens=16 layer 8", True),
    ]
    assert config.entries[0].spec == AttentionSpec(tokens=8, heads=4)


def test_a_file_is_read_from_disk(tmp_path: Path) -> None:
    path = tmp_path / "my sweep.yaml"
    path.write_text("version: 1\npoints: {heads: 4}\n")
    config = load_config(path)
    assert (config.name, config.file) == ("my sweep", str(path))
    assert config.text == path.read_text()


def test_a_grid_of_very_many_points_is_refused_before_it_is_made() -> None:
    with pytest.raises(Exception, match="makes 125000000 points up to here; at most 1000000"):
        planned(
            "sweep: {heads: {range: [1, 500]}, tokens: {range: [1, 500]}, dim: {range: [1, 500]}}"
        )
