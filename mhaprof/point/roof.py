"""Place a timed point under the roofline of its device."""

from __future__ import annotations

from mhaprof import formulas, roofline
from mhaprof.point.options import MeasureOptions
from mhaprof.records import Counts, Latency, Point, Roof
from mhaprof.units import DTYPE_BYTES

PASSES = {"forward": 1, "backward": 2, "forward-backward": 3}
"""Times that the forward's bytes move at least, as its products do."""


def peaks_of(point: Point, options: MeasureOptions) -> roofline.Peaks | None:
    """Return the peaks of the point's device: given, calibrated or in the table."""
    from mhaprof.measure.devices import device_name

    settings = point.settings
    return roofline.find_peaks(
        device_name(settings.device or "cpu"),
        dtype=settings.dtype or "float32",
        tf32=settings.tf32,
        threads=settings.threads,
        peak_tflops=options.peak_tflops,
        peak_gbps=options.peak_gbps,
    )


def least_seconds(point: Point, counts: Counts, peaks: roofline.Peaks | None) -> float | None:
    """Return the time below which the useful operations alone would exceed the peak.

    Over the pairs that the mask lets through: a kernel may skip the others.
    """
    settings = point.settings
    _, exact = counts.timed_flops(settings.mode)
    return roofline.least_seconds(
        exact, peaks, dtype=settings.dtype or "float32", tf32=settings.tf32
    )


def roof_of(
    point: Point,
    counts: Counts,
    latency: Latency,
    *,
    peaks: roofline.Peaks | None,
    fused: bool,
) -> Roof:
    """Return bound and attained fraction, by dense FLOPs and the bytes that must move."""
    settings = point.settings
    dtype = settings.dtype or "float32"
    flops, _ = counts.timed_flops(settings.mode)
    moved = formulas.moved_bytes(point.spec, dtype_bytes=DTYPE_BYTES[dtype], fused=fused)
    placed = roofline.place(
        flops=flops,
        moved_bytes=moved * PASSES[settings.mode],
        seconds=latency.summary.median,
        peaks=peaks,
        dtype=dtype,
        tf32=settings.tf32,
        launch_bound="launch_bound" in latency.flags,
    )
    return Roof(
        bound=placed.bound,
        attained_fraction=placed.attained_fraction,
        peak_tflops=None if peaks is None else peaks.rate(dtype, tf32=settings.tf32),
        peak_gbps=None if peaks is None else peaks.gbps,
        peak_source=placed.source,
    )
