"""``mhaprof model`` and ``mhaprof presets`` as a user meets them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
}


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Path]:
    def write(**changes: Any) -> Path:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(LLAMA | changes, indent=2))
        return path

    return write


def test_json_has_a_row_for_each_kind_and_one_for_the_model(mhaprof: Any) -> None:
    ran = mhaprof("model", "--preset", "gemma-2-27b", "--tokens", 8192, "--format", "json")
    assert ran.code == 0
    sliding, full, total = ran.rows
    assert [row["role"] for row in ran.rows] == ["layer", "layer", "total"]
    assert (sliding["name"], sliding["layers"], sliding["window"]) == (
        "sliding_attention",
        23,
        4096,
    )
    assert (full["name"], full["layers"], full["window"]) == ("full_attention", 23, None)
    assert (full["dim"], full["heads"], full["kv_heads"], full["head_dim"]) == (4608, 32, 16, 128)
    assert full["params"] == 56623104
    assert full["kv_bytes_per_token"] == 8192
    assert total["layers"] == 46
    assert total["params"] == 46 * 56623104
    assert total["kv_bytes_per_token"] == 376832
    assert total["macs"] == 23 * (sliding["macs"] + full["macs"])
    assert total["kv_cache_bytes"] == 23 * (4096 + 8192) * 8192
    assert total["kv_cache_bytes_full"] == 46 * 8192 * 8192


def test_a_file_is_read_wherever_it_lies(mhaprof: Any, config: Callable[..., Path]) -> None:
    path = config()
    by_file = mhaprof("model", path, "--tokens", 64, "--batch", 2, "--format", "json")
    by_folder = mhaprof("model", path.parent, "--tokens", 64, "--batch", 2, "--format", "json")
    assert by_file.rows == by_folder.rows
    assert by_file.rows[0]["batch"] == 2
    assert by_file.rows[1]["kv_bytes_per_token"] == 131072


def test_decode_counts_one_token_against_the_cache(
    mhaprof: Any, config: Callable[..., Path]
) -> None:
    arguments = ("--tokens", 1000, "--phase", "decode", "--format", "json")
    row, total = mhaprof("model", config(), *arguments).rows
    assert (row["tokens"], row["kv_tokens"], row["phase"]) == (1, 1000, "decode")
    assert row["macs"] == 41943040 + 1000 * 32 * 256
    assert total["kv_cache_bytes"] == 1000 * 131072


def test_what_ifs_stand_beside_the_model(mhaprof: Any, config: Callable[..., Path]) -> None:
    path = config()
    arguments = ("model", path, "--what-if", "kv_heads=4", "--what-if", "cache_dtype=int8")
    ran = mhaprof(*arguments, "--format", "json")
    totals = [row for row in ran.rows if row["role"] == "total"]
    assert [row["what_if"] for row in totals] == [None, "kv_heads=4", "cache_dtype=int8"]
    assert [row["kv_bytes_per_token"] for row in totals] == [131072, 65536, 65536]
    table = mhaprof(*arguments).out
    assert "What if" in table
    assert "0.500" in table


def test_a_fault_is_one_line_with_its_place_and_exit_2(
    mhaprof: Any, config: Callable[..., Path]
) -> None:
    path = config(hidden_size=None)
    ran = mhaprof("model", path)
    assert ran.code == 2
    assert ran.out == ""
    said = f"mhaprof: {path}:3:3: hidden_size: is null; expected a whole number of at least 1\n"
    assert ran.err == said


def test_linear_attention_is_stated_beside_the_count_with_its_state(
    mhaprof: Any, config: Callable[..., Path]
) -> None:
    types = ["linear_attention"] * 24 + ["full_attention"] * 8
    sizes = {"linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_conv_kernel_dim": 4}
    sizes |= {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
    path = config(model_type="qwen3_next", head_dim=256, layer_types=types, **sizes)
    for more in ((), ("--partial",), ("--tokens", "9999"), ("--cache-dtype", "int4")):
        ran = mhaprof("model", path, "--format", "json", *more)
        assert ran.code == 0
        _, apart, total = ran.rows
        assert (total["layers"], total["layers_missing"], total["state_bytes"]) == (8, 24, None)
        assert (apart["role"], apart["name"], apart["layers"]) == ("apart", "linear_attention", 24)
        assert apart["state_bytes"] == 2 * (32 * 128 * 128 + 4 * (2 * 16 + 32) * 128)
        assert "24 layers of linear_attention are no softmax attention and not in" in ran.err


def test_layers_of_which_nothing_is_known_are_refused_unless_partial(
    mhaprof: Any, config: Callable[..., Path]
) -> None:
    types = ["retention"] * 24 + ["full_attention"] * 8
    path = config(model_type="qwen3_next", head_dim=256, layer_types=types)
    ran = mhaprof("model", path)
    assert ran.code == 2
    assert "layer_types: retention is not" in ran.err
    partial = mhaprof("model", path, "--partial", "--format", "json")
    assert (partial.code, partial.rows[-1]["layers"]) == (0, 8)
    assert "24 layers of retention are left out" in partial.err


def test_an_unknown_family_warns_on_standard_error_and_in_json(
    mhaprof: Any, config: Callable[..., Path]
) -> None:
    ran = mhaprof("model", config(model_type="brandnew"), "--format", "json")
    assert ran.code == 0
    assert "model_type brandnew is not known" in ran.err
    assert "model_type brandnew is not known" in ran.json["warnings"][0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "needs a config.json"),
        (("--preset", "llama-3-8b", "x.json"), "give one"),
        (("--preset", "nothing"), "`mhaprof presets` lists them"),
        (("nowhere.json",), "nowhere.json: No such file"),
        (("llama-3-8",), "llama-3-8: No such file or directory; did you mean the preset llama-3-8"),
        (("some-org/its-name",), "on the hub give hf:some-org/its-name"),
        (("--preset", "llama-3-8b", "--tokens", "8,x"), "--tokens 'x' is not a whole number"),
        (("--preset", "llama-3-8b", "--phase", "later"), "--phase 'later' is not one of"),
        (("--preset", "llama-3-8b", "--part", "left"), "--part 'left' is not one of"),
        (("--preset", "llama-3-8b", "--cache-dtype", "int3"), "--cache-dtype 'int3'"),
        (
            ("--preset", "llama-3-8b", "--tokens", "0"),
            "mhaprof: tokens 0 is not a whole number of at least 1\n",
        ),
        (("--preset", "llama-3-8b", "--batch", "0"), "batch 0 is not a whole number"),
        (("--preset", "llama-3-8b", "--kv-tokens", "0"), "kv_tokens 0 is not a whole number"),
        (("--preset", "llama-3-8b", "--what-if", "kv_heads=5"), "kv_heads must divide heads"),
        (("--preset", "llama-3-8b", "--what-if", "window=4,window=8"), "window is given twice"),
    ],
)
def test_a_wrong_request_costs_one_line(
    mhaprof: Any, arguments: tuple[str, ...], said: str
) -> None:
    ran = mhaprof("model", *arguments)
    assert ran.code == 2
    assert said in ran.err
    assert len(ran.err.splitlines()) == 1


def test_presets_are_listed_with_the_source_of_their_facts(mhaprof: Any) -> None:
    ran = mhaprof("presets", "--format", "json")
    names = [row["name"] for row in ran.rows]
    assert {"llama-3-8b", "deepseek-v3"} <= set(names)
    assert names == sorted(names)
    assert all("Source:" in row["note"] for row in ran.rows)


def test_counting_a_model_imports_no_torch(fresh_mhaprof: Any) -> None:
    ran = fresh_mhaprof("model", "--preset", "llama-3-8b", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert ran.code == 0
    assert "mhaprof.huggingface" in ran.err
    assert not re.search(r"\| +torch\n", ran.err)


def test_kv_tokens_of_a_decoding_preset_are_its_cache_in_flags_and_in_files(
    mhaprof: Any, tmp_path: Path
) -> None:
    flags = ("--preset", "deepseek-v3", "--phase", "decode", "--kv-tokens", 4096)
    by_flags = mhaprof("flops", *flags, "--format", "json").rows[-1]
    path = tmp_path / "points.yaml"
    path.write_text("version: 1\npoints: [{preset: deepseek-v3, phase: decode, kv_tokens: 4096}]\n")
    in_file = mhaprof("flops", path, "--format", "json").rows[-1]
    expected = 1536 * (7168 + 128 * 192) + 7168 * 576 + 128 * 128 * (512 + 512 + 7168)
    expected += 128 * 4096 * (576 + 512)
    for row in (by_flags, in_file):
        assert (row["tokens"], row["kv_tokens"], row["macs"]) == (1, 4096, expected)


@pytest.mark.parametrize(
    "place",
    [
        "points: [{preset: llama-3-8b, heads: 4}]",
        "defaults: {heads: 4}\npreset: llama-3-8b",
        "preset: llama-3-8b\nsweep: {heads: [4, 8]}",
    ],
)
def test_a_file_may_not_say_what_the_models_file_says(
    mhaprof: Any, tmp_path: Path, place: str
) -> None:
    path = tmp_path / "points.yaml"
    path.write_text(f"version: 1\n{place}\n")
    ran = mhaprof("flops", path)
    assert ran.code == 2
    assert "preset: heads is what the model's file says" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_what_a_model_assumes_is_said_once_wherever_it_is_named(
    mhaprof: Any, config: Callable[..., Path]
) -> None:
    source = config(model_type="brandnew")
    path = source.with_name("points.yaml")
    path.write_text("version: 1\nmodel: config.json\nsweep: {tokens: [8, 9]}\n")
    for asked in ((path,), ("--model", source, "--tokens", "8,9")):
        ran = mhaprof("flops", *asked)
        assert ran.code == 0
        assert ran.err.count("model_type brandnew is not known") == 1


def test_each_distinct_kind_of_layer_is_a_point_to_measure() -> None:
    from mhaprof.cli.model import ModelFlags
    from mhaprof.errors import UsageError

    asked = {"model": None, "preset": "gemma-2-27b", "layer": None, "part": "text"}
    asked |= {"partial": False, "assume": None}
    choice = ModelFlags.collect(asked)
    points = choice.planned({"tokens": [64, 128], "batch": [2]})
    assert [(point.name, point.spec.tokens, point.spec.batch) for point in points] == [
        ("sliding_attention tokens=64", 64, 2),
        ("full_attention tokens=64", 64, 2),
        ("sliding_attention tokens=128", 128, 2),
        ("full_attention tokens=128", 128, 2),
    ]
    with pytest.raises(UsageError, match="--qkv-bias is what the model's file says"):
        choice.planned({"qkv_bias": [True]})
    one = ModelFlags.collect(asked | {"layer": 1})
    assert [point.name for point in one.planned({"tokens": [64]})] == ["full_attention"]
    far = ModelFlags.collect(asked | {"layer": 46})
    with pytest.raises(UsageError, match="no layer 46; the last one is 45"):
        far.planned({})
    assert ModelFlags.collect(asked | {"preset": None}) is None


def test_a_preset_is_found_by_its_bare_name_and_a_list_makes_a_table_each(mhaprof: Any) -> None:
    arguments = ("llama-3-8b", "--tokens", "1024,8192", "--phase", "decode", "--batch", 2)
    ran = mhaprof("model", *arguments, "--format", "json")
    assert ran.code == 0
    totals = [row for row in ran.rows if row["role"] == "total"]
    assert [(row["kv_tokens"], row["batch"]) for row in totals] == [(1024, 2), (8192, 2)]
    assert [row["kv_cache_bytes"] for row in totals] == [2 * 2**27, 2 * 2**30]
    shown = mhaprof("model", *arguments).out
    assert "1024 tokens of cache" in shown
    assert "8192 tokens of cache" in shown


def test_what_ifs_take_lists(mhaprof: Any) -> None:
    ran = mhaprof("model", "llama-3-8b", "--what-if", "kv_heads=1,2,window=64", "--what-if",
                  "cache_dtype=fp16", "--format", "json")  # fmt: skip
    assert ran.code == 0
    totals = [row["what_if"] for row in ran.rows if row["role"] == "total"]
    assert totals == [None, "kv_heads=1,window=64", "kv_heads=2,window=64", "cache_dtype=fp16"]
    assert ran.rows[-1]["cache_dtype"] == "float16"


def test_sizes_of_a_preset_are_varied_by_their_flags(mhaprof: Any) -> None:
    arguments = ("--preset", "llama-3-8b", "--tokens", 16, "--kv-heads", "1,8,5", "--format=json")
    ran = mhaprof("flops", *arguments, "--no-reference")
    assert ran.code == 0
    one, eight, five = ran.rows
    assert [one["kv_heads"], eight["kv_heads"]] == [1, 8]
    assert one["macs_k_proj"] * 8 == eight["macs_k_proj"] == 16 * 4096 * 8 * 128
    assert one["name"].endswith("kv_heads=1")
    assert (five["reason"], five["name"]) == ("impossible_spec", "kv_heads=5")
    assert "multiple of kv_heads 5" in five["message"]
    alone = mhaprof("flops", "--preset", "llama-3-8b", "--kv-heads", 5)
    assert (alone.code, len(alone.err.splitlines())) == (2, 1)
    assert "multiple of kv_heads 5" in alone.err


def test_what_stands_apart_is_in_no_table_of_changes(mhaprof: Any) -> None:
    path = Path(__file__).with_name("configs") / "deepseek_v32.json"
    ran = mhaprof("model", path, "--what-if", "kv_lora_rank=256", "--format", "csv")
    assert "indexer" in ran.out
    table = mhaprof("model", path, "--what-if", "kv_lora_rank=256").out.split("What if")[1]
    assert "indexed_attention" in table
    assert "indexer" not in table


def test_a_key_is_ignored_on_request_alone(mhaprof: Any, config: Callable[..., Path]) -> None:
    path = config(model_type="brandnew", swa_head_dim=8)
    refused = mhaprof("model", path)
    assert refused.code == 2
    assert "--assume swa_head_dim=ignored" in refused.err
    for command in (("model", path), ("flops", "--model", path)):
        ran = mhaprof(*command, "--assume", "swa_head_dim=ignored")
        assert ran.code == 0
        assert "swa_head_dim is ignored, as was asked" in ran.err
    wrong = mhaprof("model", path, "--assume", "swa_head_dim=8")
    assert (wrong.code, "is not of the form KEY=ignored" in wrong.err) == (2, True)
