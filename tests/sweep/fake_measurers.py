"""Measurers that workers import by name: cheap, and broken in every way on purpose.

A point's ``batch`` says how many milliseconds it takes; its ``heads`` are what a
measurer that breaks looks at.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from pathlib import Path

from mhaprof.errors import Unavailable
from mhaprof.point import guarded
from mhaprof.records import Finding, Latency, Measured, Result
from mhaprof.runners.base import Task, measure

BROKEN = 3
"""The heads of the point that breaks."""


def quick(task: Task) -> Result:
    """Take ``batch`` ms; note in the journal, if there is one, that it was measured."""
    time.sleep(task.point.spec.batch / 1000)
    journal = os.environ.get("JOURNAL")
    if journal:
        with Path(journal).open("a") as file:
            file.write(f"{task.identity}/{task.round} {os.getpid()}\n")
    return guarded(task.point, lambda: Measured(latency=_latency(task)))


def _latency(task: Task) -> Latency:
    return Latency(
        device=task.point.settings.device or "cpu",
        device_name="fake",
        dtype="float32",
        threads=1,
        timer="wall",
        cache="hot",
        mode="forward",
        compiled=False,
        tf32=None,
        resolved_backend=None,
        samples_s=[0.001, 0.002, 0.003],
        first_call_s=0.1,
        warmup_calls=3,
        converged=True,
        max_error=0.0,
        tolerance=1.0,
    )


def segfaults(task: Task) -> Result:
    """Read address 0 at the broken point."""
    if task.point.spec.heads == BROKEN:
        ctypes.string_at(0)
    return quick(task)


def exits(task: Task) -> Result:
    """Leave the process at the broken point."""
    if task.point.spec.heads == BROKEN:
        print("fatal: no more of this", file=sys.stderr, flush=True)
        os._exit(7)
    return quick(task)


def killed(task: Task) -> Result:
    """Be killed at the broken point, as by the kernel."""
    if task.point.spec.heads == BROKEN:
        os.kill(os.getpid(), signal.SIGKILL)
    return quick(task)


def hangs(task: Task) -> Result:
    """Never return from the broken point."""
    if task.point.spec.heads == BROKEN:
        time.sleep(3600)
    return quick(task)


def hungry(task: Task) -> Result:
    """Allocate beyond a limit at the broken point."""
    if task.point.spec.heads == BROKEN:
        return guarded(task.point, _allocate_too_much)
    return quick(task)


def _allocate_too_much() -> Measured:
    limit = 2 * 2**30
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        bytearray(2 * limit)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    return Measured()


def noisy(task: Task) -> Result:
    """Print what looks like a record, through every door."""
    fake = '{"result": null}\n'
    print(fake)
    os.write(1, fake.encode())
    os.write(2, fake.encode() * 1000)
    return quick(task)


def absent(task: Task) -> Result:
    """Have no device."""

    def refuse() -> Measured:
        raise Unavailable("there is no GPU", code="no_cuda")

    return guarded(task.point, refuse)


def raises(task: Task) -> Result:
    """Raise at the broken point."""
    if task.point.spec.heads == BROKEN:
        return guarded(task.point, lambda: Measured(unknown=1))
    return quick(task)


def tells_device(task: Task) -> Result:
    """Say in the row which device, and which of the machine's, it saw."""
    seen = f"{task.point.settings.device} of {os.environ.get('CUDA_VISIBLE_DEVICES')}"
    latency = _latency(task).model_copy(update={"device_name": seen})
    return guarded(task.point, lambda: Measured(latency=latency))


def leaves_a_child(task: Task) -> Result:
    """Start a process that outlives the worker unless the worker's group is killed."""
    pid = os.fork()
    if pid == 0:
        time.sleep(3600)
    Path(os.environ["JOURNAL"]).write_text(str(pid))
    return hangs(task)


def eats_memory(task: Task) -> Result:
    """Join a memory cgroup and touch more than it allows, at the broken point."""
    if task.point.spec.heads == BROKEN:
        Path(os.environ["GROUP"], "cgroup.procs").write_text(str(os.getpid()))
        kept = [bytearray(os.urandom(2**20)) for _ in range(1024)]
        raise AssertionError(f"{len(kept)} MiB fitted")
    return quick(task)


def interrupted(task: Task) -> Result:
    """Return fewer samples at the broken point, as after Ctrl-C."""
    result = quick(task)
    if task.point.spec.heads != BROKEN:
        return result
    cut = Finding(code="interrupted", message="interrupted: fewer samples than asked for")
    return result.model_copy(update={"outcome": Measured(findings=[cut])})


def real(task: Task) -> Result:
    """Measure for real; note how long that took, the import of torch included."""
    start = time.perf_counter()
    result = measure(task)
    with Path(os.environ["JOURNAL"]).open("a") as file:
        file.write(f"{time.perf_counter() - start}\n")
    return result


def kills_its_actor(task: Task) -> Result:
    """Kill the process that started this one, at the broken point."""
    if task.point.spec.heads == BROKEN:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    return quick(task)


def poisons(task: Task) -> Result:
    """Read far outside of a tensor on the GPU, at the broken point; use the GPU at others."""
    import torch

    def use() -> Measured:
        values = torch.zeros(4, device="cuda")
        place = 10**9 if task.point.spec.heads == BROKEN else 0
        values[torch.tensor([place], device="cuda")].sum().item()
        return Measured()

    return guarded(task.point, use)


def dies(task: Task) -> Result:
    """Take the process along at every point, by a signal or an exit in turn."""
    if task.point.spec.heads % 2:
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(task.point.spec.heads % 128)
