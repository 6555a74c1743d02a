"""What a signal, a full disk and a limit do to a command: codes, what is kept, what is left."""

from __future__ import annotations

import functools
import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}

STOPS = """
import sys, time
sys.argv[1:2], module, name, number = [], *sys.argv[1].split()
from importlib import import_module
from mhaprof.__main__ import main

command, calls = import_module(module), 0
real = getattr(command, name)

def stopping(*arguments, **options):
    global calls
    calls += 1
    if calls == int(number):
        print("READY", file=sys.stderr, flush=True)
        time.sleep(60)
    return real(*arguments, **options)

setattr(command, name, stopping)
command.CPU_TIME_S = 0.5
main()
"""
"""Runs a command that says READY and waits in the call of a function with this number."""

GRID = ("flops", "--counter", "closed-form", "--heads", "1,2,4,8", "--no-reference")


def defaults() -> None:
    """Undo what a shell does for a job in its background."""
    for number in CODES:
        signal.signal(number, signal.SIG_DFL)


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start processes in a folder of their own; end those that a failed test leaves."""
    started: list[subprocess.Popen[str]] = []

    def begin(*command: object, **more: Any) -> subprocess.Popen[str]:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        words = [sys.executable, *map(str, command)]
        process = subprocess.Popen(
            words,
            text=True,
            cwd=tmp_path,
            preexec_fn=defaults,  # noqa: PLW1509
            **(pipes | more),
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def await_line(process: subprocess.Popen[str], word: str) -> None:
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if word in line:
            return
    raise AssertionError("".join(seen))


def stop_in(
    start: Start, place: str, arguments: Sequence[object], number: signal.Signals
) -> tuple[int, str, str]:
    """Send a signal to a command that waits at a place; return its code and output."""
    process = start("-c", STOPS, place, *arguments)
    await_line(process, "READY")
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    return process.returncode, out, err


@pytest.mark.parametrize(
    ("number", "form"), [*((number, "json") for number in CODES), (signal.SIGINT, "table")]
)
def test_a_grid_of_counts_keeps_what_was_counted(
    start: Start, number: signal.Signals, form: str
) -> None:
    arguments = [*GRID, "--format", form]
    code, out, _ = stop_in(start, "mhaprof.cli.flops measure_point 3", arguments, number)
    assert code == CODES[number]
    if form == "table":
        assert out.count("skipped: interrupted") == 2
        return
    rows = json.loads(out)["rows"]
    assert [(row["heads"], row["status"], row["reason"]) for row in rows] == [
        (1, "ok", None),
        (2, "ok", None),
        (4, "skipped", "interrupted"),
        (8, "skipped", "interrupted"),
    ]
    assert [row["macs"] is None for row in rows] == [False, False, True, True]


SMALL = ("--dim", 8, "--tokens", 8, "--batch", 1)
BRIEFLY = ("--device", "cpu", "--min-time", 0.01, "--max-time", 0.05)


def test_the_claim_keeps_its_counts_and_the_times_so_far(start: Start) -> None:
    place, arguments = "mhaprof.cli.claim_times measure_point 2", ["claim", "--latency", *SMALL]
    code, out, _ = stop_in(start, place, [*arguments, "--format", "json"], signal.SIGTERM)
    document = json.loads(out)
    assert (code, document["claim"]["holds"]) == (143, True)
    timed = [row for row in document["rows"] if row.get("latency_median_s")]
    assert [row["implementation"] for row in timed] == ["eager"]
    counted = [row for row in document["rows"] if row["status"] == "ok"]
    assert len(counted) > len(timed)
    assert all(row["macs"] for row in counted)


def test_times_are_kept_and_the_others_say_that_they_were_interrupted(start: Start) -> None:
    place = "mhaprof.cli.latency measure_point 2"
    arguments = ["latency", *SMALL, *BRIEFLY, "--format", "json"]
    code, out, _ = stop_in(start, place, arguments, signal.SIGINT)
    rows = json.loads(out)["rows"]
    assert (code, [(row["status"], row["reason"]) for row in rows]) == (
        130,
        [("ok", rows[0]["reason"]), ("skipped", "interrupted")],
    )
    assert rows[0]["latency_median_s"] > 0


def test_checks_that_ran_are_shown_and_no_pass_is_claimed(start: Start) -> None:
    place = "mhaprof.verification check_forward 2"
    arguments = ["verify", "--impl", "eager", "--format", "json"]
    code, out, err = stop_in(start, place, arguments, signal.SIGTERM)
    assert code == 143
    assert [row["check"] for row in json.loads(out)["rows"]][:3] == [
        "worked-example",
        "order",
        "forward",
    ]
    assert "interrupted: the checks that are not shown were not run" in err


def test_a_model_keeps_the_changes_that_were_counted(start: Start) -> None:
    arguments = ["model", "--preset", "llama-3-8b", "--what-if", "kv_heads=4"]
    arguments += ["--what-if", "kv_heads=2", "--format", "json"]
    code, out, _ = stop_in(start, "mhaprof.cli.model cost_of 3", arguments, signal.SIGINT)
    asked = {row["what_if"] for row in json.loads(out)["rows"]}
    assert (code, asked) == (130, {None, "kv_heads=4"})


def test_the_rounds_of_ab_so_far_are_shown_without_a_verdict(
    mhaprof: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from mhaprof import ab
    from mhaprof.cli import ab as command

    def launch(plan: ab.Plan, number: int) -> ab.Pair:
        if number == 2:
            raise KeyboardInterrupt
        row = {"name": "p", "role": "point", "implementation": "eager", "status": "ok", "macs": 7}
        sides = [ab.Round(side=side.name, number=number, rows=[dict(row)]) for side in plan.sides]
        return ab.Pair(base=sides[0], new=sides[1])

    monkeypatch.setattr(command, "run_ab", functools.partial(ab.run_ab, launch=launch))
    config, file = tmp_path / "points.yaml", tmp_path / "ab.jsonl"
    config.write_text("version: 1\n")
    ran = mhaprof("ab", config, "--out", file, "--format", "json")
    assert ran.code == 130
    assert ran.json["comparison"]["points"] == 1
    assert f"interrupted after 1 of 5 rounds, not decided; the same command resumes {file}" in (
        ran.err
    )
    assert "passes" not in ran.err
    assert not file.with_name("ab.jsonl.lock").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("awaited", "arguments"),
    [
        ("mhaprof.errors", ["--help"]),
        ("pydantic_core", ["flops", "--format", "json"]),
        ("torch.version", ["flops", "--format", "json"]),
        ("torch.version", ["latency", "--format=json"]),
        ("torch._utils", ["verify"]),
        ("mhaprof.measure.numerics", ["env", "--format", "json"]),
    ],
)
def test_a_signal_while_modules_are_imported_ends_in_one_line(
    start: Start, awaited: str, arguments: list[str], number: signal.Signals
) -> None:
    process = start("-X", "importtime", "-m", "mhaprof", *arguments)
    await_line(process, f" {awaited}")
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    said = [line for line in err.splitlines() if not line.startswith("import time:")]
    assert (process.returncode, said) == (CODES[number], ["mhaprof: interrupted"])
    if arguments[1:]:
        assert json.loads(out)["error"] == {
            "message": "interrupted",
            "exit_code": CODES[number],
        }


def test_the_console_script_is_interrupted_like_the_module(start: Start) -> None:
    script = Path(sys.executable).with_name("mhaprof")
    process = start("-X", "importtime", script, "flops")
    await_line(process, " typer")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.splitlines()[-1]) == (130, "mhaprof: interrupted")
    assert "Traceback" not in err


def test_the_second_signal_ends_the_process_and_all_that_it_started(start: Start) -> None:
    child = [sys.executable, "-c", "import time; time.sleep(600)"]
    code = (
        "import signal, subprocess, sys, time\n"
        "from mhaprof import signals\n"
        "signals.install(); signals.enter('writing')\n"
        f"child = subprocess.Popen({child!r}, start_new_session=True)\n"
        "print('READY', child.pid, file=sys.stderr, flush=True)\n"
        "time.sleep(600)\n"
    )
    process = start("-c", code)
    assert process.stderr is not None
    child_id = int(process.stderr.readline().split()[1])
    while process.poll() is None:  # two that come together count as one
        process.send_signal(signal.SIGTERM)
        select.select([process.stderr], [], [], 0.2)
    assert process.returncode == 143
    assert not is_running(child_id)


def is_running(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_signal_that_the_caller_ignores_stays_ignored(start: Start) -> None:
    code = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from mhaprof import signals; signals.install()\n"
        "signal.raise_signal(signal.SIGHUP); print('alive')"
    )
    out, _ = start("-c", code).communicate(timeout=60)
    assert out == "alive\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_cursor_comes_back_on_the_terminal(start: Start, number: signal.Signals) -> None:
    """Both when a point is interrupted and when the process ends at once."""
    ours, theirs = pty.openpty()
    place = "mhaprof.cli.latency measure_point 1"
    process = start("-c", STOPS, place, "latency", *SMALL, "--device", "cpu", stderr=theirs)
    os.close(theirs)
    seen = b""
    while b"READY" not in seen:
        seen += os.read(ours, 4096)
    process.send_signal(number)
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        seen += data
    process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == CODES[number]
    assert seen.count(b"\x1b[?25l") > 0
    assert seen.rindex(b"\x1b[?25h") > seen.rindex(b"\x1b[?25l")


def test_a_reader_that_leaves_hides_no_regression(mhaprof: Any, tmp_path: Path) -> None:
    """``mhaprof gate ... | head -1`` under pipefail has the code of the gate."""
    folder = tmp_path / "results"
    for name, heads in (("base", 1), ("new", 8)):
        file = tmp_path / f"{name}.yaml"
        file.write_text(
            "version: 1\nreference: false\ndefaults: {dim: 64, tokens: 8, batch: 1}\n"
            f"points: [{{name: p, heads: 8, kv_heads: {heads}}}]\n"
        )
        assert mhaprof("sweep", file, "--inline", "--out", folder / f"{name}.sqlite").code == 0
    gate = ["gate", folder / "base.sqlite", folder / "new.sqlite"]
    whole = mhaprof(*gate).code
    assert whole != 0
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "mhaprof", *map(str, gate)],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert done.returncode == whole
    assert "Traceback" not in done.stderr


def test_a_standard_error_that_is_gone_changes_no_code(start: Start) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = start("-m", "mhaprof", "flops", "--heads", "7", stderr=writing)
    os.close(writing)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")


def test_what_is_printed_to_a_closed_standard_error_reaches_no_file(tmp_path: Path) -> None:
    target = tmp_path / "rows.csv"
    line = f"{sys.executable} -m mhaprof flops --counter closed-form --format csv -o {target} 2>&-"
    assert subprocess.run(line, shell=True, check=False).returncode == 0
    code = (
        "import os; from mhaprof.__main__ import _fill_standard_streams as fill; fill(); "
        f"os._exit(os.open({str(target)!r}, os.O_RDONLY))"
    )
    done = subprocess.run(f'{sys.executable} -c "{code}" 2>&- <&-', shell=True, check=False)
    assert done.returncode > 2


LIMITS = """
import resource, sys
name, number = sys.argv[1], int(sys.argv[2])
del sys.argv[1:3]
from mhaprof import signals
from mhaprof.__main__ import main
if "early" not in sys.argv:
    import mhaprof.cli.app, mhaprof.cli.sweep, mhaprof.store.frame
sys.argv = [word for word in sys.argv if word != "early"]
resource.setrlimit(getattr(resource, name), (number, number))
main()
"""


def test_no_descriptors_cost_one_line_and_the_same_command_resumes(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text("version: 1\nsweep: {heads: [1, 2]}\n")
    sweep = ("sweep", "c.yaml", "--out", "c.sqlite")
    limited = start("-c", LIMITS, "RLIMIT_NOFILE", 10, *sweep)
    out, err = limited.communicate(timeout=60)
    assert (limited.returncode, out) == (4, "")
    assert err.splitlines()[-1] == "mhaprof: Too many open files: see `ulimit -a`"
    assert "Traceback" not in err


@pytest.mark.parametrize(("limit", "number"), [("RLIMIT_NOFILE", 3), ("RLIMIT_AS", 30_000_000)])
def test_a_process_that_cannot_even_load_says_why(start: Start, limit: str, number: int) -> None:
    process = start("-c", LIMITS, limit, number, "early", "flops", "--format", "json")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    assert err.startswith("mhaprof: ")
    assert len(err.splitlines()) == 1


def test_memory_that_is_not_there_is_one_line(
    mhaprof: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mhaprof.cli import output

    def starved(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(output.Output, "emit", starved)
    ran = mhaprof("flops", "--counter", "closed-form", "--format", "json")
    assert (ran.code, ran.err) == (4, "mhaprof: out of memory: see `ulimit -a`\n")
    assert ran.json["error"]["exit_code"] == 4


@pytest.mark.parametrize("target", ["-o", "--samples-out", "--junit"])
def test_a_full_disk_loses_no_data_and_keeps_json_valid(
    mhaprof: Any, target: str, tmp_path: Path
) -> None:
    if target == "-o":
        arguments: list[object] = [*GRID]
    elif target == "--samples-out":
        arguments = ["latency", *SMALL, *BRIEFLY, "--impl", "eager"]
    else:
        run = tmp_path / "run.json"
        run.write_text(mhaprof(*GRID, "--format", "json").out)
        arguments = ["gate", run, run]
    ran = mhaprof(*arguments, "--format", "json", target, "/dev/full")
    assert ran.code == 2
    assert "rows" in ran.json
    assert "No space left on device" in ran.err
    assert len(ran.err.splitlines()) <= 3
