"""Measure what is asked of one point: counts, times, memory."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

from mhaprof.errors import UsageError
from mhaprof.point.boundary import guarded, worded
from mhaprof.point.counting import count, count_own
from mhaprof.point.options import MeasureOptions
from mhaprof.point.roof import above_peak, peaks_of, roof_of
from mhaprof.point.timing import peak_bytes, predict_memory, time_point
from mhaprof.records import (
    Failed,
    Finding,
    Measured,
    Memory,
    ModulePoint,
    Outcome,
    Point,
    Result,
    Skipped,
)

if TYPE_CHECKING:
    from mhaprof.attention.base import Implementation
    from mhaprof.measure.sampling import ProgressCallback

Metric = Literal["flops", "latency", "memory"]

METRICS: tuple[Metric, ...] = ("flops", "latency", "memory")
"""What can be measured of a point."""


def measure_point(
    point: Point | ModulePoint,
    *,
    what: Collection[Metric],
    options: MeasureOptions | None = None,
    progress: ProgressCallback | None = None,
) -> Result:
    """Measure one point; whatever breaks becomes its outcome.

    ``what`` names the metrics.  ``latency`` and ``memory`` need ``point.settings`` with
    a device and a dtype.  A time comes with counts: with ``flops`` from all counters,
    else from the closed form alone.  A run that Ctrl-C ended keeps its samples and
    has the finding ``interrupted``.  A module of the user is counted, whatever is asked.
    """
    chosen = options or MeasureOptions()
    if isinstance(point, ModulePoint):
        return guarded(point, lambda: count_own(point, chosen))
    return guarded(point, lambda: _measure(point, what, chosen, progress))


def _measure(
    point: Point,
    what: Collection[Metric],
    options: MeasureOptions,
    progress: ProgressCallback | None,
) -> Outcome:
    timed = "latency" in what or "memory" in what
    changed = {
        "counters": options.counters if "flops" in what else ("closed-form",),
        "backward": options.backward or point.settings.mode != "forward",
        "cache_dtype": _bytes_dtype(point, options, timed=timed),
    }
    counted = count(point, options.model_copy(update=changed))
    if isinstance(counted, Skipped) or not timed:
        return counted
    return _measure_on_device(point, what, options, progress, counted)


def _measure_on_device(
    point: Point,
    what: Collection[Metric],
    options: MeasureOptions,
    progress: ProgressCallback | None,
    counted: Measured,
) -> Outcome:
    from mhaprof import attention
    from mhaprof.measure.devices import resolve_device

    settings = point.settings
    if settings.device is None or settings.dtype is None:
        raise UsageError(f"point {point.name} has no device and dtype to be timed with")
    resolve_device(settings.device)
    implementation = attention.get(point.implementation, allow_import=options.allow_import)
    memory = predict_memory(point, implementation)
    if isinstance(memory, Skipped):
        return memory
    rejection = implementation.rejects(
        point.spec, device=settings.device, dtype=settings.dtype, mode=settings.mode
    )
    if rejection is not None:
        return Skipped(code=rejection.code, message=rejection.message)
    if "latency" not in what:
        memory = _with_peak(memory, point, implementation, options)
        return counted.model_copy(update={"memory": memory})
    timed = time_point(point, implementation, options, progress=progress)
    if isinstance(timed, Failed | Skipped):
        return timed
    findings, interrupted = [*counted.findings, *timed.findings], timed.interrupted
    if "memory" in what and not interrupted:
        try:
            memory = _with_peak(memory, point, implementation, options)
        except KeyboardInterrupt:
            interrupted = True
        except (RuntimeError, MemoryError) as error:
            # The time is good, whatever breaks now.
            findings.append(Finding(code="no_peak", message=f"no measured peak: {worded(error)}"))
    if interrupted:
        message = "interrupted: fewer samples than asked for"
        findings.insert(0, Finding(code="interrupted", message=message))
    assert counted.counts is not None
    latency, peaks = timed.latency, peaks_of(point, options, timed.latency)
    if above_peak(point, counted.counts, latency, peaks):
        message = "faster than the device's peak allows: the peak or the count is wrong"
        latency = latency.model_copy(update={"flags": [*latency.flags, "above_peak"]})
        findings.append(Finding(code="above_peak", message=message))
    return Measured(
        counts=counted.counts,
        latency=latency,
        memory=memory,
        roof=roof_of(point, counted.counts, latency, peaks=peaks, fused=implementation.fused),
        findings=findings,
    )


def _with_peak(
    memory: Memory, point: Point, implementation: Implementation, options: MeasureOptions
) -> Memory:
    """Add the measured peak to the predicted one."""
    peak = peak_bytes(point, implementation, seed=options.seed)
    return memory.model_copy(update={"peak_bytes": peak})


def _bytes_dtype(point: Point, options: MeasureOptions, *, timed: bool) -> str:
    """Return the dtype of the bytes in FLOPs per byte: what is timed, if something is."""
    return (point.settings.dtype or options.cache_dtype) if timed else options.cache_dtype
