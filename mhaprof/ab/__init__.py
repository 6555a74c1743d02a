"""Two sides, interleaved: rounds of two fresh processes, each measuring all points once.

The process is the unit of replication.  The two of a round run at the same time and take
turns, a batch of samples each (on an accelerator one after the other), so that the noise
of the machine falls on both: rounds are judged as pairs.  Each round is on disk before the
next begins: a killed run resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from mhaprof.ab.journal import Journal
from mhaprof.ab.judging import TREATMENTS, fold, judge
from mhaprof.ab.sides import Pair, Plan, Round, Side, SideName, launch
from mhaprof.compare import Comparison, Policy

__all__ = [
    "DEFAULT_ROUNDS",
    "TREATMENTS",
    "Journal",
    "Launch",
    "Pair",
    "Plan",
    "Round",
    "Side",
    "SideName",
    "fold",
    "judge",
    "launch",
    "remeasured",
    "run_ab",
]

_MEASURED = ("latency", "peak_bytes")
Progress = Callable[[str], None]

DEFAULT_ROUNDS = 5
"""Processes a side: the fewest of which a signed rank test can prove something (1/32)."""


class Launch(Protocol):
    """Run one round and return what both sides measured."""

    def __call__(self, plan: Plan, number: int) -> Pair:
        """Return both sides; raises MhaprofError when nothing was measured."""
        ...


def run_ab(
    plan: Plan,
    journal: Journal,
    policy: Policy,
    *,
    allow_env_mismatch: Collection[str] = (),
    launch: Launch = launch,
    progress: Progress = lambda message: None,
) -> Comparison:
    """Measure both sides, judge, and measure once more what regressed or stayed open.

    The second time adds as many rounds again, of all points; both are judged together.
    Raises what ``launch`` and ``compare`` raise.
    """
    allowed = {*TREATMENTS, *allow_env_mismatch}
    _measure(plan, journal, range(1, plan.rounds + 1), launch=launch, progress=progress)
    comparison = judge(journal, policy, allow_env_mismatch=allowed)
    again = remeasured(comparison)
    if again:
        numbers = range(plan.rounds + 1, 2 * plan.rounds + 1)
        if not all(map(journal.has, numbers)):
            progress(f"measuring once more: {', '.join(again[:3])}{', ...' if again[3:] else ''}")
        _measure(plan, journal, numbers, launch=launch, progress=progress)
        comparison = judge(journal, policy, allow_env_mismatch=allowed)
    return comparison


def _measure(
    plan: Plan, journal: Journal, numbers: range, *, launch: Launch, progress: Progress
) -> None:
    """Run the rounds that are not stored."""
    for number in numbers:
        if not journal.has(number):
            progress(f"round {number} of {numbers[-1]}")
            journal.add(launch(plan, number))


def remeasured(comparison: Comparison) -> list[str]:
    """Return the points whose time or peak regressed or could not be decided."""
    return [
        point.label
        for point, judgement in comparison.judgements()
        if judgement.metric in _MEASURED
        and judgement.verdict in ("regressed", "inconclusive")
        and judgement.reason != "metric_missing"
    ]
