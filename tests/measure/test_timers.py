"""Timers, with fake clocks, events and devices: order of calls, flushes, waits."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from mhaprof.measure import sampling
from mhaprof.measure.timers import EventTimer, GraphTimer, WallTimer


class Device:
    """A device whose clock advances only by what is enqueued; logs every call."""

    def __init__(self, *, kernel_ms: float = 2.0, host_ns: int = 1000) -> None:
        self.log: list[str] = []
        self.time_ms = 0.0
        self.host = 0
        self.kernel_ms = kernel_ms
        self.host_ns = host_ns

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    def flush(self) -> None:
        self.log.append("flush")
        self.time_ms += 100.0

    def call(self) -> None:
        self.log.append("call")
        self.time_ms += self.kernel_ms
        self.host += self.host_ns

    def synchronize(self) -> None:
        self.log.append("synchronize")

    def clock(self) -> int:
        return self.host

    def timer(self, *, cold: bool = True) -> EventTimer:
        return EventTimer(
            name="fake-events",
            event=self.event,
            synchronize=self.synchronize,
            flush=self.flush if cold else None,
            host_ns=self.clock,
        )


class FakeEvent:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.at = -1.0

    def record(self) -> None:
        self.device.log.append("record")
        self.at = self.device.time_ms

    def elapsed_time(self, end_event: FakeEvent, /) -> float:
        assert self.device.log[-1] == "synchronize", "an event was read before the wait"
        return end_event.at - self.at


def test_cold_events_flush_before_each_pair_and_wait_once_at_the_end() -> None:
    device = Device()
    batch = device.timer().batch(device.call, 3)
    assert device.log == ["flush", "record", "call", "record"] * 3 + ["synchronize"]
    assert batch.samples_s == pytest.approx([2e-3] * 3)


def test_hot_events_do_not_flush() -> None:
    device = Device()
    timer = device.timer(cold=False)
    timer.batch(device.call, 2)
    assert timer.cache == "hot"
    assert device.log == ["record", "call", "record"] * 2 + ["synchronize"]


def test_events_keep_the_hosts_enqueue_time_apart() -> None:
    device = Device(host_ns=3000)
    batch = device.timer().batch(device.call, 2)
    assert batch.enqueue_s == pytest.approx([3e-6] * 2)
    assert batch.process_time_s is None


def test_a_batch_of_events_stays_under_the_launch_queue() -> None:
    device = Device()
    rule = sampling.StopRule(samples=200, min_samples=6)
    clock = iter(range(10**6))
    sampling.sample(device.timer(), device.call, rule=rule, clock=lambda: next(clock) * 1e-3)
    calls = "".join("c" if entry == "call" else "|" for entry in device.log if entry != "record")
    assert max(map(len, calls.replace("|c", "c").split("|"))) <= 20


class Clocks:
    """A wall clock and a process clock that advance by what is called."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.wall = 0
        self.process = 0

    def wall_ns(self) -> int:
        self.log.append("wall")
        return self.wall

    def process_ns(self) -> int:
        self.log.append("process")
        return self.process

    def call(self) -> None:
        self.log.append("call")
        self.wall += 5_000_000
        self.process += 4_000_000

    def flush(self) -> None:
        self.log.append("flush")
        self.wall += 70_000_000
        self.process += 70_000_000


def test_wall_timer_reads_the_process_clock_outside_the_wall_window() -> None:
    clocks = Clocks()
    timer = WallTimer(wall_ns=clocks.wall_ns, process_ns=clocks.process_ns)
    batch = timer.batch(clocks.call, 2)
    assert clocks.log == ["process", "wall", "call", "wall", "process"] * 2
    assert batch.samples_s == pytest.approx([5e-3] * 2)
    assert batch.process_time_s == pytest.approx([4e-3] * 2)


def test_cold_wall_timer_flushes_before_each_sample_and_does_not_time_it() -> None:
    clocks = Clocks()
    timer = WallTimer(flush=clocks.flush, wall_ns=clocks.wall_ns, process_ns=clocks.process_ns)
    batch = timer.batch(clocks.call, 2)
    assert timer.cache == "cold"
    assert clocks.log == ["flush", "process", "wall", "call", "wall", "process"] * 2
    assert batch.samples_s == pytest.approx([5e-3] * 2)
    assert batch.process_time_s == pytest.approx([4e-3] * 2)


def test_a_graph_replay_is_divided_by_its_calls() -> None:
    device = Device(kernel_ms=8.0)
    timer = GraphTimer(events=device.timer(), calls=4)
    batch = timer.batch(device.call, 2)
    assert batch.samples_s == pytest.approx([2e-3] * 2)
    assert (timer.name, timer.cache) == ("cuda-graph", "cold")
    assert device.log.count("synchronize") == 1


@pytest.mark.parametrize(
    ("ahead", "sample_s", "enqueue_s", "expected"),
    [
        (False, 40e-6, [1e-6], True),
        (False, 60e-6, [1e-6], False),
        (False, 1e-3, [0.8e-3, 0.9e-3], True),
        (False, 1e-3, [0.79e-3, 5e-3], False),
        (True, 10e-6, [35e-3], False),
        (True, 10e-6, [0.2], True),
        # Between them it is tried behind more: there a call takes 2 ms.
        (True, 2.1e-3, [0.101], False),
        (True, 2.4e-3, [0.101], True),
    ],
)
def test_launch_bound_is_a_short_kernel_or_a_host_slower_than_what_goes_ahead(
    ahead: bool, sample_s: float, enqueue_s: list[float], expected: bool
) -> None:
    device = Device()
    timer = device.timer(cold=ahead)
    assert timer.is_launch_bound(device.call, [sample_s] * 3, enqueue_s) is expected


def test_a_hot_call_has_a_backlog_ahead_instead_of_a_flush() -> None:
    device = Device()
    timer = replace(device.timer(cold=False), backlog=device.flush)
    assert timer.cache == "hot"
    assert timer.batch(device.call, 1).samples_s == pytest.approx([2e-3])
    assert device.log == ["flush", "record", "call", "record", "synchronize"]


def test_garbage_is_not_collected_while_sampling() -> None:
    seen = []
    clocks = Clocks()

    def call() -> None:
        seen.append(gc.isenabled())
        clocks.call()

    timer = WallTimer(wall_ns=clocks.wall_ns, process_ns=clocks.process_ns)
    sampling.sample(timer, call, rule=sampling.StopRule(samples=3))
    assert seen == [False] * 3
    assert gc.isenabled()
