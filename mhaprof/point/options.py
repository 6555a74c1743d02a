"""How points are measured: the options that do not change what a number means."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mhaprof.records import Natural, Positive, Record, Seed

COUNTERS = ("fvcore", "torch", "closed-form")
"""All counters; by default all three count and must agree."""

DEFAULT_CACHE_DTYPE = "bfloat16"
"""The dtype in which caches and bytes moved are counted unless told otherwise."""

DEFAULT_MIN_TIME_S = 0.5
DEFAULT_MAX_TIME_S = 15.0
DEFAULT_PRECISION = 0.01


class MeasureOptions(Record):
    """How to measure; what changes the meaning of a number is in ``records.Settings``.

    ``min_time_s``, ``max_time_s``, ``precision`` (half width of the median's interval
    / median) and ``samples`` make the stop rule.  ``seed`` draws weights and inputs.
    ``peak_tflops`` (TFLOP/s) and ``peak_gbps`` (GB/s) replace the device's table.
    ``allow_uncounted`` names operators that may stay without a count.
    """

    counters: tuple[str, ...] = COUNTERS
    backward: bool = False
    cache_dtype: str = DEFAULT_CACHE_DTYPE
    min_time_s: Positive = DEFAULT_MIN_TIME_S
    max_time_s: Positive = DEFAULT_MAX_TIME_S
    precision: Annotated[float, Field(gt=0, lt=1)] = DEFAULT_PRECISION
    samples: Natural | None = None
    seed: Seed = 0
    peak_tflops: Positive | None = None
    peak_gbps: Positive | None = None
    allow_import: bool = False
    allow_uncounted: tuple[str, ...] = ()
