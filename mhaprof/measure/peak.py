"""Measured peak of one call: the allocator's on a GPU, resident memory on a CPU."""

from __future__ import annotations

import gc
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

from mhaprof.measure import allocator, devices
from mhaprof.measure.timers import Call
from mhaprof.records import Dtype

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")

RESET_PEAK = "5"
"""What resets VmHWM when written to clear_refs (proc(5))."""

SAMPLE_S = 0.001
"""How often resident memory is looked at where the system keeps no peak."""


def measured_peak(
    build: Callable[[], Call], *, device: str, dtype: Dtype = "float32"
) -> int | None:
    """Return the peak bytes of a call above what the process held before ``build``.

    ``build`` makes weights, inputs and the call; they count.  The call runs twice, and
    the second counts: the first loads what is loaded lazily.  On a CPU resident memory,
    also of other threads, so that a fresh process gives the cleanest number; on CUDA
    what the allocator handed out (not what it reserved), without the workspace that
    cuBLAS keeps for products of ``dtype``.  None on other accelerators.
    """
    # Garbage of earlier points, freed on the way, would make the peak smaller than it is.
    gc.collect()
    if device == "cpu":
        return _resident_peak(build)
    if device.startswith("cuda"):
        return _allocator_peak(build, device, dtype)
    return None


def _allocator_peak(build: Callable[[], Call], device: str, dtype: Dtype) -> int:
    import torch

    _multiply(device, dtype)
    before = torch.cuda.memory_allocated(device)
    call = build()
    call()
    devices.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    devices.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device) - before)


def _multiply(device: str, dtype: Dtype) -> None:
    """Run a small product and its gradient, so that cuBLAS has its workspaces (tens of MiB).

    It takes one from torch's allocator for each thread and stream that it works for, at
    the first product, and keeps it: gradients are computed by a thread of their own.
    """
    import torch

    with torch.enable_grad():
        square = torch.ones(16, 16, device=device, dtype=getattr(torch, dtype), requires_grad=True)
        torch.autograd.grad((square @ square).sum(), square)


def _resident_peak(build: Callable[[], Call]) -> int:
    with allocator.freed_memory_returned():
        before = resident_bytes()
        call = build()
        call()
        if reset_resident_peak():
            call()
            return max(0, _status_bytes("VmHWM") - before)
        with ResidentSampler() as sampler:
            call()
        return max(0, sampler.peak_bytes - before)


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    if STATUS.exists():
        return _status_bytes("VmRSS")
    import psutil

    return int(psutil.Process().memory_info().rss)


def reset_resident_peak() -> bool:
    """Reset the kernel's record of the resident peak; False where it has none."""
    try:
        CLEAR_REFS.write_text(RESET_PEAK)
    except OSError:
        return False
    # Some sandboxes accept the write and do nothing: then the peak stays far above.
    return _status_bytes("VmHWM") <= resident_bytes() * 1.05


def _status_bytes(name: str) -> int:
    match = re.search(rf"^{name}:\s*(\d+) kB", STATUS.read_text(), re.MULTILINE)
    if match is None:
        raise OSError(f"{STATUS} of process {os.getpid()} has no {name}")
    return int(match.group(1)) * 1024


class ResidentSampler:
    """Watch resident memory from a thread while the body runs.

    torch's operators let the thread run.  A peak shorter than a millisecond is missed.
    """

    def __init__(self) -> None:
        self.peak_bytes = resident_bytes()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_S):
            self.peak_bytes = max(self.peak_bytes, resident_bytes())

    def __enter__(self) -> ResidentSampler:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.peak_bytes = max(self.peak_bytes, resident_bytes())
        self._done.set()
        self._thread.join()
