"""Judge times: regressed only if processes rank apart, beyond threshold and floor.

The process is the unit of replication: medians of fresh processes are tested by their
ranks.  With one process a side no test exists, and the intervals of the medians have
to be clearly apart, on a machine that was not shared; the interval of the ratio is then
the widest that they allow.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mhaprof import stats
from mhaprof.compare.policy import Clock, Floor, LatencyRule
from mhaprof.compare.rows import Row, picked
from mhaprof.compare.verdicts import Judgement, Verdict
from mhaprof.units import format_percent, format_ratio, format_seconds

METRIC = "latency"
PROOFS = ("rank_test", "intervals_disjoint")
"""Reasons that prove a difference of times."""

CLEARLY = 0.5
"""Intervals are clearly apart when the gap is at least this part of the threshold."""


class Times(NamedTuple):
    """One side of a comparison, in seconds: a median, its interval, its processes.

    ``processes`` holds one median per fresh process, where there are several.
    """

    median: float
    low: float | None
    high: float | None
    processes: Sequence[float] = ()


class TimePair(NamedTuple):
    """The times of one point on both sides, with the rule and what its clock is worth.

    ``disturbed``: one of the rows says that it shared its device, or was throttled.
    ``paired``: process i of one side ran at the same time as process i of the other.
    """

    base: Times
    new: Times
    rule: LatencyRule
    clock: Clock
    floor: Floor
    disturbed: bool = False
    paired: bool = False

    @property
    def threshold(self) -> float:
        """Return the slowdown that is allowed, as a fraction."""
        return self.rule.threshold_for(self.clock)

    @property
    def floor_s(self) -> float:
        """Return the difference in seconds below which the timer cannot vouch."""
        return self.rule.floor_for(self.floor)

    def can_prove(self, alpha: float) -> bool:
        """Say whether a rank test of these processes could get below ``alpha`` at all."""
        base, new = len(self.base.processes), len(self.new.processes)
        if self.paired:
            return 0.5 ** min(base, new) < alpha
        return base > 0 and new > 0 and 1 / math.comb(base + new, new) < alpha

    @property
    def is_replicated(self) -> bool:
        """Say whether both sides have several processes."""
        return len(self.base.processes) > 1 and len(self.new.processes) > 1


_READ = (
    *("replicate_medians_s", "samples_s"),
    *("latency_median_s", "latency_ci_low_s", "latency_ci_high_s"),
)
_CLOCK = ("flags", "device", "timer", "threads")


def times_of(row: Row) -> Times | None:
    """Read the times of a row, or None where it has none."""
    processes, samples, middle, low, high = picked(row, _READ)
    if processes and len(processes) > 1:
        return Times(
            median=stats.median(processes),
            low=min(processes),
            high=max(processes),
            processes=tuple(processes),
        )
    if samples and (middle is None or low is None or high is None):
        summary = stats.summarize(samples)
        middle, low, high = summary.median, summary.ci_low, summary.ci_high
    if middle is None:
        return None
    return Times(median=middle, low=low, high=high)


def time_pair(base: Row, new: Row, rule: LatencyRule, *, paired: bool = False) -> TimePair | None:
    """Read both sides of one point, or return None when one has no time above 0."""
    before, after = times_of(base), times_of(new)
    if before is None or after is None:
        return None
    if min(before.median, after.median, *before.processes, *after.processes) <= 0:
        return None
    replicated = len(before.processes) > 1 and len(after.processes) > 1
    flags, device, timer, threads = picked(new, _CLOCK)
    flagged = {*_words(flags), *_words(base.get("flags"))} if flags or base.get("flags") else ()
    return TimePair(
        base=before,
        new=after,
        rule=rule,
        clock=_clock(flagged, device, timer, threads, replicated=replicated),
        floor=_floor(timer),
        paired=paired and replicated and len(before.processes) == len(after.processes),
        disturbed="contended" in flagged or "throttled" in flagged,
    )


def _clock(
    flagged: Collection[str], device: Any, timer: Any, threads: Any, *, replicated: bool
) -> Clock:
    """Say what the clock of two rows is worth, by the flags of both and the new one's columns.

    A quiet thread's wall time is its CPU time within 1 %; so is, to the rank test, the
    spread between several processes.  Other wall times hide what the machine did.
    """
    if device not in (None, "cpu"):
        return "device"
    if timer == "process":
        return "cpu"
    if "contended" in flagged:
        return "shared_wall"
    return "cpu" if replicated or threads in (None, 1) else "quiet_wall"


def _words(flags: Any) -> Sequence[str]:
    """Return the flags of a row: words in one text, or a list of them."""
    return flags.split() if isinstance(flags, str) else flags or ()


def _floor(timer: Any) -> Floor:
    timer = str(timer or "")
    if "graph" in timer:
        return "device"
    return "events" if "events" in timer else "host"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Family-wise p-values of one pair: that it became slower, that it became faster.

    ``rank`` is the point's own rank test, ``family`` adjusted for all points.
    """

    slower_rank: float
    slower_family: float
    faster_rank: float
    faster_family: float


def judge_times(pair: TimePair, evidence: Evidence | None, *, alpha: float) -> Judgement:
    """Judge one pair of times.

    ``evidence`` is needed when both sides have several processes.
    """
    ratio, threshold = _ratio(pair), pair.threshold
    verdict, reason = _decide(pair, ratio, evidence, alpha=alpha)
    before, after = format_seconds(pair.base.median), format_seconds(pair.new.median)
    span = (
        "" if ratio.low is None or ratio.high is None else f" [{ratio.low:.3f}, {ratio.high:.3f}]"
    )
    return Judgement(
        metric=METRIC,
        verdict=verdict,
        reason=reason,
        message=f"latency {before} -> {after}, ratio {format_ratio(ratio.ratio)}{span}, "
        f"threshold {format_percent(threshold)}",
        gate=pair.rule.gate,
        base=pair.base.median,
        new=pair.new.median,
        ratio=ratio.ratio,
        ratio_low=ratio.low,
        ratio_high=ratio.high,
        threshold=threshold,
        p=_shown_p(ratio, evidence),
    )


def _ratio(pair: TimePair) -> stats.Ratio:
    """Return the ratio new / base with an interval, the widest one where none is exact."""
    if pair.is_replicated:
        interval = stats.paired_ratio if pair.paired else stats.ratio_interval
        found = interval(pair.base.processes, pair.new.processes)
        if found.low is not None:
            return found
    base, new = pair.base, pair.new
    ratio = stats.quotient(new.median, base.median)
    if not (base.low and base.high and new.low and new.high):
        return stats.Ratio(ratio=ratio, low=None, high=None)
    return stats.Ratio(
        ratio=ratio, low=stats.quotient(new.low, base.high), high=stats.quotient(new.high, base.low)
    )


def _decide(
    pair: TimePair, ratio: stats.Ratio, evidence: Evidence | None, *, alpha: float
) -> tuple[Verdict, str]:
    """Return the verdict and its reason code."""
    if ratio.low is None or ratio.high is None:
        return "inconclusive", "no_interval"
    limit, base = 1 + pair.threshold, pair.base.median
    if 1 / limit <= ratio.low and ratio.high <= limit:
        return "unchanged", "within_threshold"
    if base * (ratio.high - 1) < pair.floor_s and base * (1 - ratio.low) < pair.floor_s:
        return "unchanged", "below_floor"
    difference = base * abs(ratio.ratio - 1)
    if max(ratio.ratio, 1 / ratio.ratio) < limit or difference < pair.floor_s:
        return "inconclusive", "too_noisy"
    direction: Verdict = "regressed" if ratio.ratio > 1 else "improved"
    if pair.is_replicated:
        reason = _by_ranks(pair, evidence, direction, alpha=alpha)
    else:
        reason = _by_intervals(pair, ratio.low if ratio.ratio > 1 else 1 / ratio.high)
    return direction if reason in PROOFS else "inconclusive", reason


def _by_ranks(
    pair: TimePair, evidence: Evidence | None, direction: Verdict, *, alpha: float
) -> str:
    """Return the reason code for several processes a side."""
    if evidence is None or not pair.can_prove(alpha):
        return "too_few_rounds"
    slower = direction == "regressed"
    if (evidence.slower_rank if slower else evidence.faster_rank) >= alpha:
        return "too_noisy"
    family = evidence.slower_family if slower else evidence.faster_family
    return "rank_test" if family < alpha else "not_significant"


def _by_intervals(pair: TimePair, gap: float) -> str:
    """Return the reason code for one process a side, whose intervals are ``gap`` apart.

    On a shared or throttled device they prove nothing, however far apart: a process that
    has half a core has tight intervals around twice the time.
    """
    if gap >= 1 + CLEARLY * pair.threshold and not pair.disturbed:
        return "intervals_disjoint"
    return "too_few_rounds" if gap > 1 else "too_noisy"


def _shown_p(ratio: stats.Ratio, evidence: Evidence | None) -> float | None:
    if evidence is None:
        return None
    return evidence.slower_family if ratio.ratio >= 1 else evidence.faster_family
