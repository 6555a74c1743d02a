"""Device peaks, each with its source -> what bounds a call, and the share attained.

Dense peaks only: figures with structured sparsity are twice as high and make every
utilisation half of what it is.  A device that is not in the table gets no number.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Bound = Literal["compute", "memory", "launch"]

CALIBRATION_VERSION = 1
"""Schema version of the file of calibrated peaks."""

MEASURED_SLACK = 1.1
"""A calibrated peak may be beaten by this before a time is called impossible."""

HINT = "give --peak-tflops and --peak-gbps, or run mhaprof env --calibrate"
"""What to do for a device without known peaks."""


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Dense peaks of one device.

    ``tflops`` maps ``float64``, ``float32``, ``tf32``, ``float16``, ``bfloat16`` and ``float8`` to
    TFLOP/s (2 FLOPs per MAC); ``gbps`` is memory bandwidth in GB/s (1e9 bytes).
    ``measured`` says that they were calibrated on the machine, not read in a datasheet.
    """

    tflops: Mapping[str, float]
    gbps: float | None
    source: str
    measured: bool = False

    def rate(self, dtype: str, *, tf32: bool = False) -> float | None:
        """Return the peak in TFLOP/s for products of ``dtype``, or None if unknown."""
        return self.tflops.get("tf32" if tf32 and dtype == "float32" else dtype)


@dataclass(frozen=True, kw_only=True)
class KnownDevice:
    """A row of the table: all ``tokens`` and none of ``excluded`` are in the device's name."""

    tokens: frozenset[str]
    excluded: frozenset[str]
    peaks: Peaks


def _row(
    tokens: str,
    rates: tuple[float | None, float | None, float | None, float | None, float | None],
    gbps: float,
    source: str,
    *,
    excluded: str = "",
) -> KnownDevice:
    """Make a row; ``rates`` are TFLOP/s of float32, tf32, float16, bfloat16, float8."""
    names = ("float32", "tf32", "float16", "bfloat16", "float8")
    known = {name: rate for name, rate in zip(names, rates, strict=True) if rate is not None}
    return KnownDevice(
        tokens=frozenset(tokens.split()),
        excluded=frozenset(excluded.split()) | {"mig"},
        peaks=Peaks(tflops=known, gbps=gbps, source=source),
    )


_A100 = (19.5, 156.0, 312.0, 312.0, None)
_A100_SOURCE = "NVIDIA A100 Tensor Core GPU datasheet"
_H100 = (67.0, 494.7, 989.4, 989.4, 1979.0)
_V100_SOURCE = "NVIDIA V100 Tensor Core GPU datasheet"

KNOWN_DEVICES = (
    _row("v100 sxm2", (15.7, None, 125.0, None, None), 900, _V100_SOURCE),
    _row("v100 pcie", (14.0, None, 112.0, None, None), 900, _V100_SOURCE),
    _row("t4", (8.1, None, 65.0, None, None), 320, "NVIDIA T4 datasheet"),
    _row("a10", (31.2, 62.5, 125.0, 125.0, None), 600, "NVIDIA A10 datasheet"),
    _row("a100 40gb", _A100, 1555, _A100_SOURCE),
    _row("a100 80gb pcie", _A100, 1935, _A100_SOURCE),
    _row("a100 80gb sxm4", _A100, 2039, _A100_SOURCE),
    _row("l4", (30.3, 60.0, 121.0, 121.0, 242.0), 300, "NVIDIA L4 datasheet"),
    _row("l40s", (91.6, 183.0, 362.0, 362.0, 733.0), 864, "NVIDIA L40S datasheet"),
    _row("h100 hbm3", _H100, 3350, "NVIDIA H100 datasheet, SXM5", excluded="nvl"),
    _row("h100 pcie", (51.0, 378.0, 756.0, 756.0, 1513.0), 2000, "NVIDIA H100 datasheet, PCIe"),
    _row("h200", _H100, 4800, "NVIDIA H200 datasheet, SXM", excluded="nvl"),
    _row(
        "b200",
        (75.0, 1125.0, 2250.0, 2250.0, 4500.0),
        7700,
        "NVIDIA HGX B200 datasheet; float32 unverified",
    ),
    _row("mi300x", (163.4, 653.7, 1307.4, 1307.4, 2614.9), 5300, "AMD Instinct MI300X datasheet"),
    _row(
        "rtx 4090",
        (82.6, 82.6, 165.2, 165.2, 330.3),
        1008,
        "NVIDIA Ada architecture whitepaper; tensor cores with float32 accumulation",
        excluded="laptop d",
    ),
)
"""Dense peaks by device.  A new device is one row with the source of its numbers."""


def known_peaks(device_name: str) -> Peaks | None:
    """Return the peaks of a device by the name that its driver gives, or None.

    Names match by whole words: ``L4`` is not ``L40S``, ``H100`` not ``GH200``; of
    several rows the one with the longest words counts.  A MIG slice has no row.
    """
    words = set(re.findall(r"[a-z0-9]+", device_name.lower()))
    rows = [row for row in KNOWN_DEVICES if row.tokens <= words and not row.excluded & words]
    if not rows:
        return None
    return max(rows, key=lambda row: sum(map(len, row.tokens))).peaks


def find_peaks(
    device_name: str,
    *,
    dtype: str,
    tf32: bool = False,
    threads: int | None = None,
    peak_tflops: float | None = None,
    peak_gbps: float | None = None,
) -> Peaks | None:
    """Return the peaks to judge by: given ones, else calibrated ones, else the table's.

    A given number replaces its part alone.  None when nothing is known (see ``HINT``).
    """
    found = load_calibrated(device_name, threads=threads) or known_peaks(device_name)
    if peak_tflops is None and peak_gbps is None:
        return found
    name = "tf32" if tf32 and dtype == "float32" else dtype
    tflops = {} if found is None else dict(found.tflops)
    if peak_tflops is not None:
        tflops[name] = peak_tflops
    gbps = peak_gbps
    if gbps is None and found is not None:
        gbps = found.gbps
    return Peaks(tflops=tflops, gbps=gbps, source="given on the command line")


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a call lies under the roof.

    ``bound`` is what the roof says limits it (``launch`` when the host's launches do);
    ``attained_fraction`` is its rate over the roof's at its arithmetic intensity;
    ``above_peak`` says that its rate is impossible, so that a number is wrong.  None
    where a peak is unknown.
    """

    tflops_per_s: float
    arithmetic_intensity: float
    bound: Bound | None
    attained_fraction: float | None
    above_peak: bool
    source: str | None


def place(
    *,
    flops: int,
    moved_bytes: int,
    seconds: float,
    peaks: Peaks | None,
    dtype: str,
    tf32: bool = False,
    launch_bound: bool = False,
) -> Placement:
    """Place a call of ``flops`` (2 per MAC) and at least ``moved_bytes`` under the roof.

    Source: Williams, Waterman and Patterson 2009 (the roofline model).
    """
    rate = None if peaks is None else peaks.rate(dtype, tf32=tf32)
    bandwidth = None if peaks is None else peaks.gbps
    compute_s = None if rate is None else flops / (rate * 1e12)
    memory_s = None if bandwidth is None else moved_bytes / (bandwidth * 1e9)
    bound: Bound | None = "launch" if launch_bound else None
    fraction = None
    if compute_s is not None and memory_s is not None:
        fraction = max(compute_s, memory_s) / seconds
        bound = bound or ("compute" if compute_s >= memory_s else "memory")
    least = least_seconds(flops, peaks, dtype=dtype, tf32=tf32)
    return Placement(
        tflops_per_s=flops / seconds / 1e12,
        arithmetic_intensity=flops / moved_bytes,
        bound=bound,
        attained_fraction=fraction,
        above_peak=least is not None and seconds < least,
        source=None if peaks is None else peaks.source,
    )


def least_seconds(
    flops: int, peaks: Peaks | None, *, dtype: str, tf32: bool = False
) -> float | None:
    """Return the time below which ``flops`` would exceed the peak; None if unknown.

    Calibrated peaks, which another shape may beat, leave 10 % of room.
    """
    rate = None if peaks is None else peaks.rate(dtype, tf32=tf32)
    if peaks is None or rate is None:
        return None
    return flops / (rate * 1e12) / (MEASURED_SLACK if peaks.measured else 1.0)


def calibration_file() -> Path:
    """Return where calibrated peaks are kept: the user's cache folder on this platform."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        given = os.environ.get("XDG_CACHE_HOME", "")
        # The XDG specification: a relative path is to be ignored.
        base = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
    return base / "mhaprof" / "peaks.json"


def load_calibrated(device_name: str, *, threads: int | None = None) -> Peaks | None:
    """Return the peaks calibrated for a device (on a CPU: at that many threads), or None.

    A file that cannot be read, or of another schema version, counts as none.
    """
    entry = _calibrations().get(_key(device_name, threads))
    if entry is None:
        return None
    try:
        return Peaks(**{**entry, "measured": True})
    except TypeError:
        return None


def save_calibrated(device_name: str, peaks: Peaks, *, threads: int | None = None) -> Path:
    """Keep measured peaks beside those of other devices; return the file."""
    file = calibration_file()
    devices = {**_calibrations(), _key(device_name, threads): asdict(peaks)}
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"schema_version": CALIBRATION_VERSION, "devices": devices}, indent=2)
    # Written beside and moved: a reader never sees half a file.
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    draft.write_text(text + "\n")
    draft.replace(file)
    return file


def _calibrations() -> dict[str, dict[str, Any]]:
    """Return the devices of the calibration file; none where it cannot be used."""
    try:
        content = json.loads(calibration_file().read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict) or content.get("schema_version") != CALIBRATION_VERSION:
        return {}
    devices = content.get("devices")
    return devices if isinstance(devices, dict) else {}


def _key(device_name: str, threads: int | None) -> str:
    return device_name if threads is None else f"{device_name}, {threads} thread(s)"
