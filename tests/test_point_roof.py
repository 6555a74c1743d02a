"""A timed point under its device's roof: which peak judges it, and when it is beyond it."""

from __future__ import annotations

import pytest

from mhaprof.point import MeasureOptions, count_point
from mhaprof.point.roof import above_peak, peaks_of
from mhaprof.records import Latency, Measured, Point, Settings
from mhaprof.spec import AttentionSpec
from mhaprof.units import tflops_per_s

POINT = Point(
    name="p",
    spec=AttentionSpec(),
    implementation="sdpa",
    settings=Settings(device="cuda", dtype="float32"),
)


@pytest.mark.parametrize(
    ("name", "backend", "peak", "limit"),
    [
        ("NVIDIA H200", None, 67.0, 67.0),
        ("NVIDIA H200", "flash", 67.0, 67.0),
        ("NVIDIA H200", "efficient", 494.7 / 3, 494.7 / 3),
        ("NVIDIA L40S", "efficient", 91.6, 91.6),
        ("Tesla T4", "efficient", 8.1, 8.1),
        ("NVIDIA GeForce RTX 4090", "efficient", 82.6, 1.2 * 82.6),
    ],
)
def test_float32_is_judged_by_the_peak_of_the_kernel_that_ran(
    name: str, backend: str | None, peak: float, limit: float
) -> None:
    outcome = count_point(POINT, counters=("closed-form",)).outcome
    assert isinstance(outcome, Measured)
    assert outcome.counts is not None

    def beyond(rate: float) -> bool:
        assert isinstance(outcome, Measured)
        assert outcome.counts is not None
        seconds = tflops_per_s(outcome.counts.flops, 1.0) / rate
        row = Latency.model_construct(
            device_name=name, resolved_backend=backend, samples_s=[seconds]
        )
        peaks = peaks_of(POINT, MeasureOptions(), row)
        assert peaks is not None
        assert peaks.rate("float32") == pytest.approx(peak)
        return above_peak(POINT, outcome.counts, row, peaks)

    assert (beyond(0.99 * limit), beyond(1.01 * limit)) == (False, True)
