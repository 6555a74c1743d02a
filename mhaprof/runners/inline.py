"""Measure in this process: no isolation, nothing to start."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from mhaprof.records import Measured, Result
from mhaprof.runners.base import MEASURER, Admit, Done, Task, describe, measurer_of


class InlineRunner:
    """Measure tasks one after the other in this process.

    For counts by the closed form, which need no torch, and for debugging: a crash
    ends the sweep (what was stored stays).
    """

    def __init__(self, *, measurer: str = MEASURER) -> None:
        self._measurer = measurer_of(measurer)

    def run(self, tasks: Sequence[Task], admit: Admit) -> Generator[list[Done]]:
        """Yield every task's result in the order given."""
        admitted: set[str] = set()
        for task in tasks:
            if task.device not in admitted:
                admit("inline", task.device, describe(task.device))
                admitted.add(task.device)
            result = self._measurer(task)
            if _was_interrupted(result):
                raise KeyboardInterrupt
            yield [Done(task=task, result=result, lane="inline")]


def _was_interrupted(result: Result) -> bool:
    """Say whether Ctrl-C cut the samples short: such a point is measured again."""
    outcome = result.outcome
    return isinstance(outcome, Measured) and any(
        finding.code == "interrupted" for finding in outcome.findings
    )
