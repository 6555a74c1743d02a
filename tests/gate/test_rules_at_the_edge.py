"""The edges of the rules: where one more, or one less, is another verdict."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

from mhaprof.ab import remeasured
from mhaprof.compare import Comparison, Judgement, PointVerdict, RunRows, compare, preset
from mhaprof.records import Environment
from mhaprof.store import Store
from mhaprof.store.environments import fingerprint


def verdicts(base: Any, new: Any, metric: str, *, policy: str = "default") -> list[tuple[str, str]]:
    """Return verdict and reason of one metric, point by point."""
    sides = RunRows(source="base", rows=base), RunRows(source="new", rows=new)
    found = compare(*sides, preset(policy)).judgements()
    return [(each.verdict, each.reason) for _, each in found if each.metric == metric]


def test_an_interval_is_inside_the_threshold_by_its_ratio_in_both_directions(
    make_rows: Any,
) -> None:
    def row(median: float, low: float, high: float) -> list[Any]:
        times = {"median": median, "ci_low": low, "ci_high": high}
        columns = {f"latency_{name}_s": value for name, value in times.items()}
        return [make_rows(seed=1, points=1, rounds=None)[0] | columns]

    base = row(1e-3, 1e-3, 1e-3)
    assert verdicts(base, row(0.975e-3, 0.951e-3, 1e-3), "latency") == [
        ("inconclusive", "too_noisy")
    ]
    assert verdicts(base, row(0.975e-3, 0.953e-3, 1e-3), "latency") == [
        ("unchanged", "within_threshold")
    ]


def test_a_part_that_shrinks_under_an_equal_sum_is_an_improvement_permissively(
    make_rows: Any,
) -> None:
    base, new = make_rows(seed=1, points=1), make_rows(seed=1, points=1)
    new[0]["macs_scores"] -= 1
    for policy, verdict in (("permissive", "improved"), ("default", "regressed")):
        assert [found for found, _ in verdicts(base, new, "macs", policy=policy)] == [verdict]


def test_a_peak_that_doubles_below_the_floor_is_unchanged(make_rows: Any) -> None:
    base, new = (make_rows(seed=1, points=1, peak_bytes=size) for size in (1000, 2000))
    assert verdicts(base, new, "peak_bytes") == [("unchanged", "below_floor")]


def test_a_row_of_the_baseline_is_compared_with_one_row_alone(make_rows: Any) -> None:
    base = make_rows(seed=1, points=1)
    found = verdicts(base, [*base, *base], "status")
    assert sorted(found) == [("inconclusive", "new_point"), ("unchanged", "exact_equal")]


def test_what_is_inconclusive_and_only_warns_does_not_fail_a_strict_gate() -> None:
    def comparison(gate: Any) -> Comparison:
        found = Judgement(
            metric="latency", verdict="inconclusive", reason="too_noisy", message="", gate=gate
        )
        point = PointVerdict(
            name="a", implementation="sdpa", role="point", label="a", judgements=[found]
        )
        return Comparison(points=[point], strict=True)

    assert [comparison("warn").exit_code, comparison("block").exit_code] == [0, 5]


def test_a_baseline_keeps_six_digits_of_a_time(
    mhaprof: Any, write_run: Any, make_rows: Any, tmp_path: Path
) -> None:
    times = {"latency_median_s": 0.00123456789, "replicate_medians_s": [0.00123456789] * 5}
    run = write_run("run.json", make_rows(seed=1, points=1, **times))
    assert mhaprof("baseline", "update", run, "--directory", tmp_path).code == 0
    (row,) = json.loads((tmp_path / "nvidia-h200" / "run.json").read_text())["rows"]
    assert (row["latency_median_s"], row["replicate_medians_s"][0]) == (0.00123457, 0.00123457)


def test_a_metric_that_is_missing_is_not_measured_once_more() -> None:
    def asked(reason: str) -> list[str]:
        found = Judgement(metric="latency", verdict="inconclusive", reason=reason, message="")
        point = PointVerdict(
            name="a", implementation="sdpa", role="point", label="a [sdpa]", judgements=[found]
        )
        return remeasured(Comparison(points=[point]))

    assert [asked("metric_missing"), asked("too_noisy")] == [[], ["a [sdpa]"]]


def test_the_size_of_the_memory_is_no_other_environment() -> None:
    def machine(size: int) -> Environment:
        return Environment(software={}, hardware={"cpu_model": "x", "memory_bytes": size}, state={})

    assert fingerprint("cpu", machine(2**30)) == fingerprint("cpu", machine(2**31))


def test_a_lock_on_a_file_that_was_removed_meanwhile_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, lockf = tmp_path / "a.sqlite.lock", fcntl.lockf
    taken: list[int] = []

    def removed_first(handle: int, how: int) -> None:
        if not taken:
            lock.unlink()
        taken.append(handle)
        lockf(handle, how)

    monkeypatch.setattr(fcntl, "lockf", removed_first)
    with Store(tmp_path / "a.sqlite"):
        assert len(taken) == 2
        assert os.path.samestat(os.fstat(taken[-1]), lock.stat())
