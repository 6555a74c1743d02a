"""YAML is read as YAML 1.2, safely, and every fault has its place."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest

from mhaprof.config.yaml_source import MAX_BYTES, parse_yaml, read_text
from mhaprof.config.yaml_tree import MapNode, plain, value_at
from mhaprof.errors import ConfigError


def read(text: str) -> Any:
    tree, faults = parse_yaml(text, file="f.yaml")
    assert faults == []
    assert tree is not None
    return plain(tree)


def faults(text: str) -> list[str]:
    return [str(fault) for fault in parse_yaml(text, file="f.yaml")[1]]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e3", 1000.0),
        ("1.5", 1.5),
        (".5", 0.5),
        ("-12", -12),
        ("010", 10),
        ("0x10", 16),
        ("0o17", 15),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("Off", "Off"),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("null", None),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("'1'", "1"),
        ('"true"', "true"),
        ("!!str 12", "12"),
        ("!!float 12", 12),
        ("0b1", "0b1"),
        ("1__0", "1__0"),
        ("\u0661", "\u0661"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    found = read(f"a: {text}")["a"]
    assert found == value
    assert type(found) is type(value)


def test_infinities_are_numbers() -> None:
    assert read("[.inf, -.INF]") == [math.inf, -math.inf]
    assert math.isnan(read("[.nan]")[0])


def test_a_yaml_1_1_directive_does_not_bring_back_its_booleans() -> None:
    assert read("%YAML 1.1\n---\na: no") == {"a": "no"}


def test_values_and_keys_know_their_place() -> None:
    tree, _ = parse_yaml("a: 1\nb:\n  - x\n  - {c: 2}\n", file="f.yaml")
    assert isinstance(tree, MapNode)
    place = value_at(tree, ("b", 1, "c"))
    assert (place.line, place.column) == (4, 9)
    key = tree.key("b")
    assert key is not None
    assert (key.line, key.column) == (2, 1)


def test_merge_keys_take_over_what_is_not_given() -> None:
    text = "base: &b {x: 1, y: 2}\nother: &o {y: 3, z: 4}\nboth: {<<: [*b, *o], x: 9}"
    assert read(text)["both"] == {"x": 9, "y": 2, "z": 4}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: 1\nb: 2\na: 3", "f.yaml:3:1: a: is given twice, first on line 1; keep one"),
        ("a: *x", "f.yaml:1:4: *x: there is no anchor &x before it"),
        ("a: &x [*x]", "f.yaml:1:8: *x: an alias inside its own anchor has no end"),
        ("a: !foo 1", "f.yaml:1:4: !foo: tags are not read here; leave the tag out"),
        ("a: !!int x", "f.yaml:1:4: !!int: x is not of that type"),
        ("a: !!map 1", "f.yaml:1:4: tag:yaml.org,2002:map: tags are not read here; "),
        ("[1]: 2", "f.yaml:1:1: key: a list or mapping is a key; expected a word"),
        ("a\n---\nb", "f.yaml:2:1: yaml: a second document; expected one in a file"),
        ("a: b: c", "f.yaml:1:5: yaml: mapping values are not allowed here"),
        ("a: {<<: 3}", "f.yaml:1:5: <<: expected a mapping or a list of mappings"),
        ("a: '\x00'", "f.yaml:1:5: yaml: unacceptable character #x0000"),
        ('"\\U99999999"', "f.yaml:1:1: yaml: cannot be read after this place: "),
        ("%YAML 1.9\n---\na", "f.yaml:1:1: yaml: cannot be read after this place: "),
        ("a: [1", "f.yaml:1:6: yaml: while parsing a flow sequence: expected ',' or ']'"),
    ],
)
def test_what_cannot_be_read_says_where_and_why(text: str, fault: str) -> None:
    (found,) = faults(text)
    assert found.startswith(fault)


def test_python_objects_are_never_made() -> None:
    (found,) = faults("a: !!python/object/apply:os.system [echo]")
    assert "tags are not read here" in found


def test_tabs_are_named_as_the_trouble() -> None:
    (found,) = faults("a:\n\tb: 1")
    assert found.startswith("f.yaml:2:1: yaml:")
    assert "indent with spaces, not tabs" in found


def test_faults_that_leave_a_tree_are_told_together() -> None:
    assert len(faults("a: !x 1\nb: {c: 1, c: 2}\nb: 3")) == 3


def test_billion_laughs_are_refused_at_once() -> None:
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{i + 1}: &a{i + 1} [{','.join([f'*a{i}'] * 10)}]" for i in range(30)]
    started = time.perf_counter()
    (found,) = faults("\n".join(lines))
    assert "more than 200000 values" in found
    assert time.perf_counter() - started < 20


@pytest.mark.parametrize("text", ["[" * 5000, "- " * 5000, "? " * 5000, "{a: " * 5000])
def test_deep_nesting_is_refused_where_it_is_too_deep(text: str) -> None:
    (found,) = faults(text)
    assert found.startswith("f.yaml:1:")
    assert "nested deeper than 20 levels" in found


def test_aliases_do_not_hide_deep_nesting() -> None:
    lines = ["a0: &a0 [x]"] + [f"a{i + 1}: &a{i + 1} [*a{i}]" for i in range(40)]
    assert "nested deeper than 20 levels" in faults("\n".join(lines))[0]


def test_a_number_of_very_many_digits_is_refused() -> None:
    (found,) = faults("a: " + "9" * 10000)
    assert found.startswith("f.yaml:1:4: 9999")
    assert found.endswith("has more than 60 digits")


@pytest.mark.parametrize("text", ["", "# only a comment", "---\n...\n", "\n\n"])
def test_a_document_without_value_has_no_tree(text: str) -> None:
    tree, found = parse_yaml(text, file="f.yaml")
    assert found == []
    assert tree is None or plain(tree) is None


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_text(path)
    return str(caught.value).removeprefix(str(path))


def test_files_that_cannot_be_read_are_one_line(tmp_path: Path) -> None:
    assert refused(tmp_path / "none.yaml") == ":1:1: file: there is no such file"
    assert refused(tmp_path) == ":1:1: file: this is a directory; expected a YAML file"
    assert ":1:1: file: cannot be read" in refused(Path("a\0b"))
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: 1\nb: \xe9\n")
    assert refused(latin) == ":2:4: file: byte 0xe9 is not UTF-8; save the file as UTF-8"
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (MAX_BYTES + 1))
    assert "larger than" in refused(large)


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    marked = tmp_path / "marked.yaml"
    marked.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    assert read(read_text(marked)) == {"a": 1, "b": 2}
