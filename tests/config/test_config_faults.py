"""Every fault of a file is told at once, each where it is, with what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from mhaprof.config import ModelSource, parse_config
from mhaprof.errors import ConfigError, Fault, LocatedFault, MissingExtra, SpecError, UsageError


def faults(text: str, **keywords: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, file="f.yaml", **keywords)
    assert caught.value.exit_code == 2
    return str(caught.value).splitlines()


def fault(text: str, **keywords: Any) -> str:
    """Return the one fault of a file whose first line is the version."""
    (only,) = faults("version: 1\n" + text, **keywords)
    return only


BROKEN = """\
version: 1
defaults: {dim: 512, dim: 256}
points:
  - {nme: x, kvheads: 7, heads: eight}
  - {name: b, heads: 7, kv_heads: 3}
  - {name: b, d_model: 3}
sweep:
  heads: [1, 0, {pow3: 4}, {pow2: [3, 9]}]
  out_proj: [yes]
  exclude: [dim %, 3, "hed > 3"]
  zip: [{dim: [1, 2], tokens: 3}]
settings: {device: tpu, precision: 3, min_time: -1, heads: 3}
measure: [flops, speed]
reference: no
zzz: 1
kwargs: {}
"""


def test_all_faults_of_a_file_are_told_at_once_in_the_order_of_the_file() -> None:
    assert faults(BROKEN) == [
        "f.yaml:2:22: dim: is given twice, first on line 2; keep one",
        "f.yaml:4:6: nme: unknown key; did you mean name?",
        "f.yaml:4:14: kvheads: unknown key; did you mean kv_heads?",
        "f.yaml:4:33: heads: 'eight' is not a whole number of at least 1",
        "f.yaml:5:22: heads: dim 512 is not divisible by heads 7; give head_dim",
        "f.yaml:5:35: kv_heads: heads 7 is not a multiple of kv_heads 3; "
        "kv_heads must divide heads",
        "f.yaml:6:15: d_model: unknown key; did you mean dim?",
        "f.yaml:8:14: heads: 0 is not a whole number of at least 1",
        'f.yaml:8:17: heads: {"pow3": 4}: expected {pow2: [64, 8192]} or {range: [8, 64, 8]}',
        'f.yaml:8:28: heads: {"pow2": [3, 9]}: pow2 goes from one power of two to another, '
        "and 3 is none; the nearest are 2 and 4",
        "f.yaml:9:14: out_proj: 'yes' is not true or false",
        "f.yaml:10:13: exclude: 'dim %': is not understood at character 1; expected a condition "
        "as dim % heads != 0",
        "f.yaml:10:20: exclude: 3 is not a condition such as 'dim % heads != 0'",
        "f.yaml:10:23: exclude: 'hed > 3': hed at character 1 is not a field; did you mean heads?",
        "f.yaml:11:9: zip: tokens has 1, dim has 2 values; zip takes as many of each",
        "f.yaml:12:20: device: 'tpu' is not one of auto, cpu, gpu, cuda, cuda:N, mps, xpu",
        "f.yaml:12:36: precision: 3 is not a fraction between 0 and 1, such as 0.01 or 1%",
        "f.yaml:12:49: min_time: -1 is not a number above 0",
        "f.yaml:12:53: heads: unknown key here; it belongs under defaults, a point or a sweep",
        "f.yaml:13:18: measure: 'speed' is not one of flops, latency, memory",
        "f.yaml:14:12: reference: 'no' is not true or false",
        "f.yaml:15:1: zzz: unknown key; expected one of version, name, defaults, points, sweep, "
        "zip, exclude, measure, settings, reference, model, preset, module, kwargs, inputs",
        "f.yaml:16:9: kwargs: belongs to a module, and none is given",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1:1: file: the file is empty; start with version: 1, then points or sweep"),
        (
            "- a",
            "1:1: file: a list is not a mapping of keys; start with version: 1, then points or "
            "sweep",
        ),
        (
            "a",
            "1:1: file: a single value is not a mapping of keys; start with version: 1, then "
            "points or sweep",
        ),
        ("points: {}", "1:1: version: is missing; add version: 1"),
        ("version: '1'\npoints: {}", "1:10: version: '1' is not 1"),
        (
            "version: 2\nnew: thing",
            "1:10: version: 2 is newer than 1, which this mhaprof reads; upgrade mhaprof",
        ),
        ("version: 1", "1:1: points: nothing to measure; give points, sweep, model or module"),
        (
            "version: 1\npoints: []",
            "2:9: points: the list is empty; expected at least one value",
        ),
        ("version: 1\npoints: 3", "2:9: points: 3 is not a mapping"),
        ("version: 1\nsweep: {heads: []}", None),
    ],
)
def test_what_is_no_configuration_says_what_one_starts_with(text: str, message: str) -> None:
    message = message or "2:16: heads: the list is empty; expected at least one value"
    assert faults(text) == [f"f.yaml:{message}"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("points: {heads: true}", "2:17: heads: true is not a whole number of at least 1"),
        ("points: {tokens: 1.5}", "2:18: tokens: 1.5 is not a whole number of at least 1"),
        ("points: {softcap: '30'}", "2:19: softcap: '30' is not a number above 0"),
        ("points: {softcap: .inf}", "2:19: softcap: Infinity is not a number above 0"),
        (
            "points: {causal: up}",
            "2:18: causal: 'up' is not one of none, top-left, bottom-right",
        ),
        ("points: {name: 3}", "2:16: name: 3 is not text; put it in quotes"),
        ("points: {dtype: x}", "2:10: dtype: unknown key here; it belongs under settings"),
        ("points: {measure: x}", "2:10: measure: unknown key here; it belongs at the top level"),
        (
            "heads: 8\npoints: {}",
            "2:1: heads: unknown key here; it belongs under defaults, a point or a sweep",
        ),
        ("name: a/b\npoints: {}", "2:7: name: 'a/b' is not a name that a file can have"),
        ("points: {}\nsettings: {threads: 0}", None),
        (
            "points: {implementations: 'a b'}",
            "2:27: implementations: 'a b' is not the name of an implementation "
            "(`mhaprof implementations` lists them)",
        ),
        (
            "points: [{name: a}, {name: a, heads: 4}]",
            "2:28: name: a is the name of the point on line 2 too; rename one",
        ),
        (
            "sweep: {heads: 4, zip: {heads: [1, 2]}}",
            "2:8: sweep: heads varies twice; keep it in the grid or in one zip group",
        ),
        (
            "sweep: {heads: 4}\nzip: {heads: [1, 2]}",
            "3:14: heads: varies in a sweep too; keep it in one of the two",
        ),
        ("sweep: {zip: {}}", "2:14: zip: the group is empty; expected fields with lists"),
        (
            "sweep: {tokens: {range: [1, 9, 2, 3]}}",
            '2:17: tokens: {"range": [1, 9, 2, 3]}: range takes [first, last, step]',
        ),
        (
            "sweep: {heads: 3, exclude: causal > 3}",
            "2:28: exclude: 'causal > 3' has no answer: 'none' and 3 have no order",
        ),
        (
            "defaults: {heads: 7}\npoints: [{name: a}]",
            "2:19: heads: dim 512 is not divisible by heads 7; give head_dim",
        ),
        (
            "points: [{heads: 7, dim: 512}]",
            "2:18: heads: dim 512 is not divisible by heads 7; give head_dim",
        ),
        (
            "points: [{name: a, phase: decode, tokens: 3}]",
            "2:43: tokens: phase decode computes one query token, tokens 3 was given; give "
            "kv_tokens 3 for the cache",
        ),
        (
            "points: [{name: a, kv_lora_rank: 8, qk_nope_head_dim: 4, qk_rope_head_dim: 4}]",
            "2:10: v_head_dim: latent attention needs v_head_dim; give v_head_dim",
        ),
        (
            "points: [{model: a, preset: b}]",
            "2:29: preset: model is given too; keep one of them",
        ),
        ("points: [{inputs: 2x3}]", "2:19: inputs: belongs to a module, and none is given"),
    ],
)
def test_a_fault_says_where_it_is_what_was_given_and_what_is_expected(
    text: str, message: str | None
) -> None:
    message = message or "3:21: threads: 0 is not a number of at least 1"
    assert fault(text) == f"f.yaml:{message}"


def test_keys_that_come_by_an_anchor_are_placed_where_they_are_written() -> None:
    text = "defaults: &d {dim: 64}\npoints: [{<<: *d, name: a, heads: 7, head_dim: x}]"
    assert fault(text) == "f.yaml:3:48: head_dim: 'x' is not a whole number of at least 1"


@pytest.mark.parametrize(
    ("text", "place", "name"),
    [
        ("module: a:B\ninputs: '2'", "2:9: module", "a:B"),
        ("points: [{module: a:B, inputs: '2'}]", "2:19: module", "a:B"),
        ("points: [{implementations: [eager, a:B]}]", "2:36: implementations", "a:B"),
        ("defaults: {implementations: a:B}\npoints: {}", "2:29: implementations", "a:B"),
        ("sweep: {implementations: a:B, heads: 2}", "2:26: implementations", "a:B"),
    ],
)
def test_code_is_imported_only_where_that_is_allowed(text: str, place: str, name: str) -> None:
    assert fault(text) == (
        f"f.yaml:{place}: {name} is code that would be imported; give --allow-import if you "
        "trust this file"
    )
    assert parse_config("version: 1\n" + text, file="f", allow_import=True).entries


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("module: a:B", "1:1: inputs: is missing; expected shapes such as [2x128x64]"),
        (
            "module: a.b\ninputs: '2'",
            "2:9: module: 'a.b' is not of the form package.module:Class",
        ),
        (
            "module: a:B\ninputs: [2x0]",
            "3:10: inputs: '2x0' is not sizes like 2x128x64, with a dtype after a colon if not "
            "float32 (2x128:int64)",
        ),
        ("module: a:B\ninputs: '2'\nkwargs: 3", "4:9: kwargs: 3 is not a mapping"),
        (
            "points: [{module: a:B, inputs: '2', heads: 3}]",
            "2:44: heads: a module is counted as it is; give it kwargs and inputs instead",
        ),
    ],
)
def test_modules_say_what_they_miss(text: str, message: str) -> None:
    assert fault(text, allow_import=True) == f"f.yaml:{message}"


def test_unknown_implementations_are_named_with_the_nearest() -> None:
    text = "version: 1\npoints: [{implementations: [eagr, spda, sdpa, zzz]}]"
    assert faults(text, implementations=["eager", "sdpa"]) == [
        "f.yaml:2:29: implementations: eagr is not an implementation; did you mean eager?",
        "f.yaml:2:35: implementations: spda is not an implementation; did you mean sdpa?",
        "f.yaml:2:47: implementations: zzz is not an implementation; expected one of eager, sdpa",
    ]


@pytest.mark.parametrize(
    ("error", "messages"),
    [
        (
            SpecError([Fault(field="heads", message="heads 7 is odd")]),
            ["f.yaml:2:18: model: heads 7 is odd"],
        ),
        (UsageError("no such preset"), ["f.yaml:2:18: model: no such preset"]),
        (
            MissingExtra(package="huggingface_hub", extra="hf", purpose="hf:org/name"),
            ["f.yaml:2:18: model: hf:org/name needs huggingface_hub: pip install 'mhaprof[hf]'"],
        ),
        (
            ConfigError(
                [LocatedFault(file="m.json", line=3, column=4, key="heads", message="is odd")]
            ),
            ["m.json:3:4: heads: is odd"],
        ),
    ],
)
def test_what_a_model_refuses_is_placed_at_the_model(
    error: UsageError, messages: list[str]
) -> None:
    def refuse(source: ModelSource, fields: Mapping[str, Any]) -> Iterable[Any]:
        raise error

    text = "version: 1\npoints: [{model: m}]"
    assert faults(text, read_model=refuse) == messages


def test_a_what_if_that_a_model_cannot_do_is_a_skip_in_a_sweep() -> None:
    def refuse(source: ModelSource, fields: Mapping[str, Any]) -> Iterable[Any]:
        raise SpecError([])

    text = "version: 1\nmodel: m\nsweep: {heads: [7, 8]}"
    config = parse_config(text, file="f", read_model=refuse)
    assert [point.skip and point.skip.code for point in config.entries] == ["impossible_spec"] * 2


def test_a_condition_without_answer_is_told_once() -> None:
    text = "sweep: {heads: [1, 2, 4], exclude: heads > 'a'}"
    assert fault(text).startswith("f.yaml:2:36: exclude: \"heads > 'a'\" has no answer: 1 and")


def test_no_line_break_or_escape_of_a_file_reaches_the_terminal() -> None:
    text = 'points: {"a\\e[31m\\nb": 1}\nsettings: {device: "\\e[2J"}'
    assert faults("version: 1\n" + text) == [
        "f.yaml:2:10: a\\x1b[31m\\nb: unknown key; expected one of batch, tokens, kv_tokens, dim, "
        "heads, kv_heads, head_dim, v_head_dim, out_proj, kv_proj, qkv_bias, k_bias, out_bias, "
        "causal, window, chunk, phase, qk_norm, output_gate, sinks, ...",
        "f.yaml:3:20: device: '\\x1b[2J' is not one of auto, cpu, gpu, cuda, cuda:N, mps, xpu",
    ]


@pytest.mark.parametrize("escape", ["\\n", "\\e[31m", "\\x7f", "\\x9b31m"])
def test_a_name_holds_nothing_that_a_terminal_obeys(escape: str) -> None:
    (fault,) = faults(f'version: 1\npoints: [{{name: "a{escape}", heads: 8}}]')
    assert fault.startswith("f.yaml:2:17: name: ")
    assert fault.isprintable()
    assert "line breaks and escapes not among them" in fault
