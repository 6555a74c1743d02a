"""The JSON Schema says what the loader does; the shipped configurations are valid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mhaprof import module_source
from mhaprof.config import load_config, schema_text
from mhaprof.config.values import INPUT_DTYPES
from mhaprof.config.yaml_source import parse_yaml
from mhaprof.config.yaml_tree import plain
from mhaprof.formulas import total_macs
from mhaprof.spec import PartialSpec

CONFIGS = Path(__file__).parents[2] / "configs"
SHIPPED = sorted(CONFIGS.glob("*.yaml"))
HEADER = "# yaml-language-server: $schema=schema.json"


def macs(name: str) -> dict[str, int]:
    config = load_config(CONFIGS / name)
    return {point.name: total_macs(point.spec) for point in config.entries if point.spec}


def test_the_committed_schema_is_the_one_that_the_code_prints() -> None:
    assert (CONFIGS / "schema.json").read_text() == schema_text()


def test_all_kinds_of_sweeps_are_shipped() -> None:
    names = {path.name for path in SHIPPED}
    sweeps = {"head-sweep.yaml", "batch-sweep.yaml", "gqa-sweep.yaml", "long-context.yaml"}
    assert sweeps | {"paper-claim.yaml"} <= names


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_each_shipped_file_loads_and_names_its_schema(path: Path) -> None:
    config = load_config(path)
    assert config.name == path.stem
    assert config.entries
    assert not [point for point in config.entries if point.skip and point.skip.code != "excluded"]
    assert path.read_text().splitlines()[0] == HEADER


def test_the_papers_claim_is_in_its_file() -> None:
    counted = macs("paper-claim.yaml")
    assert counted["one full head, no W_O"] == 60129542144
    assert counted["8 heads, W_O"] == 68719476736
    assert counted["8 heads, no W_O"] == 60129542144
    specs = [point.spec for point in load_config(CONFIGS / "paper-claim.yaml").entries]
    assert {spec.heads for spec in specs if spec} == {1, 2, 4, 8, 16, 32}
    assert set(counted.values()) == {60129542144, 68719476736}


def test_heads_do_not_change_the_count_and_lengths_do() -> None:
    assert len(set(macs("head-sweep.yaml").values())) == 1
    assert len(set(macs("long-context.yaml").values())) == 11


SCHEMA: dict[str, Any] = json.loads(schema_text())


def test_the_schema_is_of_draft_2020_12_and_has_no_tuples() -> None:
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert "prefixItems" not in schema_text()


def test_the_schema_describes_every_field_of_a_spec_everywhere() -> None:
    for section in ("PointSection", "DefaultsSection", "Sweep", "ZipGroup"):
        properties = SCHEMA["$defs"][section]["properties"]
        assert set(PartialSpec.model_fields) <= set(properties)
        assert all("description" in properties[name] for name in PartialSpec.model_fields)
    assert SCHEMA["additionalProperties"] is False


VALID = """\
version: 1
defaults: {window: null, causal: true, implementations: eager}
points: [{name: a, softcap: 1.5}, {module: "a:B", inputs: 2x3, kwargs: {x: [1, {y: 2}]}}]
sweep:
  - {heads: [1, {pow2: [2, 8]}], tokens: {range: [1, 9]}, out_proj: [true, false], window: [null]}
  - {zip: [{heads: [1, 2], causal: [none, true]}], exclude: heads > 1}
settings: {device: [cpu, "cuda:0"], precision: 1%, threads: 2, seed: 0}
measure: flops
"""

INVALID = [
    "points: [{heads: 0}]",
    "points: [{heads: '8'}]",
    "points: [{heads: [8]}]",
    "points: [{causal: up}]",
    "points: [{nme: x}]",
    "points: []",
    "sweep: {heads: []}",
    "sweep: {heads: {pow2: [1, 2, 3]}}",
    "sweep: {heads: {pow3: [1, 2]}}",
    "sweep: {out_proj: 'yes'}",
    "settings: {device: tpu}",
    "settings: {device: 'xpu:0'}",
    "settings: {min_time: 0}",
    "settings: {threads: 0}",
    "settings: {seed: -1}",
    "measure: speed",
    "reference: 'no'",
    "module: a.B",
    "inputs: 2x",
]


def errors(text: str) -> list[Any]:
    jsonschema = pytest.importorskip("jsonschema")
    tree, _ = parse_yaml(text, file="f")
    assert tree is not None
    return list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(plain(tree)))


def test_the_schema_is_a_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_each_shipped_file_is_valid_in_the_schema(path: Path) -> None:
    assert errors(path.read_text()) == []


def test_the_schema_takes_what_the_loader_takes() -> None:
    assert errors(VALID) == []


@pytest.mark.parametrize("text", INVALID)
def test_the_schema_refuses_what_the_loader_refuses(text: str) -> None:
    assert errors(f"version: 1\n{text}")


@pytest.mark.parametrize("dtype", INPUT_DTYPES)
def test_inputs_of_modules_have_the_dtypes_that_counting_knows(dtype: str) -> None:
    assert module_source.parse_input(f"2x3:{dtype}").dtype == dtype
