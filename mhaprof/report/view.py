"""A table to be read: which columns, how each is worded, and the sentences below.

One ``View`` is drawn by ``table.py`` (rich, for terminals) and ``markdown.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mhaprof.errors import printable
from mhaprof.report.tabular import Row
from mhaprof.units import format_count, format_ratio, format_seconds


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column: its title and how a row's cell is worded."""

    title: str
    cell: Callable[[Row], str]
    numeric: bool = True


@dataclass(frozen=True, kw_only=True)
class View:
    """A titled table with sentences below it."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    notes: Sequence[str] = field(default_factory=tuple)

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


def text(title: str, key: str) -> Column:
    """Make a column of words; absent values are left empty."""
    return Column(title=title, cell=lambda row: _word(row.get(key)), numeric=False)


def count(title: str, key: str) -> Column:
    """Make a column of exact integers."""
    return Column(title=title, cell=lambda row: _or_empty(row.get(key), format_count))


def ratio(title: str, key: str) -> Column:
    """Make a column of ratios with three decimals."""
    return Column(title=title, cell=lambda row: _or_empty(row.get(key), format_ratio))


def number(title: str, key: str, form: Callable[[Any], str]) -> Column:
    """Make a column of numbers worded by ``form``; absent values are left empty."""
    return Column(title=title, cell=lambda row: _or_empty(row.get(key), form))


def interval(title: str, low: str) -> Column:
    """Make a column of two times; ``low`` is the key of the lower, the upper's says ``high``."""
    high = low.replace("_low_", "_high_")

    def cell(row: Row) -> str:
        if row.get(low) is None or row.get(high) is None:
            return ""
        return f"{format_seconds(row[low])} .. {format_seconds(row[high])}"

    return Column(title=title, cell=cell)


def status() -> Column:
    """Make the column that says how a row ended: ok, or the reason."""
    return Column(title="status", cell=_status, numeric=False)


def _status(row: Row) -> str:
    reason = row.get("reason")
    return f"{row['status']}: {reason}" if reason else str(row["status"])


def _or_empty(value: Any, form: Callable[[Any], str]) -> str:
    return "" if value is None else form(value)


def _word(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))
