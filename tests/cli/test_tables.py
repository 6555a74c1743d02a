"""Tables on terminals of every width: no number is ever cut, no row goes missing."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import termios
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from mhaprof.report import table
from mhaprof.report.view import View, count, text

NUMBERS = ("60129542144", "120259084288", "68719476736", "137438953472", "3221225472")

ROWS: list[dict[str, Any]] = [
    {"name": "one full head, no W_O", "batch": 32, "macs": 60129542144, "status": "ok"},
    {"name": "heads=8", "batch": 32, "macs": 68719476736, "status": "failed"},
]
VIEW = View(
    title="Operations",
    columns=[
        text("name", "name"),
        count("batch", "batch"),
        count("FLOPs (fvcore, 1 MAC = 1)", "macs"),
        text("status", "status"),
    ],
    rows=ROWS,
    notes=["A note."],
)


def drawn(view: View, width: int) -> str:
    """Draw a view on a console of so many columns."""
    buffer = io.StringIO()
    table.render(view, Console(file=buffer, width=width, no_color=True, highlight=False))
    return buffer.getvalue()


def on_a_terminal(columns: int, *arguments: str) -> str:
    """Run a command line whose standard output is a terminal of so many columns."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (25, columns))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "mhaprof", *arguments],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**environment, "TERM": "xterm", "NO_COLOR": "1"},
    )
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        parts.append(part)
    os.close(ours)
    assert process.wait() == 0
    return b"".join(parts).decode()


@pytest.mark.parametrize("columns", [20, 80, 100, 160])
def test_a_terminal_of_any_width_shows_whole_numbers(columns: int) -> None:
    shown = on_a_terminal(
        columns, "flops", "--heads", "1,32", "--counter", "closed-form", "--batch", "32"
    )
    for number in NUMBERS:
        assert number in shown
    assert shown.count("68719476736") == 2


@settings(max_examples=60, deadline=None)
@given(width=st.integers(10, 120))
def test_every_cell_is_whole_in_every_width(width: int) -> None:
    shown = drawn(VIEW, width)
    for word in ("60129542144", "68719476736", "32", "failed", "heads=8", "note"):
        assert word in shown
    if width >= 26:  # below that, lists: the terminal wraps their lines
        assert max(map(len, shown.splitlines())) <= width


def test_what_fits_has_lines_and_what_fits_less_has_none() -> None:
    natural = drawn(VIEW, table.PIPE_WIDTH).splitlines()
    assert natural[0] == "Operations"
    assert natural[1].startswith("┏━")
    widest = len(natural[1])
    assert drawn(VIEW, widest).splitlines() == natural
    folded = drawn(VIEW, widest - 20)
    assert "┃" in folded
    assert "┃" not in drawn(VIEW, 40)


def test_what_is_the_same_in_every_row_is_said_once_where_room_is_short() -> None:
    shown = drawn(VIEW, 31)
    assert "In every row: batch 32." in shown
    assert shown.count("32") == 1


def test_the_narrowest_is_a_list_of_every_row() -> None:
    shown = drawn(VIEW, 25).splitlines()
    assert shown[:6] == [
        "Operations",
        "",
        "name                       one full head, no W_O",
        "batch                      32",
        "FLOPs (fvcore, 1 MAC = 1)  60129542144",
        "status                     ok",
    ]
    assert shown[-1] == "A note."


def test_force_color_in_a_pipe_folds_nothing(fresh_mhaprof: Any) -> None:
    ran = fresh_mhaprof("flops", "--counter", "closed-form", env={"FORCE_COLOR": "1"})
    assert "FLOPs (fvcore, 1 MAC = 1)" in ran.out
    assert "60129542144" in ran.out


def test_a_long_table_shows_its_first_and_last_rows_and_says_how_many_are_left_out() -> None:
    rows = [{"name": f"row {number}"} for number in range(11)]
    view = View(title="Rows", columns=[text("name", "name")], rows=rows, notes=["below"])
    short = view.shortened(4)
    assert [row["name"] for row in short.rows] == ["row 0", "row 1", "row 9", "row 10"]
    assert list(short.notes) == [
        "7 more rows between the first 2 and the last 2: --format csv or json writes them all.",
        "below",
    ]
    assert view.shortened(11) is view
