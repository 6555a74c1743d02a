"""What works where POSIX does not: other systems as this one can play them.

The libraries are imported first, as what they are; mhaprof's own modules see the other
system: its name, and nothing that it has not.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

AS_IF = """
import asyncio, ctypes, multiprocessing, os, select, signal, sqlite3, subprocess, sys, tempfile
import sysconfig, types, urllib.request
import numpy, pandas, psutil, pydantic, rich.console, rich.progress, rich.table, ruamel.yaml
import typer.main, typer.rich_utils
if "flops" in sys.argv and "closed-form" not in sys.argv:
    import fvcore.nn, torch

sysconfig.get_config_vars()
missing = {
    "win32": "signal.SIGHUP signal.SIGKILL os.sched_getaffinity os.killpg os.geteuid os.fork "
    "os.getuid os.statvfs os.uname os.pwrite os.getloadavg select.poll select.epoll",
    "darwin": "os.sched_getaffinity os.memfd_create select.epoll",
}
system = sys.argv.pop(1)
for name in missing[system].split():
    module, attribute = name.split(".")
    delattr(sys.modules[module], attribute)
if system == "win32":
    for name in ("fcntl", "resource", "termios", "pwd", "grp"):
        sys.modules[name] = None
    sys.modules["msvcrt"] = types.ModuleType("msvcrt")
sys.platform = system
from mhaprof.__main__ import main
main()
"""

CONFIG = "version: 1\nname: c\ndefaults: {dim: 64, tokens: 8, batch: 1}\nsweep: {heads: [1, 2]}\n"


def on(system: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "c.yaml").write_text(CONFIG)
    command = [sys.executable, "-c", AS_IF, system, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


@pytest.mark.parametrize("system", ["win32", "darwin"])
@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--help"], "Usage: mhaprof"),
        (["flops", "--counter", "closed-form", "--format", "csv"], "68719476736"),
        (["flops", "--format", "csv"], "68719476736"),
        (["presets", "--format", "csv"], "llama-3-8b"),
        (["model", "--preset", "gpt2", "--format", "csv"], "full_attention"),
    ],
)
def test_counts_and_models_work_on_other_systems(
    tmp_path: Path, system: str, arguments: list[str], shown: str
) -> None:
    done = on(system, tmp_path, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert shown in done.stdout


@pytest.mark.parametrize("command", ["sweep", "ab"])
def test_what_needs_posix_says_so_in_one_line_before_anything_is_measured(
    tmp_path: Path, command: str
) -> None:
    done = on("win32", tmp_path, command, "c.yaml", "--out", "c.out")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == (
        f"mhaprof: {NEEDS} which win32 has not; counts, times, results and gates work here\n"
    )


NEEDS = "sweep, merge and ab need Linux, macOS or WSL: they lock their files by fcntl,"


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_result_files_of_other_systems_are_read_and_judged(tmp_path: Path, system: str) -> None:
    (tmp_path / "c.yaml").write_text(CONFIG)
    sweep = [sys.executable, "-m", "mhaprof", "sweep", "c.yaml", "--inline", "--out", "c.sqlite"]
    subprocess.run(sweep, cwd=tmp_path, capture_output=True, check=True)
    shown = on(system, tmp_path, "results", "c.sqlite", "--format", "csv")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.count(",ok,") == 3
    gated = on(system, tmp_path, "gate", "c.sqlite", "c.sqlite")
    assert gated.returncode == 0
    assert gated.stderr.endswith("mhaprof: the gate passes: 2 compared, 0 skipped\n")


def test_a_sweep_works_where_a_core_cannot_be_asked_for(tmp_path: Path) -> None:
    """As on macOS, with a worker process of its own."""
    done = on("darwin", tmp_path, "sweep", "c.yaml", "--out", "c.sqlite")
    assert (done.returncode, done.stderr) == (0, "mhaprof: c.sqlite: 3 ok, 0 skipped, 0 failed\n")
