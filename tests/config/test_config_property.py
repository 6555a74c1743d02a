"""Any text is a plan or located errors: never another exception, never a long wait."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from mhaprof.config import Config, load_config, parse_config, schema_text
from mhaprof.config.file import SYNONYMS, FileSection, SettingsSection
from mhaprof.config.yaml_source import parse_yaml
from mhaprof.config.yaml_tree import plain
from mhaprof.errors import ConfigError
from mhaprof.spec import PartialSpec

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
LINES = [line for path in CONFIGS for line in path.read_text().splitlines() if line]
SCHEMA: dict[str, Any] = json.loads(schema_text())
DEFAULTS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def plan_or_faults(text: str) -> Config | None:
    """Load a text; check what every outcome has to be."""
    try:
        config = parse_config(text, file="f.yaml", allow_import=True)
    except ConfigError as error:
        check_faults(error, lines=max(text.count("\n"), text.count("\r")) + 2)
        return None
    names = [point.name for point in config.entries]
    assert names
    assert len(set(names)) == len(names)
    for point in config.entries:
        kinds = [point.spec, point.module, point.model]
        assert any(kinds) or (point.skip is not None and point.skip.code == "impossible_spec")
    return config


def check_faults(error: ConfigError, *, lines: int) -> None:
    assert error.faults
    assert len(str(error).splitlines()) == len(error.faults)
    for fault in error.faults:
        assert fault.file == "f.yaml"
        assert 1 <= fault.line <= lines
        assert fault.column >= 1
        assert fault.message


@DEFAULTS
@given(st.text(max_size=200))
def test_random_text_is_a_plan_or_located_errors(text: str) -> None:
    plan_or_faults(text)


SNIPPETS = [
    *("- ", "? ", ": ", ", ", "{", "}", "[", "]", "&a ", "*a", "!t ", "!!int ", "<<: ", "|\n"),
    *("'", '"', "\\U", "# ", "\n", "\n  ", "\t", "---\n", "...\n", "%YAML 1.", "%TAG ! "),
    *("version: 1\n", "points:", "sweep:", "heads:", "zip:", "pow2", "1e3", "~"),
    *("\0", "\ufeff", "\x85", "\u2028"),
]


@DEFAULTS
@given(st.lists(st.sampled_from(SNIPPETS), max_size=25).map("".join))
def test_the_signs_of_yaml_in_any_order_are_a_plan_or_located_errors(text: str) -> None:
    plan_or_faults(text)


@DEFAULTS
@given(st.lists(st.sampled_from(LINES), max_size=15).map("\n".join))
def test_lines_of_good_files_in_any_order_are_a_plan_or_located_errors(text: str) -> None:
    plan_or_faults(text)


@DEFAULTS
@given(
    st.sampled_from(CONFIGS),
    st.integers(0, 2000),
    st.integers(0, 8),
    st.one_of(st.text(max_size=6), st.sampled_from(SNIPPETS)),
)
def test_good_files_with_a_wound_are_a_plan_or_located_errors(
    path: Path, at: int, removed: int, inserted: str
) -> None:
    text = path.read_text()
    at %= len(text)
    plan_or_faults(text[:at] + inserted + text[at + removed :])


FIELDS = list(PartialSpec.model_fields)
OTHER_KEYS = [*FileSection.model_fields, *SettingsSection.model_fields, "pow2", "range", "<<", ""]
KEYS = st.sampled_from([*FIELDS, *OTHER_KEYS, *list(SYNONYMS)[:4]])
WORDS = ["none", "top-left", "decode", "eager", "a:B", "2x3", "1%", "heads > 4", "cpu"]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 70),
    st.integers(),
    st.floats(),
    st.sampled_from(WORDS),
    st.text(max_size=5),
)
TREES = st.recursive(
    VALUES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=5)),
    max_leaves=20,
)
SPEC_LISTS = st.dictionaries(
    st.sampled_from(FIELDS),
    st.one_of(st.lists(st.sampled_from([None, 1, 2, 3, 4, 64, True, "none"]), max_size=3), VALUES),
    max_size=4,
)


def dumped(value: object) -> str:
    stream = io.StringIO()
    YAML(typ="safe", pure=True).dump(value, stream)
    return stream.getvalue()


@DEFAULTS
@given(TREES)
def test_any_structure_is_a_plan_or_located_errors(tree: Any) -> None:
    plan_or_faults(dumped(tree))


NEARLY_VALID = st.fixed_dictionaries(
    {"version": st.just(1)},
    optional={
        "points": st.lists(SPEC_LISTS, max_size=3),
        "sweep": SPEC_LISTS,
        "defaults": st.one_of(SPEC_LISTS, TREES),
        "settings": TREES,
        "exclude": st.lists(st.sampled_from(["heads > 2", "dim / (heads - 2) > 1", "hed"])),
        "zip": st.lists(SPEC_LISTS, max_size=2),
    },
)


@DEFAULTS
@given(NEARLY_VALID)
def test_nearly_valid_structures_are_a_plan_or_located_errors(tree: Any) -> None:
    plan_or_faults(dumped(tree))


@DEFAULTS
@given(
    st.fixed_dictionaries(
        {"version": st.just(1)}, optional={"points": SPEC_LISTS, "sweep": SPEC_LISTS}
    )
)
def test_what_the_loader_takes_the_schema_takes(tree: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    text = dumped(tree)
    if plan_or_faults(text) is not None:
        read, _ = parse_yaml(text, file="f.yaml")
        assert read is not None
        jsonschema.Draft202012Validator(SCHEMA).validate(plain(read))


@DEFAULTS
@given(st.binary(max_size=100))
def test_any_bytes_in_a_file_are_a_plan_or_located_errors(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content)
    with contextlib.suppress(ConfigError):
        assert load_config(path).entries
