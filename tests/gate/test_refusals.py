"""What cannot be compared is refused, naming each difference, unless allowed by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mhaprof.compare import CONDITIONS

OTHER = {
    "device": "mps",
    "device_name": "NVIDIA A100",
    "dtype": "bfloat16",
    "threads": 4,
    "timer": "wall",
    "cache": "hot",
    "mode": "backward",
    "compiled": True,
    "tf32": True,
    "torch": "2.12.0",
    "driver": "560.2",
}


def test_every_condition_has_a_test() -> None:
    assert set(OTHER) == set(CONDITIONS)


@pytest.mark.parametrize("key", CONDITIONS)
def test_times_under_another_condition_are_refused_by_name_and_allowed_by_name(
    mhaprof: Any, write_run: Any, make_rows: Any, key: str
) -> None:
    base = write_run("base.json", make_rows(seed=1, points=3))
    new = write_run("new.json", make_rows(seed=1, points=3, **{key: OTHER[key]}))
    ran = mhaprof("gate", base, new)
    assert ran.code == 3
    assert f"{key}: " in ran.err
    assert f"{OTHER[key]} in the candidate" in ran.err
    assert f"--allow-env-mismatch {key}" in ran.err
    allowed = mhaprof("gate", base, new, "--allow-env-mismatch", key)
    assert allowed.code == 0
    assert f"allowed difference: {key}: " in allowed.out


def test_all_differences_are_named_at_once(mhaprof: Any, write_run: Any, make_rows: Any) -> None:
    base = write_run("base.json", make_rows(seed=1, points=3))
    new = write_run("new.json", make_rows(seed=1, points=3, torch="2.12.0", cache="hot"))
    ran = mhaprof("gate", base, new, "--allow-env-mismatch", "torch")
    assert ran.code == 3
    assert "cache: cold in the baseline, hot in the candidate" in ran.err
    assert "torch:" not in ran.err
    assert mhaprof("gate", base, new, "--allow-env-mismatch", "torch,cache").code == 0


def test_a_condition_that_one_side_did_not_record_is_a_difference(
    mhaprof: Any, write_run: Any, make_rows: Any
) -> None:
    base = write_run("base.json", make_rows(seed=1, points=3))
    new = write_run("new.json", make_rows(seed=1, points=3, torch=None))
    ran = mhaprof("gate", base, new)
    assert ran.code == 3
    assert "torch: 2.13.0 in the baseline, not recorded in the candidate" in ran.err


def test_the_environment_of_the_file_counts_like_the_columns_of_its_rows(
    mhaprof: Any, write_run: Any, make_rows: Any
) -> None:
    def environment(torch: str, clock: float) -> dict[str, Any]:
        hardware = {"device_name": "NVIDIA H200", "driver": "570.1"}
        return {"software": {"torch": torch}, "hardware": hardware, "state": {"clock": clock}}

    rows = make_rows(seed=1, points=3, torch=None, driver=None)
    base = write_run("base.json", rows, environment=environment("2.13.0", 1.0))
    busy = write_run("busy.json", rows, environment=environment("2.13.0", 2.0))
    other = write_run("other.json", rows, environment=environment("2.12.0", 1.0))
    assert mhaprof("gate", base, busy).code == 0
    assert mhaprof("gate", base, other).code == 3


def test_which_of_several_equal_gpus_ran_is_no_difference(
    mhaprof: Any, write_run: Any, make_rows: Any
) -> None:
    base = write_run("base.json", make_rows(seed=1, points=3, device="cuda:0"))
    new = write_run("new.json", make_rows(seed=1, points=3, device="cuda:1"))
    assert mhaprof("gate", base, new).code == 0


def test_counts_compare_on_any_machine(mhaprof: Any, write_run: Any, make_rows: Any) -> None:
    untimed = {"latency_median_s": None, "replicate_medians_s": None}
    base = write_run("base.json", make_rows(seed=1, points=3, torch="2.6.0", **untimed))
    new = write_run("new.json", make_rows(seed=1, points=3, device="cpu", **untimed))
    assert mhaprof("gate", base, new).code == 0


def test_a_policy_that_ignores_times_needs_no_equal_machines(
    mhaprof: Any, write_run: Any, make_rows: Any, tmp_path: Path
) -> None:
    policy = tmp_path / "counts.yaml"
    policy.write_text("version: 1\nmetrics: {latency: {gate: ignore}}\n")
    base = write_run("base.json", make_rows(seed=1, points=3))
    new = write_run("new.json", make_rows(seed=1, points=3, torch="2.12.0"))
    assert mhaprof("gate", base, new).code == 3
    assert mhaprof("gate", base, new, "--policy", policy).code == 0


def test_an_unknown_condition_is_a_usage_error_that_lists_them(
    mhaprof: Any, write_run: Any, make_rows: Any
) -> None:
    run = write_run("run.json", make_rows(seed=1, points=3))
    ran = mhaprof("gate", run, run, "--allow-env-mismatch", "weather")
    assert ran.code == 2
    assert ", ".join(CONDITIONS) in ran.err


@pytest.mark.parametrize("command", ["gate", "compare"])
def test_a_missing_baseline_is_never_a_pass(
    mhaprof: Any, write_run: Any, make_rows: Any, tmp_path: Path, command: str
) -> None:
    run = write_run("run.json", make_rows(seed=1, points=3))
    ran = mhaprof(command, tmp_path / "absent.json", run)
    assert ran.code == 3
    assert "there is no baseline" in ran.err


def test_an_empty_baseline_is_never_a_pass(mhaprof: Any, write_run: Any, make_rows: Any) -> None:
    run = write_run("run.json", make_rows(seed=1, points=3))
    assert mhaprof("gate", write_run("empty.json", []), run).code == 3


def test_a_missing_candidate_is_a_usage_error(
    mhaprof: Any, write_run: Any, make_rows: Any, tmp_path: Path
) -> None:
    run = write_run("run.json", make_rows(seed=1, points=3))
    assert mhaprof("gate", run, tmp_path / "absent.json").code == 2


@pytest.mark.parametrize("column", ["samples_s", "replicate_medians_s"])
def test_times_that_are_raw_alone_are_refused_like_medians(
    mhaprof: Any, write_run: Any, make_rows: Any, column: str
) -> None:
    def rows(**settings: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = make_rows(seed=1, points=1, **settings)
        for row in found:
            raw = row["replicate_medians_s"]
            row.update(latency_median_s=None, latency_ci_low_s=None, latency_ci_high_s=None)
            row.update({"replicate_medians_s": None, column: raw * 5})
        return found

    base = write_run("base.json", rows())
    assert mhaprof("gate", base, write_run("same.json", rows())).code == 0
    other = write_run("new.json", rows(device_name="NVIDIA A100"))
    assert mhaprof("gate", base, other).code == 3
