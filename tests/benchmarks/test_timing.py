"""The timer against torch.utils.benchmark, its cost, its repeatability, and a burner.

Ratios within one run, alternating.  A round that the machine disturbed proves nothing:
each check looks for undisturbed rounds, a stated number of times, and skips, saying so,
when there are none.  A check that had its undisturbed rounds is judged on them alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.benchmark import Timer as TorchTimer

from mhaprof import stats
from mhaprof.measure import conditions, devices
from mhaprof.measure.sampling import Samples, StopRule, WarmUp, sample, warm_up
from mhaprof.measure.timers import WallTimer

pytestmark = pytest.mark.benchmark

ROUNDS = 5
TRIES = 15
"""Rounds that are tried at most to find five undisturbed ones."""

BURN = "while True: pass"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with devices.threads(1), torch.no_grad():
        yield


def eager(q: torch.Tensor) -> torch.Tensor:
    return (q @ q.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1) @ q


def sdpa(q: torch.Tensor) -> torch.Tensor:
    return scaled_dot_product_attention(q, q, q)


def call_of(name: str) -> Callable[[], object]:
    q = torch.randn(2, 8, 256, 64, generator=torch.Generator().manual_seed(0))
    function = {"eager": eager, "sdpa": sdpa}[name]
    return lambda: function(q)


def measured(call: Callable[[], object], rule: StopRule | None = None) -> Samples:
    timer = WallTimer()
    warm_up(timer, call, rule=WarmUp())
    return sample(timer, call, rule=rule or StopRule())


def undisturbed(before: conditions.CpuState, taken: Samples | None = None) -> bool:
    """Say whether nothing competed since ``before``."""
    return (
        conditions.contention(
            before,
            conditions.cpu_state(),
            threads=1,
            samples_s=taken.samples_s if taken else (),
            process_time_s=taken.process_time_s if taken else None,
        )
        is None
    )


@pytest.mark.parametrize("name", ["sdpa", "eager"])
def test_the_median_agrees_with_blocked_autorange_within_3_percent(name: str) -> None:
    call, ratios = call_of(name), []
    peer = TorchTimer("call()", globals={"call": call}, num_threads=1)
    for attempt in range(TRIES):
        before = conditions.cpu_state()
        if attempt % 2:
            theirs = peer.blocked_autorange(min_run_time=0.5).median
            ours = measured(call)
        else:
            ours = measured(call)
            theirs = peer.blocked_autorange(min_run_time=0.5).median
        if undisturbed(before, ours):
            ratios.append(stats.median(ours.samples_s) / theirs)
        if len(ratios) == ROUNDS:
            break
    if len(ratios) < ROUNDS:
        pytest.skip(f"{len(ratios)} undisturbed rounds in {TRIES}: the machine is busy")
    print(f"{name}: ratios {[f'{ratio:.4f}' for ratio in ratios]}")
    assert abs(stats.median(ratios) - 1) <= 0.03


@pytest.mark.parametrize("name", ["sdpa", "eager"])
def test_one_percent_costs_no_more_than_a_second_of_blocked_autorange(name: str) -> None:
    call, ratios = call_of(name), []
    peer = TorchTimer("call()", globals={"call": call}, num_threads=1)
    for _ in range(TRIES):
        before = conditions.cpu_state()
        started = time.perf_counter()
        ours = measured(call)
        middle = time.perf_counter()
        peer.blocked_autorange(min_run_time=1)
        ended = time.perf_counter()
        if undisturbed(before, ours) and ours.converged:
            ratios.append((middle - started) / (ended - middle))
        if len(ratios) == 3:
            break
    if len(ratios) < 3:
        pytest.skip(f"{len(ratios)} undisturbed rounds in {TRIES}: the machine is busy")
    print(f"{name}: cost ratios {[f'{ratio:.3f}' for ratio in ratios]}")
    assert stats.median(ratios) <= 1.0


def test_the_timers_own_overhead_is_under_one_percent_of_50_us() -> None:
    batch = WallTimer().batch(lambda: None, 5000)
    overhead = stats.median(batch.samples_s)
    print(f"overhead {overhead * 1e9:.0f} ns")
    assert overhead < 0.01 * 50e-6


CHILD = """
import json, sys, torch
from tests_timing import call_of, measured
from mhaprof.measure import conditions
torch.set_num_threads(1)
torch.set_grad_enabled(False)
before = conditions.cpu_state()
taken = measured(call_of(sys.argv[1]))
why = conditions.contention(before, conditions.cpu_state(), threads=1,
                            samples_s=taken.samples_s, process_time_s=taken.process_time_s)
print(json.dumps([sorted(taken.samples_s)[len(taken.samples_s) // 2],
                  min(taken.process_time_s), why]))
"""


def fresh_process(name: str) -> tuple[float, float, str | None]:
    """Measure in a fresh process: median wall, least process time, what competed."""
    loader = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('tests_timing', {__file__!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "sys.modules['tests_timing'] = module\nspec.loader.exec_module(module)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", loader + CHILD, name], capture_output=True, text=True, check=True
    )
    wall, process, why = json.loads(done.stdout.splitlines()[-1])
    return wall, process, why


@pytest.mark.timeout(600)
def test_five_processes_agree_within_3_percent_on_the_gates_statistic() -> None:
    """The gate's on a quiet CPU: the median of wall time, at one thread.

    Sets of five in which a process was disturbed are printed with what the statistic
    for a contended machine (least process time) made of them, and not judged.
    """
    spreads = []
    for _ in range(3):
        rounds = [fresh_process("sdpa") for _ in range(ROUNDS)]
        walls, processes = [wall for wall, _, _ in rounds], [least for _, least, _ in rounds]
        why = [reason for _, _, reason in rounds if reason]
        print(f"wall {spread(walls):.4f}, process {spread(processes):.4f}, disturbed: {why}")
        if not why:
            spreads.append(spread(walls))
            if spreads[-1] <= 0.03:
                return
    if not spreads:
        pytest.skip("a process was disturbed in each of three sets: the machine is busy")
    pytest.fail(f"undisturbed sets of five spread by {spreads}")


def spread(values: list[float]) -> float:
    return (max(values) - min(values)) / stats.median(values)


@contextmanager
def burners(count: int) -> Iterator[None]:
    running = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(count)]
    try:
        time.sleep(0.3)
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.mark.timeout(600)
def test_burners_beside_raise_contended_every_time() -> None:
    reasons = []
    with burners(os.cpu_count() or 1):
        reasons = [fresh_process("sdpa")[2] for _ in range(ROUNDS)]
    print(reasons)
    assert all(reasons)


def test_a_point_that_cannot_fit_is_refused_in_seconds_with_flat_memory() -> None:
    command = [sys.executable, "-m", "mhaprof", "latency", "--tokens", "131072", "--batch", "32"]
    command += ["--impl", "eager", "--device", "cpu"]
    times = []
    for _ in range(3):
        started = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        times.append(time.perf_counter() - started)
    assert done.returncode == 4
    assert "predicted_oom" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    print(f"refused in {times}")
    assert min(times) < 3.0
    import resource

    # The largest child so far: kilobytes on Linux.  The scores alone would be 32 TiB.
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 1_500_000
