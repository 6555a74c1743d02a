"""A/B: interleaved rounds, one statistic a round, resumed after a kill, judged like a gate."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mhaprof.ab import Journal, Pair, Plan, Round, Side, fold, judge, run_ab
from mhaprof.compare import preset
from mhaprof.errors import NotComparable, Unavailable, UsageError

POINTS = 6


class FakeMachine:
    """Measure nothing: return times that are known, and remember what was asked."""

    def __init__(self, *, slower: float = 1.0, noise: float = 0.01, seed: int = 0) -> None:
        self.chance = random.Random(seed)
        self.slower, self.noise = slower, noise
        self.asked: list[int] = []
        self.settings: dict[str, Any] = {}
        self.break_at: int | None = None

    def time(self, side: Side) -> float:
        return (self.slower if side.name == "new" else 1.0) * self.chance.gauss(
            1e-3, self.noise * 1e-3
        )

    def __call__(self, plan: Plan, number: int) -> Pair:
        if self.break_at == len(self.asked):
            raise KeyboardInterrupt
        self.asked.append(number)
        return Pair(base=self.round(plan.base, number), new=self.round(plan.new, number))

    def round(self, side: Side, number: int) -> Round:
        rows = []
        for place in range(POINTS):
            seconds = self.time(side)
            rows.append(
                {
                    "name": f"p{place}",
                    "role": "point",
                    "implementation": "eager",
                    "status": "ok",
                    "reason": None,
                    "macs": 100 + place,
                    "device": "cpu",
                    "device_name": "a cpu",
                    "dtype": "float32",
                    "threads": 1,
                    "timer": "wall",
                    "cache": "hot",
                    "flags": None,
                    "latency_median_s": seconds,
                    "samples_s": [seconds] * 3,
                    "process_time_s": [seconds * 2, seconds, seconds * 3],
                }
                | self.settings
            )
        return Round(side=side.name, number=number, rows=rows)


@pytest.fixture
def make_plan(tmp_path: Path) -> Callable[..., Plan]:
    config = tmp_path / "points.yaml"
    config.write_text("version: 1\n")

    def make(**changes: Any) -> Plan:
        given: dict[str, Any] = {
            "config": config,
            "base": Side(name="base", python="a"),
            "new": Side(name="new", python="b"),
            "rounds": 5,
        }
        return Plan(**(given | changes))

    return make


def compare_on(machine: FakeMachine, plan: Plan, path: Path) -> Any:
    return run_ab(plan, Journal(path, plan), preset("default"), launch=machine)


def test_identical_sides_rarely_regress_and_a_tenth_slower_is_nearly_always_caught(
    make_plan: Any, tmp_path: Path
) -> None:
    plan = make_plan()
    false, caught = 0, 0
    for seed in range(10):
        same = compare_on(FakeMachine(seed=seed, noise=0.02), plan, tmp_path / f"aa{seed}")
        false += len(same.blocking())
        slow = FakeMachine(seed=100 + seed, noise=0.02, slower=1.1)
        caught += compare_on(slow, plan, tmp_path / f"ab{seed}").exit_code == 1
    assert false <= 1
    assert caught >= 9


def test_what_regresses_is_measured_once_more_and_judged_on_all_rounds(
    make_plan: Any, tmp_path: Path
) -> None:
    machine = FakeMachine(slower=1.2)
    comparison = compare_on(machine, make_plan(), tmp_path / "ab.jsonl")
    assert machine.asked == list(range(1, 11))
    assert comparison.exit_code == 1
    (latency,) = [j for j in comparison.points[0].judgements if j.metric == "latency"]
    assert latency.p == pytest.approx(POINTS / 2**10)


def test_a_stable_result_is_not_measured_again(make_plan: Any, tmp_path: Path) -> None:
    machine = FakeMachine(noise=0.001)
    assert compare_on(machine, make_plan(), tmp_path / "ab.jsonl").exit_code == 0
    assert machine.asked == list(range(1, 6))


def test_a_killed_run_resumes_where_it_was(make_plan: Any, tmp_path: Path) -> None:
    plan, path = make_plan(), tmp_path / "ab.jsonl"
    machine = FakeMachine(noise=0.001)
    machine.break_at = 3
    with pytest.raises(KeyboardInterrupt):
        compare_on(machine, plan, path)
    with path.open("a") as file:
        file.write('{"base": {"side": "base", "num')
    rest = FakeMachine(noise=0.001, seed=1)
    assert compare_on(rest, plan, path).exit_code == 0
    assert machine.asked + rest.asked == [1, 2, 3, 4, 5]
    finished, said = FakeMachine(), []
    run_ab(plan, Journal(path, plan), preset("default"), launch=finished, progress=said.append)
    assert (finished.asked, said) == ([], [])


@pytest.mark.parametrize(
    "change",
    [
        {"new": Side(name="new", python="c")},
        {"new": Side(name="new", python="b", path="/elsewhere")},
        {"arguments": ("--threads", "1")},
        {"rounds": 7},
    ],
)
def test_rounds_of_another_comparison_are_refused(
    make_plan: Any, tmp_path: Path, change: dict[str, Any]
) -> None:
    Journal(tmp_path / "ab.jsonl", make_plan())
    with pytest.raises(UsageError, match="another comparison"):
        Journal(tmp_path / "ab.jsonl", make_plan(**change))


def test_a_changed_configuration_is_another_comparison(make_plan: Any, tmp_path: Path) -> None:
    plan = make_plan()
    Journal(tmp_path / "ab.jsonl", plan)
    plan.config.write_text("version: 1\n# changed\n")
    with pytest.raises(UsageError, match="another comparison"):
        Journal(tmp_path / "ab.jsonl", plan)


def test_a_file_of_something_else_is_not_overwritten(make_plan: Any, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("precious\n")
    with pytest.raises(UsageError, match="not a file of mhaprof ab"):
        Journal(path, make_plan())
    assert path.read_text() == "precious\n"


def rounds_of(machine: FakeMachine, plan: Plan, path: Path, numbers: range) -> Journal:
    journal = Journal(path, plan)
    for number in numbers:
        journal.add(machine(plan, number))
    return journal


def test_wall_time_is_the_statistic_of_a_quiet_machine_and_cpu_time_of_a_shared_one(
    make_plan: Any, tmp_path: Path
) -> None:
    plan = make_plan()
    machine = FakeMachine()
    machine.settings = {"process_time_s": [9.0]}
    quiet = rounds_of(machine, plan, tmp_path / "quiet", range(1, 3))
    for point in judge(quiet, preset("default")).points:
        (latency,) = [j for j in point.judgements if j.metric == "latency"]
        assert latency.base == pytest.approx(1e-3, rel=0.1)
    machine.settings = {"flags": "contended", "latency_median_s": 5.0}
    shared = rounds_of(machine, plan, tmp_path / "shared", range(1, 3))
    for point in judge(shared, preset("default")).points:
        (latency,) = [j for j in point.judgements if j.metric == "latency"]
        assert latency.base == pytest.approx(1e-3, rel=0.1)
        assert latency.threshold == 0.05


def test_one_contended_round_decides_the_statistic_of_all_rounds_of_both_sides(
    make_plan: Any, tmp_path: Path
) -> None:
    plan, machine = make_plan(), FakeMachine()
    journal = Journal(tmp_path / "ab.jsonl", plan)
    for number in (1, 2):
        pair = []
        for side in plan.sides:
            contended = (side.name, number) == ("new", 2)
            machine.settings = {
                "flags": "contended" if contended else None,
                "samples_s": [7.0],
            }
            pair.append(machine.round(side, number))
        journal.add(Pair(base=pair[0], new=pair[1]))
    (point, *_) = judge(journal, preset("default")).points
    (latency,) = [j for j in point.judgements if j.metric == "latency"]
    assert latency.base == pytest.approx(1e-3, rel=0.1)
    assert latency.new == pytest.approx(1e-3, rel=0.1)


def test_cpu_time_of_several_threads_is_not_used(make_plan: Any, tmp_path: Path) -> None:
    plan, machine = make_plan(), FakeMachine()
    machine.settings = {"flags": "contended", "threads": 2, "samples_s": [5.0]}
    journal = rounds_of(machine, plan, tmp_path / "ab.jsonl", range(1, 3))
    (point, *_) = judge(journal, preset("default")).points
    (latency,) = [j for j in point.judgements if j.metric == "latency"]
    assert (latency.base, latency.threshold) == (5.0, 0.25)


def test_a_point_that_broke_in_one_round_is_a_failed_point() -> None:
    rows = [
        {"name": "a", "implementation": "e", "status": status, "reason": reason}
        for status, reason in (("ok", None), ("failed", "error"))
    ]
    rounds = [Round(side="new", number=n, rows=[row]) for n, row in enumerate(rows, start=1)]
    (folded,) = fold(rounds, by_cpu_time=())
    assert (folded["status"], folded["reason"]) == ("failed", "error")
    (missing,) = fold([rounds[0], Round(side="new", number=3, rows=[])], by_cpu_time=())
    assert (missing["status"], missing["reason"]) == ("failed", "rounds_missing")


def test_another_torch_is_the_treatment_and_another_device_is_refused(
    make_plan: Any, tmp_path: Path
) -> None:
    def on(name: str, settings: dict[str, Any]) -> Any:
        plan, machine = make_plan(rounds=2), FakeMachine(noise=0.001)
        journal = Journal(tmp_path / name, plan)
        for number in (1, 2):
            pair = []
            for side in plan.sides:
                machine.settings = settings if side.name == "new" else {"torch": "2.12"}
                pair.append(machine.round(side, number))
            journal.add(Pair(base=pair[0], new=pair[1]))
        return judge(journal, preset("default"))

    assert on("torch", {"torch": "2.13"}).allowed[0].key == "torch"
    with pytest.raises(NotComparable, match="device_name"):
        on("device", {"torch": "2.12", "device_name": "another cpu"})


def test_each_side_imports_its_own_checkout_though_the_working_directory_has_one_too(
    make_plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mhaprof.ab import launch

    for name in ("here", "old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "checkout.py").write_text(f"NAME = {name!r}\n")
    monkeypatch.chdir(tmp_path / "here")
    script = (
        "import json, os, sys; sys.path.insert(0, os.getcwd()); import checkout; "
        "row = dict(name=checkout.NAME, implementation='e', status='ok'); "
        "print(json.dumps(dict(rows=[row])))"
    )
    python = fake_python(tmp_path / "py", f'exec {sys.executable} -c "{script}"')
    sides = [Side(name="base", python=python, path=str(tmp_path / "old"))]
    sides.append(Side(name="new", python=python, path=str(tmp_path / "new")))
    pair = launch(make_plan(base=sides[0], new=sides[1]), 1)
    assert [found.rows[0]["name"] for found in (pair.base, pair.new)] == ["old", "new"]
    pair = launch(make_plan(base=Side(name="base", python=python), new=sides[1]), 2)
    assert pair.base.rows[0]["name"] == "here"


def test_the_folder_of_a_side_comes_first_on_the_python_path() -> None:
    side = Side(name="new", python="py", path="/checkout")
    assert side.environment({"PYTHONPATH": "/old"})["PYTHONPATH"] == "/checkout:/old"


def test_flags_go_to_every_round_as_they_were_given(tmp_path: Path) -> None:
    command = Side(name="base", python="py").command(
        tmp_path / "c.yaml", ["--threads", "1"], Path("s.json")
    )
    assert command[:4] == ["py", "-m", "mhaprof", "latency"]
    assert command[4] == str(tmp_path / "c.yaml")
    assert command[-2:] == ["--threads", "1"]


MEASURED = """echo '{"rows": [{"name": "a", "implementation": "e", "status": "ok"}]}'"""

FAKE_PYTHON = """#!/bin/sh
{body}
"""


def fake_python(path: Path, body: str) -> str:
    path.write_text(FAKE_PYTHON.format(body=body))
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        ("echo 'mhaprof: c.yaml:1:1: bad' >&2; exit 2", UsageError, "c.yaml:1:1: bad"),
        ("echo 'No module named mhaprof' >&2; exit 1", Unavailable, "No module named mhaprof"),
        ("exit 9", Unavailable, "it ended with code 9"),
        (
            'echo \'{"rows": [], "error": {"message": "no device", "exit_code": 4}}\'; exit 4',
            Unavailable,
            "no device",
        ),
    ],
)
def test_an_interpreter_that_measures_nothing_is_reported_in_its_own_words(
    make_plan: Any, tmp_path: Path, body: str, kind: type[Exception], said: str
) -> None:
    from mhaprof.ab import launch

    plan = make_plan(
        base=Side(name="base", python=fake_python(tmp_path / "base", MEASURED)),
        new=Side(name="new", python=fake_python(tmp_path / "py", body)),
    )
    with pytest.raises(kind, match="--new") as caught:
        launch(plan, 1)
    assert said in str(caught.value)


def test_an_interpreter_that_is_not_there_is_a_usage_error(make_plan: Any, tmp_path: Path) -> None:
    from mhaprof.ab import launch

    for place in ("base", "new"):
        sides = {
            name: Side(name=name, python=fake_python(tmp_path / name, MEASURED))
            for name in ("base", "new")
        }
        sides[place] = Side(name=place, python="/no/such/python")
        with pytest.raises(UsageError, match=f"--{place} /no/such/python: cannot be run"):
            launch(make_plan(**sides), 1)


def test_the_command_measures_both_sides_and_ends_like_a_gate(mhaprof: Any, tmp_path: Path) -> None:
    config = tmp_path / "points.yaml"
    config.write_text("version: 1\n")
    row = {"name": "a", "implementation": "eager", "status": "ok", "macs": 5}
    sides = {}
    for name, macs in (("base", 5), ("new", 6)):
        document = json.dumps({"rows": [row | {"macs": macs}]})
        sides[name] = fake_python(tmp_path / name, f"echo '{document}'")
    out = tmp_path / "rounds.jsonl"
    flags = ("--base", sides["base"], "--new", sides["new"], "--rounds", 2, "--out", out)
    ran = mhaprof("ab", config, *flags, "--format", "json")
    assert ran.code == 1
    assert ran.rows[0]["message"] == "macs 5 -> 6 (+1)"
    assert len(out.read_text().splitlines()) == 3
    again = mhaprof("ab", config, *flags, "--format", "json")
    assert "2 rounds are stored" in again.err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_equal_interpreters_agree_for_real(mhaprof: Any, tmp_path: Path) -> None:
    config = tmp_path / "points.yaml"
    config.write_text(
        "version: 1\ndefaults: {batch: 1, dim: 128, heads: 4}\npoints: [{name: a, tokens: 64}]\n"
    )
    ran = mhaprof(
        *("ab", config, "--base", sys.executable, "--new", sys.executable, "--rounds", 2),
        *("--out", tmp_path / "ab.jsonl", "--format", "json"),
        *(
            "--",
            "--threads",
            1,
            "--impl",
            "eager",
            "--min-time",
            0.1,
            "--max-time",
            0.5,
            "--device",
            "cpu",
        ),
    )
    assert ran.code in (0, 1)
    judged = {row["name"] for row in ran.rows if row["metric"] == "latency"}
    assert judged == {"a"}
    assert all(row["verdict"] == "unchanged" for row in ran.rows if row["metric"] == "macs")


def test_changed_code_on_a_side_is_another_comparison(make_plan: Any, tmp_path: Path) -> None:
    code = tmp_path / "code"
    (code / "package").mkdir(parents=True)
    (code / "package" / "kernel.py").write_text("a = 1\n")
    (code / "notes.txt").write_text("a\n")
    plan = make_plan(new=Side(name="new", python="b", path=str(code)))
    Journal(tmp_path / "ab.jsonl", plan)
    (code / "notes.txt").write_text("b\n")
    (code / ".git").mkdir()
    (code / ".git" / "hook.py").write_text("a\n")
    (code / "venv").mkdir()
    (code / "venv" / "pyvenv.cfg").write_text("home = x\n")
    (code / "venv" / "module.py").write_text("a\n")
    Journal(tmp_path / "ab.jsonl", plan)
    (code / "package" / "kernel.py").write_text("a = 2\n")
    with pytest.raises(UsageError, match="code"):
        Journal(tmp_path / "ab.jsonl", plan)


def test_a_header_cut_short_by_a_kill_is_written_anew(make_plan: Any, tmp_path: Path) -> None:
    path, plan = tmp_path / "ab.jsonl", make_plan()
    Journal(path, plan)
    header = path.read_text()
    for kept in (0, 10, len(header) - 1):
        path.write_text(header[:kept])
        assert Journal(path, plan).pairs == []
        assert path.read_text() == header


def test_a_message_with_any_line_separator_is_read_back(make_plan: Any, tmp_path: Path) -> None:
    path, plan = tmp_path / "ab.jsonl", make_plan()
    rows = [{"name": "a", "implementation": "e", "status": "failed", "message": "x\u2028y\x85z"}]
    base, new = (Round(side=side.name, number=1, rows=rows) for side in plan.sides)
    Journal(path, plan).add(Pair(base=base, new=new))
    assert Journal(path, plan).of("new")[0].rows == rows


def test_a_candidate_that_a_signal_kills_regresses_at_every_point(
    mhaprof: Any, tmp_path: Path
) -> None:
    config = tmp_path / "points.yaml"
    config.write_text("version: 1\n")
    row = {"implementation": "e", "status": "ok", "macs": 5, "tokens": 8, "latency_median_s": 1e-3}
    document = json.dumps({"rows": [row | {"name": name} for name in "ab"]})
    base = fake_python(tmp_path / "base", f"echo '{document}'")
    new = fake_python(tmp_path / "new", "kill -SEGV $$")
    flags = ("--base", base, "--new", new, "--rounds", 2, "--out", tmp_path / "ab.jsonl")
    ran = mhaprof("ab", config, *flags, "--format", "json")
    assert ran.code == 1
    failing = [(found["name"], found["reason"]) for found in ran.rows if found["blocks"]]
    assert failing == [("a", "newly_failing"), ("b", "newly_failing")]
    assert "killed by SIGSEGV" in ran.rows[0]["message"]


def test_a_base_that_a_signal_kills_is_no_verdict(make_plan: Any, tmp_path: Path) -> None:
    from mhaprof.ab import launch

    plan = make_plan(
        base=Side(name="base", python=fake_python(tmp_path / "py", "kill -SEGV $$")),
        new=Side(name="new", python=fake_python(tmp_path / "new", MEASURED)),
    )
    with pytest.raises(Unavailable, match=r"--base .*: killed by SIGSEGV"):
        launch(plan, 1)


def test_a_side_without_a_folder_imports_what_its_interpreter_has_installed() -> None:
    assert Side(name="base", python="py").environment({}) == {"PYTHONSAFEPATH": "1"}
    assert "PYTHONSAFEPATH" not in Side(name="new", python="py", path="/code").environment({})


def test_an_interpreter_given_by_a_relative_path_is_the_callers(
    mhaprof: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, macs in (("here", 5), ("there", 6)):
        (tmp_path / name).mkdir()
        row = {"name": "a", "implementation": "eager", "status": "ok", "macs": macs}
        fake_python(tmp_path / name / "python", f"echo '{json.dumps({'rows': [row]})}'")
    config = tmp_path / "here" / "points.yaml"
    config.write_text("version: 1\n")
    monkeypatch.chdir(tmp_path / "here")
    ran = mhaprof(
        *("ab", config, "--base", "./python", "--new", "./python", "--rounds", 2),
        *("--new-path", tmp_path / "there", "--format", "json"),
    )
    assert ran.code == 0


def test_a_peak_that_regressed_is_measured_once_more(make_plan: Any, tmp_path: Path) -> None:
    class Hungry(FakeMachine):
        def round(self, side: Side, number: int) -> Round:
            found = super().round(side, number)
            peak = 2**30 if side.name == "base" else 2**31
            return found.model_copy(update={"rows": [r | {"peak_bytes": peak} for r in found.rows]})

    machine = Hungry(noise=0.001)
    assert compare_on(machine, make_plan(), tmp_path / "ab.jsonl").exit_code == 1
    assert len(machine.asked) == 10


def test_what_one_side_took_alone_after_the_other_had_enough_is_not_in_its_statistic(
    make_plan: Any, tmp_path: Path
) -> None:
    plan, machine = make_plan(), FakeMachine()
    journal = Journal(tmp_path / "ab.jsonl", plan)
    for number in range(1, 6):
        machine.settings = {"samples_s": [1e-3] * 20, "latency_median_s": 1e-3}
        base = machine.round(plan.base, number)
        machine.settings = {"samples_s": [1e-3] * 20 + [2e-3] * 30, "latency_median_s": 2e-3}
        journal.add(Pair(base=base, new=machine.round(plan.new, number)))
    comparison = judge(journal, preset("default"))
    assert comparison.exit_code == 0
    ratios = [found.ratio for _, found in comparison.judgements() if found.metric == "latency"]
    assert ratios == [1.0] * POINTS


def test_peaks_are_measured_once_in_each_set_of_rounds(make_plan: Any, tmp_path: Path) -> None:
    from mhaprof.ab import launch

    body = 'echo "{\\"rows\\": [{\\"name\\": \\"$*\\"}]}"'
    sides = {
        name: Side(name=name, python=fake_python(tmp_path / name, body)) for name in ("base", "new")
    }
    for rounds, measured in ((3, [1, 4]), (1, [1, 2])):
        plan = make_plan(rounds=rounds, **sides)
        asked = [
            number
            for number in range(1, 2 * rounds + 1)
            if " --memory" in launch(plan, number).new.rows[0]["name"]
        ]
        assert asked == measured


def test_a_file_that_another_process_writes_is_left_to_it(mhaprof: Any, tmp_path: Path) -> None:
    out, config = tmp_path / "ab.jsonl", tmp_path / "points.yaml"
    config.write_text("version: 1\n")
    hold = (
        "import sys; from pathlib import Path; from mhaprof.store.lock import WriterLock; "
        "WriterLock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        ran = mhaprof("ab", config, "--out", out)
        holder.kill()
    assert ran.code == 4
    assert f"being written by process {holder.pid}" in ran.err
    assert not out.exists()


def test_a_place_where_no_file_can_be_is_one_line(mhaprof: Any, tmp_path: Path) -> None:
    config = tmp_path / "points.yaml"
    config.write_text("version: 1\n")
    ran = mhaprof("ab", config, "--out", config / "ab.jsonl")
    assert ran.code == 2
    assert "cannot be written" in ran.err


def test_one_contended_round_a_side_is_not_taken_for_cpu_time(
    make_plan: Any, tmp_path: Path
) -> None:
    plan, machine = make_plan(rounds=1), FakeMachine()
    machine.settings = {"flags": "contended", "latency_median_s": 2e-3, "samples_s": [2e-3]}
    base = machine.round(plan.base, 1)
    machine.settings = {"latency_median_s": 1e-3, "samples_s": [1e-3]}
    journal = Journal(tmp_path / "ab.jsonl", plan)
    journal.add(Pair(base=base, new=machine.round(plan.new, 1)))
    found = [j for _, j in judge(journal, preset("default")).judgements() if j.metric == "latency"]
    assert {judgement.verdict for judgement in found} == {"inconclusive"}


def test_a_cpu_clock_too_coarse_for_the_call_is_not_used(make_plan: Any, tmp_path: Path) -> None:
    plan, machine = make_plan(), FakeMachine()
    machine.settings = {"flags": "contended", "process_time_s": [0.0, 0.01], "samples_s": [5.0]}
    journal = rounds_of(machine, plan, tmp_path / "ab.jsonl", range(1, 3))
    found = [j for _, j in judge(journal, preset("default")).judgements() if j.metric == "latency"]
    assert {judgement.base for judgement in found} == {5.0}


def test_a_line_cut_inside_a_letter_is_dropped(make_plan: Any, tmp_path: Path) -> None:
    path, plan = tmp_path / "ab.jsonl", make_plan()
    Journal(path, plan)
    whole = path.read_bytes()
    path.write_bytes(whole + '{"base": "ü'.encode()[:-1])
    assert Journal(path, plan).pairs == []
    assert path.read_bytes() == whole


def test_another_torch_in_an_interpreter_is_another_comparison(
    make_plan: Any, tmp_path: Path
) -> None:
    (tmp_path / "package").mkdir()
    origin = tmp_path / "package" / "__init__.py"
    origin.write_text("a = 1\n")
    keys = []
    for version in ("2.12", "2.13", "2.13"):
        python = fake_python(tmp_path / "py", f"echo {origin}; echo {version}")
        keys.append(make_plan(new=Side(name="new", python=python)).key())
    origin.write_text("a = 2\n")
    keys.append(make_plan(new=Side(name="new", python=python)).key())
    assert keys[0] != keys[1] == keys[2] != keys[3]


def test_a_condition_that_is_none_is_refused_before_any_round(mhaprof: Any, tmp_path: Path) -> None:
    config = tmp_path / "points.yaml"
    config.write_text("version: 1\n")
    python = fake_python(tmp_path / "py", f"touch {tmp_path / 'ran'}")
    ran = mhaprof("ab", config, "--new", python, "--allow-env-mismatch", "weather")
    assert ran.code == 2
    assert "'weather' is not one of" in ran.err
    assert not (tmp_path / "ran").exists()
