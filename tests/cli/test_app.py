"""The application as a whole: version, help, completion, pipes, errors."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
import typer

from mhaprof import __version__
from mhaprof.cli import output
from mhaprof.cli.commands import COMMANDS
from mhaprof.cli.output import check_writable, write_atomically


def test_version_names_what_results_depend_on(mhaprof: Any) -> None:
    ran = mhaprof("version")
    lines = dict(line.split(" ", 1) for line in ran.out.splitlines())
    assert ran.code == 0
    assert lines == {
        "mhaprof": __version__,
        "torch": version("torch"),
        "fvcore": version("fvcore"),
        "Python": platform.python_version(),
    }
    assert mhaprof("--version").out == ran.out


def test_version_says_what_is_not_installed(mhaprof: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("mhaprof.cli.help.version_of", missing)
    ran = mhaprof("version")
    assert (ran.code, ran.out.splitlines()[1]) == (0, "torch not installed")


def test_no_arguments_show_the_help(mhaprof: Any) -> None:
    ran = mhaprof()
    assert ran.code == 0
    assert "Usage: mhaprof" in ran.out


def test_an_unknown_command_costs_one_line(mhaprof: Any) -> None:
    ran = mhaprof("flosp")
    assert ran.code == 2
    assert ran.err.startswith("mhaprof: No such command 'flosp'")
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize(
    "line",
    [
        *(f"{name} --help" for name in ("", "flops", "claim", "latency", "implementations", "env")),
        *("help", "help latency", "help timing", "version", "--version"),
    ],
)
def test_what_helps_imports_no_torch(line: str) -> None:
    code = (
        "import sys; from mhaprof.cli.app import run; run(sys.argv[1:]); "
        "sys.exit(any(m in sys.modules for m in ('torch', 'fvcore', 'pandas', 'numpy')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *line.split()], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert re.match(r"Usage: mhaprof|# How timing works\n|mhaprof \d", done.stdout)


def test_importing_the_package_imports_no_torch() -> None:
    code = (
        "import sys, mhaprof; from mhaprof import AttentionSpec; AttentionSpec(); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_shell_completion_is_offered(fresh_mhaprof: Any) -> None:
    given = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # whatever started the tests
    ran = fresh_mhaprof("--show-completion", "bash", env=given)
    assert ran.code == 0
    assert "_MHAPROF_COMPLETE" in ran.out or "complete" in ran.out


def test_module_and_script_are_the_same_command() -> None:
    script = Path(sys.executable).with_name("mhaprof")
    by_script = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    by_module = subprocess.run(
        [sys.executable, "-m", "mhaprof", "--version"], capture_output=True, text=True, check=True
    )
    assert by_script.stdout == by_module.stdout
    assert by_script.stdout.startswith(f"mhaprof {__version__}\n")


def test_a_reader_that_goes_away_is_no_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "mhaprof", "flops", "--counter", "closed-form", "--batch",
         ",".join(map(str, range(1, 2000))), "--format", "csv"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 0


@pytest.mark.parametrize("arguments", [["--version"], ["flops", "--counter", "closed-form"]])
def test_a_reader_that_never_reads_is_no_error(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "mhaprof", *arguments],
        stdout=writing, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
@pytest.mark.parametrize(
    ("redirection", "reason"),
    [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")],
)
def test_a_standard_output_that_takes_nothing_costs_one_line(
    redirection: str, reason: str, form: str
) -> None:
    command = f"{sys.executable} -m mhaprof flops --counter closed-form --format {form}"
    done = subprocess.run(
        f"{command} {redirection}", shell=True, stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"mhaprof: the output cannot be written: {reason}; give --output FILE elsewhere\n"
    )


def test_a_closed_standard_output_is_not_missed_where_a_file_is_written(tmp_path: Path) -> None:
    target = tmp_path / "rows.csv"
    command = f"{sys.executable} -m mhaprof flops --counter closed-form --format csv -o {target}"
    assert subprocess.run(f"{command} >&-", shell=True, check=False).returncode == 0
    assert len(target.read_text().splitlines()) == 3


def test_a_closed_standard_error_sends_no_message_among_the_data() -> None:
    command = f"{sys.executable} -m mhaprof flops --heads 7 2>&-"
    done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")


def test_a_value_that_the_parser_refuses_is_told_with_its_flag(mhaprof: Any) -> None:
    for arguments in (["--dim", "0"], ["--dim=0"], ["--dim", "4", "--dim", "0"]):
        ran = mhaprof("claim", *arguments)
        assert ran.code == 2
        assert ran.err.startswith("mhaprof: --dim '0': ")
    assert (
        mhaprof("claim", "--dim").err
        == "mhaprof: Option '--dim' requires an argument (mhaprof claim --help)\n"
    )


def test_implementations_name_the_dtypes_there_are(mhaprof: Any) -> None:
    ran = mhaprof("implementations", "--dtype", "float8")
    assert ran.code == 2
    assert ran.err.startswith("mhaprof: --dtype 'float8' is not one of float64, float32")


def test_no_color_is_honoured(fresh_mhaprof: Any) -> None:
    plain = {"FORCE_COLOR": "1", "NO_COLOR": "1"}
    arguments = ["flops", "--counter", "closed-form"]
    assert not re.search(r"\x1b\[[0-9;]*(3|4|9)[0-7][;m]", fresh_mhaprof(*arguments, env=plain).out)


def test_a_defect_is_one_line_and_its_own_exit_code(
    mhaprof: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(output.Output, "emit", broken)
    ran = mhaprof("flops", "--counter", "closed-form")
    assert ran.code == 70
    assert ran.err.startswith("mhaprof: internal error: RuntimeError: boom; please report")
    assert len(ran.err.splitlines()) == 1


def test_interruption_exits_130(mhaprof: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(output.Output, "emit", interrupted)
    assert mhaprof("flops", "--counter", "closed-form").code == 130


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "rows.csv"
    target.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(target, "new")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


def test_what_is_no_regular_file_is_written_to_and_stays(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    check_writable(fifo)
    write_atomically(fifo, "rows")
    assert os.read(reader, 100) == b"rows"
    assert fifo.is_fifo()
    os.close(reader)


def test_a_link_goes_on_naming_the_file_that_is_written(tmp_path: Path) -> None:
    target, link = tmp_path / "kept" / "rows.csv", tmp_path / "link.csv"
    target.parent.mkdir()
    link.symlink_to(target)
    for text in ("old", "new"):
        check_writable(link)
        write_atomically(link, text)
        assert (link.is_symlink(), target.read_text()) == (True, text)


def test_what_cannot_be_written_to_its_file_goes_to_stdout(
    mhaprof: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    ran = mhaprof("flops", "--counter", "closed-form", "--format", "csv", "-o", tmp_path / "x.csv")
    assert ran.code == 2
    assert "68719476736" in ran.out
    assert "No space left on device; wrote to standard output instead" in ran.err


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_list_of_commands_says_what_the_command_says(name: str) -> None:
    loaded = COMMANDS[name].load()
    help_text = loaded.info.help or "" if isinstance(loaded, typer.Typer) else loaded.__doc__ or ""
    if isinstance(loaded, typer.Typer) and loaded.registered_callback is not None:
        help_text = loaded.registered_callback.callback.__doc__ or ""
    paragraph = " ".join(help_text.strip().split("\n\n")[0].split())
    shown = " ".join(COMMANDS[name].help.split())
    assert paragraph.startswith(shown)
