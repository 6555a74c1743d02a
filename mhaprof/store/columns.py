"""The SQLite type of each column of a flat row, and values to and from SQLite.

The types follow from the fields of the records; statistics that are derived from
samples are named here.  A column that nobody declared keeps its values as they are.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from mhaprof.formulas import EXTRA_STAGES, STAGES
from mhaprof.records import Counts, Latency, Memory, ModuleCounts
from mhaprof.spec import AttentionSpec

Kind = Literal["INTEGER", "REAL", "BOOLEAN", "TEXT", "JSON"]

_KINDS: Mapping[type, Kind] = {int: "INTEGER", float: "REAL", bool: "BOOLEAN", str: "TEXT"}

_DERIVED_INTEGERS = (
    "flops",
    "samples",
    "outliers",
    "replicates",
    *(f"macs_{stage}" for stage in (*STAGES, *EXTRA_STAGES)),
)
_DERIVED_REALS = (
    "ratio_to_reference",
    "arithmetic_intensity",
    "replicate_spread",
    "tflops_per_s",
    "tflops_per_s_exact",
    "peak_tflops_per_s",
    "peak_gbytes_per_s",
    "attained_fraction",
)
_WORDS = ("name", "role", "implementation", "status", "reason", "message", "flags", "uncounted_ops")

INT64_MAX = 2**63 - 1


@cache
def declared() -> Mapping[str, Kind]:
    """Return the kind of every column that is known."""
    kinds: dict[str, Kind] = {}
    for record in (AttentionSpec, Counts, ModuleCounts, Latency, Memory):
        kinds |= _kinds_of(record)
    kinds |= dict.fromkeys(_DERIVED_INTEGERS, "INTEGER")
    kinds |= dict.fromkeys(_DERIVED_REALS, "REAL")
    kinds |= dict.fromkeys(_WORDS, "TEXT")
    kinds |= dict.fromkeys(("identity", "environment", "lane", "finished"), "TEXT")
    kinds |= dict.fromkeys(("kwargs", "inputs"), "JSON")
    kinds["round"] = "INTEGER"
    return kinds


def kind_of(column: str) -> Kind | None:
    """Return the kind of a column; a name that ends in ``_s`` is a time in seconds."""
    return declared().get(column) or ("REAL" if column.endswith("_s") else None)


def _kinds_of(record: type[BaseModel]) -> dict[str, Kind]:
    found: dict[str, Kind] = {}
    for name, field in record.model_fields.items():
        found[name] = _kind_of_annotation(field.annotation)
    return found


def _kind_of_annotation(annotation: Any) -> Kind:
    """Return the kind of ``T`` and of ``T | None``; what is no scalar is JSON."""
    if get_origin(annotation) in (Union, types.UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        return _kind_of_annotation(members[0]) if len(members) == 1 else "JSON"
    if get_origin(annotation) is Literal:
        return "TEXT"
    return _KINDS.get(annotation, "JSON")


def sql_type(column: str) -> str:
    """Return the type to declare in SQL; lists and dicts are JSON in a TEXT column."""
    kind = kind_of(column)
    return "TEXT" if kind == "JSON" else kind or ""


def to_sql(value: Any) -> Any:
    """Return the value as SQLite takes it: lists as JSON, huge integers rounded."""
    if isinstance(value, list | dict | tuple):
        return json.dumps(value)
    return float(value) if is_big(value) else value


def is_big(value: Any) -> bool:
    """Say whether a value is an integer beyond SQLite's 64 bits."""
    return isinstance(value, int) and abs(value) > INT64_MAX


def from_sql(column: str, value: Any) -> Any:
    """Return the value as it was before ``to_sql`` (but for huge integers)."""
    if value is None:
        return None
    kind = kind_of(column)
    if kind == "BOOLEAN":
        return bool(value)
    if kind == "JSON":
        return json.loads(value) if isinstance(value, str) and value[:1] in "[{" else value
    return value
