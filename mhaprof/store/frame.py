"""A result file as a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mhaprof.store.columns import INT64_MAX, Kind, kind_of
from mhaprof.store.reading import CHUNK, Reader

if TYPE_CHECKING:
    import pandas as pd

_DTYPES: Mapping[Kind, str] = {
    "INTEGER": "Int64",
    "REAL": "float64",
    "BOOLEAN": "boolean",
    "TEXT": "object",
    "JSON": "object",
}
"""Nullable types: an integer column with a gap keeps exact integers."""


def load(path: str | Path) -> pd.DataFrame:
    """Return the rows of a result file, one a point and round, in the order of the plan.

    The columns are those of ``mhaprof results --format csv``.  Counts are integers
    (``Int64``, or Python ints where a count exceeds 64 bits); what does not exist is
    missing.  Raises UsageError when the file is missing, damaged, newer or not ours.
    """
    import pandas as pd

    with Reader(Path(path)) as reader:
        columns = reader.columns()
        values: list[list[Any]] = [[] for _ in columns]
        chunk: list[tuple[Any, ...]] = []
        for row in reader.tuples(columns):
            chunk.append(row)
            if len(chunk) == CHUNK:
                _append(values, chunk)
        _append(values, chunk)
    return pd.DataFrame(
        {
            name: pd.Series(column, dtype=_dtype(name, column))
            for name, column in zip(columns, values, strict=True)
        }
    )


def _append(values: list[list[Any]], chunk: list[tuple[Any, ...]]) -> None:
    """Move rows to columns, so that no more than a chunk of tuples ever exists."""
    for column, part in zip(values, zip(*chunk, strict=True), strict=False):
        column.extend(part)
    chunk.clear()


def _dtype(name: str, column: list[Any]) -> str:
    kind = kind_of(name)
    if kind == "INTEGER" and any(value is not None and abs(value) > INT64_MAX for value in column):
        return "object"
    return _DTYPES[kind] if kind else "object"
