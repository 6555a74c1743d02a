"""The state of a GPU while it works: idle, it has nothing to throttle."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from mhaprof.measure import nvidia
from mhaprof.measure.timers import EventTimer, GraphTimer, Timer


@contextmanager
def watched(timer: Timer, device: str) -> Iterator[tuple[Timer, list[nvidia.GpuState]]]:
    """Yield the timer of a device, with the states that are read before it waits for a batch.

    At the second batch (the first is one call) and each time that there are twice as many:
    reading takes milliseconds.  None of what is no CUDA device, without NVML, and by a
    timer that waits in each sample.
    """
    events = timer.events if isinstance(timer, GraphTimer) else timer
    known = device.startswith("cuda") and isinstance(events, EventTimer)
    states: list[nvidia.GpuState] = []
    with nvidia.reader(device) if known else nullcontext() as read:
        if read is None or not isinstance(events, EventTimer):
            yield timer, states
            return
        numbers, wait = itertools.count(1), events.synchronize

        def look_and_wait() -> None:
            number = next(numbers)
            if number > 1 and number & (number - 1) == 0:
                states.append(read())
            wait()

        looking = replace(events, synchronize=look_and_wait)
        yield (replace(timer, events=looking) if isinstance(timer, GraphTimer) else looking), states


def flags_of(*states: nvidia.GpuState) -> dict[str, str]:
    """Return the flags of these states, with their sentences.

    ``power_limited`` alone is what a GPU at full load is by design; ``throttled`` is heat
    or a fault; ``contended`` are other processes.
    """
    reasons = dict.fromkeys(reason for state in states for reason in state.throttle_reasons)
    others = max((state.other_processes or 0 for state in states), default=0)
    flags = {}
    if reasons.pop(nvidia.POWER_CAP, True) is None:
        flags["power_limited"] = "the GPU kept its clocks down to its power cap"
    if reasons:
        flags["throttled"] = "the GPU lowered its clocks: " + ", ".join(reasons)
    if others:
        flags["contended"] = f"{others} other process(es) compute on the GPU"
    return flags
