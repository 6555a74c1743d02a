"""``mhaprof claim``: reproduced by exact counts, and refused when it does not hold."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mhaprof import formulas, paper
from mhaprof.cli import claim_times
from mhaprof.point import MeasureOptions
from mhaprof.records import Latency, Measured, Point, Result, Skipped
from mhaprof.spec import AttentionSpec

RESULTS = Path(__file__).parents[2] / "results"


def test_the_claim_is_reproduced(mhaprof: Any) -> None:
    ran = mhaprof("claim", "--format", "json")
    assert ran.code == 0
    assert ran.json["claim"] == {"holds": True, "counters": ["fvcore", "torch", "closed form"]}
    cases = {(row["heads"], row["out_proj"]): row for row in ran.rows}
    assert cases[1, False]["role"] == "reference"
    assert cases[1, False]["fvcore_flops"] == 60129542144
    assert cases[8, True]["fvcore_flops"] == 68719476736
    assert cases[8, False]["fvcore_flops"] == 60129542144
    assert set(cases) == {(heads, w_o) for heads in (1, 2, 4, 8, 16, 32) for w_o in (True, False)}
    for (_, out_proj), row in cases.items():
        expected = 68719476736 if out_proj else 60129542144
        assert row["fvcore_flops"] == row["torch_macs"] == row["closed_form_macs"] == expected
        assert row["flops"] == 2 * expected
        assert row["ratio_to_reference"] == pytest.approx(expected / 60129542144)
        assert row["params"] == (4 if out_proj else 3) * 512 * 512
        assert row["softmax_ops"] == 3 * 32 * row["heads"] * 1024 * 1024


def test_the_claim_is_explained_in_sentences(mhaprof: Any) -> None:
    ran = mhaprof("claim")
    assert ran.code == 0
    for title in (
        "case", "heads", "W_O", "FLOPs (fvcore, 1 MAC = 1)", "FLOPs (1 MAC = 2)",
        "ratio to one full head", "parameters", "softmax operations",
    ):  # fmt: skip
        assert title in ran.out
    assert "Reproduced: with 1, 2, 4, 8, 16 and 32 heads the count is the same" in ran.out
    assert "heads cancels everywhere" in ran.out
    assert "0.07 % of the operations at 1 head and 2.34 % at 32" in ran.out


def test_heads_that_do_not_divide_dim_are_left_out(mhaprof: Any) -> None:
    ran = mhaprof("claim", "--dim", 24, "--tokens", 16, "--batch", 1, "--format", "json")
    assert ran.code == 0
    assert {row["heads"] for row in ran.rows} == {1, 2, 4, 8}
    said = mhaprof("claim", "--dim", 24, "--tokens", 16, "--batch", 1).out
    assert "Reproduced: with 1, 2, 4 and 8 heads" in said
    assert "Left out: 16 and 32 heads, which do not divide dim 24." in said


def test_a_dim_that_no_number_of_heads_divides_is_refused(mhaprof: Any) -> None:
    ran = mhaprof("claim", "--dim", 33)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "mhaprof: dim 33 cannot be split into heads; give an even --dim\n"


@pytest.fixture
def dishonest_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the closed form of four heads differ by one MAC."""
    honest: Callable[..., dict[str, int]] = formulas.stage_macs

    def one_off(spec: AttentionSpec, *, exact: bool = False) -> dict[str, int]:
        macs = honest(spec, exact=exact)
        if spec.heads == 4:
            macs["scores"] += 1
        return macs

    monkeypatch.setattr(formulas, "stage_macs", one_off)


@pytest.mark.usefixtures("dishonest_heads")
def test_counters_that_disagree_are_printed_marked_and_exit_1(mhaprof: Any) -> None:
    ran = mhaprof("claim", "--format", "json")
    assert ran.code == 1
    assert ran.json["claim"] == {"holds": False, "counters": ["fvcore", "torch", "closed form"]}
    marked = [row["name"] for row in ran.rows if row["status"] == "failed"]
    assert marked == ["4 heads, W_O", "4 heads, no W_O"]
    assert {row["reason"] for row in ran.rows if row["status"] == "failed"} == {"counters_disagree"}
    assert "fvcore 68719476736, torch 68719476736, closed form 68719476737" in ran.err


def test_a_claim_that_does_not_hold_is_not_called_reproduced() -> None:
    from mhaprof.point import count_point

    points = paper.claim_points(dim=64, tokens=8, batch=1)
    counted = {}
    for point in points:
        outcome = count_point(point, counters=["closed-form"]).outcome
        assert isinstance(outcome, Measured)
        assert outcome.counts is not None
        counted[point.name] = outcome.counts
    assert paper.judge(points, counted).holds
    wrong = counted["2 heads, no W_O"].model_copy(update={"macs": 7})
    verdict = paper.judge(points, {**counted, "2 heads, no W_O": wrong})
    assert not verdict.holds
    assert verdict.sentences[0].startswith("NOT reproduced: 2 heads, no W_O costs 7, not ")
    del counted["4 heads, W_O"]
    assert not paper.judge(points, counted).holds


@pytest.mark.parametrize(("format", "name"), [("csv", "claim.csv"), ("markdown", "claim.md")])
def test_the_stored_result_is_what_the_command_regenerates(
    mhaprof: Any, tmp_path: Path, format: str, name: str
) -> None:
    ran = mhaprof("claim", "--format", format, "-o", tmp_path / name)
    assert ran.code == 0
    assert (tmp_path / name).read_text() == (RESULTS / name).read_text()


@pytest.fixture
def made_up_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let eager take as many seconds as heads, sdpa be contended and refuse two heads."""

    def timed(point: Point, **_: object) -> Result:
        heads, eager = point.spec.heads, point.implementation == "eager"
        if heads == 2 and not eager:
            refusal = Skipped(code="backend_unavailable", message="no two heads today")
            return Result(point=point, outcome=refusal)
        latency = Latency(
            device="cpu", device_name="a CPU", dtype="float32", threads=1, timer="wall",
            cache="hot", mode="forward", compiled=False, tf32=None, resolved_backend=None,
            samples_s=[heads * factor for factor in (0.9,) * 9 + (1.0,) * 2 + (1.1,) * 9],
            first_call_s=1.0, warmup_calls=3, converged=eager, max_error=0.0, tolerance=1.0,
            flags=[] if eager else ["contended"],
        )  # fmt: skip
        return Result(point=point, outcome=Measured(latency=latency))

    monkeypatch.setattr(claim_times, "measure_point", timed)


@pytest.mark.usefixtures("made_up_times")
def test_times_come_with_their_spread_and_what_has_none_says_why(mhaprof: Any) -> None:
    arguments = ("claim", "--latency", "--device", "cpu", "--dim", 8, "--tokens", 16, "--batch", 2)
    rows = [row for row in mhaprof(*arguments, "--format", "json").rows if "timer" in row]
    assert len(rows) == 16
    for row in rows:
        refused = row["heads"] == 2 and row["implementation"] == "sdpa"
        median = row["latency_median_s"]
        assert median == row["latency_ratio"] == (None if refused else row["heads"])
        assert row["flags"] == (
            None if row["implementation"] == "eager" or refused else "contended"
        )
    shown = mhaprof(*arguments).out
    assert "1 s ±10.0 %" in shown
    assert "Times of the cases: batch 2, float32, on " in shown
    assert "Not timed: 2 heads, W_O, sdpa: backend_unavailable: no two heads today." in shown
    assert "Of 16 times, 6 did not converge (their interval is wide)." in shown
    assert "Of 16 times, 6 were contended." in shown
    assert "--replicates 5" in shown


def test_counts_and_times_of_one_row_are_of_the_same_shape(
    mhaprof: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = functools.partial(MeasureOptions, samples=3, min_time_s=0.01)
    monkeypatch.setattr(claim_times, "MeasureOptions", quick)
    monkeypatch.setattr(claim_times, "CPU_MACS", 2 * (3 * 8 * 8 * 16 + 2 * 8 * 16 * 16))
    arguments = ("claim", "--latency", "--device", "cpu", "--dim", 8, "--tokens", 16, "--batch", 7)
    ran = mhaprof(*arguments, "--format", "json")
    assert ran.code == 0
    assert {row["batch"] for row in ran.rows if "timer" not in row} == {7}
    timed = [row for row in ran.rows if "timer" in row]
    assert {row["cache"] for row in timed} == {"hot"}
    for row in timed:
        one = (4 if row["out_proj"] else 3) * 8 * 8 * 16 + 2 * 8 * 16 * 16
        assert (row["batch"], row["macs"]) == (2, 2 * one)


def test_a_device_without_latency_is_refused(mhaprof: Any) -> None:
    ran = mhaprof("claim", "--device", "cpu")
    assert ran.code == 2
    said = "--device says where --latency runs; give --latency too (mhaprof claim --help)"
    assert ran.err == f"mhaprof: {said}\n"
