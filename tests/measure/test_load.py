"""A GPU's state is read while it works on a batch."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from mhaprof.measure import load, nvidia
from mhaprof.measure.timers import EventTimer, GraphTimer, WallTimer


def state(**changes: Any) -> nvidia.GpuState:
    values: dict[str, Any] = {
        "driver": "570.1",
        "sm_clock_mhz": 1755,
        "sm_clock_max_mhz": 1980,
        "memory_clock_mhz": 3201,
        "power_w": 650.5,
        "power_limit_w": 700.0,
        "temperature_c": 61,
        "throttle_reasons": (),
        "other_processes": 0,
    }
    return nvidia.GpuState(**{**values, **changes})


def timer(log: list[str]) -> EventTimer:
    class Event:
        def record(self) -> None:
            pass

        def elapsed_time(self, end_event: Any, /) -> float:
            return 1.0

    return EventTimer(name="cuda-events", event=Event, synchronize=lambda: log.append("wait"))


def test_the_state_is_read_before_the_wait_for_a_batch_ever_more_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []

    def read() -> nvidia.GpuState:
        log.append("read")
        return state(temperature_c=len(log))

    monkeypatch.setattr(nvidia, "reader", lambda device: contextlib.nullcontext(read))
    for given in (timer(log), GraphTimer(events=timer(log), calls=2)):
        log.clear()
        with load.watched(given, "cuda") as (watched, states):
            for _ in range(5):
                watched.batch(lambda: None, 1)
        assert log == ["wait", "read", "wait", "wait", "read", "wait", "wait"]
        assert [found.temperature_c for found in states] == [2, 5]


def test_nothing_is_read_without_nvml_of_other_devices_or_inside_a_wall_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = timer([])
    monkeypatch.setattr(nvidia, "reader", lambda device: contextlib.nullcontext())
    for what, device in ((given, "cuda"), (given, "xpu"), (WallTimer(), "cuda")):
        with load.watched(what, device) as (watched, states):
            assert (watched, states) == (what, [])


def test_flags_are_of_all_states_and_a_power_cap_alone_is_no_throttling() -> None:
    before = state(throttle_reasons=("power cap",), other_processes=2)
    after = state(throttle_reasons=("power cap", "hardware slowdown"), other_processes=1)
    assert load.flags_of(before, after) == {
        "power_limited": "the GPU kept its clocks down to its power cap",
        "throttled": "the GPU lowered its clocks: hardware slowdown",
        "contended": "2 other process(es) compute on the GPU",
    }
    assert load.flags_of(state(throttle_reasons=("power cap",))).keys() == {"power_limited"}
    assert load.flags_of(state()) == load.flags_of() == {}
