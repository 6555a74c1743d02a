"""A result file as a pandas DataFrame."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mhaprof.store.columns import Kind, from_sql, kind_of
from mhaprof.store.database import PLAN_COLUMN
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


def load(path: str | Path, *, every_plan: bool = False) -> pd.DataFrame:
    """Return the rows of a result file, one a point and round, in the order of the plan.

    Rows that only earlier plans asked for are left out, with a warning; ``every_plan`` has
    them too, told apart by the column ``plan``.
    The columns are those of ``mhaprof results --format csv``.  Counts are integers
    (``Int64``, or Python ints where a count exceeds 64 bits); what does not exist is
    missing.  Raises UsageError when the file is missing, damaged, newer or not ours.
    """
    with Reader(Path(path), every_plan=every_plan) as reader:
        earlier = 0 if every_plan else reader.earlier()
        if earlier:
            warnings.warn(f"{earlier} rows of earlier plans: every_plan=True", stacklevel=2)
        return frame_of(reader)


def frame_of(reader: Reader) -> pd.DataFrame:
    """Return the rows that a reader yields."""
    import pandas as pd

    columns = reader.columns()
    filled = {*reader.filled(), PLAN_COLUMN}
    exact = reader.big_integers()
    values = _columns(reader, [name for name in columns if name in filled], exact)
    big = {name for found in exact.values() for name in found}
    gaps = [None] * len(values["identity"]) if values else []
    return pd.DataFrame(
        {
            name: pd.Series(column, dtype=_dtype(name, big))
            for name in columns
            for column in [values.get(name, gaps)]
        }
    )


def _columns(
    reader: Reader, names: Sequence[str], exact: Mapping[tuple[str, int], Mapping[str, int]]
) -> dict[str, list[Any]]:
    """Read columns whole, with no more than a chunk of tuples at once.

    ``exact`` holds what takes the place of rounded integers.
    """
    lists: list[list[Any]] = [[] for _ in range(2 + len(names))]
    rows = reader.raw_tuples(names)
    while chunk := list(itertools.islice(rows, CHUNK)):
        for column, part in zip(lists, zip(*chunk, strict=True), strict=True):
            column.extend(part)
    identities, rounds, *columns = lists
    values = dict(zip(names, columns, strict=True))
    for name, column in values.items():
        if kind_of(name) == "BOOLEAN":
            values[name] = [None if value is None else value == 1 for value in column]
        elif kind_of(name) == "JSON":
            values[name] = [from_sql(name, value) for value in column]
    if exact:
        for place, key in enumerate(zip(identities, rounds, strict=True)):
            for name, value in exact.get(key, {}).items():
                values[name][place] = value
    return values


def _dtype(name: str, big: Collection[str]) -> str:
    kind = kind_of(name)
    return _DTYPES[kind] if kind and name not in big else "object"
