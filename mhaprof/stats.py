"""Samples -> median, interval, quantiles; two sample sets -> are they different.

Pure functions of lists of numbers, in pure Python: a gate starts without numpy.
The comparison of two sets is rank based: times are skewed, a rank has no unit, and
with five processes a side the distribution of ranks is known exactly.
"""

from __future__ import annotations

import itertools
import math
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

CONFIDENCE = 0.95
"""Coverage of every interval, unless a function is told otherwise."""

PROCESS_SPREAD = 0.05
"""What identical code may differ by between two fresh processes.

Measured on a shared 2-core machine: raw iterations of one process each call 83-95 %
of A/A pairs different; asking for 5 % as well calls 0-3 %.
"""

EXACT_TOTAL = 100
"""Samples of both sides up to which rank distributions are counted, not approximated."""


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

    @property
    def precision(self) -> float | None:
        """Return the half width of the median's interval as a fraction of the median."""
        if self.ci_low is None or self.ci_high is None or self.median <= 0:
            return None
        return max(self.ci_high - self.median, self.median - self.ci_low) / self.median


def summarize(samples: Sequence[float]) -> Summary:
    """Return the statistics of ``samples``.

    Raises ValueError when there is no sample, or one that is not finite.
    """
    if not samples:
        raise ValueError("no samples to summarize")
    ordered = sorted(samples)
    if not all(map(math.isfinite, ordered)):
        raise ValueError("a sample is not finite")
    middle = quantile(ordered, 0.5)
    p25, p75 = quantile(ordered, 0.25), quantile(ordered, 0.75)
    reach = 1.5 * (p75 - p25)
    interval = median_interval(ordered)
    return Summary(
        count=len(ordered),
        median=middle,
        ci_low=interval[0] if interval else None,
        ci_high=interval[1] if interval else None,
        p5=quantile(ordered, 0.05),
        p25=p25,
        p75=p75,
        p95=quantile(ordered, 0.95),
        minimum=ordered[0],
        mad=quantile(sorted(abs(value - middle) for value in ordered), 0.5),
        outliers=sum(not p25 - reach <= value <= p75 + reach for value in ordered),
    )


def median(samples: Sequence[float]) -> float:
    """Return the median of unordered samples; raises ValueError when there is none."""
    return quantile(sorted(samples), 0.5)


def quantile(ordered: Sequence[float], fraction: float) -> float:
    """Return a quantile of ascending samples, interpolated linearly (numpy's default).

    Raises ValueError when there is no sample.
    """
    if not ordered:
        raise ValueError("no samples to take a quantile of")
    place = fraction * (len(ordered) - 1)
    below = math.floor(place)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    return low + (high - low) * (place - below)


def median_interval(
    ordered: Sequence[float], *, confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """Return the interval between two order statistics that covers the median.

    The tightest symmetric pair whose coverage, 1 - 2 P(Binomial(n, 1/2) < rank), is at
    least ``confidence``; None where even minimum and maximum cover less (below six
    samples at 95 %).  ``ordered`` is ascending.  Source: David and Nagaraja, Order
    Statistics, section 7.1.
    """
    rank = _median_rank(len(ordered), confidence)
    return (ordered[rank], ordered[-1 - rank]) if rank >= 0 else None


def _median_rank(count: int, confidence: float) -> int:
    """Return the rank (from 0) of the interval's lower end, or -1 if there is none."""
    tail = (1 - confidence) / 2
    if count > 1000:
        z = NormalDist().inv_cdf(1 - tail)
        return math.floor((count - z * math.sqrt(count)) / 2) - 1
    rank, below, term = -1, 0, 1
    limit = tail * 2**count
    while below + term <= limit:
        below += term
        rank += 1
        term = term * (count - rank) // (rank + 1)
    return rank


def rank_test(base: Sequence[float], new: Sequence[float]) -> float:
    """Return the one-sided p-value that ``new`` is no larger than ``base``.

    Small means: the new samples rank too high for chance.  Exact permutation
    distribution of the rank sum, ties by midranks, for up to 100 samples together;
    above that the normal approximation with tie and continuity correction.  Five
    against five cannot go below 1/252.  Raises ValueError when a side is empty.
    """
    if not base or not new:
        raise ValueError("a rank test needs samples on both sides")
    doubled = _doubled_midranks([*base, *new])
    observed = sum(doubled[len(base) :])
    if len(doubled) > EXACT_TOTAL:
        return _normal_tail(doubled, len(new), observed)
    counts = _subset_sums(doubled, len(new))
    at_least = sum(ways for total, ways in counts.items() if total >= observed)
    return at_least / math.comb(len(doubled), len(new))


def signed_rank_test(differences: Sequence[float]) -> float:
    """Return the one-sided p-value that paired differences are not centred above 0.

    Exact distribution of the sum of the ranks of the positive ones under all changes of
    sign (Wilcoxon 1945), ties by midranks; zeros are left out.  Five pairs cannot go below
    1/32.  Raises ValueError when there is no pair.
    """
    if not differences:
        raise ValueError("a signed rank test needs pairs")
    kept = [value for value in differences if value != 0]
    doubled = _doubled_midranks([abs(value) for value in kept])
    observed = sum(rank for rank, value in zip(doubled, kept, strict=True) if value > 0)
    counts = _signed_sums(doubled)
    at_least = sum(ways for total, ways in counts.items() if total >= observed)
    return at_least / (1 << len(kept))


def _signed_sums(ranks: Sequence[int]) -> Counter[int]:
    """Count, for each total, the subsets of any size of ``ranks`` that sum to it."""
    counts = Counter({0: 1})
    for rank in ranks:
        counts.update({total + rank: ways for total, ways in counts.items()})
    return counts


def _doubled_midranks(values: Sequence[float]) -> list[int]:
    """Return twice the midrank of each value: whole numbers also where values tie."""
    ordered = sorted(values)
    first: dict[float, int] = {}
    for rank, value in enumerate(ordered, start=1):
        first.setdefault(value, rank)
    ties = Counter(ordered)
    return [2 * first[value] + ties[value] - 1 for value in values]


def _subset_sums(ranks: Sequence[int], size: int) -> dict[int, int]:
    """Count, for each total, the subsets of ``size`` ranks that sum to it.

    The counts of one subset size are the digits of one big integer, so that adding a
    rank to every subset is a shift: 50 against 50 takes a fraction of a second.
    """
    width = len(ranks) + 1
    by_size = [1] + [0] * size
    for taken, rank in enumerate(ranks, start=1):
        for chosen in range(min(taken, size), 0, -1):
            by_size[chosen] += by_size[chosen - 1] << (rank * width)
    digits, mask, counts, total = by_size[size], (1 << width) - 1, {}, 0
    while digits:
        skip = ((digits & -digits).bit_length() - 1) // width
        total += skip
        digits >>= skip * width
        counts[total] = digits & mask
        digits >>= width
        total += 1
    return counts


def _normal_tail(doubled: Sequence[int], size: int, observed: int) -> float:
    """Approximate the chance of a doubled rank sum of at least ``observed``."""
    total = len(doubled)
    rest = total - size
    ties = sum(count**3 - count for count in Counter(doubled).values())
    variance = size * rest / 12 * ((total + 1) - ties / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    excess = observed / 2 - size * (total + 1) / 2 - 0.5
    return 1 - NormalDist().cdf(excess / math.sqrt(variance))


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times larger ``new`` is than ``base``: the ratio of their medians.

    ``low`` and ``high`` bound it at 95 %; None where the samples are too few (below
    four a side).
    """

    ratio: float
    low: float | None
    high: float | None


def ratio_interval(
    base: Sequence[float], new: Sequence[float], *, confidence: float = CONFIDENCE
) -> Ratio:
    """Return the ratio of medians, new / base, with its interval.

    The interval holds the factors that a two-sided rank test would not reject: order
    statistics of all pairwise ratios new/base (Hodges and Lehmann 1963; Moses), exact
    up to 100 samples.  Raises ValueError when a side is empty or not above 0.
    """
    if not base or not new:
        raise ValueError("a ratio needs samples on both sides")
    if min(base) <= 0 or min(new) <= 0:
        raise ValueError("a ratio needs samples above 0")
    ratio = quotient(median(new), median(base))
    rank = _pair_rank(len(base), len(new), confidence)
    if rank < 0:
        return Ratio(ratio=ratio, low=None, high=None)
    low = _pairwise_ratio(base, new, rank)
    high = 1 / _pairwise_ratio(new, base, rank)
    return Ratio(ratio=ratio, low=min(low, ratio), high=max(high, ratio))


LEAST_PAIRS = 5
"""Pairs from which a paired ratio has an interval: all of them, 93.75 % at five."""


def paired_ratio(
    base: Sequence[float], new: Sequence[float], *, confidence: float = CONFIDENCE
) -> Ratio:
    """Return the ratio new / base of samples taken in pairs, with its interval.

    The ratio is the centre that a signed rank test is least against (the median of the
    averages of all pairs of log ratios: Hodges and Lehmann 1963), the interval what it
    would not reject (Tukey).  Five pairs bear no 95 %: their interval covers 93.75 %.
    Raises ValueError when the sides differ in number, are empty or not above 0.
    """
    if not base or min(base) <= 0 or min(new) <= 0:
        raise ValueError("a ratio needs samples above 0 on both sides")
    logs = log_ratios(base, new)
    pairs = itertools.combinations_with_replacement(logs, 2)
    averages = sorted((first + second) / 2 for first, second in pairs)
    ratio = _exp(quantile(averages, 0.5))
    counts = _signed_sums(range(1, len(logs) + 1))
    rank = _rank_within(counts, (1 - confidence) / 2 * (1 << len(logs)))
    if rank < 0 and len(logs) < LEAST_PAIRS:
        return Ratio(ratio=ratio, low=None, high=None)
    rank = max(rank, 0)
    return Ratio(ratio=ratio, low=_exp(averages[rank]), high=_exp(averages[-1 - rank]))


def quotient(new: float, base: float) -> float:
    """Return new / base of two times, finite and above 0 though nobody measured such times."""
    return min(max(new / base, sys.float_info.min), sys.float_info.max)


def _exp(log: float) -> float:
    """Return the exponential of a logarithm, finite and above 0."""
    return math.exp(min(max(log, -708.0), 709.0))


def log_ratios(base: Sequence[float], new: Sequence[float]) -> list[float]:
    """Return the logarithm of new / base of each pair; raises ValueError for unequal numbers."""
    return [
        math.log(after / before) if 0 < after / before < math.inf
        # Of times that nobody measured, the quotient has no float.
        else math.log(after) - math.log(before)
        for before, after in zip(base, new, strict=True)
    ]  # fmt: skip


def _rank_within(counts: Mapping[int, int], limit: float) -> int:
    """Return the last rank (from 0) below which at most ``limit`` ways lie; -1: none."""
    rank, below = -1, 0
    for rank_sum in sorted(counts):
        below += counts[rank_sum]
        if below > limit:
            break
        rank += 1
    return rank


def _pair_rank(base_count: int, new_count: int, confidence: float) -> int:
    """Return the rank (from 0) of the interval's lower end among pairwise ratios."""
    total, tail = base_count + new_count, (1 - confidence) / 2
    if total > EXACT_TOTAL:
        spread = math.sqrt(base_count * new_count * (total + 1) / 12)
        z = NormalDist().inv_cdf(1 - tail)
        return math.floor(base_count * new_count / 2 - z * spread) - 1
    counts = _subset_sums(range(1, total + 1), new_count)
    return _rank_within(counts, tail * math.comb(total, new_count))


def _pairwise_ratio(base: Sequence[float], new: Sequence[float], rank: int) -> float:
    """Return the ratio new/base of a rank (from 0) among all pairs.

    Found by bisection on the factor, counting pairs at or below it: a million pairs
    are never formed.
    """
    ordered = sorted(new)
    low, high = quotient(ordered[0], max(base)), quotient(ordered[-1], min(base))
    while high > low * (1 + 1e-12):
        factor = math.sqrt(low * high)
        if not low < factor < high:  # of times that nobody measured, the product has no float
            factor = math.sqrt(low) * math.sqrt(high)
            if not low < factor < high:
                break
        if sum(bisect_right(ordered, factor * value) for value in base) > rank:
            high = factor
        else:
            low = factor
    return high


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number, in the given order (Holm 1979)."""
    count = len(p_values)
    adjusted = [1.0] * count
    largest = 0.0
    for place, index in enumerate(sorted(range(count), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (count - place) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def distinguishable(
    base: Sequence[float], new: Sequence[float], *, margin: float = PROCESS_SPREAD
) -> bool:
    """Say whether two sample sets differ by more than chance and ``margin`` explain.

    True when the whole interval of the ratio is off 1, and the ratio is at least
    ``margin`` off.  Samples of one process each need the default: their spread does
    not hold what differs from process to process.  Medians of fresh processes
    (replicates) take a smaller one.
    """
    found = ratio_interval(base, new)
    if found.low is None or found.high is None or found.low <= 1 <= found.high:
        return False
    return max(found.ratio, 1 / found.ratio) >= 1 + margin
