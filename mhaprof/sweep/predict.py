"""What a plan will take: time and memory, said before anything is measured."""

from __future__ import annotations

from dataclasses import dataclass

from mhaprof import formulas
from mhaprof.point.timing import predict_memory
from mhaprof.records import Memory, ModulePoint, Point, Skipped
from mhaprof.sweep.plan import PlanEntry
from mhaprof.units import flops_of

COUNTING_S = 0.015
"""Seconds to count one point with all counters, on one core."""

WARM_UP_S = 0.3

LEAST_CALLS = 25
"""Calls beside the samples' time: warm-up, first call, the check, 20 samples at least."""

CPU_TFLOPS_PER_THREAD = 0.03
ACCELERATOR_TFLOPS = 50.0
"""What a device is assumed to attain, in TFLOP/s; good to a factor of about three."""

_PASSES = {"forward": 1, "backward": 3, "forward-backward": 3}
"""Forward passes that a call costs, roughly."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Seconds that a point will take, the peak of its memory, and why it may be skipped."""

    time_s: float
    peak_bytes: int | None = None
    skip: Skipped | None = None


def predict(entry: PlanEntry) -> Prediction:
    """Predict one round of one entry; imports no torch for a CPU."""
    if entry.skip is not None:
        return Prediction(time_s=0.0, skip=entry.skip)
    point = entry.point
    if isinstance(point, ModulePoint):
        return Prediction(time_s=COUNTING_S)
    assert isinstance(point, Point)
    from mhaprof import attention

    implementation = attention.get(point.implementation, allow_import=entry.options.allow_import)
    settings = point.settings
    rejection = implementation.rejects(
        point.spec, device="meta", dtype=settings.dtype or "float32", mode=settings.mode
    )
    if rejection is not None:
        skip = Skipped(code=rejection.code, message=rejection.message)
        return Prediction(time_s=0.0, skip=skip)
    counting_s = COUNTING_S if "flops" in entry.what else 0.0
    if entry.what <= {"flops"}:
        return Prediction(time_s=counting_s)
    peak: int | None = None
    if settings.device == "cpu":
        memory = predict_memory(point, implementation)
        if isinstance(memory, Skipped):
            return Prediction(time_s=0.0, skip=memory)
        assert isinstance(memory, Memory)
        peak = memory.predicted_peak_bytes
    return Prediction(time_s=counting_s + _timing_s(entry, point), peak_bytes=peak)


def _timing_s(entry: PlanEntry, point: Point) -> float:
    """Predict the seconds of one timed point: at least the sampling time asked for."""
    settings = point.settings
    tflops = ACCELERATOR_TFLOPS
    if settings.device == "cpu":
        tflops = CPU_TFLOPS_PER_THREAD * (settings.threads or 1)
    flops = flops_of(formulas.total_macs(point.spec)) * _PASSES[settings.mode]
    call_s = flops / (tflops * 1e12)
    sampling_s = min(entry.options.max_time_s, max(entry.options.min_time_s, 20 * call_s))
    return WARM_UP_S + sampling_s + (LEAST_CALLS - 20) * call_s
