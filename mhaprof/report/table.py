"""Draw a view as a rich table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mhaprof.report.view import View

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 4000
"""Columns to draw into when nobody's terminal limits them: nothing is cut in a pipe."""


def render(view: View, console: Console) -> None:
    """Print the table and its notes.  Numbers are never wrapped or cut."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=view.title, title_justify="left", header_style="bold")
    for column in view.columns:
        table.add_column(
            Text(column.title),
            justify="right" if column.numeric else "left",
            no_wrap=column.numeric,
            overflow="fold",
        )
    for row, cells in zip(view.rows, view.cells(), strict=True):
        style = _style(row.get("status"), row.get("role"))
        table.add_row(*(Text(cell) for cell in cells), style=style)
    console.print(table)
    for note in view.notes:
        console.print(Text(note))


def _style(status: object, role: object) -> str | None:
    if status == "failed":
        return "red"
    if status == "skipped":
        return "yellow"
    return "dim" if role == "reference" else None


def plain_console(*, width: int | None = None) -> Console:
    """Return a console for standard output that honours NO_COLOR and pipes."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=False)
    if width is None and not console.is_terminal:
        width = PIPE_WIDTH
    return Console(highlight=False, width=width) if width else console
