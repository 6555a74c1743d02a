"""``mhaprof env``: what it shows, and a calibration that rooflines then use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mhaprof.measure import calibrate as module
from mhaprof.measure import conditions
from mhaprof.roofline import Peaks

PEAKS = Peaks(tflops={"float32": 0.5}, gbps=10.0, source="calibrated on a fake", measured=True)


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


def test_a_calibration_is_kept_for_its_thread_count(
    mhaprof: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "contention", lambda *_, **__: None)
    arguments = ("env", "--device", "cpu", "--threads", 1, "--format", "json")
    ran = mhaprof(*arguments, "--calibrate")
    expected = {"float32_tflops": 0.5, "gbps": 10.0, "source": PEAKS.source}
    assert (ran.code, peaks_of(ran)) == (0, expected)
    assert "may be too low" not in ran.err
    assert peaks_of(mhaprof(*arguments)) == expected
    assert peaks_of(mhaprof("env", "--device", "cpu", "--threads", 2, "--format", "json")) != (
        expected
    )


def test_peaks_of_a_busy_machine_are_not_taken_in_silence(
    mhaprof: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "contention", lambda *_, **__: "others were busy")
    ran = mhaprof("env", "--device", "cpu", "--calibrate")
    assert ran.code == 0
    assert "the peaks may be too low, for others were busy; calibrate again" in ran.err
