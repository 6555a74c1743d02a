"""Many points at once: p-values adjusted so that chance alone rarely fails a gate.

Holm's correction is used where the rounds allow it.  Five processes a side cannot go
below p = 1/252, so that Holm over more than twelve points could never reject, however
large the slowdown: there the step-down maximum permutation test takes over, which
relabels whole processes and so knows how large the largest of all points gets by
chance (Westfall and Young 1993, algorithm 4.1; the added constant: Tusher, Tibshirani
and Chu 2001).
"""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mhaprof import stats
from mhaprof.compare.times import Evidence, TimePair

MAX_RELABELINGS = 2000
"""Relabelings tried at most; above it they are drawn at random, with a fixed seed."""

SPREAD_FLOOR = 0.005
"""Added to every point's standard error (log ratio), so that no tiny spread dominates."""


def evidence(pairs: Sequence[TimePair], *, alpha: float) -> list[Evidence]:
    """Return the evidence of each replicated pair, adjusted for their number."""
    base = [pair.base.processes for pair in pairs]
    new = [pair.new.processes for pair in pairs]
    slower = [stats.rank_test(*sides) for sides in zip(base, new, strict=True)]
    faster = [stats.rank_test(*sides) for sides in zip(new, base, strict=True)]
    return [
        Evidence(slower_rank=a, slower_family=b, faster_rank=c, faster_family=d)
        for a, b, c, d in zip(
            slower,
            adjusted(slower, base, new, alpha=alpha),
            faster,
            adjusted(faster, new, base, alpha=alpha),
            strict=True,
        )
    ]


def adjusted(
    p_values: Sequence[float],
    base: Sequence[Sequence[float]],
    new: Sequence[Sequence[float]],
    *,
    alpha: float,
) -> list[float]:
    """Adjust one-sided p-values for their number.

    ``base`` and ``new`` hold, for each point, one median in seconds per process.  Holm
    where it can reject all points, else by relabeling.  Points with equal numbers of
    rounds are relabeled together; several such groups share ``alpha`` (Bonferroni).
    """
    groups: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for place, (before, after) in enumerate(zip(base, new, strict=True)):
        groups[len(before), len(after)].append(place)
    smallest = max((1 / math.comb(sum(sizes), sizes[1]) for sizes in groups), default=0.0)
    if len(p_values) * smallest < alpha:
        return stats.holm(p_values)
    found = [1.0] * len(p_values)
    for places in groups.values():
        stepped = step_down([base[place] for place in places], [new[place] for place in places])
        for place, p_value in zip(places, stepped, strict=True):
            found[place] = min(1.0, len(groups) * p_value)
    return found


def step_down(base: Sequence[Sequence[float]], new: Sequence[Sequence[float]]) -> list[float]:
    """Return family-wise p-values that ``new`` is no larger, by relabeling processes.

    All points have the same number of processes on a side; process i of every point
    counts as one, so that what a process does to all of its points is kept together.
    """
    points = [_Centred.of((*before, *after)) for before, after in zip(base, new, strict=True)]
    size, total = len(new[0]), len(new[0]) + len(base[0])
    observed = [point.shift(range(total - size, total)) for point in points]
    order = sorted(range(len(points)), key=observed.__getitem__)
    exceeded, tried = [0] * len(points), 0
    for chosen in _relabelings(total, size):
        tried += 1
        largest = -math.inf
        for place in order:
            largest = max(largest, points[place].shift(chosen))
            exceeded[place] += largest >= observed[place] - 1e-9
    adjusted_p, highest = [1.0] * len(points), 0.0
    for place in reversed(order):
        highest = max(highest, exceeded[place] / tried)
        adjusted_p[place] = highest
    return adjusted_p


def _relabelings(total: int, size: int) -> Iterable[Sequence[int]]:
    """Yield the choices of the processes called new; the true one is the first."""
    if math.comb(total, size) <= MAX_RELABELINGS:
        yield from itertools.combinations(range(total), size)
        return
    yield range(total - size, total)
    draw = random.Random(0)
    for _ in range(MAX_RELABELINGS - 1):
        yield draw.sample(range(total), size)


@dataclass(frozen=True, kw_only=True)
class _Centred:
    """The logarithms of one point's medians around their mean, and their squares."""

    values: Sequence[float]
    square: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> _Centred:
        """Take logarithms and centre them, so that sums of squares stay exact enough."""
        logs = [math.log(value) for value in seconds]
        mean = math.fsum(logs) / len(logs)
        values = [value - mean for value in logs]
        return cls(values=values, square=math.fsum(value * value for value in values))

    def shift(self, chosen: Sequence[int]) -> float:
        """Return the standardized difference of means: the chosen minus the rest."""
        size, total = len(chosen), len(self.values)
        rest = total - size
        picked = sum([self.values[place] for place in chosen])
        # The values sum to 0: what is not picked sums to minus what is.
        between = picked * picked * (1 / size + 1 / rest)
        variance = max(0.0, self.square - between) / max(1, total - 2)
        error = math.sqrt(variance * (1 / size + 1 / rest))
        return picked * (1 / size + 1 / rest) / (error + SPREAD_FLOOR)
