"""The state of a GPU while it works: idle, it has nothing to throttle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from mhaprof.measure import nvidia
from mhaprof.measure.timers import EventTimer, GraphTimer, Timer


@dataclass(kw_only=True)
class Watch:
    """Reads a GPU's state while the device works on what was enqueued.

    At the second batch (the first is one call) and each time that there are twice as many:
    reading takes milliseconds.
    """

    read: Callable[[], nvidia.GpuState]
    states: list[nvidia.GpuState] = field(default_factory=list)
    _batches: int = 0
    _next: int = 2

    def look(self) -> None:
        """Note that a batch was enqueued, and read the state if it is time to."""
        self._batches += 1
        if self._batches >= self._next:
            self._next = 2 * self._batches
            self.states.append(self.read())


@contextmanager
def watched(timer: Timer, device: str) -> Iterator[tuple[Timer, list[nvidia.GpuState]]]:
    """Yield the timer of a device, with the states that are read before it waits for a batch.

    None are read of what is no CUDA device, without NVML, and by a timer that waits in
    each sample.
    """
    events = timer.events if isinstance(timer, GraphTimer) else timer
    if not device.startswith("cuda") or not isinstance(events, EventTimer):
        yield timer, []
        return
    with nvidia.reader(device) as read:
        if read is None:
            yield timer, []
            return
        watch, wait = Watch(read=read), events.synchronize
        looking = replace(events, synchronize=lambda: (watch.look(), wait()))
        yield (
            replace(timer, events=looking) if isinstance(timer, GraphTimer) else looking,
            watch.states,
        )


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
