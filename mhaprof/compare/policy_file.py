"""Read a policy from YAML: every fault with its line and column, all of them at once."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from mhaprof.compare.policy import (
    PRESETS,
    Floors,
    Metrics,
    PointRules,
    Policy,
    Statuses,
    Thresholds,
    overlaid,
    preset,
)
from mhaprof.config.yaml_source import parse_yaml, read_text
from mhaprof.config.yaml_tree import MapNode, Node, plain, value_at
from mhaprof.errors import ConfigError, LocatedFault

Place = tuple[int | str, ...]
_EXPECTED = {
    "greater_than": "a fraction above 0, such as 0.05 for 5 %",
    "less_than": "a smaller fraction, such as 0.05 for 5 %",
    "greater_than_equal": "a number of at least 0",
    "float_parsing": "a number",
    "float_type": "a number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "tuple_type": "a list",
}


def load_policy(name: str | None) -> Policy:
    """Return a preset by name, or the policy of a YAML file; None is ``default``.

    Raises UsageError when the name is neither, ConfigError with every located fault
    of the file.
    """
    if name is None or name in PRESETS:
        return preset(name or "default")
    path = Path(name)
    if not path.exists() and path.suffix not in (".yaml", ".yml"):
        return preset(name)
    return parse_policy(read_text(path), file=name)


def parse_policy(text: str, *, file: str) -> Policy:
    """Return the policy that YAML text describes, completed from its preset.

    Raises ConfigError with every located fault.
    """
    root, faults = parse_yaml(text, file=file)
    if root is None or faults:
        raise ConfigError(faults or [_fault(file, None, "file", "is empty; expected a policy")])
    if not isinstance(root, MapNode):
        raise ConfigError([_fault(file, root, "file", "expected a mapping with the key version")])
    if root.value("version") is None:
        faults.append(_fault(file, root, "version", "is missing; expected version: 1"))
    given: dict[str, Any] = plain(root)
    extends = given.get("extends")
    base = PRESETS[extends if isinstance(extends, str) and extends in PRESETS else "default"]
    merged = overlaid(base, given)
    faults += _faults_of(Policy, merged, root, (), file)
    if not faults:
        faults += _faults_in_points(merged, root, file)
    if faults:
        raise ConfigError(faults)
    return Policy.model_validate(merged)


def _faults_in_points(merged: dict[str, Any], root: Node, file: str) -> list[LocatedFault]:
    """Check the partial rules of each point pattern against complete ones."""
    faults: list[LocatedFault] = []
    for place, rule in enumerate(merged["points"]):
        overlay = overlaid(merged["metrics"], rule["metrics"])
        faults += _faults_of(Metrics, overlay, root, ("points", place, "metrics"), file)
    return faults


def _faults_of(
    model: type[Policy] | type[Metrics], values: Any, root: Node, prefix: Place, file: str
) -> list[LocatedFault]:
    try:
        model.model_validate(values)
    except ValidationError as error:
        found = {}
        for detail in error.errors():
            if isinstance(detail["input"], dict) and detail["type"] == "float_type":
                continue  # the other half of a union: a mapping is allowed there
            path = prefix + _existing(detail["loc"], values)
            if detail["type"] == "missing":
                path = (*path, detail["loc"][-1])
            fault = _located(file, root, path, detail)
            found[(fault.line, fault.column, fault.key)] = fault
        return list(found.values())
    return []


def _existing(loc: Sequence[int | str], values: Any) -> Place:
    """Drop from a location what names a member of a union instead of a key."""
    path: list[int | str] = []
    for step in loc:
        inside = values.get(step, ...) if isinstance(values, dict) else ...
        if isinstance(values, list | tuple) and isinstance(step, int):
            inside = values[step]
        if inside is not ...:
            path.append(step)
            values = inside
    return tuple(path) or tuple(loc)


def _located(file: str, root: Node, path: Place, detail: ErrorDetails) -> LocatedFault:
    """Word one fault and find its place: the key if that is wrong, else the value."""
    name = str(path[-1])
    parent = value_at(root, path[:-1])
    if detail["type"] == "extra_forbidden":
        key = parent.key(name) if isinstance(parent, MapNode) else None
        return _fault(file, key or parent, name, _unknown(name, path[:-1]))
    if detail["type"] == "missing":
        return _fault(file, parent, name, "is missing")
    if detail["type"] == "literal_error":
        expected = detail["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
        expected = f"one of {expected}" if "," in expected else expected
    else:
        expected = _EXPECTED.get(detail["type"], detail["msg"])
    message = f"{_shown(detail['input'])} was given; expected {expected}"
    return _fault(file, value_at(root, path), name, message)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return "nothing" if value is None else repr(value)


def _unknown(name: str, path: Place) -> str:
    """Say that a key is not known here, and which one may be meant."""
    known = _known_keys(path)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
    return f"is not a key of a policy here; {hint}"


def _known_keys(path: Place) -> list[str]:
    words = [step for step in path if isinstance(step, str)]
    if not words:
        return list(Policy.model_fields)
    by_key: dict[str, type[BaseModel]] = {
        "metrics": Metrics,
        "status": Statuses,
        "points": PointRules,
        "threshold": Thresholds,
        "floor_s": Floors,
    }
    if words[-1] in by_key:
        return list(by_key[words[-1]].model_fields)
    rule: Any = Metrics.model_fields[words[-1]].annotation
    return list(rule.model_fields)


def _fault(file: str, node: Node | None, key: str, message: str) -> LocatedFault:
    line, column = (node.line, node.column) if node else (1, 1)
    return LocatedFault(file=file, line=line, column=column, key=key, message=message)
