"""Timers behind one protocol: what one sample is, and how it is taken.

A timer takes a batch of samples of a call.  Clocks, events, streams and flushes come
in from outside (``measure/devices.py`` brings the real ones), so that the order of
the calls is tested without the device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from mhaprof.records import Cache
from mhaprof.stats import median

Call = Callable[[], object]

LAUNCH_BOUND_SHARE = 0.8
"""Share of a sample that the host spent enqueueing, from which the host sets the pace."""

FREE_SHARE = 0.05
"""Share up to which it does not; between them a trial with more work ahead tells."""

MOST_AHEAD = 400
"""Launches ahead of the calls of a trial: well under what a CUDA stream queues."""

LAUNCH_BOUND_S = 50e-6
"""Time below which events around a call, with nothing ahead of it, measure mostly the launch."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Samples taken together, in seconds per call.

    ``process_time_s`` (CPU time of all threads) and ``enqueue_s`` (host time until the
    call returned) are parallel to ``samples_s``, or None where the timer has none.
    """

    samples_s: list[float]
    process_time_s: list[float] | None = None
    enqueue_s: list[float] | None = None


class Timer(Protocol):
    """Something that times a call.

    ``name`` goes into every row.  ``max_batch`` bounds the samples between two
    synchronizations.
    """

    @property
    def name(self) -> str:
        """Return the name that rows give it (``wall``, ``cuda-events``)."""
        ...

    @property
    def cache(self) -> Cache:
        """Say whether caches are flushed before each sample."""
        ...

    @property
    def max_batch(self) -> int:
        """Return the most samples that one batch may hold."""
        ...

    def batch(self, call: Call, count: int) -> Batch:
        """Take ``count`` samples of ``call``; returns when all are complete."""
        ...


class Event(Protocol):
    """A timestamp on a device stream, as torch.cuda.Event and torch.Event have it."""

    def record(self) -> object:
        """Enqueue the timestamp on the current stream."""
        ...

    def elapsed_time(self, end_event: Any, /) -> float:
        """Return milliseconds from this event to ``end_event``."""
        ...


@dataclass(frozen=True, kw_only=True)
class WallTimer:
    """Time a call on the CPU: wall time, and beside it the process's CPU time.

    The process clock is read outside the wall window: reading it is a system call,
    reading the wall clock is not.  ``flush`` empties the caches, untimed.
    """

    flush: Call | None = None
    wall_ns: Callable[[], int] = time.perf_counter_ns
    process_ns: Callable[[], int] = time.process_time_ns
    name: str = "wall"
    max_batch: int = 10_000

    @property
    def cache(self) -> Cache:
        """Say whether caches are flushed before each sample."""
        return "hot" if self.flush is None else "cold"

    def batch(self, call: Call, count: int) -> Batch:
        """Take ``count`` samples of ``call``."""
        wall_ns, process_ns, flush = self.wall_ns, self.process_ns, self.flush
        wall, process = [], []
        for _ in range(count):
            if flush is not None:
                flush()
            process_start = process_ns()
            start = wall_ns()
            call()
            end = wall_ns()
            process_end = process_ns()
            wall.append((end - start) * 1e-9)
            process.append((process_end - process_start) * 1e-9)
        return Batch(samples_s=wall, process_time_s=process)


@dataclass(frozen=True, kw_only=True)
class EventTimer:
    """Time a call on a device: a pair of events around it on the current stream.

    Nothing waits inside a batch; one synchronize at its end makes the events readable.
    Before the first event of each pair goes a ``flush``, which empties the L2, or if hot a
    ``backlog``, which leaves it: either keeps the device busy while the host enqueues the
    call, so that gaps between launches are not timed.  ``max_batch`` keeps the launches of
    a batch well under the 1024 that a CUDA stream queues: beyond that the host is held
    back and its enqueue time means nothing.
    """

    name: str
    event: Callable[[], Event]
    synchronize: Call
    flush: Call | None = None
    backlog: Call | None = None
    host_ns: Callable[[], int] = time.perf_counter_ns
    max_batch: int = 20

    @property
    def cache(self) -> Cache:
        """Say whether caches are flushed before each sample."""
        return "hot" if self.flush is None else "cold"

    def batch(self, call: Call, count: int) -> Batch:
        """Take ``count`` samples of ``call``."""
        host_ns, ahead = self.host_ns, self.flush or self.backlog
        pairs = [(self.event(), self.event()) for _ in range(count)]
        enqueue = []
        for start, end in pairs:
            if ahead is not None:
                ahead()
            start.record()
            host_start = host_ns()
            call()
            host_end = host_ns()
            end.record()
            enqueue.append((host_end - host_start) * 1e-9)
        self.synchronize()
        samples = [start.elapsed_time(end) * 1e-3 for start, end in pairs]
        return Batch(samples_s=samples, enqueue_s=enqueue)

    def is_launch_bound(
        self, call: Call, samples_s: Sequence[float], enqueue_s: Sequence[float]
    ) -> bool:
        """Say whether the host's launches, not the device, set the pace of what was sampled.

        They do where enqueueing goes on for most of a sample after the device is through with
        what went ahead of it, not where it is then over.  Between them the call is timed once
        more behind enough work.  The least enqueue time counts: a full queue only adds to it.
        """
        ahead, middle = self.flush or self.backlog, median(samples_s)
        enqueue, ahead_s = min(enqueue_s), self._ahead_s(ahead)
        late = enqueue - ahead_s
        if late >= LAUNCH_BOUND_SHARE * middle or ahead is None:
            return late >= LAUNCH_BOUND_SHARE * middle or middle < LAUNCH_BOUND_S
        times = math.ceil(enqueue / ahead_s) + 1
        count = min(self.max_batch, MOST_AHEAD // times)
        if late <= FREE_SHARE * middle or not count:
            return False
        more = replace(self, flush=lambda: [ahead() for _ in range(times)])
        return median(more.batch(call, count).samples_s) < (1 - 2 * FREE_SHARE) * middle

    def _ahead_s(self, ahead: Call | None) -> float:
        """Measure the device time of what goes ahead of a call; a first hides its launch."""
        if ahead is None:
            return 0.0
        start, end = self.event(), self.event()
        ahead()
        start.record()
        ahead()
        end.record()
        self.synchronize()
        return start.elapsed_time(end) * 1e-3


class Graph(Protocol):
    """A captured sequence of kernels, as torch.cuda.CUDAGraph."""

    def replay(self) -> object:
        """Enqueue all captured kernels."""
        ...


@dataclass(frozen=True, kw_only=True)
class GraphTimer:
    """Time the replay of a captured graph: device time without the host's launches.

    The graph holds ``calls`` calls; a sample is the time of one replay divided by them.
    Cold it holds one, after a flush: a second would find what the first left in the cache.
    The call that ``batch`` gets must be a replay.
    """

    events: EventTimer
    calls: int
    name: str = "cuda-graph"

    @property
    def cache(self) -> Cache:
        """Say whether caches are flushed before each sample."""
        return self.events.cache

    @property
    def max_batch(self) -> int:
        """Return the most samples that one batch may hold."""
        return self.events.max_batch

    def batch(self, call: Call, count: int) -> Batch:
        """Take ``count`` samples, each of one replay."""
        taken = self.events.batch(call, count)
        return Batch(samples_s=[sample / self.calls for sample in taken.samples_s])
