"""A file that cannot be right costs one clear line with the key, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mhaprof import formulas
from mhaprof.errors import ConfigError, UsageError
from mhaprof.huggingface import ModelPlan, layers_of
from mhaprof.huggingface.sources import preset_names, read_config, read_preset

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
}
OLMO = {"model_type": "olmo"}  # of whose class no sizes are known
GEMMA2 = LLAMA | {"model_type": "gemma2", "head_dim": 16, "sliding_window": 8}
LATENT = {
    "model_type": "deepseek_v3",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "q_lora_rank": 16,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 2,
    "v_head_dim": 4,
}
VIT = {
    "model_type": "vit",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "image_size": 32,
    "patch_size": 8,
}


def without(config: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != key}


def refused(config: Any, **options: Any) -> list[str]:
    with pytest.raises(UsageError) as caught:
        layers_of(config, **options)
    return str(caught.value).splitlines()


@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads", "num_hidden_layers"])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "is null; expected a whole number"),
        ("64", '"64" is not a whole number'),
        (0, "0 is not a whole number of at least 1"),
        (-4, "-4 is not a whole number"),
        (4.5, "4.5 is not a whole number"),
        (True, "true is not a whole number"),
        ({"a": 1}, "is not a whole number"),
        (10**12, "is above"),
        pytest.param(10**5000, "a number of thousands of digits is above", id="huge"),
    ],
)
def test_a_size_of_the_wrong_kind_is_named_with_what_was_given(
    key: str, value: object, said: str
) -> None:
    (line,) = [line for line in refused(LLAMA | {key: value}) if f": {key}: " in line]
    assert said in line


def test_every_missing_key_is_named_at_once() -> None:
    lines = refused({"model_type": "llama"}, source="x.json")
    assert lines == [
        "x.json: num_hidden_layers: is missing; expected a whole number of at least 1",
        "x.json: hidden_size: is missing; expected a whole number of at least 1",
        "x.json: num_attention_heads: is missing; expected a whole number of at least 1",
    ]


@pytest.mark.parametrize(
    ("config", "key", "said"),
    [
        (LLAMA | {"hidden_size": 66}, "head_dim", "not divisible by num_attention_heads 4"),
        (LLAMA | {"num_key_value_heads": 3}, "num_key_value_heads", "3 does not divide"),
        (LLAMA | {"num_key_value_heads": [2, 2]}, "num_key_value_heads", "2 numbers for 4"),
        (LLAMA | {"attention_bias": "yes"}, "attention_bias", '"yes" is not true or false'),
        (LLAMA | {"model_type": 7}, "model_type", "7 is not text"),
        (LLAMA | {"text_config": []}, "text_config", "is not an object"),
        (LLAMA | {"layer_types": "full_attention"}, "layer_types", "is not a list of words"),
        (LLAMA | {"layer_types": ["full_attention"]}, "layer_types", "1 layers"),
        (LLAMA | {"layer_types": ["sliding_attention"] * 4}, "sliding_window", "is missing"),
        (LLAMA | {"layer_types": ["chunked_attention"] * 4}, "attention_chunk_size", "is missing"),
        (without(GEMMA2, "sliding_window"), "sliding_window", "is missing"),
        (GEMMA2 | {"head_dim": None}, "head_dim", "is null; this family's code"),
        (without(GEMMA2, "num_key_value_heads"), "num_key_value_heads", "KV cache is not known"),
        (GEMMA2 | {"attn_logit_softcapping": -1}, "attn_logit_softcapping", "not a number above 0"),
        (
            GEMMA2
            | {"model_type": "qwen3", "layer_types": ["sliding_attention"] * 4}
            | {"use_sliding_window": False},
            "layer_types",
            "contradicts use_sliding_window: false",
        ),
        (
            GEMMA2 | {"model_type": "qwen3", "use_sliding_window": True},
            "max_window_layers",
            "is missing",
        ),
        (
            LLAMA | {"model_type": "falcon", "n_head": 8},
            "num_attention_heads",
            "4 contradicts n_head: 8",
        ),
        (without(LATENT, "q_lora_rank"), "q_lora_rank", "write null"),
        (without(LATENT, "kv_lora_rank"), "kv_lora_rank", "is missing"),
        (LATENT | {"qk_head_dim": 9}, "qk_head_dim", "9 contradicts qk_nope_head_dim 6"),
        (without(VIT, "image_size"), "image_size", "is missing"),
        (VIT | {"patch_size": [8, 8, 8]}, "patch_size", "is not one number or two"),
        (VIT | {"patch_size": 64}, "patch_size", "64 is larger than image_size 32"),
        (
            GEMMA2 | {"model_type": "gemma3n_text", "num_kv_shared_layers": 4},
            "num_kv_shared_layers",
            "no earlier layer",
        ),
        (
            LLAMA | {"model_type": "mllama_text_model", "cross_attention_layers": [9]},
            "cross_attention_layers",
            "layer indices below 4",
        ),
        (
            {"model_type": "gpt_neo", "hidden_size": 64, "num_heads": 4, "num_layers": 4}
            | {"attention_types": [[["global", "odd"], 2]], "window_size": 8},
            "attention_types",
            "does not name global or local for 4 layers",
        ),
        (
            LLAMA | {"model_type": "jamba", "attn_layer_period": 2, "attn_layer_offset": 2},
            "attn_layer_offset",
            "2 is not a whole number below 2",
        ),
        ({"model_type": "llava", "text_config": {"model_type": "olmo"}},
         "text_config.hidden_size", "is missing"),
        ({"model_type": "encoder-decoder", "encoder": LLAMA}, "decoder", "is missing"),
    ],
)  # fmt: skip
def test_a_contradiction_is_named_by_its_key(config: Any, key: str, said: str) -> None:
    (line,) = [line for line in refused(config) if f": {key}: " in line]
    assert said in line


def test_a_part_that_is_not_there_is_named() -> None:
    assert refused(LLAMA, part="vision") == [
        "config.json: vision_config: is missing; --part text counts this"
    ]


def test_a_fault_in_a_file_has_its_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    text = json.dumps({"note": '{"hidden_size": 1}', "text_config": LLAMA}, indent=2)
    path.write_text(text.replace('"hidden_size": 64', '"hidden_size": "64"'))
    raw = read_config(str(path))
    with pytest.raises(ConfigError) as caught:
        layers_of(raw.values, source=raw.source, locate=raw.locate)
    assert str(caught.value) == (
        f'{path}:5:5: text_config.hidden_size: "64" is not a whole number of at least 1'
    )


def test_a_missing_key_is_located_where_its_object_begins(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({"a": [{"b": 1}], "text_config": without(LLAMA, "hidden_size") | OLMO})
    )
    raw = read_config(str(path))
    with pytest.raises(ConfigError, match=r"config\.json:1:19: text_config\.hidden_size"):
        layers_of(raw.values, source=raw.source, locate=raw.locate)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "config.json:1:1: JSON: Expecting value"),
        ('{"a": 1,}', "config.json:1:"),
        ("[1, 2]", "expected a JSON object"),
        ('{"a": 1, "a": 2}', "the key a is given twice"),
        ("[" * 100_000, "config.json"),
        ('{"hidden_size": ' + "1" * 5000 + "}", "config.json"),
    ],
)
def test_text_that_is_no_config_is_refused_with_its_place(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_config(str(path))
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_config(str(tmp_path / "nowhere.json"))
    binary = tmp_path / "model.bin"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_config(str(binary))
    with pytest.raises(UsageError, match="is not the name of a file"):
        read_config("a\0b")


@pytest.mark.parametrize("word", ["llama\nllama", "\x1b[31mllama", "\x1e"])
def test_a_word_that_would_break_the_line_of_a_message_is_shown_escaped(word: str) -> None:
    for key, value in (("model_type", word), ("layer_types", [word] * 4)):
        with pytest.raises(UsageError, match=rf"{key}: .*\\") as caught:
            layers_of(LLAMA | {key: value})
        assert len(str(caught.value).splitlines()) == 1
        assert str(caught.value).isprintable()


def test_a_number_that_is_none_is_not_said_to_contradict_itself() -> None:
    with pytest.raises(UsageError, match="hidden_size: NaN is not a whole number"):
        layers_of(LLAMA | {"hidden_size": float("nan")})


WRONG = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.sampled_from([64, 4096, 2**31, 10**12, 10**400]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=4),
    st.lists(st.integers(-1, 4), max_size=4),
    st.lists(st.sampled_from(["full_attention", "sliding_attention", "odd"]), max_size=5),
    st.dictionaries(st.sampled_from(["hidden_size", "model_type"]), st.integers(), max_size=2),
)
EXTRA_KEYS = (
    "head_dim",
    "layer_types",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "sliding_window_pattern",
    "attention_chunk_size",
    "no_rope_layers",
    "text_config",
    "vision_config",
    "kv_lora_rank",
    "num_kv_shared_layers",
    "cross_attention_layers",
    "attention_types",
    "multi_query",
    "is_decoder",
    "model_type",
)
PRESETS = {name: dict(read_preset(name).values) for name in preset_names()}


KNOWN = {key for config in PRESETS.values() for key in config} | set(EXTRA_KEYS)
KNOWN |= {
    "layers_block_type",
    "is_encoder_decoder",
    "no_rope_layer_interval",
    "qk_head_dim",
    "num_decoder_layers",
    "encoder",
    "decoder",
}


@st.composite
def broken_configs(draw: st.DrawFn) -> tuple[dict[str, Any], set[str]]:
    """Draw a preset with up to three keys missing, wrong or added, and those keys."""
    config = dict(PRESETS[draw(st.sampled_from(sorted(PRESETS)))])
    keys = draw(st.lists(st.sampled_from([*config, *EXTRA_KEYS]), min_size=1, max_size=3))
    for key in keys:
        if draw(st.booleans()):
            config.pop(key, None)
        else:
            config[key] = draw(WRONG)
    return config, set(keys)


def fuzz(check: Any, examples: int, *strategies: Any) -> None:
    """Check as many examples; few in the default run, many where slow tests run."""
    settings(max_examples=examples, deadline=None)(given(*strategies)(check))()


def check_broken(broken: tuple[dict[str, Any], set[str]], partial: bool, phase: Any) -> None:
    config, _ = broken
    try:
        plan = layers_of(config, tokens=64, phase=phase, partial=partial)
    except UsageError as error:
        for line in str(error).splitlines():
            source, key, said = line.split(": ", 2)
            assert source == "config.json"
            assert said
            assert all(part in KNOWN for part in key.split(".")), line
        return
    assert isinstance(plan, ModelPlan)
    assert plan.layers >= 1
    assert all(formulas.total_macs(kind.spec, exact=True) >= 1 for kind in plan.kinds)


EXAMPLES = [pytest.param(80, id="few"), pytest.param(2000, id="many", marks=pytest.mark.slow)]


@pytest.mark.parametrize("examples", EXAMPLES)
def test_any_broken_config_gives_a_plan_or_an_error_with_a_key(examples: int) -> None:
    phases = st.sampled_from(["prefill", "decode"])
    fuzz(check_broken, examples, broken_configs(), st.booleans(), phases)


@pytest.mark.parametrize("examples", EXAMPLES)
def test_what_is_no_object_is_refused(examples: int) -> None:
    def check(value: Any) -> None:
        with pytest.raises(UsageError):
            layers_of(value)

    leaves = st.none() | st.integers() | st.text(max_size=5)
    fuzz(check, examples, st.recursive(leaves, st.lists, max_leaves=5))
