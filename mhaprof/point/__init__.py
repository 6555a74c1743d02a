"""Measure one point: the only package that joins attention and measure."""

from __future__ import annotations

from mhaprof.point.boundary import guarded
from mhaprof.point.counting import count_point
from mhaprof.point.measuring import measure_point
from mhaprof.point.options import COUNTERS, DEFAULT_CACHE_DTYPE, MeasureOptions

__all__ = [
    "COUNTERS",
    "DEFAULT_CACHE_DTYPE",
    "MeasureOptions",
    "count_point",
    "guarded",
    "measure_point",
]
