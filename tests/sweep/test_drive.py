"""The driver of a sweep: every point once, whatever died before."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import pytest

from mhaprof.errors import NotComparable
from mhaprof.records import Environment, Failed, Measured, Result, Skipped
from mhaprof.runners.base import Admit, Done, Task
from mhaprof.runners.worker import WorkerRunner
from mhaprof.store import Store
from mhaprof.store.reading import Reader
from mhaprof.sweep import drive
from mhaprof.sweep.plan import PlanEntry

Planner = Callable[..., list[PlanEntry]]
Workers = Callable[..., WorkerRunner]

HERE = Path(__file__).parent


class FakeRunner:
    """Measure at once, in this process; remember what was asked for."""

    def __init__(self, environment: Environment, **outcomes: str) -> None:
        self.environment = environment
        self.outcomes = outcomes
        self.runs: list[list[Task]] = []

    @property
    def asked(self) -> list[tuple[str, int]]:
        return [(task.point.name, task.round) for run in self.runs for task in run]

    def run(self, tasks: Sequence[Task], admit: Admit) -> Generator[list[Done]]:
        self.runs.append(list(tasks))
        for task in tasks:
            admit("here", task.device, self.environment)
            yield [Done(task=task, result=self._result(task), lane="here")]

    def _result(self, task: Task) -> Result:
        code = self.outcomes.get(f"heads{task.point.spec.heads}")
        if code is None:
            return Result(point=task.point, outcome=Measured())
        if code == "no_cuda":
            return Result(point=task.point, outcome=Skipped(code=code, message="none"))
        return Result(point=task.point, outcome=Failed(code=code, message="it broke"))


def statuses(path: Path) -> list[str]:
    with Reader(path) as reader:
        return [
            f"{row['name']}/{row['round']} {row['reason'] or row['status']}"
            for row in reader.rows()
        ]


def test_every_planned_point_has_a_row_the_impossible_ones_too(
    tmp_path: Path, planned: Planner, somewhere: Environment
) -> None:
    with Store(tmp_path / "a.sqlite") as store:
        drive(planned(2, impossible=1), store, FakeRunner(somewhere, heads2="error"))
    assert statuses(tmp_path / "a.sqlite") == [
        "heads=1/0 ok",
        "heads=2/0 error",
        "impossible 0/0 impossible_spec",
    ]


def test_the_same_sweep_again_measures_nothing(
    tmp_path: Path, planned: Planner, somewhere: Environment
) -> None:
    again = FakeRunner(somewhere)
    with Store(tmp_path / "a.sqlite") as store:
        drive(planned(3, impossible=1), store, FakeRunner(somewhere, heads2="error"))
        drive(planned(3, impossible=1), store, again)
    assert again.asked == []


def test_a_longer_plan_measures_what_is_new_alone(
    tmp_path: Path, planned: Planner, somewhere: Environment
) -> None:
    more = FakeRunner(somewhere)
    with Store(tmp_path / "a.sqlite") as store:
        drive(planned(3), store, FakeRunner(somewhere))
        drive(planned(5), store, more)
    assert sorted(more.asked) == [("heads=4", 0), ("heads=5", 0)]


def test_failures_are_retried_when_asked_and_their_rows_replaced(
    tmp_path: Path, planned: Planner, somewhere: Environment
) -> None:
    retry = FakeRunner(somewhere, heads3="error")
    with Store(tmp_path / "a.sqlite") as store:
        first = FakeRunner(somewhere, heads2="error", heads3="timeout", heads4="no_cuda")
        drive(planned(4, impossible=1), store, first)
        drive(planned(4, impossible=1), store, retry, retry_failed=True)
    assert sorted(retry.asked) == [("heads=2", 0), ("heads=3", 0), ("heads=4", 0)]
    assert statuses(tmp_path / "a.sqlite")[:4] == [
        "heads=1/0 ok",
        "heads=2/0 ok",
        "heads=3/0 error",
        "heads=4/0 ok",
    ]


def test_rounds_are_interleaved_each_in_a_run_and_an_order_of_its_own(
    tmp_path: Path, planned: Planner, somewhere: Environment
) -> None:
    runner = FakeRunner(somewhere)
    with Store(tmp_path / "a.sqlite") as store:
        drive(planned(8), store, runner, rounds=3, seed=5)
    assert [{task.round for task in run} for run in runner.runs] == [{0}, {1}, {2}]
    orders = [[task.point.name for task in run] for run in runner.runs]
    assert len({tuple(order) for order in orders}) == 3
    assert len({frozenset(order) for order in orders}) == 1
    assert len(statuses(tmp_path / "a.sqlite")) == 24


def test_the_order_is_shuffled_by_the_seed_alone(
    tmp_path: Path, planned: Planner, somewhere: Environment
) -> None:
    orders = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        runner = FakeRunner(somewhere)
        with Store(tmp_path / name) as store:
            drive(planned(8), store, runner, seed=seed)
        orders.append(runner.asked)
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != sorted(orders[0])


def test_a_cpu_is_timed_after_the_accelerators_not_beside_them(
    tmp_path: Path, planned: Planner, somewhere: Environment
) -> None:
    runner = FakeRunner(somewhere)
    plan = planned(3) + planned(3, device="cuda") + planned(2, device=None)
    with Store(tmp_path / "a.sqlite") as store:
        drive(plan, store, runner)
    assert [{task.device for task in run} for run in runner.runs] == [{"cuda", "none"}, {"cpu"}]


def test_another_environment_is_refused_with_each_difference_unless_allowed(
    tmp_path: Path, planned: Planner, somewhere: Environment
) -> None:
    other = Environment(
        software={**somewhere.software, "torch": "2.7.1"},
        hardware={"cpu_model": "Abacus 4000", "cores": 2},
        state={},
    )
    runner = FakeRunner(other)
    with Store(tmp_path / "a.sqlite") as store:
        drive(planned(1), store, FakeRunner(somewhere))
        with pytest.raises(NotComparable) as caught:
            drive(planned(2), store, runner)
        with pytest.raises(NotComparable, match="cpu_model"):
            drive(planned(2), store, runner, allow_env_mismatch=["torch"])
        drive(planned(2), store, runner, allow_env_mismatch=["torch", "cpu_model"])
    assert "cpu_model: Abacus 3000 there, Abacus 4000 here; torch: 2.6.0 there, 2.7.1 here" in str(
        caught.value
    )
    with Reader(tmp_path / "a.sqlite") as reader:
        assert len({row["environment"] for row in reader.rows()}) == 2


def test_an_interrupted_sweep_keeps_what_was_measured_and_resumes(
    tmp_path: Path, planned: Planner, somewhere: Environment
) -> None:
    landed: list[Done] = []

    def interrupt_after_three(done: Done) -> None:
        landed.append(done)
        if len(landed) == 3:
            raise KeyboardInterrupt

    rest = FakeRunner(somewhere)
    with Store(tmp_path / "a.sqlite") as store:
        with pytest.raises(KeyboardInterrupt):
            drive(planned(7), store, FakeRunner(somewhere), listener=interrupt_after_three)
        drive(planned(7), store, rest)
    assert len(rest.asked) == 4
    assert len(statuses(tmp_path / "a.sqlite")) == 7


SWEEP = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from conftest import plan_of, worker_environment
from mhaprof.runners.process import Lane
from mhaprof.runners.worker import WorkerRunner
from mhaprof.store import Store
from mhaprof.sweep import drive
lane = Lane(name="cpu", serves=("cpu",), environment=worker_environment(JOURNAL=sys.argv[3]))
runner = WorkerRunner([lane], measurer="fake_measurers:quick")
with Store(Path(sys.argv[2])) as store:
    drive(plan_of(int(sys.argv[4]), milliseconds=10), store, runner)
"""


def sweep_process(store: Path, journal: Path, points: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", SWEEP, str(HERE), str(store), str(journal), str(points)]
    return subprocess.Popen(command)


def wait_for_points(journal: Path, more: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until so many more points were measured, or the sweep is over."""
    before = len(lines_of(journal))
    while process.poll() is None and len(lines_of(journal)) < before + more:
        time.sleep(0.002)


def lines_of(journal: Path) -> list[str]:
    return journal.read_text().splitlines() if journal.exists() else []


def survive_kills(tmp_path: Path, *, kills: int, points: int, seed: int) -> None:
    """Kill the driver or its worker at random moments, resume, and check what is stored."""
    store, journal = tmp_path / "a.sqlite", tmp_path / "journal"
    chance = random.Random(seed)
    for _ in range(kills):
        process = sweep_process(store, journal, points)
        wait_for_points(journal, chance.randint(0, points // kills + 1), process)
        time.sleep(chance.random() * 0.03)
        if chance.random() < 0.5 and lines_of(journal):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(lines_of(journal)[-1].split()[1]), signal.SIGKILL)
            wait_for_points(journal, 2, process)
        process.kill()
        process.wait()
    assert sweep_process(store, journal, points).wait() == 0
    with Reader(store) as reader:
        found = {row["identity"]: row["reason"] or row["status"] for row in reader.rows()}
        assert reader.count() == len(found) == points
    assert set(found.values()) <= {"ok", "worker_killed"}
    measured = Counter(line.split()[0].partition("/")[0] for line in lines_of(journal))
    unmeasured = {identity for identity in found if not measured[identity]}
    assert all(found[identity] == "worker_killed" for identity in unmeasured)
    # One point may be in flight at each death of a driver.
    assert sum(count - 1 for count in measured.values() if count > 1) <= kills


def test_whatever_is_killed_every_point_is_stored_once(tmp_path: Path) -> None:
    survive_kills(tmp_path, kills=2, points=12, seed=1)


@pytest.mark.slow
def test_twenty_kills_of_driver_and_worker_lose_nothing(tmp_path: Path) -> None:
    survive_kills(tmp_path, kills=20, points=40, seed=2)


def test_a_sweep_in_workers_stores_what_broke_and_what_did_not(
    tmp_path: Path, planned: Planner, workers: Workers
) -> None:
    with Store(tmp_path / "a.sqlite") as store:
        drive(planned(4), store, workers("segfaults"))
    assert statuses(tmp_path / "a.sqlite") == [
        "heads=1/0 ok",
        "heads=2/0 ok",
        "heads=3/0 worker_crashed",
        "heads=4/0 ok",
    ]
    with Reader(tmp_path / "a.sqlite") as reader:
        (outcome,) = [
            result.outcome for result in reader.results() if isinstance(result.outcome, Measured)
        ][:1]
        assert outcome.latency is not None
        assert outcome.latency.samples_s == [0.001, 0.002, 0.003]
        ((device, environment),) = reader.environments().values()
    assert device == "cpu"
    assert environment.software["torch"]
