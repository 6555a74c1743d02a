"""Place a timed point under the roofline of its device."""

from __future__ import annotations

from dataclasses import replace

from mhaprof import formulas, roofline
from mhaprof.point.options import MeasureOptions
from mhaprof.records import Counts, Latency, Point, Roof
from mhaprof.units import DTYPE_BYTES

PASSES = {"forward": 1, "backward": 2, "forward-backward": 3}
"""Times that the forward's bytes move at least, as its products do."""


TF32_PRODUCTS = 3
"""TF32 products by which the memory-efficient kernel makes one of float32 (sm80 and later)."""

BOOST = 1.2
"""How far a GeForce card may clock above the boost clock that its datasheet's peak is of."""


def peaks_of(point: Point, options: MeasureOptions, latency: Latency) -> roofline.Peaks | None:
    """Return the peaks of a timed point's device: given, calibrated or in the table.

    Float32 on the memory-efficient kernel is judged by its three TF32 products, whatever
    ``--tf32`` says, where that is more.
    """
    settings = point.settings
    peaks = roofline.find_peaks(
        latency.device_name,
        dtype=settings.dtype or "float32",
        tf32=settings.tf32,
        threads=settings.threads,
        peak_tflops=options.peak_tflops,
        peak_gbps=options.peak_gbps,
    )
    thirds = 0.0 if peaks is None else peaks.tflops.get("tf32", 0.0) / TF32_PRODUCTS
    if (
        peaks is None
        or latency.resolved_backend != "efficient"
        or options.peak_tflops is not None
        or thirds <= peaks.tflops.get("float32", thirds)
    ):
        return peaks
    source = f"{peaks.source}; float32 as three TF32 products"
    return replace(peaks, tflops={**peaks.tflops, "float32": thirds}, source=source)


def above_peak(
    point: Point, counts: Counts, latency: Latency, peaks: roofline.Peaks | None
) -> bool:
    """Say whether the useful operations alone would exceed the peak.

    Over the pairs that the mask lets through: a kernel may skip the others.
    """
    settings = point.settings
    _, exact = counts.timed_flops(settings.mode)
    least_s = roofline.least_seconds(
        exact, peaks, dtype=settings.dtype or "float32", tf32=settings.tf32
    )
    slack = BOOST if "geforce" in latency.device_name.lower() else 1.0
    return least_s is not None and latency.summary.median < least_s / slack


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
