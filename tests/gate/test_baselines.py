"""Baselines: small, sorted, reviewable, valid for what they name."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENT = {
    "software": {"torch": "2.13.0", "numpy": "2.0", "python": "3.11.7"},
    "hardware": {"device_name": "NVIDIA H200", "driver": "570.1", "memory_bytes": 1},
    "state": {"clock_mhz": 1980, "load": 0.3},
}


def update(mhaprof: Any, run: Path, folder: Path, *flags: object) -> Any:
    return mhaprof("baseline", "update", run, "--directory", folder, *flags, "--format", "json")


def test_a_baseline_is_written_per_device_and_gates_its_own_run(
    mhaprof: Any, write_run: Any, make_rows: Any, tmp_path: Path
) -> None:
    rows = make_rows(seed=1, torch=None, driver=None)
    run = write_run("nightly.json", rows, environment=ENVIRONMENT)
    ran = update(mhaprof, run, tmp_path / "baselines")
    path = tmp_path / "baselines" / "nvidia-h200" / "nightly.json"
    assert ran.code == 0
    assert [row["baseline"] for row in ran.rows] == [str(path)]
    assert mhaprof("gate", path, run).code == 0
    slow = make_rows(seed=2, slower={7: 1.06}, torch=None, driver=None)
    worse = write_run("worse.json", slow, environment=ENVIRONMENT)
    assert mhaprof("gate", path, worse).code == 1
    other = json.loads(json.dumps(ENVIRONMENT).replace("2.13.0", "2.12.0"))
    assert mhaprof("gate", path, write_run("other.json", rows, environment=other)).code == 3


def test_the_command_that_a_gate_names_accepts_the_change(
    mhaprof: Any,
    write_run: Any,
    make_rows: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    mhaprof("baseline", "update", write_run("run.json", make_rows(seed=1)), "--name", "nightly")
    changed = [row | {"macs": row["macs"] + 1} for row in make_rows(seed=1)]
    other = write_run("other.json", changed)
    baselines = [Path("results/baselines/nvidia-h200/nightly.json")]
    baselines.append(Path("kept/nvidia-h200/weekly.json"))
    baselines[1].parent.mkdir(parents=True)
    baselines[1].write_bytes(baselines[0].read_bytes())
    for path in baselines:
        ran = mhaprof("gate", path, other)
        assert ran.code == 1
        (command,) = re.findall(r"accept it: mhaprof (.*)", ran.err)
        assert mhaprof(*shlex.split(command)).code == 0
        assert mhaprof("gate", path, other).code == 0


def test_no_command_accepts_a_point_that_failed(
    mhaprof: Any, write_run: Any, make_rows: Any
) -> None:
    base = write_run("base.json", make_rows(seed=1))
    broken = make_rows(seed=1)
    broken[0].update(status="failed", reason="error")
    ran = mhaprof("gate", base, write_run("new.json", broken))
    assert ran.code == 1
    assert "accept it" not in ran.err


def test_a_baseline_keeps_what_is_judged_and_nothing_that_changes_by_the_minute(
    mhaprof: Any, write_run: Any, make_rows: Any, tmp_path: Path
) -> None:
    rows = make_rows(seed=1, samples=25, max_error=1e-4, tflops_per_s=1.5)
    run = write_run("nightly.json", rows[::-1], environment=ENVIRONMENT)
    update(mhaprof, run, tmp_path, "--name", "Main Branch")
    document = json.loads((tmp_path / "nvidia-h200" / "main-branch.json").read_text())
    assert document["environment"] == {
        "software": {"torch": "2.13.0", "python": "3.11.7"},
        "hardware": {"device_name": "NVIDIA H200", "driver": "570.1"},
        "state": {},
    }
    names = [row["name"] for row in document["rows"]]
    assert names == sorted(names)
    first = document["rows"][0]
    assert not {"samples", "max_error", "tflops_per_s", "reason"} & set(first)
    assert all(len(repr(value)) <= 11 for value in first["replicate_medians_s"])


def test_the_order_of_the_run_does_not_change_the_baseline(
    mhaprof: Any, write_run: Any, make_rows: Any, tmp_path: Path
) -> None:
    rows = make_rows(seed=1)
    first = update(mhaprof, write_run("a.json", rows), tmp_path, "--name", "n")
    again = update(mhaprof, write_run("b.json", rows[::-1]), tmp_path, "--name", "n")
    assert [row["state"] for row in first.rows + again.rows] == ["new", "unchanged"]
    changed = [row | {"macs": 1} for row in rows]
    ran = update(mhaprof, write_run("c.json", changed), tmp_path, "--name", "n")
    assert [row["state"] for row in ran.rows] == ["changed"]
    assert "git diff" in ran.err


def test_counts_alone_make_a_baseline_for_every_machine(
    mhaprof: Any, write_run: Any, make_rows: Any, tmp_path: Path
) -> None:
    rows = [
        {name: value for name, value in row.items() if name not in ("device", "device_name")}
        for row in make_rows(seed=1, latency_median_s=None, replicate_medians_s=None)
    ]
    run = write_run("counts.json", rows, environment=ENVIRONMENT)
    update(mhaprof, run, tmp_path)
    path = tmp_path / "counts" / "counts.json"
    assert json.loads(path.read_text())["environment"]["hardware"] == {}
    assert mhaprof("gate", path, run).code == 0
    rows[0]["macs_scores"] += 1
    rows[0]["macs"] += 1
    assert mhaprof("gate", path, write_run("new.json", rows)).code == 1


def test_a_failed_point_is_no_baseline(
    mhaprof: Any, write_run: Any, make_rows: Any, tmp_path: Path
) -> None:
    rows = make_rows(seed=1)
    rows[3].update(status="failed", reason="error")
    ran = update(mhaprof, write_run("run.json", rows), tmp_path / "baselines")
    assert ran.code == 2
    assert "1 of 10 points failed or were not measured (p03)" in ran.err
    assert not (tmp_path / "baselines").exists()


def test_what_a_baseline_leaves_out_is_still_compared(
    mhaprof: Any, write_run: Any, make_rows: Any, tmp_path: Path
) -> None:
    unset = {"window": None, "uncounted_ops": None, "macs_gate_proj": None}
    rows = make_rows(seed=1, **unset)
    update(mhaprof, write_run("run.json", rows), tmp_path, "--name", "n")
    path = tmp_path / "nvidia-h200" / "n.json"
    assert not set(unset) & set(json.loads(path.read_text())["rows"][0])
    for change, reason in (
        ({"window": 64}, "definition_changed"),
        ({"uncounted_ops": "aten.foo"}, "exact_changed"),
        ({"macs_gate_proj": 1, "macs": 4004}, "exact_changed"),
    ):
        changed = [row | change if row["name"] == "p03" else row for row in rows]
        ran = mhaprof("gate", path, write_run("new.json", changed), "--format", "json")
        assert ran.code == 1
        assert ran.rows[0]["reason"] == reason
    assert ran.rows[0]["message"] == "macs 4003 -> 4004 (+1): gate_proj +1"


def test_why_an_ok_row_deserves_a_look_is_no_part_of_a_baseline(
    mhaprof: Any, write_run: Any, make_rows: Any, tmp_path: Path
) -> None:
    rows = make_rows(seed=1, reason="contended")
    update(mhaprof, write_run("run.json", rows), tmp_path, "--name", "n")
    assert '"reason"' not in (tmp_path / "nvidia-h200" / "n.json").read_text()


def skipped(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row as of a point that was not measured: no name of a device."""
    lost = ("device_name", "timer", "latency_median_s", "replicate_medians_s", "macs")
    return row | dict.fromkeys(lost) | {"status": "skipped", "reason": "predicted_oom"}


def test_points_that_were_not_measured_go_with_the_others_of_their_device(
    mhaprof: Any, write_run: Any, make_rows: Any, tmp_path: Path
) -> None:
    rows = make_rows(seed=1, points=3)
    rows[1] = skipped(rows[1])
    rows[2] = skipped(rows[2]) | {"device": None, "dtype": None}
    run = write_run("run.json", rows)
    ran = update(mhaprof, run, tmp_path / "baselines", "--name", "n")
    assert [row["baseline"] for row in ran.rows] == [
        str(tmp_path / "baselines" / "nvidia-h200" / "n.json")
    ]
    assert mhaprof("gate", ran.rows[0]["baseline"], run, "--strict").code == 0


def test_a_run_that_measured_nothing_is_no_baseline(
    mhaprof: Any, write_run: Any, make_rows: Any, tmp_path: Path
) -> None:
    rows = [skipped(row) for row in make_rows(seed=1, points=2)]
    run = write_run("run.json", rows, environment=ENVIRONMENT)
    ran = update(mhaprof, run, tmp_path, "--name", "n")
    message = "holds no measured point: there is nothing to make a baseline of"
    assert (ran.code, ran.err) == (2, f"mhaprof: {run} {message}\n")
    assert not (tmp_path / "nvidia-h200").exists()


def test_only_times_are_rounded(
    mhaprof: Any, write_run: Any, make_rows: Any, tmp_path: Path
) -> None:
    run = write_run("run.json", make_rows(seed=1, softcap=12.3456789))
    ran = update(mhaprof, run, tmp_path, "--name", "n")
    assert mhaprof("gate", ran.rows[0]["baseline"], run, "--strict").code == 0


def test_a_baseline_is_laid_out_as_json_with_an_indent_whatever_is_in_it(
    mhaprof: Any, write_run: Any, tmp_path: Path
) -> None:
    module = {"kwargs": {"a": [1, {"b": "x\ny"}], "c": {}}, "inputs": ["2x3"], "macs": 7}
    rows = [
        {"name": name, "implementation": "own", "status": "ok", **(module if nested else {})}
        for name, nested in (("a", True), ("b\u00e9\n", False), ("c", True))
    ]
    ran = mhaprof("baseline", "update", write_run("r.json", rows), "--directory", tmp_path)
    assert ran.code == 0, ran.err
    text = (tmp_path / "counts" / "r.json").read_text()
    assert text == json.dumps(json.loads(text), indent=1) + "\n"
    assert [row["name"] for row in json.loads(text)["rows"]] == ["a", "b\u00e9\n", "c"]
