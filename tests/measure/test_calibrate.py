"""Calibration: peaks of this machine, from the fastest of a few samples."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from mhaprof.measure import calibrate as module
from mhaprof.measure import conditions, devices
from mhaprof.measure.calibrate import calibrate
from mhaprof.measure.sampling import StopRule, WarmUp


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RULE", StopRule(min_samples=2, samples=3))
    monkeypatch.setattr(module, "WARM_UP", WarmUp(min_time_s=0.0, min_calls=1))
    monkeypatch.setattr(conditions, "contention", lambda *_, **__: None)


def test_a_cpu_has_rates_of_its_dtypes_and_a_bandwidth() -> None:
    told: list[str] = []
    peaks = calibrate("cpu", threads=1, size=128, copy_bytes=2**20, progress=told.append)
    assert set(peaks.tflops) == {"float64", "float32", "float16", "bfloat16"}
    assert all(rate > 0 for rate in peaks.tflops.values())
    assert peaks.measured
    assert peaks.gbps is not None
    assert told == [
        "float64 product of 128 x 128",
        "float32 product of 128 x 128",
        "float16 product of 128 x 128",
        "bfloat16 product of 128 x 128",
        "copy",
    ]


def test_rates_count_two_flops_a_mac_and_copies_both_ways(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_fastest", lambda device, call: 1e-3)
    peaks = calibrate("cpu", threads=1, size=100, copy_bytes=10**6)
    assert peaks.tflops["float32"] == pytest.approx(2 * 100**3 / 1e-3 / 1e12)
    assert peaks.gbps == pytest.approx(2.0)


def test_a_dtype_that_the_device_refuses_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    original = torch.mm

    def refusing(left: torch.Tensor, right: torch.Tensor, **rest: object) -> torch.Tensor:
        if left.dtype == torch.float16:
            raise RuntimeError("not implemented for 'Half'")
        return original(left, right, **rest)  # type: ignore[no-any-return,call-overload]

    monkeypatch.setattr(torch, "mm", refusing)
    peaks = calibrate("cpu", threads=1, size=64, copy_bytes=2**20)
    assert set(peaks.tflops) == {"float64", "float32", "bfloat16"}


def test_a_device_is_the_current_one_while_it_is_calibrated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []

    @contextlib.contextmanager
    def current(device: str) -> Iterator[None]:
        log.append(f"enter {device}")
        yield
        log.append("leave")

    def fastest(device: str, call: object) -> float:
        log.append("measure")
        return 1e-3

    monkeypatch.setattr(devices, "current", current)
    monkeypatch.setattr(module, "_fastest", fastest)
    calibrate("cpu", threads=1, size=64, copy_bytes=2**20)
    assert log == ["enter cpu", *["measure"] * 5, "leave"]
