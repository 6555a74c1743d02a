"""A context that one point poisons, on a real GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mhaprof.records import Environment, Measured
from mhaprof.runners.process import Lane
from mhaprof.runners.worker import WorkerRunner
from mhaprof.sweep.plan import PlanEntry


@pytest.mark.gpu
def test_a_poisoned_cuda_context_fails_its_point_alone(
    planned: Callable[..., list[PlanEntry]], fakes_importable: Callable[..., dict[str, str]]
) -> None:
    lane = Lane(name="cuda", serves=("cuda",), environment=fakes_importable())
    runner = WorkerRunner([lane], measurer="fake_measurers:poisons")

    def admit(lane: str, device: str, environment: Environment) -> None:
        assert environment.hardware["device_name"]

    tasks = [entry.task(0) for entry in planned(5, device="cuda")]
    found = {
        done.task.point.spec.heads: done.result.outcome
        for landed in runner.run(tasks, admit)
        for done in landed
    }
    codes = {
        heads: "ok" if isinstance(outcome, Measured) else outcome.code
        for heads, outcome in sorted(found.items())
    }
    assert codes == {1: "ok", 2: "ok", 3: "device_lost", 4: "ok", 5: "ok"}
