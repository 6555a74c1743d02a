"""Draw a view on a terminal, as a table where that fits.  No number is ever cut."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mhaprof.report.tabular import Row
from mhaprof.report.view import Column, View

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 4000
"""Columns to draw into when nobody's terminal limits them: nothing is folded in a pipe."""

LONG = 500
"""The most rows that are laid out to fit: of more, each is one line, however wide."""

FEW = 3
"""The most rows that are set side by side, a line per column, where they do not fit below."""

FOLD = 16
"""The least width of a column of words that has as many letters; half of it in need."""

_NUMBER = re.compile(r"([-+]?\d+)(\.\d+)?(?!\d)(\s?\S+)?(.*)", re.DOTALL)
_BREAK = re.compile(r"(?<=[=_/:;])(?=\w)|(?<=[^\W\d]{2}[-.,])(?=\w)|(?<=[^\W\d_]{14})(?=[^\W\d_])")


def render(view: View, console: Console) -> None:
    """Print title, rows and notes in the first layout that the console is wide enough for.

    A table; two or three rows side by side; a table with columns left out, from the right
    and by name; row by row a list of its cells.  What ``Column.once`` says stands above.
    """
    from rich.text import Text

    def show(line: str, style: str = "") -> None:
        console.print(Text(line, style=style), soft_wrap=True)

    def tell(sentence: str, style: str = "") -> None:
        for line in wrapped(sentence, console.width):
            show(line, style)

    tell(view.title, "italic")
    whole, said = _varying(view)
    if said:
        tell(f"{'Every row: ' * (len(view.rows) > 1)}{', '.join(said)}.")
    if len(view.rows) > LONG:
        console.file.writelines(f"{line}\n" for line, _ in whole.lines(whole.natural()))
    elif view.rows:
        left_out, lines = _fitted(whole, console.width, asked=view.asked)
        for line, style in lines:
            show(line, style)
        if left_out:
            tell(f"No room for: {', '.join(left_out)}; see --columns.", "dim")
    for note in view.notes:
        tell(note)


def _varying(view: View) -> tuple[_Sheet, list[str]]:
    """Return what differs between rows as a sheet, and word what does not."""
    cells, columns = view.cells(), view.columns
    unmeasured = [bool(_style(row)) for row in view.rows]
    names = [
        index
        for index, column in enumerate(columns)
        if column.key in ("name", "implementation") and column.once
    ]
    same = []
    for index, column in enumerate(columns):
        if column.once and (index not in names or len(cells) > 1):
            pairs = zip(cells, unmeasured, strict=True)
            found = {row[index] for row, bare in pairs if row[index] or not bare}
            same += [index] * (len(found) == 1)
    if names and set(names) <= set(same):
        same.remove(names[-1])  # a row without a name says nothing
    kept = [index for index in range(len(columns)) if index not in same]
    words = [max(row[index] for row in cells) for index in range(len(columns))] if cells else []
    said = [
        words[index] if columns[index].key == "name" else f"{columns[index].title} {words[index]}"
        for index in same
        if words[index]
    ]
    sheet = _Sheet(
        columns=[columns[index] for index in kept],
        cells=[[row[index] for index in kept] for row in cells],
        styles=[_style(row) for row in view.rows],
    )
    return sheet, said


def _fitted(
    whole: _Sheet, room: int, *, asked: bool
) -> tuple[list[str], Iterable[tuple[str, str]]]:
    """Return the titles left out, and the lines of the first layout that fits."""
    sheets = [whole, replace(whole, tight=True)]
    sheets += [whole.turned()] if len(whole.cells) <= FEW else []
    if not asked:
        ranks = [column.rank for column in whole.columns]
        loose = sorted((at for at, rank in enumerate(ranks) if rank and at), key=ranks.__getitem__)
        sheets += [whole.without(loose[-number:]) for number in range(1, len(loose) + 1)]
        sheets.append(replace(sheets[-1], tight=True))
    for sheet in sheets:
        if (widths := sheet.widths(room)) is not None:
            return list(sheet.left_out), sheet.lines(widths)
    return [], whole.cards(room)


@dataclass(frozen=True, kw_only=True)
class _Sheet:
    """Columns, their worded cells and a style for each row; ``left_out`` names columns.

    A ``tight`` one has narrow gaps, folds more words, and does not align points.
    """

    columns: Sequence[Column]
    cells: Sequence[Sequence[str]]
    styles: Sequence[str]
    left_out: Sequence[str] = ()
    tight: bool = False

    @property
    def gap(self) -> str:
        return " " if self.tight else "  "

    def without(self, indices: Sequence[int]) -> _Sheet:
        kept = [index for index in range(len(self.columns)) if index not in indices]
        return replace(
            self,
            columns=[self.columns[index] for index in kept],
            cells=[[row[index] for index in kept] for row in self.cells],
            left_out=[self.columns[index].title for index in sorted(indices)],
        )

    def turned(self) -> _Sheet:
        """Set the rows side by side: a line for each column that says something."""
        first, *others = self.columns
        heads = [first.title, *(row[0] for row in self.cells)]
        named = [Column(title=head, cell=str, numeric=bool(at)) for at, head in enumerate(heads)]
        cells = [
            [column.title, *(row[index] for row in self.cells)]
            for index, column in enumerate(others, start=1)
            if any(row[index] for row in self.cells)
        ]
        return _Sheet(columns=named, cells=cells, styles=[""] * len(cells))

    def aligned(self) -> list[list[str]]:
        """Return the cells with the digits of a column below each other."""
        turned = [
            _aligned(cells) if column.numeric and not self.tight else cells
            for column, *cells in zip(self.columns, *self.cells, strict=True)
        ]
        return list(map(list, zip(*turned, strict=True)))

    def natural(self) -> list[int]:
        """Return the width that each column asks for."""
        heads = [[column.title for column in self.columns]]
        return [_longest(cells) for cells in zip(*heads, *self.aligned(), strict=True)]

    def widths(self, room: int) -> list[int] | None:
        """Return a width for each column, ``room`` in all; None when a number would be cut."""
        room -= len(self.gap) * (len(self.columns) - 1)
        widths, least = self.natural(), []
        for column, natural, *cells in zip(self.columns, widths, *self.aligned(), strict=True):
            pieces = _pieces(column.title)
            pieces += [
                piece
                for cell in cells
                for piece in ([cell] if column.numeric and _is_number(cell) else _pieces(cell))
            ]
            words = 0 if column.numeric else min(natural, FOLD // 2 if self.tight else FOLD)
            least.append(min(natural, max(words, _longest(pieces))))
        if sum(least) > room:
            return None
        while sum(widths) > room:
            loose = [index for index in range(len(widths)) if widths[index] > least[index]]
            widths[max(loose, key=widths.__getitem__)] -= 1
        return widths

    def lines(self, widths: Sequence[int]) -> Iterable[tuple[str, str]]:
        """Yield heads, a rule and rows as lines with their style; words are folded to fit."""
        heads = [
            wrapped(each.title, width) for each, width in zip(self.columns, widths, strict=True)
        ]
        depth = max(map(len, heads))
        heads = [[""] * (depth - len(head)) + head for head in heads]
        for titles in zip(*heads, strict=True):
            yield self.joined(titles, widths), "bold"
        yield self.gap.join("─" * width for width in widths), ""
        for row, style in zip(self.aligned(), self.styles, strict=True):
            parts = [
                [cell] if column.numeric and _is_number(cell) else wrapped(cell, width)
                for column, cell, width in zip(self.columns, row, widths, strict=True)
            ]
            for number in range(max(map(len, parts))):
                line = [part[number] if number < len(part) else "" for part in parts]
                yield self.joined(line, widths), style

    def joined(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        parts = []
        for column, cell, width in zip(self.columns, cells, widths, strict=True):
            room = " " * (width - _longest([cell]))
            parts.append(room + cell if column.numeric else cell + room)
        return self.gap.join(parts).rstrip()

    def cards(self, room: int) -> Iterable[tuple[str, str]]:
        """Yield each row as lines of title and cell; empty cells are left out."""
        width = _longest(column.title for column in self.columns)
        for row, style in zip(self.cells, self.styles, strict=True):
            yield "", ""
            for column, cell in zip(self.columns, row, strict=True):
                if cell:
                    for line in wrapped(f"{column.title.ljust(width)}  {cell}", room):
                        yield line, style


def _aligned(cells: Sequence[str]) -> list[str]:
    """Pad numbers so that points and units stand below each other."""
    parts = [match.groups("") if (match := _NUMBER.fullmatch(cell)) else None for cell in cells]
    numbers = [part for part in parts if part is not None]
    if len({_unit(part[2]) for part in numbers}) != 1:
        return list(cells)
    wide = [max(map(len, part)) for part in zip(*numbers, strict=True)]
    return [
        cell
        if part is None
        else part[0].rjust(wide[0])
        + "".join(each.ljust(width) for each, width in zip(part[1:], wide[1:], strict=True))
        for cell, part in zip(cells, parts, strict=True)
    ]


def _is_number(cell: str) -> bool:
    return _NUMBER.fullmatch(cell) is not None


def _unit(words: str) -> str:
    """Return the unit that a number is followed by, without its prefix: B of `` MiB``."""
    unit = words.split(maxsplit=1)[0] if words.split() else ""
    return unit.lstrip("unmkKMGTPE").lstrip("i").rstrip("!")


def _longest(texts: Iterable[str]) -> int:
    from rich.cells import cell_len

    return max((len(each) if each.isascii() else cell_len(each) for each in texts), default=0)


def _pieces(words: str) -> list[str]:
    """Split at spaces and after signs: never inside a number."""
    return [
        piece
        for word in words.split()
        for piece in ([word] if len(word) <= FOLD else _BREAK.split(word))
    ]


def wrapped(sentence: str, width: int) -> list[str]:
    """Fold a line at spaces, else after signs, never inside a number.

    What follows hangs below the last column of a line that has columns.
    """
    if _longest([sentence]) <= width:
        return [sentence]
    columns = re.match(r"\s*(?:.*\S\s{2,})?", sentence)
    hang = columns.end() if columns else 0
    indent = " " * (hang if hang <= width // 2 else 4)
    lines, line = [], sentence[:hang]
    for word in re.findall(r"\S+\s*", sentence[hang:]):
        whole = _longest([indent + word.rstrip()]) <= width
        for piece in [word] if whole else _BREAK.split(word):
            if line.strip() and _longest([line + piece.rstrip()]) > width:
                lines.append(line.rstrip())
                line = indent
            line += piece
    return [*lines, line.rstrip()]


def _style(row: Row) -> str:
    if row.get("status") in ("failed", "skipped"):
        return "red" if row["status"] == "failed" else "yellow"
    return "dim" if row.get("role") == "reference" else ""


def plain_console(*, width: int | None = None) -> Console:
    """Return a console for standard output that honours NO_COLOR and pipes.

    A pipe is as wide as the table asks, even where FORCE_COLOR says that it is a terminal.
    """
    from rich.console import Console

    if width is None and not sys.stdout.isatty():
        width = PIPE_WIDTH
    return Console(highlight=False, soft_wrap=False, width=width)
