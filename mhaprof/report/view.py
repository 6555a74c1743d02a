"""A table to be read: which columns, how each is worded, and the sentences below.

One ``View`` is drawn by ``table.py`` (terminals) and ``markdown.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mhaprof.errors import printable
from mhaprof.report.tabular import Row
from mhaprof.units import format_bytes, format_count, format_ratio, format_seconds, format_si

KEPT, SHOWN, LESS, WIDE = range(4)
"""Ranks of columns: kept; left out where room is short, the third first; for ``--wide`` alone."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column: its title and how a row's cell is worded; ``exact`` with all digits.

    ``key`` is what ``--columns`` calls it.  ``once``: said above the table, where it is
    the same in all rows.
    """

    title: str
    cell: Callable[[Row], str]
    key: str = ""
    exact: Callable[[Row], str] | None = None
    numeric: bool = True
    once: bool = False
    rank: int = KEPT


@dataclass(frozen=True, kw_only=True)
class View:
    """A titled table with sentences below it; ``asked``: no column may be left out."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    notes: Sequence[str] = field(default_factory=tuple)
    asked: bool = False

    def chosen(self, names: Sequence[str] = (), *, wide: bool, exact: bool) -> View:
        """Return the columns of these names, of any key of the rows; else the default set.

        Names that this view does not know are left out.
        """
        columns = [column for column in self.columns if wide or column.rank < WIDE]
        if names:
            known = {column.key: column for column in self.columns}
            keys = {key for row in self.rows for key in row}
            columns = [
                replace(known[name], once=False) if name in known else _plain(name, self.rows)
                for name in names
                if name in known or name in keys
            ]
        if exact:
            columns = [replace(each, cell=each.exact or each.cell) for each in columns]
        return replace(self, columns=columns, asked=wide or bool(names))

    def knows(self) -> Collection[str]:
        """Return every name that ``--columns`` may ask for."""
        return dict.fromkeys([column.key for column in self.columns] + [*_keys(self.rows)])

    def __post_init__(self) -> None:  # names come from strangers
        object.__setattr__(self, "title", printable(self.title))
        object.__setattr__(self, "notes", [printable(note) for note in self.notes])

    def shortened(self, limit: int) -> View:
        """Return the first and the last rows, ``limit`` in all, and a note of what is left out."""
        left_out = len(self.rows) - limit
        if left_out <= 0:
            return self
        half = limit // 2
        note = (
            f"{left_out} more rows between the first {half} and the last {limit - half}: "
            "--format csv or json writes them all."
        )
        rows = [*self.rows[:half], *self.rows[half + left_out :]]
        return replace(self, rows=rows, notes=[note, *self.notes])

    def cells(self) -> list[list[str]]:
        """Return the worded cells, row by row."""
        return [[printable(column.cell(row)) for column in self.columns] for row in self.rows]


def _keys(rows: Sequence[Row]) -> dict[str, None]:
    return {key: None for row in rows for key in row}


def text(title: str, key: str, **how: Any) -> Column:
    """Make a column of words; absent values are left empty."""
    return Column(title=title, key=key, cell=lambda row: _word(row.get(key)), numeric=False, **how)


def number(
    title: str,
    key: str,
    form: Callable[[Any], str] = format_count,
    exact: Callable[[Any], str] | None = None,
    **how: Any,
) -> Column:
    """Make a column of numbers worded by ``form``; absent values are left empty."""

    def worded(by: Callable[[Any], str]) -> Callable[[Row], str]:
        return lambda row: "" if row.get(key) is None else by(row[key])

    whole = None if exact is None else worded(exact)
    return Column(title=title, key=key, cell=worded(form), exact=whole, **how)


def count(title: str, key: str, **how: Any) -> Column:
    """Make a column of exact integers."""
    return number(title, key, **how)


def amount(title: str, key: str, **how: Any) -> Column:
    """Make a column of large integers: ``60.13 G``."""
    return number(title, key, format_si, format_count, **how)


def size(title: str, key: str, **how: Any) -> Column:
    """Make a column of bytes: ``12 MiB``."""
    return number(title, key, format_bytes, format_count, **how)


def ratio(title: str, key: str, **how: Any) -> Column:
    """Make a column of ratios with three decimals."""
    return number(title, key, format_ratio, **how)


def duration(title: str, key: str, **how: Any) -> Column:
    """Make a column of times."""
    return number(title, key, format_seconds, repr, **how)


def interval(title: str, low: str, **how: Any) -> Column:
    """Make a column of two times; ``low`` is the key of the lower, the upper's says ``high``."""
    high = low.replace("_low_", "_high_")

    def cell(row: Row) -> str:
        if row.get(low) is None or row.get(high) is None:
            return ""
        return f"{format_seconds(row[low])} .. {format_seconds(row[high])}"

    return Column(title=title, key=low, cell=cell, **how)


def status(rows: Sequence[Row] = ()) -> Column:
    """Make the column that says how a row ended; of ``rows`` that are all ok, for --wide alone."""
    plain = rows and all(row.get("status") == "ok" and not row.get("reason") for row in rows)
    rank = WIDE if plain else KEPT
    return Column(title="status", key="status", cell=_status, numeric=False, once=True, rank=rank)


def _status(row: Row) -> str:
    reason = row.get("reason")
    return f"{row.get('status') or ''}: {reason}" if reason else str(row.get("status") or "")


def _plain(key: str, rows: Sequence[Row]) -> Column:
    """Make a column of any key, by what its name ends with and by its values."""
    if key.endswith("_s"):
        return duration(key, key)
    if key.endswith("_bytes"):
        return size(key, key)
    values = {type(row.get(key)) for row in rows} - {type(None)}
    if values and values <= {int, float}:
        return number(
            key, key, lambda value: format_si(value) if value == int(value) else f"{value:.4g}", str
        )
    return text(key, key)


def _word(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))
