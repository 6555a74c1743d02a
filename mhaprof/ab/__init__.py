"""Two sides, interleaved: rounds of fresh processes, each measuring all points once.

The process is the unit of replication, so a round is one process of one side; base
and new alternate who goes first, so that what changes slowly on the machine falls on
both.  Each round is on disk before the next begins: a killed run resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from mhaprof.ab.journal import Journal
from mhaprof.ab.judging import KEY, TREATMENTS, fold, judge
from mhaprof.ab.sides import KILLED, Plan, Round, Side, SideName, launch
from mhaprof.compare import Comparison, Policy
from mhaprof.errors import Unavailable
from mhaprof.spec import AttentionSpec

__all__ = [
    "DEFAULT_ROUNDS",
    "Journal",
    "Launch",
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
"""Processes a side: the fewest with which six points can be judged together (Holm)."""


class Launch(Protocol):
    """Run one round of one side and return what it measured."""

    def __call__(self, plan: Plan, side: Side, number: int) -> Round:
        """Return the round; raises MhaprofError when nothing was measured."""
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
        if not all(journal.has(side, number) for side in plan.sides for number in numbers):
            progress(f"measuring once more: {', '.join(again[:3])}{', ...' if again[3:] else ''}")
        _measure(plan, journal, numbers, launch=launch, progress=progress)
        comparison = judge(journal, policy, allow_env_mismatch=allowed)
    return comparison


def _measure(
    plan: Plan, journal: Journal, numbers: range, *, launch: Launch, progress: Progress
) -> None:
    """Run the rounds that are not stored; the sides take turns in going first."""
    for number in numbers:
        for side in plan.sides if number % 2 else reversed(plan.sides):
            if not journal.has(side, number):
                progress(f"round {number} of {numbers[-1]}, {side.name}")
                journal.add(_round(plan, side, number, journal.of("base"), launch))


def _round(plan: Plan, side: Side, number: int, base: Sequence[Round], launch: Launch) -> Round:
    """Run one round; a candidate that a signal killed fails at all of the base's points."""
    try:
        return launch(plan, side, number)
    except Unavailable as error:
        if side.name == "base" or error.code != KILLED or not base:
            raise
        ended = {"status": "failed", "reason": KILLED, "message": str(error)}
        known = (*KEY, *AttentionSpec.model_fields)
        rows = [{name: row.get(name) for name in known} | ended for row in base[0].rows]
        return Round(side=side.name, number=number, rows=rows)


def remeasured(comparison: Comparison) -> list[str]:
    """Return the points whose time or peak regressed or could not be decided."""
    return [
        point.label
        for point, judgement in comparison.judgements()
        if judgement.metric in _MEASURED
        and judgement.verdict in ("regressed", "inconclusive")
        and judgement.reason != "metric_missing"
    ]
