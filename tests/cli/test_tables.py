"""Tables on terminals of every width: no number is ever cut, no row goes missing."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import termios
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from mhaprof.report import table
from mhaprof.report.view import SHOWN, View, amount, count, text

NUMBERS = ("60129542144", "120259084288", "68719476736", "137438953472", "3221225472")

ROWS: list[dict[str, Any]] = [
    {"name": "one full head, no W_O", "batch": 32, "macs": 60129542144, "status": "ok"},
    {"name": "heads=8", "batch": 32, "macs": 68719476736, "status": "failed"},
]
VIEW = View(
    title="Operations",
    columns=[
        text("name", "name"),
        count("batch", "batch", once=True),
        count("FLOPs (fvcore, 1 MAC = 1)", "macs"),
        text("status", "status"),
    ],
    rows=ROWS,
    notes=["A note."],
)
BROAD = replace(
    VIEW,
    columns=[
        text("name", "name"),
        *(count(title, "macs") for title in ("first", "second")),
        count("third", "macs", rank=SHOWN),
    ],
)
MANY = replace(BROAD, rows=[*ROWS, *ROWS])


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


@pytest.mark.parametrize("columns", [20, 80, 160])
def test_a_terminal_of_any_width_shows_whole_numbers(columns: int) -> None:
    shown = on_a_terminal(
        columns, "flops", "--heads", "1,32", "--counter", "closed-form", "--batch", "32", "--exact"
    )
    for number in NUMBERS[:4]:
        assert number in shown
    assert shown.count("68719476736") == 2


@settings(max_examples=60, deadline=None)
@given(width=st.integers(10, 120))
def test_every_cell_is_whole_in_every_width(width: int) -> None:
    shown = drawn(VIEW, width)
    for word in ("60129542144", "68719476736", "32", "failed", "heads=", "note"):
        assert word in shown
    if width >= 26:  # below that, lists: the terminal wraps their lines
        assert max(map(len, shown.splitlines())) <= width


def test_what_fits_is_a_table_with_what_is_equal_said_once_above_it() -> None:
    assert drawn(VIEW, table.PIPE_WIDTH).splitlines() == [
        "Operations",
        "Every row: batch 32.",
        "name                   FLOPs (fvcore, 1 MAC = 1)  status",
        "─────────────────────  ─────────────────────────  ──────",
        "one full head, no W_O                60129542144  ok",
        "heads=8                              68719476736  failed",
        "A note.",
    ]


def test_two_rows_that_do_not_fit_stand_side_by_side() -> None:
    assert drawn(BROAD, 40).splitlines()[1:] == [
        "          one full head, no",
        "name                    W_O      heads=8",
        "──────  ───────────────────  ───────────",
        "first           60129542144  68719476736",
        "second          60129542144  68719476736",
        "third           60129542144  68719476736",
        "A note.",
    ]


def test_columns_go_by_rank_from_the_right_before_a_table_becomes_cards() -> None:
    shown = drawn(MANY, 43).splitlines()
    assert shown[1].split() == ["name", "first", "second"]
    assert shown[-2:] == ["No room for: third; see --columns.", "A note."]
    asked = drawn(MANY.chosen(wide=True, exact=False), 43)
    assert "No room" not in asked
    assert asked.count("third   60129542144") == 2


def test_the_narrowest_is_a_list_of_every_row() -> None:
    assert drawn(MANY, 24).splitlines()[1:6] == [
        "",
        "name    one full head,",
        "        no W_O",
        "first   60129542144",
        "second  60129542144",
    ]


@pytest.mark.parametrize(
    ("words", "width", "lines"),
    [
        ("kv_tokens=32768 heads=4", 12, ["kv_tokens=", "32768", "heads=4"]),
        ("  twice: 4.000 x in all", 12, ["  twice:", "  4.000 x in", "  all"]),
        ("scores  17179869184  32 x 8 x 64", 28, ["scores  17179869184  32 x 8", "    x 64"]),
        ("backend_rejects_head_dim", 18, ["backend_rejects_", "head_dim"]),
        ("2.5e-05 of 1,024.5", 9, ["2.5e-05", "of", "1,024.5"]),
    ],
)
def test_a_line_is_folded_between_words_and_never_in_a_number(
    words: str, width: int, lines: list[str]
) -> None:
    assert table.wrapped(words, width) == lines


def test_points_and_units_of_a_column_stand_below_each_other() -> None:
    rows = [{"n": value} for value in (8_589_934_592, 60_129_542_144, 604 * 10**6, 12)]
    view = View(title="", columns=[amount("MACs", "n")], rows=rows)
    assert drawn(view, 80).splitlines()[3:] == ["  8.59 G", " 60.13 G", "604    M", " 12"]


def test_force_color_in_a_pipe_folds_nothing(fresh_mhaprof: Any) -> None:
    ran = fresh_mhaprof("flops", "--counter", "closed-form", "--exact", env={"FORCE_COLOR": "1"})
    assert "FLOPs (2 per MAC)" in ran.out
    assert "60129542144" in ran.out


COUNT = ("flops", "--counter", "closed-form", "--heads", "1,8", "--format", "md")


@pytest.mark.parametrize(
    ("flags", "header"),
    [
        ((), "| name | impl | batch | tokens | dim | MACs | FLOPs (2 per MAC) | ratio | p"),
        (("--columns", "name,macs,flops_backward"), "| name | MACs | FLOPs backward |"),
        (("--columns", "tokens", "--columns", "fvcore_flops"), "| tokens | fvcore_flops |"),
        (("--wide",), "| name | impl | batch | tokens | kv_tokens | dim | heads | kv_heads |"),
    ],
)
def test_columns_are_a_default_set_or_those_asked_for(
    mhaprof: Any, flags: tuple[str, ...], header: str
) -> None:
    ran = mhaprof(*COUNT, *flags)
    assert (ran.code, ran.err) == (0, "")
    assert next(line for line in ran.out.splitlines() if line[:1] == "|").startswith(header)


def test_a_column_that_is_not_known_costs_a_line_and_not_the_data(mhaprof: Any) -> None:
    ran = mhaprof(*COUNT, "--columns", "name,mac")
    assert ran.code == 2
    assert ran.err.startswith("mhaprof: --columns 'mac' is no column here; did you mean macs")
    assert "| name |\n" in ran.out
    whole = mhaprof(*COUNT[:-1], "csv", "--columns", "name")
    assert (whole.code, whole.out) == (0, mhaprof(*COUNT[:-1], "csv").out)


def test_exact_shows_all_digits(mhaprof: Any) -> None:
    assert "| 68.72 G | 137.4 G |" in mhaprof(*COUNT).out
    assert "| 68719476736 | 137438953472 |" in mhaprof(*COUNT, "--exact").out


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
