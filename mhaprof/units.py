"""The only place where seconds, bytes, MACs and FLOPs are converted or formatted.

Inside mhaprof all numbers are SI base units, named by their suffix
(``latency_s``, ``peak_bytes``, ``macs``).  One MAC is one fused multiply-add:
fvcore calls that one FLOP, everyone who quotes TFLOP/s calls it two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

FLOPS_PER_MAC = 2
"""FLOPs in one multiply-accumulate, the convention of TFLOP/s figures."""

DTYPE_WORDS = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8",
    "float8_e4m3fn": "float8",
    "float8_e5m2": "float8",
}
"""What people type for torch's names of dtypes."""

DTYPE_BYTES: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8": 1,
    "int8": 1,
}
"""Bytes of one element, by the name used in flags, YAML and rows."""

CACHE_BITS: dict[str, int] = {**{name: 8 * size for name, size in DTYPE_BYTES.items()}, "int4": 4}
"""Bits of one element of a KV cache; two of int4 share a byte."""


@dataclass(frozen=True, kw_only=True)
class CacheFormat:
    """How a KV cache is stored: its dtype, and the scales of a quantized one.

    A scale of ``scale_bytes`` belongs to each key and each value of one head of one token
    or, with ``group``, to each ``group`` elements of it; a last group may be shorter.
    """

    dtype: str = "bfloat16"
    scale_bytes: int = 0
    group: int | None = None

    @classmethod
    def of(cls, dtype: str, scales: str | None = None) -> CacheFormat:
        """Read ``int8`` and ``fp16/head`` or ``fp16/64``.

        Raises ValueError saying which of the two is none, or that ``dtype`` takes no scales.
        """
        dtype = DTYPE_WORDS.get(dtype, dtype)
        if dtype not in CACHE_BITS:
            raise ValueError(f"{dtype!r} is not one of {', '.join(CACHE_BITS)}")
        if scales is None:
            return cls(dtype=dtype)
        if CACHE_BITS[dtype] > 8:
            raise ValueError(f"a cache of {dtype} is not quantized and takes no scales")
        word, _, group = scales.partition("/")
        scale_bytes = DTYPE_BYTES.get(DTYPE_WORDS.get(word, word))
        if scale_bytes is None or not (group == "head" or (group.isdecimal() and int(group) > 0)):
            raise ValueError(f"{scales!r} is not DTYPE/head or DTYPE/N (fp16/head, fp16/64)")
        size = None if group == "head" else int(group)
        return cls(dtype=dtype, scale_bytes=scale_bytes, group=size)

    def element_bytes(self, vectors: Sequence[int]) -> Fraction:
        """Return the bytes of one element of a token's keys and values, scales included.

        ``vectors`` are the widths of what has scales of its own.  All elements together
        are whole bytes: an odd number of int4 is padded.
        """
        elements = sum(vectors)
        scales = sum(-(-width // (self.group or width)) for width in vectors)
        stored = -(-elements * CACHE_BITS[self.dtype] // 8)
        return Fraction(stored + scales * self.scale_bytes, elements)


def flops_of(macs: int) -> int:
    """Return FLOPs at two per MAC; stays an exact Python int."""
    return FLOPS_PER_MAC * macs


def tflops_per_s(flops: int, seconds: float) -> float:
    """Return the rate in TFLOP/s of ``flops`` (2 per MAC) done in ``seconds``."""
    return flops / seconds / 1e12


def format_count(value: int) -> str:
    """Format an exact integer without separators, so that it can be searched for."""
    return str(value)


def format_si(value: int) -> str:
    """Format a number with four significant digits and a prefix (``60.13 G``)."""
    return str(value) if value < 10**6 else _scaled(value / 1e6, 1000, "MGTPE")


def format_seconds(seconds: float) -> str:
    """Format a duration with four significant digits in the unit that fits."""
    return _scaled(seconds * 1e9, 1000, ("ns", "us", "ms", "s"))


def format_bytes(count: float) -> str:
    """Format a number of bytes in binary units (KiB, MiB, GiB, TiB)."""
    return _scaled(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def _scaled(value: float, ratio: int, units: Sequence[str]) -> str:
    """Format a value, given in the first unit, in the one that fits it once it is rounded."""
    index = 0
    while float(f"{value:.4g}") >= ratio and index < len(units) - 1:
        value, index = value / ratio, index + 1
    return f"{value:.4g} {units[index]}"


def format_ratio(ratio: float) -> str:
    """Format a ratio with three decimals (``1.143``)."""
    return f"{ratio:.3f}"


def format_percent(fraction: float) -> str:
    """Format a fraction as a percentage with two decimals (``0.59 %``)."""
    return f"{100 * fraction:.2f} %"


def milliseconds(seconds: float) -> float:
    """Return a duration in milliseconds."""
    return seconds * 1e3


def nanoseconds(seconds: float) -> float:
    """Return a duration in nanoseconds."""
    return seconds * 1e9
