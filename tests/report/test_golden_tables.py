"""The tables of every command on terminals of four widths, for one row and for twenty.

``MHAPROF_UPDATE_GOLDENS=1 pytest tests/report`` writes the golden files anew.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mhaprof import formulas
from mhaprof.cli.sweep_plan import plan_view
from mhaprof.report import table, views
from mhaprof.report.tabular import COLUMNS, LATENCY_COLUMNS, MEMORY_COLUMNS, ROOF_COLUMNS
from mhaprof.report.times import claim_times_view, latency_view, pivot_view
from mhaprof.report.view import View
from mhaprof.spec import AttentionSpec

GOLDEN = Path(__file__).parent / "golden"
WIDTHS = (60, 80, 120, 200)

Row = dict[str, Any]


def counted(number: int, **more: Any) -> Row:
    """Return a counted row of eight heads and ever more tokens."""
    spec = AttentionSpec(dim=512, heads=8, tokens=128 * (1 + number // 2), batch=4)
    macs = formulas.total_macs(spec)
    row: Row = dict.fromkeys((*COLUMNS, *LATENCY_COLUMNS, *MEMORY_COLUMNS, *ROOF_COLUMNS))
    row.update(spec.model_dump())
    row.update({f"macs_{stage}": count for stage, count in formulas.stage_macs(spec).items()})
    row.update(
        name=f"tokens={spec.tokens}", role="point", status="ok",
        implementation=("eager", "sdpa")[number % 2], macs=macs, fvcore_flops=macs, flops=2 * macs,
        macs_exact=macs, ratio_to_reference=8 / 7, params=1048576,
        softmax_ops=formulas.softmax_ops(spec), rounds=3, measure="flops, latency",
    )  # fmt: skip
    return row | more


def timed(number: int) -> Row:
    """Return a timed row: the fourth is contended, the fifth could not run."""
    row = counted(number)
    middle = row["macs"] / (2 + number % 2) / 1e11
    row.update(
        device="cuda", device_name="a GPU", dtype="bfloat16", mode="forward", compiled=False,
        timer="events", cache="cold", converged=True, samples=120,
        predicted_time_s=middle * 360, predicted_peak_bytes=3 * row["tokens"] * 4096,
    )  # fmt: skip
    if number == 5:
        reason = {"status": "skipped", "reason": "backend_rejects_head_dim"}
        return row | reason | {"message": "flash takes a head_dim of at most 256"}
    row.update(
        latency_median_s=middle, latency_ci_low_s=middle * 0.99, latency_ci_high_s=middle * 1.02,
        latency_p5_s=middle * 0.9, latency_p95_s=middle * 1.2, latency_ratio=0.5 + number / 3,
        tflops_per_s=row["flops"] / middle / 1e12, attained_fraction=0.1 + number / 50,
        tflops_per_s_exact=row["flops"] / middle / 1e12, bound="compute",
        peak_bytes=3 * row["tokens"] * 4096 + 512, flags="contended" if number == 4 else None,
    )  # fmt: skip
    return row


def pivoted(rows: Sequence[Row]) -> View:
    view = pivot_view(rows, title="Times of one call")
    return view or latency_view(rows, title="Times of one call")


def planned(number: int) -> Row:
    row = timed(number)
    return row | {"status": "planned"} if row["status"] == "ok" else row


VIEWS: dict[str, tuple[Callable[[int], Row], Callable[[Sequence[Row]], View]]] = {
    "flops": (counted, lambda rows: views.counts_view(rows, title="Operations")),
    "breakdown": (counted, lambda rows: views.breakdown_view(rows, title="MACs by stage")),
    "claim": (counted, lambda rows: views.claim_view(rows, title="The claim", notes=())),
    "claim-times": (timed, lambda rows: claim_times_view(rows, title="Times", notes=())),
    "latency": (timed, lambda rows: latency_view(rows, title="Times", compare=False)),
    "pivot": (timed, pivoted),
    "plan": (planned, lambda rows: plan_view(rows, lanes=1)),
}


def drawn(view: View, width: int) -> list[str]:
    """Draw the default columns of a view on a console of so many columns."""
    buffer = io.StringIO()
    console = Console(file=buffer, width=width, no_color=True, highlight=False)
    table.render(view.chosen(wide=False, exact=False), console)
    return buffer.getvalue().splitlines()


def case(name: str, rows: int) -> View:
    make, view = VIEWS[name]
    return view([make(number) for number in range(rows)])


@pytest.mark.parametrize("name", VIEWS)
def test_the_table_at_four_widths_is_the_golden_one(name: str) -> None:
    blocks = [
        "\n".join([f"== {rows} rows, {width} columns", *drawn(case(name, rows), width)])
        for rows in (1, 20)
        for width in WIDTHS
    ]
    text = "\n\n".join(blocks) + "\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("MHAPROF_UPDATE_GOLDENS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("rows", [1, 2, 3, 20])
@pytest.mark.parametrize("width", [40, *WIDTHS])
@pytest.mark.parametrize("name", VIEWS)
def test_no_line_is_wider_than_the_terminal_and_no_number_breaks(
    name: str, width: int, rows: int
) -> None:
    view = case(name, rows)
    lines = drawn(view, width)
    assert max(map(len, lines)) <= width
    known = " ".join(cell for row in view.cells() for cell in row)
    whole = set(re.findall(r"\d+(?:\.\d+)?", f"{known} {view.title} {' '.join(view.notes)}"))
    whole |= {digit for column in view.columns for digit in re.findall(r"\d+", column.title)}
    body = [line for line in lines if not line.startswith("No room for")]
    assert set(re.findall(r"\d+(?:\.\d+)?", "\n".join(body))) <= whole


@pytest.mark.parametrize("name", VIEWS)
def test_the_default_columns_of_twenty_rows_fit_80_as_a_table(name: str) -> None:
    lines = drawn(case(name, 20), 80)
    assert any(line.startswith("────") for line in lines)
    assert not any(line.startswith("No room for") for line in lines)


def test_implementations_of_a_problem_are_beside_each_other_with_factors_and_reasons() -> None:
    def one(name: str, time: float | None, spread: float, **more: Any) -> Row:
        times = {} if time is None else {"latency_median_s": time}
        if time is not None:
            times |= {"latency_ci_low_s": time - spread, "latency_ci_high_s": time + spread}
        return counted(0) | {"implementation": name, "device": "cpu"} | times | more

    rows = [
        one("a", 1.0, 0.01, round=0),
        one("a", 1.2, 0.01, round=1, flags="contended"),
        one("b", 2.2, 0.01),
        one("c", 1.11, 0.2),
        one("d", 0.5, 0.01, status="failed", reason="counters_disagree", message="off by one"),
        one("e", None, 0, status="skipped", reason="no_cuda", message="there is no device"),
        one("a", 4.0, 0.01, dtype="float16"),
    ]
    view = pivot_view(rows, title="")
    assert view is not None
    cells = [[column.cell(row) for column in view.columns[-5:]] for row in view.rows]
    assert cells == [
        ["1.1 s! *", "2.2 s 2.00x", "1.11 s ~1.01x", "counters_disagree", "no_cuda"],
        ["4 s", "", "", "", ""],
    ]
    assert view.notes[1:] == [
        "failed, counters_disagree (1 row): off by one",
        "skipped, no_cuda (1 row): there is no device",
    ]
    for sign, meaning in (("*", "the fastest"), ("~", "not disting"), ("!", "flagged")):
        assert f"{sign} {meaning}" in view.notes[0]
    assert pivot_view(rows[:2], title="") is None


def test_times_of_a_file_that_names_no_device_are_shown() -> None:
    rows = [timed(number) | {"device": None, "dtype": None} for number in range(2)]
    assert latency_view(rows, title="Times").cells()
