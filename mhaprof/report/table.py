"""Draw a view on a terminal, as a rich table where that fits.  Nothing is ever cut."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mhaprof.report.tabular import Row
from mhaprof.report.view import Column, View

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 4000
"""Columns to draw into when nobody's terminal limits them: nothing is folded in a pipe."""

LONG = 500
"""The most rows that rich lays out, at more than a millisecond each."""

FOLD = 14
"""The longest word of a text column that is kept whole when room is short."""


def render(view: View, console: Console) -> None:
    """Print title, rows and notes in the first layout that the console is wide enough for.

    A table with lines; one without; one without the columns that are the same in every
    row, which are said once; row by row a list of its cells.  Titles are wrapped and words
    folded to make it fit; a number stays whole, on one line.  Of more than ``LONG`` rows
    each is one line, however wide.
    """
    from rich.text import Text

    cells = view.cells()
    whole = _Grid(columns=view.columns, cells=cells)
    console.print(Text(view.title, style="italic"))
    if len(cells) > LONG:
        _write_lines(whole, console)
    else:
        _lay_out(whole, view.rows, console)
    for note in view.notes:
        console.print(Text(note))


def _lay_out(whole: _Grid, rows: Sequence[Row], console: Console) -> None:
    from rich.text import Text

    for grid, lined in ((whole, True), (whole, False), (whole.varying(), False)):
        overhead = 3 * len(grid.columns) + 1 if lined else len(grid.columns) - 1
        widths = grid.fitted(console.width - overhead)
        if widths is not None:
            if grid.same:
                console.print(Text(f"In every row: {', '.join(grid.same)}."))
            _print_table(grid, rows, widths, console, lined=lined)
            return
    _print_lists(whole, rows, console)


@dataclass(frozen=True, kw_only=True)
class _Grid:
    """Columns and their worded cells; ``same`` words the columns left out."""

    columns: Sequence[Column]
    cells: Sequence[Sequence[str]]
    same: Sequence[str] = ()

    def varying(self) -> _Grid:
        """Leave out the columns, but the first, whose cells are the same in all of several rows."""
        kept, same = [], []
        for index, column in enumerate(self.columns):
            own = {row[index] for row in self.cells}
            if index and len(own) == 1 < len(self.cells):
                same.append(f"{column.title} {own.pop() or '(empty)'}")
            else:
                kept.append(index)
        return _Grid(
            columns=[self.columns[index] for index in kept],
            cells=[[row[index] for index in kept] for row in self.cells],
            same=same,
        )

    def fitted(self, room: int) -> list[int] | None:
        """Return a width for each column, ``room`` in all; None when a number would be cut."""
        widths, least = [], []
        for index, column in enumerate(self.columns):
            own = [row[index] for row in self.cells]
            words = column.title.split()
            widths.append(_longest([column.title, *own]))
            if column.numeric:
                least.append(_longest([*words, *own]))
            else:
                words += [word for cell in own for word in cell.split()]
                least.append(min(FOLD, _longest(words)))
        if sum(least) > room:
            return None
        while sum(widths) > room:
            loose = [index for index in range(len(widths)) if widths[index] > least[index]]
            widths[max(loose, key=widths.__getitem__)] -= 1
        return widths


def _longest(texts: Iterable[str]) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, texts), default=0)


def _print_table(
    grid: _Grid, rows: Sequence[Row], widths: Sequence[int], console: Console, *, lined: bool
) -> None:
    from rich.box import HEAVY_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(
        header_style="bold",
        box=HEAVY_HEAD if lined else None,
        padding=(0, 1) if lined else (0, 1, 0, 0),
        pad_edge=lined,
    )
    for column, width in zip(grid.columns, widths, strict=True):
        table.add_column(
            Text(column.title),
            justify="right" if column.numeric else "left",
            width=width,
            overflow="fold",
        )
    for row, cells in zip(rows, grid.cells, strict=True):
        style = _style(row.get("status"), row.get("role"))
        table.add_row(*(Text(cell) for cell in cells), style=style)
    console.print(table)


def _write_lines(grid: _Grid, console: Console) -> None:
    """Write a long table line by line, each cell whole, however wide the console is."""
    from rich.cells import cell_len

    lines = [[column.title for column in grid.columns], *grid.cells]
    widths = [_longest(cells) for cells in zip(*lines, strict=True)]
    right = [column.numeric for column in grid.columns]
    for cells in lines:
        padded = (
            gap + cell if numeric else cell + gap
            for cell, width, numeric in zip(cells, widths, right, strict=True)
            for gap in [" " * (width - cell_len(cell))]
        )
        console.file.write("  ".join(padded).rstrip() + "\n")


def _print_lists(grid: _Grid, rows: Sequence[Row], console: Console) -> None:
    """Print each row as lines of title and cell; empty cells are left out."""
    from rich.text import Text

    width = _longest(column.title for column in grid.columns)
    for row, cells in zip(rows, grid.cells, strict=True):
        style = _style(row.get("status"), row.get("role")) or ""
        console.print()
        for column, cell in zip(grid.columns, cells, strict=True):
            if cell:
                line = Text(f"{column.title.ljust(width)}  {cell}", style=style)
                console.print(line, soft_wrap=True)


def _style(status: object, role: object) -> str | None:
    if status == "failed":
        return "red"
    if status == "skipped":
        return "yellow"
    return "dim" if role == "reference" else None


def plain_console(*, width: int | None = None) -> Console:
    """Return a console for standard output that honours NO_COLOR and pipes.

    A pipe is as wide as the table asks, even where FORCE_COLOR says that it is a terminal.
    """
    from rich.console import Console

    if width is None and not sys.stdout.isatty():
        width = PIPE_WIDTH
    return Console(highlight=False, soft_wrap=False, width=width)
