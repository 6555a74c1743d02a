"""The application as a whole: version, help, completion, pipes, errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from mhaprof import __version__
from mhaprof.cli import output
from mhaprof.cli.commands import COMMANDS
from mhaprof.cli.output import write_atomically


def test_version(mhaprof: Any) -> None:
    assert mhaprof("--version").out == f"mhaprof {__version__}\n"


def test_no_arguments_show_the_help(mhaprof: Any) -> None:
    ran = mhaprof()
    assert ran.code == 0
    assert "Usage: mhaprof" in ran.out


def test_an_unknown_command_costs_one_line(mhaprof: Any) -> None:
    ran = mhaprof("flosp")
    assert ran.code == 2
    assert ran.err.startswith("mhaprof: No such command 'flosp'")
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("command", ["", "flops", "claim", "latency", "implementations", "env"])
def test_help_imports_no_torch(command: str) -> None:
    code = (
        "import sys; from mhaprof.cli.app import run; run(sys.argv[1:]); "
        "sys.exit(any(m in sys.modules for m in ('torch', 'fvcore', 'pandas', 'numpy')))"
    )
    arguments = [*([command] if command else []), "--help"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "Usage: mhaprof" in done.stdout


def test_importing_the_package_imports_no_torch() -> None:
    code = (
        "import sys, mhaprof; from mhaprof import AttentionSpec; AttentionSpec(); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_shell_completion_is_offered(fresh_mhaprof: Any) -> None:
    ran = fresh_mhaprof("--show-completion", env={"SHELL": "/bin/bash"})
    assert ran.code == 0
    assert "_MHAPROF_COMPLETE" in ran.out or "complete" in ran.out


def test_module_and_script_are_the_same_command() -> None:
    script = Path(sys.executable).with_name("mhaprof")
    by_script = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    by_module = subprocess.run(
        [sys.executable, "-m", "mhaprof", "--version"], capture_output=True, text=True, check=True
    )
    assert by_script.stdout == by_module.stdout == f"mhaprof {__version__}\n"


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
