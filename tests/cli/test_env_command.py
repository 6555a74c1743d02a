"""``mhaprof env``: what it shows, and a calibration that rooflines then use."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from mhaprof.measure import calibrate as module
from mhaprof.measure import conditions
from mhaprof.roofline import Peaks

PEAKS = Peaks(tflops={"float32": 0.5}, gbps=10.0, source="calibrated on a fake", measured=True)

CALIBRATE = module.calibrate


@pytest.fixture(autouse=True)
def calibrated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "calibrate", lambda *_, **__: PEAKS)


def peaks_of(ran: Any) -> dict[str, Any]:
    return {row["name"]: row["value"] for row in ran.rows if row["section"] == "peaks"}


def test_without_peaks_it_says_what_to_do(mhaprof: Any) -> None:
    ran = mhaprof("env", "--device", "cpu", "--format", "json")
    assert ran.code == 0
    assert "run mhaprof env --calibrate" in peaks_of(ran)["source"]


def test_a_calibration_is_kept_for_its_thread_count(mhaprof: Any) -> None:
    arguments = ("env", "--device", "cpu", "--threads", 1, "--format", "json")
    ran = mhaprof(*arguments, "--calibrate")
    expected = {"float32_tflops": 0.5, "gbps": 10.0, "source": PEAKS.source}
    assert (ran.code, peaks_of(ran)) == (0, expected)
    assert peaks_of(mhaprof(*arguments)) == expected
    assert peaks_of(mhaprof("env", "--device", "cpu", "--threads", 2, "--format", "json")) != (
        expected
    )


def test_peaks_of_a_busy_machine_are_refused_and_the_old_ones_stay(
    mhaprof: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("env", "--device", "cpu", "--threads", 1, "--format", "json")
    assert mhaprof(*arguments, "--calibrate").code == 0
    small = functools.partial(CALIBRATE, size=16, copy_bytes=2**10)
    monkeypatch.setattr(module, "calibrate", small)
    monkeypatch.setattr(module, "_fastest", lambda *_: 1.0)
    monkeypatch.setattr(conditions, "contention", lambda *_, **__: "others were busy")
    ran = mhaprof(*arguments, "--calibrate")
    assert (ran.code, ran.rows) == (4, [])
    last = ran.err.splitlines()[-1]
    assert "would be too low: others were busy; calibrate again on a quiet machine" in last
    assert peaks_of(mhaprof(*arguments))["float32_tflops"] == 0.5
