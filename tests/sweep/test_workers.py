"""Workers: whatever breaks one costs its own point and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from mhaprof.errors import Unavailable
from mhaprof.measure.devices import is_lost
from mhaprof.records import Environment, Failed, Measured, Result, Skipped
from mhaprof.runners.base import Done, Task, measure_as
from mhaprof.runners.inline import InlineRunner
from mhaprof.runners.messages import Answer, Lines, understood
from mhaprof.runners.process import Lane, died, oom_kills
from mhaprof.runners.worker import WorkerRunner
from mhaprof.sweep.plan import PlanEntry

Planner = Callable[..., list[PlanEntry]]
Workers = Callable[..., WorkerRunner]


def admit_all(lane: str, device: str, environment: Environment) -> None:
    """Accept every lane."""


def run(runner: WorkerRunner | InlineRunner, entries: list[PlanEntry]) -> dict[int, Done]:
    """Run one round; return what became of each point, by its heads."""
    tasks = [entry.task(0) for entry in entries]
    done = [done for landed in runner.run(tasks, admit_all) for done in landed]
    assert len(done) == len(tasks)
    return {each.task.point.spec.heads: each for each in done}


def codes(done: dict[int, Done]) -> dict[int, str]:
    return {
        heads: "ok" if isinstance(outcome, Measured) else outcome.code
        for heads, each in sorted(done.items())
        for outcome in [each.result.outcome]
    }


@pytest.mark.parametrize(
    ("measurer", "code", "said"),
    [
        ("segfaults", "worker_crashed", "SIGSEGV"),
        ("exits", "worker_crashed", "exited with status 7"),
        ("killed", "worker_killed", "SIGKILL"),
        ("hungry", "out_of_memory", "MemoryError"),
        ("raises", "error", "ValidationError"),
    ],
)
def test_a_point_that_breaks_its_worker_fails_alone(
    planned: Planner, workers: Workers, measurer: str, code: str, said: str
) -> None:
    done = run(workers(measurer), planned(5))
    assert codes(done) == {1: "ok", 2: "ok", 3: code, 4: "ok", 5: "ok"}
    outcome = done[3].result.outcome
    assert isinstance(outcome, Failed)
    assert said in outcome.message
    assert done[3].result.reference_macs == done[1].result.reference_macs


def test_the_last_words_of_a_crashed_worker_are_in_its_points_row(
    planned: Planner, workers: Workers
) -> None:
    outcome = run(workers("exits"), planned(3))[3].result.outcome
    assert isinstance(outcome, Failed)
    assert outcome.traceback == "fatal: no more of this"
    outcome = run(workers("segfaults"), planned(3))[3].result.outcome
    assert isinstance(outcome, Failed)
    assert "in segfaults" in (outcome.traceback or "")


def test_a_point_that_hangs_fails_by_timeout_and_the_others_go_on(
    planned: Planner, workers: Workers
) -> None:
    done = run(workers("hangs", timeout_s=1.0), planned(4))
    assert codes(done) == {1: "ok", 2: "ok", 3: "timeout", 4: "ok"}


def test_a_killed_worker_takes_the_processes_that_it_started_along(
    planned: Planner, workers: Workers, tmp_path: Path
) -> None:
    journal = tmp_path / "pid"
    run(workers("leaves_a_child", timeout_s=1.0, JOURNAL=str(journal)), planned(3)[2:])
    assert gone(int(journal.read_text()))


def gone(pid: int, *, within_s: float = 5.0) -> bool:
    """Say whether a process ends within a time; a zombie has ended."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_what_a_worker_prints_never_touches_a_record(
    planned: Planner, workers: Workers, capfd: pytest.CaptureFixture[str]
) -> None:
    assert codes(run(workers("noisy"), planned(3))) == {1: "ok", 2: "ok", 3: "ok"}
    assert capfd.readouterr() == ("", "")


def test_one_worker_stays_warm_from_point_to_point(
    planned: Planner, workers: Workers, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    run(workers(JOURNAL=str(journal)), planned(6))
    assert len({line.split()[1] for line in journal.read_text().splitlines()}) == 1


def test_each_device_has_a_worker_of_its_own_and_works_on_one_point_at_a_time(
    planned: Planner, workers: Workers, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    entries = planned(3) + planned(3, device="mps")
    tasks = [entry.task(0) for entry in entries]
    runner = workers(devices=("cpu", "mps"), JOURNAL=str(journal))
    lanes = {
        (done.lane, done.task.device) for landed in runner.run(tasks, admit_all) for done in landed
    }
    assert lanes == {("cpu", "cpu"), ("mps", "mps")}
    assert len({line.split()[1] for line in journal.read_text().splitlines()}) == 2


def test_workers_end_when_a_run_is_abandoned(
    planned: Planner, workers: Workers, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    tasks = [entry.task(0) for entry in planned(50, milliseconds=20)]
    running = workers(JOURNAL=str(journal)).run(tasks, admit_all)
    next(running)
    running.close()
    assert gone(int(journal.read_text().split()[1]), within_s=1)


DRIVER = """
import sys
sys.path.insert(0, sys.argv[1])
from conftest import plan_of, worker_environment
from mhaprof.runners.process import Lane
from mhaprof.runners.worker import WorkerRunner
lane = Lane(name="cpu", serves=("cpu",), environment=worker_environment(JOURNAL=sys.argv[2]))
runner = WorkerRunner([lane], measurer=f"fake_measurers:{sys.argv[3]}")
for landed in runner.run([e.task(0) for e in plan_of(9)], lambda *_: None):
    print(len(landed), flush=True)
"""


@pytest.mark.parametrize("measurer", ["quick", "hangs"])
def test_a_worker_ends_when_its_driver_is_killed(tmp_path: Path, measurer: str) -> None:
    here, journal = Path(__file__).parent, tmp_path / "journal"
    command = [sys.executable, "-c", DRIVER, str(here), str(journal), measurer]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        driver.stdout.readline()
        driver.kill()
    assert gone(int(journal.read_text().split()[1]))


def test_a_worker_that_cannot_start_ends_the_sweep_with_its_last_line(planned: Planner) -> None:
    runner = WorkerRunner([Lane(name="cpu", serves=("cpu",))], measurer="no.such:thing")
    with pytest.raises(Unavailable, match="No module named 'no'") as caught:
        run(runner, planned(2))
    assert caught.value.code == "worker_start"


def test_a_refused_environment_ends_the_run_before_a_point_is_measured(
    planned: Planner, workers: Workers, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"

    def refuse(lane: str, device: str, environment: Environment) -> None:
        raise Unavailable(f"{lane} on {device}", code="refused")

    tasks = [entry.task(0) for entry in planned(3)]
    with pytest.raises(Unavailable, match="cpu on cpu"):
        list(workers(JOURNAL=str(journal)).run(tasks, refuse))
    assert not journal.exists()


def test_an_absent_device_is_a_skip_of_its_points(planned: Planner, workers: Workers) -> None:
    outcome = run(workers("absent"), planned(1))[1].result.outcome
    assert isinstance(outcome, Skipped)
    assert outcome.code == "no_cuda"


def test_a_worker_that_sees_one_gpu_measures_it_under_the_name_of_the_plan(
    planned: Planner,
) -> None:
    seen = []

    def fake(task: Task) -> Result:
        seen.append(task.point.settings.device)
        return Result(point=task.point, outcome=Failed(code="x", message="y"))

    (entry,) = planned(1, device="cuda:3")
    result = measure_as(fake, entry.task(0), "cuda")
    assert seen == ["cuda"]
    assert result.point == entry.point


def test_the_inline_runner_gives_the_same_results(
    planned: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    done = run(InlineRunner(measurer="fake_measurers:raises"), planned(4))
    assert codes(done) == {1: "ok", 2: "ok", 3: "error", 4: "ok"}


def test_a_point_that_ctrl_c_cut_short_in_this_process_is_not_stored(
    planned: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    tasks = [entry.task(0) for entry in planned(4)]
    running = InlineRunner(measurer="fake_measurers:interrupted").run(tasks, admit_all)
    assert [next(running)[0].task.point.spec.heads for _ in range(2)] == [1, 2]
    with pytest.raises(KeyboardInterrupt):
        next(running)


def test_a_context_that_is_lost_is_noticed_and_a_healthy_one_kept() -> None:
    def poisoned() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    assert is_lost("cuda:0", poisoned)
    assert not is_lost("cuda", lambda: None)
    assert not is_lost("cpu", poisoned)


def test_the_kernels_own_count_tells_an_out_of_memory_kill_from_a_persons(
    tmp_path: Path,
) -> None:
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("nr_free_pages 12\noom_kill 3\n")
    assert oom_kills(vmstat) == 3
    assert oom_kills(tmp_path / "missing") == 0
    assert died(-9, oom_killed=True, output="").code == "out_of_memory_killed"
    assert died(-9, oom_killed=False, output="").code == "worker_killed"
    assert died(-11, oom_killed=True, output="").code == "worker_crashed"


def test_lines_are_joined_however_they_arrive() -> None:
    lines = Lines()
    arrived = [lines.feed(data) for data in (b"on", b"e\ntw", b"", b"o\nthree\n", b"fo")]
    assert arrived == [[], [b"one"], [], [b"two", b"three"], []]


def test_a_worker_of_another_version_is_one_line() -> None:
    with pytest.raises(Unavailable, match="another version of mhaprof") as caught:
        understood(Answer, b'{"answer": 42}')
    assert caught.value.code == "worker_version"


@pytest.mark.slow
def test_a_kill_by_the_kernel_for_want_of_memory_has_its_own_code(
    planned: Planner, workers: Workers
) -> None:
    group = Path("/sys/fs/cgroup/memory/mhaprof-test")
    if os.geteuid() != 0 or not group.parent.is_dir():
        pytest.skip("needs a memory cgroup (version 1) that may be written")
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(256 * 2**20))
        done = run(workers("eats_memory", GROUP=str(group)), planned(4))
        assert codes(done) == {1: "ok", 2: "ok", 3: "out_of_memory_killed", 4: "ok"}
    finally:
        group.rmdir()


RESTARTS = int(os.environ.get("MHAPROF_RESTARTS", "25"))
"""Workers to lose; a release tries 1000, which takes some ten minutes."""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_restarts_of_workers_leave_no_process_descriptor_or_memory(
    planned: Planner, workers: Workers
) -> None:
    me = psutil.Process()

    def held() -> tuple[int, int]:
        return me.num_fds(), len(me.children(recursive=True))

    run(workers("dies"), planned(3))
    before, before_bytes = held(), me.memory_info().rss
    most = [0, 0]
    runner = workers("dies")
    entries = planned(RESTARTS)
    lost = 0
    for landed in runner.run([entry.task(0) for entry in entries], admit_all):
        lost += sum(isinstance(done.result.outcome, Failed) for done in landed)
        most = [max(pair) for pair in zip(most, held(), strict=True)]
    grown = me.memory_info().rss - before_bytes
    print(f"\n{lost} workers lost: at most {most}, grown by {grown / 2**20:.1f} MiB")
    assert lost == RESTARTS
    assert held() == before
    assert most[0] <= before[0] + 6
    assert most[1] <= before[1] + 1
    assert grown < 4 * 2**20 + 4000 * RESTARTS
