"""The steps of ``run.sh``: each a command in a process of its own, its answer a file of its own.

A step that breaks, hangs or loses the device costs nothing but itself.  What has a file is not
run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REHEARSED = "SIMCUDA" in os.environ
LEAST_S = 8.0
"""With less time left no step is begun."""

KEPT = (
    *("name", "implementation", "dtype", "mode", "timer", "cache", "status", "reason", "message"),
    *("flags", "resolved_backend", "latency_median_s", "latency_ci_low_s", "latency_ci_high_s"),
    *("samples", "converged", "graph_median_s", "enqueue_median_s", "first_call_s", "max_error"),
    *("tolerance", "tflops_per_s", "attained_fraction", "bound", "predicted_peak_bytes"),
    *("peak_bytes", "replicate_medians_s"),
)

DUTY = """
import time, torch
from mhaprof.measure import devices, sampling
q = torch.randn(1, 8, 64, 64, device="cuda", dtype=torch.bfloat16)
call = lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q)
with devices.side_stream("cuda"):
    timer = devices.make_timer("cuda", cache="cold")
    sampling.warm_up(timer, call, rule=sampling.WarmUp(min_time_s=0.1))
    started = time.perf_counter(); timer.batch(call, 20)
    one_s = (time.perf_counter() - started) / 20
    for seconds in (0.02, 0.1) if REHEARSED else (0.5, 3.0, 8.0):
        started = time.perf_counter()
        rule = sampling.StopRule(min_time_s=seconds, max_time_s=seconds, precision=1e-9)
        taken = sampling.sample(timer, call, rule=rule)
        busy = len(taken.samples_s) * one_s / (time.perf_counter() - started)
        print(seconds, len(taken.samples_s), "samples; of a batch's pace", round(busy, 3))
"""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A command, the exit code it should have, and the seconds it may take."""

    name: str
    command: tuple[str, ...]
    code: int = 0
    seconds: float = 30.0


def latency(
    name: str, *flags: str, shape: str = "1 64 512 8", code: int = 0, seconds: float = 30.0
) -> Step:
    """Time a shape: batch, tokens, dim, heads."""
    sizes = ("1 16 32 2" if REHEARSED else shape).split()
    if REHEARSED:
        flags = (*flags, "--min-time", "0.001")
    given = zip(("--batch", "--tokens", "--dim", "--heads"), sizes, strict=True)
    parts = [part for pair in given for part in pair]
    command = ("-m", "mhaprof", "latency", "--device", "cuda", *parts, *flags)
    return Step(name=name, command=(*command, "--format", "json"), code=code, seconds=seconds)


def impls(*names: str) -> list[str]:
    return [part for name in names for part in ("--impl", name)]


LARGE, HALF = "4 2048 1024 16", ("--dtype", "bfloat16", "--max-time", "2")
OWN = ("--allow-import", "--no-memory", "--max-time", "1")

FIRST = (
    latency("newcomer", "--max-time", "4", shape="32 1024 512 8", seconds=60),
    latency("captures", *impls("mods:Waits", "mods:Plain"), *OWN, "--timer", "graph", code=4),
    latency("lost", *impls("sdpa", "mods:Asserts", "eager"), *OWN, code=4),
    latency("streams", *impls("mods:Plain", "mods:Joined"), *OWN),
    latency("escaped", *impls("mods:Legacy", "mods:LegacyKernel", "mods:Pool"), *OWN, code=4),
    latency(
        *("backends", *HALF, *impls("sdpa", "sdpa-flash", "sdpa-cudnn", "sdpa-efficient")),
        *("--causal", "top-left"),
        shape="4 4096 2048 16",
    ),
    Step(name="duty", command=("-c", f"REHEARSED = {REHEARSED}{DUTY}")),
    latency("backward", *HALF, *impls("sdpa", "eager"), "--mode", "backward", shape=LARGE),
    latency("gradients", *HALF, "--mode", "forward-backward", "--timer", "graph", shape=LARGE),
    latency("float32", *impls("sdpa", "eager"), "--max-time", "2", shape="1 8192 1024 16"),
    latency("cold-graph", *HALF, *impls("sdpa"), "--timer", "graph", "--cache", "cold"),
    latency("hot-graph", *HALF, *impls("sdpa"), "--timer", "graph", "--cache", "hot"),
    latency("hot-events", *HALF, *impls("sdpa"), "--cache", "hot"),
    latency("wall", *HALF, *impls("sdpa"), "--timer", "wall"),
    latency("replicates", *HALF, *impls("sdpa"), "--replicates", "3", shape=LARGE, seconds=60),
    Step(
        name="too-large",
        command=(
            *("-m", "mhaprof", "latency", "--device", "cuda", "--impl", "eager", "--batch", "32"),
            *("--tokens", "131072", "--format", "json"),
        ),
        code=4,
    ),
)

TESTS = (
    "tests/gpu/test_cuda_timing.py",
    "tests/sweep/test_gpu_workers.py",
    "tests/attention/test_on_a_gpu.py",
)

SECOND = tuple(
    Step(
        name=Path(file).stem,
        command=("-m", "pytest", "-m", "gpu", file, "-v", "--durations=10"),
        seconds=230,
    )
    for file in TESTS
)


def run(step: Step, folder: Path, seconds: float) -> dict[str, Any]:
    """Run a step; return what it answered."""
    environment = {**os.environ, "MHAPROF_GPU_RESULTS": str(folder / "cuda_timing.json")}
    started = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, *step.command],
            capture_output=True,
            text=True,
            timeout=seconds,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"step": step.name, "as_expected": False, "timeout_s": round(seconds, 1)}
    answer: dict[str, Any] = {
        "step": step.name,
        "as_expected": done.returncode == step.code,
        "code": done.returncode,
        "seconds": round(time.monotonic() - started, 1),
        "stderr": done.stderr.strip().splitlines()[-6:],
    }
    try:
        rows = json.loads(done.stdout)["rows"]
    except (ValueError, KeyError, TypeError):
        return {**answer, "stdout": done.stdout.strip().splitlines()[-60:]}
    kept = [{key: row[key] for key in KEPT if row.get(key) is not None} for row in rows]
    return {**answer, "rows": kept}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", type=int, choices=(1, 2), default=1)
    parser.add_argument("--limit", type=float, default=235.0)
    given = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("no CUDA device: nothing was measured", file=sys.stderr)
        return 4
    ends = time.monotonic() + given.limit
    given.folder.mkdir(parents=True, exist_ok=True)
    steps, good = (FIRST, SECOND)[given.part - 1], True
    only = os.environ.get("ONLY", "").split() or [step.name for step in steps]
    for number, step in enumerate(steps, start=1):
        if step.name not in only:
            continue
        file = given.folder / f"{given.part}-{number:02}-{step.name}.json"
        if not file.exists():
            left = ends - time.monotonic()
            if left < LEAST_S:
                print(f"no time left for {step.name} and what follows: run the same line again")
                return 1
            answer = run(step, given.folder, left - 2 if REHEARSED else min(step.seconds, left - 2))
            draft = file.with_suffix(".draft")
            draft.write_text(json.dumps(answer, indent=1) + "\n")
            draft.replace(file)
        answer = json.loads(file.read_text())
        good = good and answer["as_expected"]
        word = "as expected" if answer["as_expected"] else "NOT AS EXPECTED"
        print(f"{step.name}: {word}, {answer.get('seconds', 'no')} s", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
