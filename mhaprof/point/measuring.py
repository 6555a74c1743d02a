"""Measure what is asked of one point: counts, times, memory."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

from mhaprof.errors import UsageError
from mhaprof.point.boundary import guarded
from mhaprof.point.counting import count
from mhaprof.point.options import MeasureOptions
from mhaprof.point.timing import predict_memory, time_point
from mhaprof.records import Failed, Finding, Measured, Outcome, Point, Result, Skipped

if TYPE_CHECKING:
    from mhaprof.measure.sampling import ProgressCallback

Metric = Literal["flops", "latency", "memory"]

METRICS: tuple[Metric, ...] = ("flops", "latency", "memory")
"""What can be measured of a point."""


def measure_point(
    point: Point,
    *,
    what: Collection[Metric],
    options: MeasureOptions | None = None,
    progress: ProgressCallback | None = None,
) -> Result:
    """Measure one point; whatever breaks becomes its outcome.

    ``what`` names the metrics.  ``latency`` and ``memory`` need ``point.settings`` with
    a device and a dtype.  A time comes with counts: with ``flops`` from all counters,
    else from the closed form alone.  A run that Ctrl-C ended keeps its samples and
    has the finding ``interrupted``.
    """
    chosen = options or MeasureOptions()
    return guarded(point, lambda: _measure(point, what, chosen, progress))


def _measure(
    point: Point,
    what: Collection[Metric],
    options: MeasureOptions,
    progress: ProgressCallback | None,
) -> Outcome:
    timed_metrics = {"latency", "memory"} & set(what)
    counted = count(
        point,
        counters=options.counters if "flops" in what else ("closed-form",),
        backward=options.backward or point.settings.mode != "forward",
        cache_dtype=options.cache_dtype,
        allow_import=options.allow_import,
    )
    if isinstance(counted, Skipped) or not timed_metrics:
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

    settings = point.settings
    if settings.device is None or settings.dtype is None:
        raise UsageError(f"point {point.name} has no device and dtype to be timed with")
    implementation = attention.get(point.implementation, allow_import=options.allow_import)
    memory = predict_memory(point, implementation)
    if isinstance(memory, Skipped):
        return memory
    rejection = implementation.rejects(
        point.spec, device=settings.device, dtype=settings.dtype, mode=settings.mode
    )
    if rejection is not None:
        return Skipped(code=rejection.code, message=rejection.message)
    timed = time_point(point, implementation, options, progress=progress)
    if isinstance(timed, Failed | Skipped):
        return timed
    findings = [*counted.findings, *timed.findings]
    if timed.interrupted:
        message = "interrupted: fewer samples than asked for"
        findings.append(Finding(code="interrupted", message=message))
    return Measured(counts=counted.counts, latency=timed.latency, memory=memory, findings=findings)
