"""The state of a GPU while it works: idle, it has nothing to throttle."""

from __future__ import annotations

import time

from mhaprof.measure import devices, nvidia
from mhaprof.measure.timers import Call

LOAD_S = 0.2
"""Length of the work under which the state is read: reading takes milliseconds."""

MOST_CALLS = 1000
"""Most calls that are enqueued for it; beyond, the launch queue of a stream is full."""


def gpu_under_load(call: Call, device: str) -> nvidia.GpuState | None:
    """Read the state of a CUDA device while it runs ``call``; None without NVML.

    NVML is opened first, for that takes as long as the work.
    """
    with nvidia.reader(device) as read:
        if read is None:
            return None
        devices.synchronize(device)
        started = time.perf_counter()
        call()
        devices.synchronize(device)
        call_s = time.perf_counter() - started
        for _ in range(max(1, min(MOST_CALLS, int(LOAD_S / call_s)))):
            call()
        state = read()
        devices.synchronize(device)
        return state


def flags_of(*states: nvidia.GpuState | None) -> dict[str, str]:
    """Return the flags ``throttled`` and ``contended`` of these states, with their sentences."""
    known = [state for state in states if state is not None]
    reasons = dict.fromkeys(reason for state in known for reason in state.throttle_reasons)
    others = max((state.other_processes or 0 for state in known), default=0)
    flags = {}
    if reasons:
        flags["throttled"] = "the GPU lowered its clocks: " + ", ".join(reasons)
    if others:
        flags["contended"] = f"{others} other process(es) compute on the GPU"
    return flags
