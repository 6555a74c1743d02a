"""Replicates: fresh processes whose JSON is parsed; one that dies costs only itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mhaprof.measure import replicates
from mhaprof.measure.replicates import replicate_medians, run_replicates
from mhaprof.point import MeasureOptions
from mhaprof.point.fresh import measure_replicated
from mhaprof.records import Failed, Latency, Measured, Point, Result, Run
from mhaprof.spec import AttentionSpec

POINT = Point(name="p", spec=AttentionSpec(batch=1, tokens=8, dim=8, heads=1), implementation="x")


def run_of(median: float, point: Point = POINT) -> Run:
    latency = Latency(
        device="cpu",
        device_name="c",
        dtype="float32",
        threads=1,
        timer="wall",
        cache="hot",
        mode="forward",
        compiled=False,
        tf32=None,
        resolved_backend=None,
        samples_s=[median] * 7,
        first_call_s=1.0,
        warmup_calls=3,
        converged=True,
        max_error=0.0,
        tolerance=1.0,
    )
    return Run(results=[Result(point=point, outcome=Measured(latency=latency))])


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_each_replicate_is_a_process_of_its_own(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = (
        f"import os; open({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n');"
        f"print({run_of(1.5).model_dump_json()!r})"
    )
    told: list[int] = []
    outcomes = run_replicates(python(code), count=3, timeout_s=60, done=told.append)
    assert outcomes == [run_of(1.5)] * 3
    assert told == [1, 2, 3]
    assert len(set(pids.read_text().split())) == 3


def interrupted_at(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[None] = []

    def replicate(*_: object) -> Run:
        started.append(None)
        if len(started) == number:
            raise KeyboardInterrupt
        return run_of(float(len(started)))

    monkeypatch.setattr(replicates, "_replicate", replicate)


def test_an_interrupt_keeps_the_processes_that_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted_at(3, monkeypatch)
    result = measure_replicated(POINT, what=("latency",), options=MeasureOptions(), replicates=5)
    assert isinstance(result.outcome, Measured)
    assert result.outcome.latency is not None
    assert result.outcome.latency.replicate_medians_s == [1.0, 2.0]
    (cut,) = result.outcome.findings
    assert (cut.code, cut.message) == ("interrupted", "interrupted: 2 of 5 processes")


def test_an_interrupt_before_any_process_is_done_is_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interrupted_at(1, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run_replicates(["unused"], count=5, timeout_s=60)


def test_a_row_that_failed_is_still_a_result() -> None:
    failed = Run(results=[Result(point=POINT, outcome=Failed(code="c", message="m"))])
    code = f"print({failed.model_dump_json()!r}); raise SystemExit(4)"
    assert run_replicates(python(code), count=1, timeout_s=60) == [failed]


def test_a_replicate_that_prints_nothing_keeps_its_last_words() -> None:
    (outcome,) = run_replicates(python("raise SystemExit('no such thing')"), count=1, timeout_s=60)
    assert isinstance(outcome, Failed)
    assert outcome.code == "replicate_failed"
    assert "exited with 1 and no result: no such thing" in outcome.message


def test_a_killed_and_a_slow_replicate_are_named() -> None:
    killed = python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    (outcome,) = run_replicates(killed, count=1, timeout_s=60)
    assert isinstance(outcome, Failed)
    assert (outcome.code, "signal 9" in outcome.message) == ("died", True)
    (outcome,) = run_replicates(python("import time; time.sleep(60)"), count=1, timeout_s=0.2)
    assert isinstance(outcome, Failed)
    assert outcome.code == "timeout"


def test_medians_are_of_the_same_point_and_skip_what_failed() -> None:
    other = POINT.model_copy(update={"implementation": "y"})
    outcomes = [
        run_of(1.0),
        Failed(code="died", message="m"),
        run_of(9.0, other),
        Run(results=[Result(point=POINT, outcome=Failed(code="c", message="m"))]),
        run_of(3.0),
    ]
    assert replicate_medians(outcomes, identity=POINT.identity()) == [1.0, 3.0]
