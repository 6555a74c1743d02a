"""Measure in this process: no isolation, nothing to start."""

from __future__ import annotations

from collections.abc import Generator, Sequence

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
            yield [Done(task=task, result=self._measurer(task), lane="inline")]
