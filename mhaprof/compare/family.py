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
import operator
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mhaprof import stats
from mhaprof.compare.times import Evidence, TimePair

MAX_RELABELINGS = 2000
"""Relabelings tried at most; above it they are drawn at random, with a fixed seed."""

SPREAD_FLOOR = 0.005
"""Added to every point's standard error (log ratio), so that no tiny spread dominates."""


def evidence(pairs: Sequence[TimePair], *, alpha: float) -> list[Evidence]:
    """Return the evidence of each replicated pair, adjusted for their number."""
    design = PAIRED if pairs and all(pair.paired for pair in pairs) else UNPAIRED
    base = [pair.base.processes for pair in pairs]
    new = [pair.new.processes for pair in pairs]
    slower = [design.test(*sides) for sides in zip(base, new, strict=True)]
    faster = [design.test(*sides) for sides in zip(new, base, strict=True)]
    return [
        Evidence(slower_rank=a, slower_family=b, faster_rank=c, faster_family=d)
        for a, b, c, d in zip(
            slower,
            adjusted(slower, base, new, alpha=alpha, design=design),
            faster,
            adjusted(faster, new, base, alpha=alpha, design=design),
            strict=True,
        )
    ]


def adjusted(
    p_values: Sequence[float],
    base: Sequence[Sequence[float]],
    new: Sequence[Sequence[float]],
    *,
    alpha: float,
    design: Design | None = None,
) -> list[float]:
    """Adjust one-sided p-values for their number.

    ``base`` and ``new`` hold, for each point, one median in seconds per process.  Holm
    where it can reject all points, else by relabeling.  Points with equal numbers of
    rounds are relabeled together; several such groups share ``alpha`` (Bonferroni).
    """
    design = design or UNPAIRED
    groups: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for place, (before, after) in enumerate(zip(base, new, strict=True)):
        groups[len(before), len(after)].append(place)
    smallest = max((1 / design.relabelings(*sizes) for sizes in groups), default=0.0)
    if len(p_values) * smallest < alpha:
        return stats.holm(p_values)
    found = [1.0] * len(p_values)
    for places in groups.values():
        sides = ([base[place] for place in places], [new[place] for place in places])
        for place, p_value in zip(places, design.step_down(*sides), strict=True):
            found[place] = min(1.0, len(groups) * p_value)
    return found


def step_down(base: Sequence[Sequence[float]], new: Sequence[Sequence[float]]) -> list[float]:
    """Return family-wise p-values that ``new`` is no larger, by relabeling processes.

    All points have the same number of processes on a side; process i of every point
    counts as one, so that what a process does to all of its points is kept together.
    """
    points = [_Centred.of((*before, *after)) for before, after in zip(base, new, strict=True)]
    size, total = len(new[0]), len(new[0]) + len(base[0])
    return _stepped(points, _choices(total, size), true=range(total - size, total))


def paired_step_down(
    base: Sequence[Sequence[float]], new: Sequence[Sequence[float]]
) -> list[float]:
    """Return family-wise p-values that ``new`` is no larger, by swapping sides of rounds.

    Round i of every point counts as one.
    """
    points = [_Paired.of(before, after) for before, after in zip(base, new, strict=True)]
    rounds = len(new[0])
    return _stepped(points, _signs(rounds), true=(1,) * rounds)


class _Point(Protocol):
    """One point, whose sides can be relabeled."""

    def shift(self, relabeling: Sequence[int], /) -> float:
        """Return by how much the new side is slower, standardized, under a relabeling."""
        ...


def _stepped(
    points: Sequence[_Point], relabelings: Iterable[Sequence[int]], *, true: Sequence[int]
) -> list[float]:
    observed = [point.shift(true) for point in points]
    order = sorted(range(len(points)), key=observed.__getitem__)
    exceeded, tried = [0] * len(points), 0
    for relabeling in relabelings:
        tried += 1
        largest = -math.inf
        for place in order:
            largest = max(largest, points[place].shift(relabeling))
            exceeded[place] += largest >= observed[place] - 1e-9
    adjusted_p, highest = [1.0] * len(points), 0.0
    for place in reversed(order):
        highest = max(highest, exceeded[place] / tried)
        adjusted_p[place] = highest
    return adjusted_p


def _choices(total: int, size: int) -> Iterable[Sequence[int]]:
    """Yield the choices of the processes called new; the true one is the first of a draw."""
    if math.comb(total, size) <= MAX_RELABELINGS:
        yield from itertools.combinations(range(total), size)
        return
    yield range(total - size, total)
    draw = random.Random(0)
    for _ in range(MAX_RELABELINGS - 1):
        yield draw.sample(range(total), size)


def _signs(rounds: int) -> Iterable[Sequence[int]]:
    """Yield, for each round, 1 or (its sides swapped) -1; the true ones are the first."""
    if 2**rounds <= MAX_RELABELINGS:
        yield from itertools.product((1, -1), repeat=rounds)
        return
    yield (1,) * rounds
    draw = random.Random(0)
    for _ in range(MAX_RELABELINGS - 1):
        yield draw.choices((1, -1), k=rounds)


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


@dataclass(frozen=True, kw_only=True)
class _Paired:
    """The log ratios new / base of one point, one per round, and their sum of squares."""

    values: Sequence[float]
    square: float

    @classmethod
    def of(cls, base: Sequence[float], new: Sequence[float]) -> _Paired:
        """Take the log ratio of each round."""
        values = stats.log_ratios(base, new)
        return cls(values=values, square=math.fsum(value * value for value in values))

    def shift(self, signs: Sequence[int]) -> float:
        """Return the standardized mean of the log ratios, some of them turned around."""
        rounds = len(self.values)
        mean = sum(map(operator.mul, signs, self.values)) / rounds
        variance = max(0.0, self.square - rounds * mean * mean) / max(1, rounds - 1)
        return float(mean / (math.sqrt(variance / rounds) + SPREAD_FLOOR))


@dataclass(frozen=True, kw_only=True)
class Design:
    """How processes were run: what tests one point, and what adjusts for many.

    ``test(base, new)`` is the one-sided p-value that new is no larger; ``relabelings``
    counts the equally likely outcomes of so many processes a side.
    """

    test: Callable[[Sequence[float], Sequence[float]], float]
    relabelings: Callable[[int, int], int]
    step_down: Callable[[Sequence[Sequence[float]], Sequence[Sequence[float]]], list[float]]


def _signed_rank_test(base: Sequence[float], new: Sequence[float]) -> float:
    return stats.signed_rank_test(stats.log_ratios(base, new))


UNPAIRED = Design(
    test=stats.rank_test,
    relabelings=lambda base, new: math.comb(base + new, new),
    step_down=step_down,
)
"""Processes that ran whenever they did: any could have been any other."""

PAIRED = Design(
    test=_signed_rank_test,
    relabelings=lambda base, new: 2 ** min(base, new),
    step_down=paired_step_down,
)
"""Rounds whose two processes ran at the same time: within a round the sides could swap."""
