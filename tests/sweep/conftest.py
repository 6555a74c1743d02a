"""Plans of cheap points, and runners whose workers can import the fake measurers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mhaprof.point import MeasureOptions
from mhaprof.records import Environment, ImpossiblePoint, Point, Settings, Skipped
from mhaprof.runners.process import Lane
from mhaprof.runners.worker import WorkerRunner
from mhaprof.spec import AttentionSpec
from mhaprof.sweep.plan import PlanEntry, identity_of

HERE = Path(__file__).parent

Planner = Callable[..., list[PlanEntry]]


def plan_of(
    count: int, *, device: str | None = "cpu", milliseconds: int = 1, impossible: int = 0
) -> list[PlanEntry]:
    """Plan timed points with 1, 2, 3 ... heads, then impossible ones."""
    what = frozenset({"flops"} if device is None else {"latency"})
    settings = Settings() if device is None else Settings(device=device, dtype="float32")
    options = MeasureOptions()
    entries = []
    for number in range(1, count + 1):
        spec = AttentionSpec(batch=milliseconds, tokens=8, dim=64, heads=number, head_dim=8)
        point = Point(name=f"heads={number}", spec=spec, implementation="eager", settings=settings)
        entries.append(
            PlanEntry(
                identity=identity_of(point, what, options),
                ordinal=number - 1,
                point=point,
                what=what,
            )
        )
    for number in range(impossible):
        nowhere = ImpossiblePoint(
            name=f"impossible {number}", implementation="eager", given={"dim": 7 + number}
        )
        entries.append(
            PlanEntry(
                identity=identity_of(nowhere, what, options),
                ordinal=count + number,
                point=nowhere,
                what=what,
                skip=Skipped(code="impossible_spec", message="dim 7 is not divisible"),
            )
        )
    return entries


@pytest.fixture
def planned() -> Planner:
    """Return the planner of cheap points."""
    return plan_of


def worker_environment(**more: str) -> dict[str, str]:
    """Let a worker import the fakes."""
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(path for path in paths if path), **more}


@pytest.fixture
def fakes_importable() -> Callable[..., dict[str, str]]:
    """Return what makes the environment of a worker that can import the fakes."""
    return worker_environment


@pytest.fixture
def workers() -> Callable[..., WorkerRunner]:
    """Make a runner whose lanes use a fake measurer."""

    def make(
        measurer: str = "quick",
        *,
        devices: tuple[str, ...] = ("cpu",),
        timeout_s: float = 60,
        **environment: str,
    ) -> WorkerRunner:
        lanes = [
            Lane(
                name=device,
                serves=(device,),
                local_device="cpu",
                environment=worker_environment(**environment),
            )
            for device in devices
        ]
        return WorkerRunner(lanes, timeout_s=timeout_s, measurer=f"fake_measurers:{measurer}")

    return make


@pytest.fixture
def somewhere() -> Environment:
    """Return a made-up environment."""
    return Environment(
        software={"torch": "2.6.0", "mhaprof": "0.1.0", "python": "3.11.7", "fvcore": "0.1.5"},
        hardware={"cpu_model": "Abacus 3000", "cores": 2},
        state={},
    )
