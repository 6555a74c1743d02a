"""A GPU's state is read while it works, with NVML opened before."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from mhaprof.measure import devices, load, nvidia


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


class Gpu:
    """A device whose calls take ``call_s`` seconds of a clock that only waiting moves."""

    def __init__(self, call_s: float) -> None:
        self.log: list[str] = []
        self.call_s, self.now, self.enqueued = call_s, 0.0, 0

    def call(self) -> None:
        self.enqueued += 1
        self.log.append("call")

    def synchronize(self, device: str) -> None:
        self.now += self.enqueued * self.call_s
        self.enqueued = 0
        self.log.append("wait")

    @contextlib.contextmanager
    def reader(self, device: str) -> Iterator[Callable[[], nvidia.GpuState]]:
        self.log.append("open")
        yield self.read
        self.log.append("close")

    def read(self) -> nvidia.GpuState:
        self.log.append(f"read under {self.enqueued}")
        return state()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(devices, "synchronize", self.synchronize)
        monkeypatch.setattr(nvidia, "reader", self.reader)
        monkeypatch.setattr(load, "time", SimpleNamespace(perf_counter=lambda: self.now))


@pytest.mark.parametrize(("call_s", "enqueued"), [(0.025, 8), (1.0, 1), (1e-6, load.MOST_CALLS)])
def test_the_state_is_read_under_a_fifth_of_a_second_of_work(
    call_s: float, enqueued: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(call_s)
    gpu.install(monkeypatch)
    assert load.gpu_under_load(gpu.call, "cuda") == state()
    assert gpu.log[:4] == ["open", "wait", "call", "wait"]
    assert gpu.log[4:] == [*["call"] * enqueued, f"read under {enqueued}", "wait", "close"]


def test_without_nvml_nothing_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "reader", lambda device: contextlib.nullcontext())
    called: list[None] = []
    assert load.gpu_under_load(lambda: called.append(None), "cuda") is None
    assert called == []


def test_flags_are_of_both_states() -> None:
    before = state(throttle_reasons=("power cap",), other_processes=2)
    after = state(throttle_reasons=("power cap", "hardware slowdown"), other_processes=1)
    assert load.flags_of(before, after) == {
        "throttled": "the GPU lowered its clocks: power cap, hardware slowdown",
        "contended": "2 other process(es) compute on the GPU",
    }
    assert load.flags_of(state(), None) == load.flags_of(None, None) == {}
