"""Does a call's work run on the stream that is timed: events see no other."""

from __future__ import annotations

import time
from typing import Any

from mhaprof.measure.timers import Call
from mhaprof.records import Failed
from mhaprof.units import format_seconds

BLOCK_CYCLES = 4_000_000
"""About 2 ms in which the streams wait, so that all is enqueued when they begin."""

BLOCK_S = 1e-3
MOST_CALLS = 10

LEAST_S = 10e-6
"""Device time of all calls that is no noise of the host."""

TRIES = 3
"""The least of so many counts: noise only ever adds."""


def escaped(call: Call) -> Failed | None:
    """Return the row of a call on CUDA that works where the current stream does not wait for it.

    That is on the legacy default stream, or on a stream of its own that follows the
    current one and is never joined.
    """
    import torch

    torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    torch.cuda.synchronize()
    count = max(1, min(MOST_CALLS, int(BLOCK_S / (time.perf_counter() - started))))
    found = min(_elsewhere_s(call, count) - _elsewhere_s(call, 0) for _ in range(TRIES))
    if found < LEAST_S:
        return None
    return Failed(
        code="escaped_stream",
        message=f"{format_seconds(found / count)} of device time per call are on a stream that "
        "the current one does not wait for, where no timer sees them; launch on "
        "torch.cuda.current_stream(), or let it wait for the other",
    )


def _elsewhere_s(call: Call, count: int) -> float:
    """Return the device time on the default stream, or after the current stream is done."""
    import torch

    from mhaprof.measure.torch_private import spin

    torch.cuda.synchronize()
    default, side = torch.cuda.default_stream(), torch.cuda.current_stream()
    make: Any = torch.cuda.Event
    start, end, done = (make(enable_timing=True) for _ in range(3))
    for stream in (default, side):
        with torch.cuda.stream(stream):
            spin(BLOCK_CYCLES)
    start.record(default)
    for _ in range(count):
        call()
    # Where the calls waited for the device, the gap between these events is the host's.
    enqueued_in_time = not start.query()
    end.record(default)
    done.record(side)
    done.synchronize()
    waited = time.perf_counter()
    torch.cuda.synchronize()
    after = time.perf_counter() - waited
    return max(after, start.elapsed_time(end) * 1e-3) if enqueued_in_time else after
