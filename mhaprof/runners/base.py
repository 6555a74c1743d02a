"""What a runner takes and gives, and how a task is measured wherever it runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from mhaprof.errors import Unavailable, UsageError
from mhaprof.point import MeasureOptions, measure_point
from mhaprof.point.measuring import Metric
from mhaprof.records import Environment, Failed, Measured, ModulePoint, Point, Record, Result

COUNTING = "none"
"""The device of a task that only counts: any core will do."""

MEASURER = "mhaprof.runners.base:measure"
"""The function that measures a task, as ``module:attribute``; tests name another."""


class Task(Record):
    """One thing to measure: a point, in one round, and what of it."""

    identity: str
    round: int = 0
    point: Point | ModulePoint
    what: frozenset[Metric]
    options: MeasureOptions = MeasureOptions()

    @property
    def device(self) -> str:
        """Return the device that the task has to have for itself."""
        return COUNTING if self.what <= {"flops"} else self.point.settings.device or "cpu"


@dataclass(frozen=True, kw_only=True)
class Done:
    """A task that was measured, and the lane (device, core or actor) that did it."""

    task: Task
    result: Result
    lane: str


class Admit(Protocol):
    """Accept a lane's environment before it measures, or raise NotComparable."""

    def __call__(self, lane: str, device: str, environment: Environment) -> None:
        """Raise NotComparable when results of this environment cannot be stored."""
        ...


class Runner(Protocol):
    """Measure tasks, one at a time on each device."""

    def run(self, tasks: Sequence[Task], admit: Admit) -> Generator[list[Done]]:
        """Yield results as they land, those together that are there together.

        Every task has one; tasks start in the order given.

        Everything that it starts is fresh, and has ended when the iterator is closed.
        """
        ...


Measurer = Callable[[Task], Result]


def measure(task: Task) -> Result:
    """Measure a task in this process."""
    return measure_point(task.point, what=task.what, options=task.options)


def measurer_of(target: str) -> Measurer:
    """Import the measurer that ``module:attribute`` names."""
    module, _, attribute = target.partition(":")
    try:
        return cast(Measurer, getattr(importlib.import_module(module), attribute))
    except (ImportError, AttributeError) as error:
        raise UsageError(f"measurer {target!r} cannot be imported: {error}") from error


def measure_as(measurer: Measurer, task: Task, device: str | None) -> Result:
    """Measure with the device under its local name, and return it under its own.

    A worker that sees one GPU alone knows ``cuda:3`` as ``cuda``.
    """
    asked = task.point.settings.device
    if device is None or asked is None or device == asked:
        return measurer(task)
    local = task.point.settings.model_copy(update={"device": device})
    point = task.point.model_copy(update={"settings": local})
    result = measurer(task.model_copy(update={"point": point}))
    outcome = result.outcome
    if isinstance(outcome, Measured) and outcome.latency is not None:
        latency = outcome.latency.model_copy(update={"device": asked})
        outcome = outcome.model_copy(update={"latency": latency})
    return result.model_copy(update={"point": task.point, "outcome": outcome})


def failed_result(task: Task, failed: Failed) -> Result:
    """Return the result of a task whose worker could not give one."""
    return Result(point=task.point, outcome=failed, reference_macs=task.point.reference_macs)


def describe(device: str) -> Environment:
    """Return the environment of a device; of the machine when it is not there."""
    from mhaprof.measure.devices import resolve_device
    from mhaprof.measure.environment import collect

    if device in (COUNTING, "cpu"):
        return collect("cpu")
    try:
        return collect(resolve_device(device))
    except Unavailable:
        return collect("cpu")
