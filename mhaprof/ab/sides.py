"""The two sides of a comparison: an interpreter, a folder of code, and one round of it."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from mhaprof.errors import EXIT_INTERRUPTED, EXIT_USAGE, Unavailable, UsageError
from mhaprof.records import Environment, Record

SideName = Literal["base", "new"]

KILLED = "killed"
"""The code of a process that a signal ended: a segmentation fault, or no memory."""

RAW = ("samples_s", "process_time_s")

_CODE = (".py", ".so", ".pyd", ".dll", ".dylib", ".c", ".cc", ".cpp", ".h", ".cu", ".cuh")
_MOST_FILES = 20_000


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side: an interpreter, and a folder that it imports from before all others.

    A side with a folder also works in it: what lies in the caller's working directory
    would else be imported by both sides.  A side without one imports what its interpreter
    has installed, and from the working directory only what is not.
    """

    name: SideName
    python: str
    path: str | None = None

    def command(self, config: Path, arguments: Sequence[str], samples_out: Path) -> list[str]:
        """Return the command line of one round: the one place where it is made."""
        return [
            *(self.python, "-m", "mhaprof", "latency", str(config.resolve())),
            *("--format", "json", "--no-compare", "--samples-out", str(samples_out)),
            *arguments,
        ]

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a round: the path goes first on PYTHONPATH."""
        environment = dict(inherited)
        if self.path:
            rest = inherited.get("PYTHONPATH")
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (self.path, rest)))
        else:
            environment["PYTHONSAFEPATH"] = "1"
        return environment

    def code(self) -> str:
        """Return a fingerprint of the code in the folder that the side works in.

        Of the contents of its sources and libraries; folders whose name begins with a
        dot, and virtual environments, are left out.
        """
        folder = Path(self.path or ".").resolve()
        found = hashlib.sha256()
        for file in islice(_code_files(folder), _MOST_FILES):
            found.update(f"{file.relative_to(folder)}\0".encode())
            try:
                found.update(hashlib.sha256(file.read_bytes()).digest())
            except OSError:
                continue
        return found.hexdigest()[:12]


def _code_files(folder: Path) -> Iterator[Path]:
    """Yield the files of code below a folder, in a fixed order."""
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith((".", "__pycache__"))
            and not Path(here, name, "pyvenv.cfg").exists()
        )
        yield from (Path(here, name) for name in sorted(files) if name.endswith(_CODE))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is compared: a configuration, two sides, rounds a side, further flags.

    ``arguments`` go to every ``mhaprof latency``.
    """

    config: Path
    base: Side
    new: Side
    rounds: int
    arguments: tuple[str, ...] = ()

    @property
    def sides(self) -> tuple[Side, Side]:
        """Return base and new."""
        return self.base, self.new

    def key(self) -> str:
        """Return what tells this comparison from others: content, sides, code, flags, rounds.

        Rounds too: to add some until the verdict pleases is no test.
        """
        content = [self.config.read_text(encoding="utf-8"), str(self.rounds), *self.arguments]
        for side in self.sides:
            content.append(f"{side.name} {side.python} {side.path} {side.code()}")
        return hashlib.sha256("\0".join(content).encode()).hexdigest()[:12]


class Round(Record):
    """One process of one side: its rows with raw samples, and where it ran."""

    side: SideName
    number: int
    rows: list[dict[str, Any]]
    environment: Environment | None = None


def launch(plan: Plan, side: Side, number: int) -> Round:
    """Measure all points in one fresh process.

    Raises UsageError when the process refuses its configuration or the interpreter
    cannot run, Unavailable when it ends without rows (code ``killed`` if by a signal,
    else ``round_failed``), and KeyboardInterrupt when it was interrupted.
    """
    with tempfile.TemporaryDirectory(prefix="mhaprof-ab-") as folder:
        samples = Path(folder) / "samples.json"
        try:
            done = subprocess.run(
                side.command(plan.config, plan.arguments, samples),
                capture_output=True,
                text=True,
                env=side.environment(os.environ),
                cwd=side.path,
                check=False,
            )
        except OSError as error:
            raise UsageError(
                f"--{side.name} {side.python}: cannot be run: {error.strerror}; "
                "expected a Python interpreter that has mhaprof"
            ) from error
        if done.returncode == EXIT_INTERRUPTED:
            raise KeyboardInterrupt
        document = _document(done, side)
        rows = document["rows"]
        if samples.exists():
            for row, raw in zip(rows, json.loads(samples.read_text())["rows"], strict=True):
                row.update({name: raw.get(name) for name in RAW})
    return Round(side=side.name, number=number, rows=rows, environment=document.get("environment"))


def _document(done: subprocess.CompletedProcess[str], side: Side) -> dict[str, Any]:
    """Return the JSON document of a round, or raise what the process said."""
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        document = {}
    if document.get("rows"):
        return document
    lines = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]
    message = str(document.get("error", {}).get("message") or lines[-1])
    said = f"--{side.name} {side.python}: {message}"
    if done.returncode == EXIT_USAGE:
        raise UsageError(said)
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise Unavailable(f"--{side.name} {side.python}: killed by {name}", code=KILLED)
    raise Unavailable(said, code="round_failed")
