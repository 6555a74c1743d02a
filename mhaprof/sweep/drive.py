"""Measure what a store does not have yet, and store each result as it lands."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from contextlib import closing

from mhaprof.records import Environment, Result
from mhaprof.report.tabular import row_of
from mhaprof.runners.base import COUNTING, Done, Runner, Task
from mhaprof.store import Entry, PlannedRow, Store
from mhaprof.store.environments import fingerprint, require_same
from mhaprof.sweep.plan import PlanEntry

Listener = Callable[[Done], None]


def drive(
    plan: Sequence[PlanEntry],
    store: Store,
    runner: Runner,
    *,
    rounds: int = 1,
    seed: int = 0,
    retry_failed: bool = False,
    allow_env_mismatch: Collection[str] = (),
    listener: Listener | None = None,
) -> None:
    """Measure every planned point that has no result yet, ``rounds`` times.

    What cannot be measured is stored as a skip at once.  In each round the points come
    in an order shuffled by ``seed`` and run in fresh workers; a CPU is timed after the
    accelerators, never beside them.  ``retry_failed`` measures failed points again, and
    skipped ones that are possible.  ``listener`` is told of each result, once stored.

    Raises NotComparable, before measuring, when the store was written in another
    environment and the difference is not in ``allow_env_mismatch``; Unavailable when
    the disk is full or no worker starts.
    """
    store.plan([_planned(entry, rounds) for entry in plan])
    store.commit([_skip(entry) for entry in plan if entry.skip is not None])
    session = _Session(store, allow_env_mismatch)
    for number in range(rounds):
        tasks = remaining(plan, store, number, retry_failed=retry_failed)
        random.Random(seed + number).shuffle(tasks)
        for group in _apart(tasks):
            with closing(runner.run(group, session.admit)) as running:
                for landed in running:
                    session.commit(landed)
                    if listener is not None:
                        for done in landed:
                            listener(done)


def remaining(
    plan: Sequence[PlanEntry], store: Store, number: int, *, retry_failed: bool
) -> list[Task]:
    """Return the tasks of one round that the store has no result of."""
    stored = store.finished()
    settled = ("ok",) if retry_failed else ("ok", "failed", "skipped")
    return [
        entry.task(number)
        for entry in plan
        if entry.skip is None and stored.get((entry.identity, number)) not in settled
    ]


class _Session:
    """The link between a runner and a store: where each lane is, and its results."""

    def __init__(self, store: Store, allow_env_mismatch: Collection[str]) -> None:
        self._store = store
        self._allowed = allow_env_mismatch
        self._fingerprints: dict[str, str] = {}

    def admit(self, lane: str, device: str, environment: Environment) -> None:
        """Accept a lane whose environment is that of the store, or one allowed to differ."""
        known = self._store.environments()
        others = [(other_device, other) for _, other_device, other in known]
        require_same(device, environment, others, path=self._store.path, allowed=self._allowed)
        mark = fingerprint(device, environment)
        self._store.add_environment(mark, device, environment)
        self._fingerprints[lane] = mark

    def commit(self, landed: Sequence[Done]) -> None:
        """Store results, in one transaction."""
        self._store.commit(
            [
                Entry(
                    identity=done.task.identity,
                    round=done.task.round,
                    result=done.result,
                    row=_row(done.result, done.task),
                    environment=self._fingerprints[done.lane],
                    lane=done.lane,
                )
                for done in landed
            ]
        )


def _row(result: Result, task: Task) -> dict[str, object]:
    return row_of(result, latency=not task.what <= {"flops"})


def _planned(entry: PlanEntry, rounds: int) -> PlannedRow:
    return PlannedRow(
        identity=entry.identity,
        ordinal=entry.ordinal,
        name=entry.point.name,
        role=entry.point.role,
        implementation=entry.point.implementation,
        rounds=rounds if entry.skip is None else 1,
    )


def _skip(entry: PlanEntry) -> Entry:
    assert entry.skip is not None
    result = Result(point=entry.point, outcome=entry.skip)
    return Entry(identity=entry.identity, round=0, result=result, row=row_of(result))


def _apart(tasks: Sequence[Task]) -> list[list[Task]]:
    """Split what is timed on a CPU from what is timed on accelerators, if there are both."""
    cpu = [task for task in tasks if task.device == "cpu"]
    others = [task for task in tasks if task.device != "cpu"]
    if cpu and any(task.device != COUNTING for task in others):
        return [others, cpu]
    return [list(tasks)] if tasks else []
