"""Fresh processes and their children have the device too: replicates, workers, a gate, a script."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import HERE, SMALL, environment

pytestmark = pytest.mark.slow

CONFIG = """
version: 1
defaults: {batch: 2, tokens: 32, dim: 64, implementations: [sdpa, eager]}
sweep: {heads: [2, 4]}
measure: [flops, latency]
settings: {device: cuda, samples: 6}
reference: false
"""


def test_replicates_are_fresh_processes_on_the_device(on_cuda: Any) -> None:
    ran = on_cuda(
        *("latency", "--device", "cuda", *SMALL, "--impl", "sdpa", "--samples", 6),
        *("--replicates", 2, "--format", "json"),
    )
    assert ran.code == 0, ran.err
    (row,) = ran.rows
    assert row["replicates"] == 2
    assert row["replicate_spread"] < 0.01
    assert row["timer"] == "cuda-events"


def test_workers_of_a_sweep_have_a_device_each_and_a_lost_one_costs_its_point(
    on_cuda: Any, tmp_path: Path
) -> None:
    config, out = tmp_path / "times.yaml", tmp_path / "times.sqlite"
    config.write_text(CONFIG)
    ran = on_cuda(
        *("sweep", config, "--devices", "all", "--out", out, "--format", "json"),
        count=2,
        faults=[["assert", "bmm", 25]],
    )
    assert ran.code == 4, ran.err
    found = {(row["heads"], row["implementation"]): row for row in ran.rows}
    assert [found[heads, "sdpa"]["status"] for heads in (2, 4)] == ["ok", "ok"]
    assert [found[heads, "eager"]["reason"] for heads in (2, 4)] == ["device_lost"] * 2
    assert found[2, "sdpa"]["latency_median_s"] > 1e-5


def test_ab_of_one_interpreter_on_the_device_finds_no_difference(
    on_cuda: Any, tmp_path: Path
) -> None:
    config = tmp_path / "times.yaml"
    config.write_text(CONFIG.replace("[2, 4]", "[2]"))
    python = ("--base", sys.executable, "--new", sys.executable)
    ran = on_cuda("ab", config, *python, "--rounds", 2, "--format", "json", busy_reasons=0x4)
    assert ran.code == 0, ran.err
    assert "regressed" not in {row.get("verdict") for row in ran.rows}


@pytest.mark.timeout(600)
def test_the_script_for_a_borrowed_gpu_is_cut_off_and_goes_on(tmp_path: Path) -> None:
    root = HERE.parents[1]
    steps = {"ONLY": "streams escaped too-large", "PYTHON": sys.executable}

    def run(seconds: int) -> tuple[int, str, dict[str, int]]:
        done = subprocess.run(
            [root / "tests/gpu/run.sh", tmp_path],
            env={**os.environ, **environment(), **steps, "LIMIT_S": str(seconds)},
            capture_output=True,
            text=True,
            check=False,
        )
        files = {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("1-*.json")}
        return done.returncode, done.stdout + done.stderr, files

    code, said, first = run(9)
    assert (code, "run the same line again" in said) == (1, True), said
    assert len(first) == 1, "the first step began with time left, and was cut off or not"
    for name in first:
        (tmp_path / name).unlink()
    code, said, first = run(600)  # of a machine that others use too
    assert (code, len(first)) == (0, 3), said
    assert run(600) == (code, said, first), "a step was run again"
    (escaped,) = (json.loads((tmp_path / name).read_text()) for name in first if "escaped" in name)
    assert {row["reason"] for row in escaped["rows"]} == {"escaped_stream"}


def test_every_command_of_the_script_ends_as_it_should(
    cuda: Any, mhaprof: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMCUDA", "{}")
    steps = runpy.run_path(str(HERE.parent / "gpu" / "steps.py"))["FIRST"]
    sim = cuda()
    for step in steps:
        if step.name not in ("duty", "replicates"):
            ran = mhaprof(*step.command[2:])
            assert ran.code == step.code, (step.name, ran.err)
            assert {row["status"] for row in ran.rows} <= {"ok", "skipped"} or step.code
    assert (sim.underway, sim.allocated) == ([], 0)
