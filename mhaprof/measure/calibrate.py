"""Measure this machine's peaks: the matmul rate of each dtype and the copy bandwidth."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mhaprof.errors import Unavailable
from mhaprof.measure import conditions, devices, load, nvidia
from mhaprof.measure.sampling import StopRule, WarmUp, sample, warm_up
from mhaprof.measure.timers import Call
from mhaprof.roofline import Peaks
from mhaprof.units import flops_of, tflops_per_s

if TYPE_CHECKING:
    import torch

DTYPES = ("float64", "float32", "tf32", "float16", "bfloat16")
"""What is calibrated; float64 on a CPU alone, tf32 on CUDA alone."""

CPU_SIZE = 1536
ACCELERATOR_SIZE = 8192
"""Rows and columns of the square matrices that are multiplied."""

COPY_BYTES = 2**30
"""Bytes of the buffer that is copied, well beyond any last-level cache."""

RULE = StopRule(min_time_s=0.5, max_time_s=3.0, min_samples=5, precision=0.02)
WARM_UP = WarmUp(min_time_s=0.2, max_time_s=1.0, min_calls=2)


def calibrate(
    device: str,
    *,
    threads: int | None = None,
    size: int | None = None,
    copy_bytes: int = COPY_BYTES,
    progress: Callable[[str], None] | None = None,
) -> Peaks:
    """Return the measured peaks of a device; takes about a second for each number.

    The rate is 2 n^3 FLOPs over the fastest of the samples of an n x n product, the
    bandwidth twice the buffer (read and written) over the fastest copy: a peak is the
    best that was seen.  A dtype that the device refuses is left out.  ``progress`` is
    told what is measured next.  Raises Unavailable (code ``contended``) where other work
    competed: peaks that are too low would make every time look good.
    """
    before = conditions.cpu_state()
    n = size or (CPU_SIZE if device == "cpu" else ACCELERATOR_SIZE)
    rates = {}
    with devices.threads(threads if device == "cpu" else None), devices.current(device):
        for name in DTYPES:
            if (name == "tf32" and not device.startswith("cuda")) or (
                name == "float64" and device != "cpu"
            ):
                continue
            if progress is not None:
                progress(f"{name} product of {n} x {n}")
            rate = _matmul_rate(device, name, n)
            if rate is not None:
                rates[name] = rate
        if progress is not None:
            progress("copy")
        bandwidth = _copy_bandwidth(device, copy_bytes)
    shared = _competitor(device, before, threads or devices.default_threads())
    if shared is not None:
        raise Unavailable(
            f"not calibrated, for the peaks would be too low: {shared}; calibrate again on a "
            "quiet machine, or give --peak-tflops and --peak-gbps",
            code="contended",
        )
    where = devices.device_name(device)
    return Peaks(tflops=rates, gbps=bandwidth, source=f"calibrated on {where}", measured=True)


def _competitor(device: str, before: conditions.CpuState, threads: int) -> str | None:
    """Return the sentence that says what competed for the device, or None."""
    if device == "cpu":
        return conditions.contention(before, conditions.cpu_state(), threads=threads)
    if not device.startswith("cuda"):
        return None
    with nvidia.reader(device) as read:
        return load.flags_of(*([read()] if read else [])).get("contended")


def _matmul_rate(device: str, name: str, n: int) -> float | None:
    """Return TFLOP/s of one square product, or None when the device refuses the dtype."""
    import torch

    dtype: torch.dtype = getattr(torch, "float32" if name == "tf32" else name)
    try:
        left, right = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
        result = torch.empty(n, n, device=device, dtype=dtype)
        with devices.tf32(name == "tf32"):
            seconds = _fastest(device, lambda: torch.mm(left, right, out=result))
    except (RuntimeError, TypeError):
        return None
    return tflops_per_s(flops_of(n**3), seconds)


def _copy_bandwidth(device: str, size: int) -> float:
    """Return GB/s (1e9 bytes) of copying a buffer, reads and writes counted."""
    import torch

    source = torch.ones(size // 4, dtype=torch.int32, device=device)
    target = torch.zeros_like(source)
    return 2 * size / _fastest(device, lambda: target.copy_(source)) / 1e9


def _fastest(device: str, call: Call) -> float:
    timer = devices.make_timer(device, cache="hot")
    warm_up(timer, call, rule=WARM_UP)
    return min(sample(timer, call, rule=RULE).samples_s)
