"""Write a view as a Markdown table."""

from __future__ import annotations

from mhaprof.report.view import View


def render(view: View) -> str:
    """Return the title, the table and the notes as GitHub-flavoured Markdown."""
    header = [_escape(column.title) for column in view.columns]
    rule = ["---:" if column.numeric else ":---" for column in view.columns]
    lines = [f"### {view.title}", "", _line(header), _line(rule)]
    lines += [_line([_escape(cell) for cell in cells]) for cells in view.cells()]
    for note in view.notes:
        lines += ["", note]
    return "\n".join(lines) + "\n"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _escape(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
