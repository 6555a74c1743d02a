"""Write a view as a Markdown table."""

from __future__ import annotations

from mhaprof.errors import printable
from mhaprof.report.view import View


def render(view: View) -> str:
    """Return the title, the table and the notes as GitHub-flavoured Markdown."""
    header = [_escape(column.title) for column in view.columns]
    rule = ["---:" if column.numeric else ":---" for column in view.columns]
    lines = [f"### {_escape(view.title)}", "", _line(header), _line(rule)]
    lines += [_line([_escape(cell) for cell in cells]) for cells in view.cells()]
    for note in view.notes:
        lines += ["", _inert(note)]
    return "\n".join(lines) + "\n"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _escape(text: str) -> str:
    """Let a name be text: no HTML, link, image, end of a cell or break of a line."""
    shown = printable(text.replace("\n", " ")).replace("|", "\\|")
    return _inert(shown)


def _inert(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("](", "]\\(")
