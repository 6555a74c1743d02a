"""Samples -> median, interval, quantiles; two sample sets -> are they different.

Pure functions of lists of seconds.  numpy is imported when used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Statistics of one list of samples, in the unit of the samples (seconds).

    ``ci_low`` and ``ci_high`` bound the median at 95 % (order statistics; None below
    six samples, where no such interval exists).  ``outliers`` counts samples outside
    1.5 interquartile ranges; they are counted, never deleted.
    """

    count: int
    median: float
    ci_low: float | None
    ci_high: float | None
    p5: float
    p25: float
    p75: float
    p95: float
    minimum: float
    mad: float
    outliers: int


def summarize(samples: Sequence[float]) -> Summary:
    """Return the statistics of ``samples``.

    Raises ValueError when there is no sample.
    """
    raise NotImplementedError(len(samples))
