"""The issue's synthetic checks and every exit code, on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Rows = list[dict[str, Any]]

PROCESSES = pytest.mark.parametrize("rounds", [5, None], ids=["5 processes", "one process"])


@pytest.fixture
def judge(mhaprof: Any, write_run: Any) -> Callable[..., Any]:
    """Run the gate on two lists of rows."""

    def run(base: Rows, new: Rows, *flags: object) -> Any:
        paths = (write_run("base.json", base), write_run("new.json", new))
        return mhaprof("gate", *paths, "--format", "json", *flags)

    return run


def found(ran: Any, verdict: str) -> list[tuple[str, str, str]]:
    return [
        (row["name"], row["metric"], row["reason"]) for row in ran.rows if row["verdict"] == verdict
    ]


@PROCESSES
@pytest.mark.parametrize("seed", range(4))
def test_one_of_fifty_points_six_percent_slower_fails_and_is_named(
    judge: Any, make_rows: Any, rounds: int | None, seed: int
) -> None:
    base = make_rows(seed=seed, rounds=rounds, points=50)
    ran = judge(base, make_rows(seed=100 + seed, rounds=rounds, points=50, slower={7: 1.06}))
    assert ran.code == 1
    reason = "rank_test" if rounds else "intervals_disjoint"
    assert found(ran, "regressed") == [("p07", "latency", reason)]


@PROCESSES
@pytest.mark.parametrize("seed", range(5))
def test_identical_points_within_noise_pass(
    judge: Any, make_rows: Any, rounds: int | None, seed: int
) -> None:
    ran = judge(
        make_rows(seed=seed, rounds=rounds, points=50),
        make_rows(seed=200 + seed, rounds=rounds, points=50),
    )
    assert ran.code == 0
    assert found(ran, "regressed") == []
    assert ran.json["comparison"]["tally"] == {"unchanged": 50}


@PROCESSES
def test_noise_too_large_to_tell_is_inconclusive_and_fails_only_strictly(
    judge: Any, make_rows: Any, rounds: int | None
) -> None:
    base = make_rows(seed=1, rounds=rounds, noise=0.2)
    new = make_rows(seed=2, rounds=rounds, noise=0.2)
    ran = judge(base, new)
    assert ran.code == 0
    assert {reason for _, _, reason in found(ran, "inconclusive")} >= {"too_noisy"}
    assert judge(base, new, "--strict").code == 5


def test_one_mac_more_fails_and_names_its_stage(judge: Any, make_rows: Any) -> None:
    base, new = make_rows(seed=1), make_rows(seed=1)
    new[3]["macs"] += 1
    new[3]["macs_scores"] += 1
    ran = judge(base, new)
    assert ran.code == 1
    (row,) = [row for row in ran.rows if row["verdict"] == "regressed"]
    assert row["message"] == "macs 4003 -> 4004 (+1): scores +1"


def test_macs_that_moved_between_stages_fail_though_their_sum_is_equal(
    judge: Any, make_rows: Any
) -> None:
    base, new = make_rows(seed=1), make_rows(seed=1)
    new[3]["macs_scores"] += 1
    new[3]["macs_context"] -= 1
    ran = judge(base, new)
    assert ran.code == 1
    assert found(ran, "regressed") == [("p03", "macs", "exact_changed")]


def test_fewer_macs_fail_by_default_and_are_an_improvement_permissively(
    judge: Any, make_rows: Any
) -> None:
    base, new = make_rows(seed=1), make_rows(seed=1)
    new[3]["macs"] -= 1
    new[3]["macs_scores"] -= 1
    assert judge(base, new).code == 1
    ran = judge(base, new, "--policy", "permissive")
    assert ran.code == 0
    assert found(ran, "improved") == [("p03", "macs", "exact_decreased")]


@pytest.mark.parametrize(
    "metric", ["params", "softmax_ops", "kv_cache_bytes", "resolved_backend", "uncounted_ops"]
)
def test_every_deterministic_metric_blocks_when_it_changes(
    judge: Any, make_rows: Any, metric: str
) -> None:
    changed = {"resolved_backend": "math", "uncounted_ops": "aten.foo"}.get(metric, 10**18 + 1)
    base, new = make_rows(seed=1, uncounted_ops=None), make_rows(seed=1, uncounted_ops=None)
    new[3][metric] = changed
    ran = judge(base, new)
    assert ran.code == 1
    assert found(ran, "regressed") == [("p03", metric, "exact_changed")]


def test_counts_are_compared_beyond_the_precision_of_floats(judge: Any, make_rows: Any) -> None:
    base, new = make_rows(seed=1, points=1), make_rows(seed=1, points=1)
    base[0]["macs"], new[0]["macs"] = 36_063_981_391_052_800, 36_063_981_391_052_801
    assert judge(base, new).code == 1


def _vanished(rows: Rows) -> None:
    rows.pop(3)


def _failing(rows: Rows) -> None:
    rows[3].update(status="failed", reason="out_of_memory", message="no room", macs=None)


def _skipped(rows: Rows) -> None:
    rows[3].update(status="skipped", reason="no_cuda", message="no device")


def _redefined(rows: Rows) -> None:
    rows[3]["heads"] = 16


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_vanished, "point_vanished"),
        (_failing, "newly_failing"),
        (_skipped, "newly_skipped"),
        (_redefined, "definition_changed"),
    ],
)
def test_a_point_that_is_lost_fails_whatever_way_it_was_lost(
    judge: Any, make_rows: Any, change: Callable[[Rows], None], reason: str
) -> None:
    new = make_rows(seed=1)
    change(new)
    ran = judge(make_rows(seed=1), new)
    assert ran.code == 1
    assert ("p03", "status", reason) in found(ran, "regressed")
    assert len(found(ran, "regressed")) == 1


def test_a_changed_definition_names_the_fields_that_differ(judge: Any, make_rows: Any) -> None:
    new = make_rows(seed=1)
    _redefined(new)
    first = judge(make_rows(seed=1), new).rows[0]
    assert (first["base"], first["new"]) == ("heads 8", "heads 16")


def test_a_point_that_fails_on_both_sides_is_exit_4(judge: Any, make_rows: Any) -> None:
    base, new = make_rows(seed=1), make_rows(seed=1)
    _failing(base)
    _failing(new)
    ran = judge(base, new)
    assert ran.code == 4
    assert found(ran, "failed") == [("p03", "status", "still_failing")]


def test_a_new_point_without_baseline_is_no_pass_under_strict(judge: Any, make_rows: Any) -> None:
    base, new = make_rows(seed=1, points=4), make_rows(seed=1, points=5)
    ran = judge(base, new)
    assert ran.code == 0
    assert found(ran, "inconclusive") == [("p04", "status", "new_point")]
    assert judge(base, new, "--strict").code == 5


def test_a_repaired_point_is_an_improvement(judge: Any, make_rows: Any) -> None:
    base = make_rows(seed=1)
    _failing(base)
    ran = judge(base, make_rows(seed=1))
    assert ran.code == 0
    assert found(ran, "improved") == [("p03", "status", "newly_passing")]


def test_a_metric_that_is_no_longer_measured_is_not_a_pass(judge: Any, make_rows: Any) -> None:
    new = make_rows(seed=1)
    new[3].update(latency_median_s=None, replicate_medians_s=None)
    ran = judge(make_rows(seed=1), new)
    assert found(ran, "inconclusive") == [("p03", "latency", "metric_missing")]


def test_a_process_that_took_no_time_is_no_time_and_no_traceback(
    judge: Any, make_rows: Any
) -> None:
    new = make_rows(seed=2)
    new[0]["replicate_medians_s"][0] = 0.0
    ran = judge(make_rows(seed=1), new)
    assert ran.code == 0
    assert (ran.rows[0]["name"], ran.rows[0]["reason"]) == ("p00", "metric_missing")


def test_a_renamed_point_is_found_by_what_it_measures(judge: Any, make_rows: Any) -> None:
    new = make_rows(seed=1)
    new[3]["name"] = "renamed"
    assert judge(make_rows(seed=1), new).code == 0


def test_a_slowdown_of_all_fifty_points_is_seen_with_five_rounds(
    judge: Any, make_rows: Any
) -> None:
    slower = dict.fromkeys(range(50), 1.10)
    ran = judge(make_rows(seed=1, points=50), make_rows(seed=2, points=50, slower=slower))
    assert ran.code == 1
    assert len(found(ran, "regressed")) == 50


def test_memory_regresses_beyond_threshold_and_floor(judge: Any, make_rows: Any) -> None:
    base = make_rows(seed=1, points=3, peak_bytes=100 * 2**20)
    new = make_rows(seed=1, points=3, peak_bytes=100 * 2**20)
    new[0]["peak_bytes"] = 106 * 2**20
    new[1]["peak_bytes"] = 104 * 2**20
    ran = judge(base, new)
    assert ran.code == 1
    assert found(ran, "regressed") == [("p00", "peak_bytes", "above_threshold")]


@pytest.mark.parametrize(
    ("timer", "base_s", "new_s", "verdict"),
    [
        ("cuda-events", 50e-6, 59e-6, "unchanged"),
        ("cuda-events", 50e-6, 61e-6, "regressed"),
        ("cuda-graph", 20e-6, 21.9e-6, "unchanged"),
        ("cuda-graph", 20e-6, 22.1e-6, "regressed"),
    ],
)
def test_a_difference_below_the_timers_floor_is_no_regression(
    judge: Any, make_rows: Any, timer: str, base_s: float, new_s: float, verdict: str
) -> None:
    sides = []
    for seconds in (base_s, new_s):
        rows = make_rows(seed=1, points=1, timer=timer)
        rows[0]["replicate_medians_s"] = [seconds * (1 + i * 1e-4) for i in range(5)]
        sides.append(rows)
    ran = judge(*sides)
    (row,) = [row for row in ran.rows if row["metric"] == "latency"]
    assert row["verdict"] == verdict


def test_a_difference_near_the_floor_is_no_regression_though_ranks_and_ratio_say_so(
    judge: Any, make_rows: Any
) -> None:
    base, new = make_rows(seed=1, points=1), make_rows(seed=1, points=1)
    base[0]["replicate_medians_s"] = [50e-6, 50.1e-6, 50e-6, 50.1e-6, 50e-6]
    new[0]["replicate_medians_s"] = [59.8e-6, 59.9e-6, 59.9e-6, 61e-6, 61e-6]
    ran = judge(base, new)
    assert ran.code == 0
    assert found(ran, "inconclusive") == [("p00", "latency", "too_noisy")]


@pytest.mark.parametrize(
    ("gap", "reason"), [(0.99, "too_noisy"), (1.01, "too_few_rounds"), (1.04, "intervals_disjoint")]
)
def test_intervals_of_one_process_a_side_must_be_clearly_apart(
    judge: Any, make_rows: Any, gap: float, reason: str
) -> None:
    sides = [make_rows(seed=1, points=1, rounds=None) for _ in range(2)]
    times = ((1.0e-3, 0.98e-3, 1.02e-3), (1.08e-3, gap * 1.02e-3, 1.1e-3))
    for rows, (middle, low, high) in zip(sides, times, strict=True):
        rows[0].update(latency_median_s=middle, latency_ci_low_s=low, latency_ci_high_s=high)
    ran = judge(*sides)
    assert ran.rows[0]["reason"] == reason
    assert ran.code == (1 if reason == "intervals_disjoint" else 0)


@pytest.mark.parametrize("contended", [0, 1], ids=["base", "new"])
def test_one_process_a_side_on_a_shared_machine_proves_nothing(
    judge: Any, make_rows: Any, contended: int
) -> None:
    settings: dict[str, Any] = {"device": "cpu", "timer": "wall", "threads": 1}
    sides = [
        make_rows(seed=1, points=1, rounds=None, **settings),
        make_rows(seed=2, points=1, rounds=None, slower={0: 1.6}, **settings),
    ]
    assert judge(*sides).code == 1
    sides[contended][0]["flags"] = "contended"
    ran = judge(*sides)
    assert ran.code == 0
    assert found(ran, "inconclusive") == [("p00", "latency", "too_few_rounds")]


def test_the_gate_says_what_fails_and_how_to_accept_it(
    mhaprof: Any, write_run: Any, make_rows: Any
) -> None:
    base = write_run("base.json", make_rows(seed=1))
    new = write_run("new.json", make_rows(seed=2, slower={7: 1.06}))
    ran = mhaprof("gate", base, new)
    assert ran.code == 1
    assert "fails: p07 [sdpa] (cuda, float16): latency" in ran.out
    assert f"mhaprof baseline update {new}" in ran.err


def test_compare_reports_a_regression_and_exits_0(
    mhaprof: Any, write_run: Any, make_rows: Any
) -> None:
    base = write_run("base.json", make_rows(seed=1))
    new = write_run("new.json", make_rows(seed=2, slower={7: 1.06}))
    ran = mhaprof("compare", base, new, "--format", "csv")
    assert ran.code == 0
    first = ran.out.splitlines()[1]
    assert first.startswith("p07,point,sdpa,cuda,float16,latency,regressed,rank_test,block,True")


def test_compare_and_gate_do_not_import_torch(
    write_run: Any, make_rows: Any, tmp_path: Path
) -> None:
    import subprocess
    import sys

    path = write_run("run.json", make_rows(seed=1))
    script = (
        "import sys; from mhaprof.cli.app import run; "
        f"codes = [run([c, r'{path}', r'{path}']) for c in ('compare', 'gate')]; "
        f"codes.append(run(['baseline', 'update', r'{path}', '--directory', r'{tmp_path}'])); "
        "heavy = {'torch', 'fvcore', 'ray', 'pandas', 'matplotlib', 'scipy'} & set(sys.modules); "
        "print(codes, sorted(heavy), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[-1] == "[0, 0, 0] []"


@pytest.mark.parametrize("flag", ["contended", "throttled", "contended throttled"])
def test_one_process_a_side_on_a_disturbed_gpu_proves_nothing(
    judge: Any, make_rows: Any, flag: str
) -> None:
    base = make_rows(seed=1, points=1, rounds=None)
    new = make_rows(seed=2, points=1, rounds=None, slower={0: 1.6}, flags=flag)
    ran = judge(base, new)
    assert ran.code == 0
    assert found(ran, "inconclusive") == [("p00", "latency", "too_few_rounds")]


def test_a_power_cap_at_full_load_does_not_keep_a_gate_from_judging(
    judge: Any, make_rows: Any
) -> None:
    base = make_rows(seed=1, points=1, rounds=None, flags="power_limited")
    ran = judge(base, make_rows(seed=2, points=1, rounds=None, slower={0: 1.6}))
    assert ran.code == 1


def test_a_verdict_on_one_process_a_side_says_what_it_stands_on(
    mhaprof: Any, write_run: Any, make_rows: Any
) -> None:
    for rounds, said in ((None, 1), (5, 0)):
        base = write_run("base.json", make_rows(seed=1, rounds=rounds))
        slow = make_rows(seed=2, rounds=rounds, slower={7: 1.3})
        ran = mhaprof("gate", base, write_run("new.json", slow))
        assert ran.code == 1
        assert ran.err.count("1 of the times differs by one process a side") == said


def test_the_same_name_may_be_defined_by_a_column_that_one_row_lacks(
    judge: Any, make_rows: Any
) -> None:
    base, new = make_rows(seed=1, points=2), make_rows(seed=1, points=2)
    for row in (base[1], new[0], new[1]):
        row["window"] = 8
    ran = judge(base, new)
    assert ran.code == 1
    assert found(ran, "regressed") == [("p00", "status", "definition_changed")]


def test_an_interval_that_begins_at_zero_is_none(judge: Any, make_rows: Any) -> None:
    base, new = make_rows(seed=1, rounds=None), make_rows(seed=1, rounds=None)
    base[0]["latency_ci_low_s"] = 0.0
    assert ("p00", "latency", "no_interval") in found(judge(base, new), "inconclusive")


def test_counts_beyond_any_float_are_compared_exactly(judge: Any, make_rows: Any) -> None:
    base, new = make_rows(seed=1, points=1), make_rows(seed=1, points=1)
    base[0]["macs"] = 10**400
    new[0]["macs"] = 10**400 + 1
    assert ("p00", "macs", "exact_changed") in found(judge(base, new), "regressed")
    base[0]["macs"] = 3
    assert ("p00", "macs", "exact_changed") in found(judge(base, new), "regressed")


def unmeasured(row: dict[str, Any]) -> dict[str, Any]:
    """Return a skipped row as mhaprof writes it: its settings, and no timer."""
    lost = ("timer", "device_name", "torch", "driver", "latency_median_s", "replicate_medians_s")
    return row | dict.fromkeys(lost) | {"status": "skipped", "reason": "no_cuda"}


def test_a_skipped_point_is_paired_with_its_own_settings_in_any_order(
    judge: Any, make_rows: Any
) -> None:
    half, single = (make_rows(seed=1, points=1, dtype=name)[0] for name in ("float16", "float32"))
    ran = judge([unmeasured(half), single], [unmeasured(single), half])
    assert ran.code == 1
    assert found(ran, "regressed") == [("p00", "status", "newly_skipped")]
    assert ("p00", "status", "newly_passing") in found(ran, "improved")
    assert judge([unmeasured(half), single], [single, unmeasured(half)]).code == 0


def test_points_whose_threads_changed_are_paired_by_their_other_settings(
    mhaprof: Any, write_run: Any, make_rows: Any
) -> None:
    def row(dtype: str, threads: int) -> dict[str, Any]:
        settings = {"device": "cpu", "driver": None, "tf32": None, "timer": "wall"}
        found: dict[str, Any] = make_rows(
            seed=1, points=1, dtype=dtype, threads=threads, **settings
        )[0]
        return found

    base = write_run("base.json", [row("float16", 1), row("float32", 1)])
    new = write_run("new.json", [row("float32", 4), row("float16", 4)])
    ran = mhaprof("gate", base, new)
    assert ran.code == 3
    assert "threads: 1 in the baseline, 4 in the candidate" in ran.err
    assert "dtype" not in ran.err


def test_an_empty_role_is_a_point(judge: Any, make_rows: Any) -> None:
    assert judge(make_rows(seed=1), [row | {"role": None} for row in make_rows(seed=1)]).code == 0
