"""The two sides of a comparison: an interpreter, a folder of code, and one round of it."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mhaprof.ab.turns import alternate
from mhaprof.errors import EXIT_INTERRUPTED, EXIT_USAGE, Unavailable, UsageError, signal_name
from mhaprof.module_source import fingerprint
from mhaprof.records import Environment, Record
from mhaprof.spec import AttentionSpec

SideName = Literal["base", "new"]

KILLED = "killed"
"""The code of a process that a signal ended: a segmentation fault, or no memory."""

RAW = ("samples_s", "process_time_s")

KEY = ("name", "role", "implementation", "device", "dtype", "threads", "cache", "mode", "compiled")
"""What tells the points of a round apart."""

_ASK = """
from importlib.metadata import version
from importlib.util import find_spec
print(find_spec("mhaprof").origin)
print(version("torch"))
"""


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

    def command(
        self, config: Path, arguments: Sequence[str], samples_out: Path, *, memory: bool = True
    ) -> list[str]:
        """Return the command line of one round: the one place where it is made.

        ``memory`` asks for the peaks too.
        """
        return [
            *(self.python, "-m", "mhaprof", "latency", str(config.resolve())),
            *("--format", "json", "--no-compare", "--samples-out", str(samples_out)),
            "--memory" if memory else "--no-memory",
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
        """Return a fingerprint of the code that the side runs.

        Of the contents of the sources and libraries in the folder that it works in and in
        mhaprof as it imports it, and of torch's version.
        """
        mhaprof, torch = self._imported()
        folders = [Path(self.path or "."), *([Path(mhaprof).parent] if mhaprof else [])]
        return "-".join([*map(fingerprint, folders), torch])

    def _imported(self) -> tuple[str, str]:
        """Return where mhaprof is imported from, and torch's version; empty if unknown."""
        try:
            done = subprocess.run(
                [self.python, "-c", _ASK],
                capture_output=True,
                text=True,
                env=self.environment(os.environ),
                cwd=self.path,
                check=False,
            )
        except OSError:
            return "", ""
        lines = done.stdout.splitlines()
        return (lines[0], lines[1]) if done.returncode == 0 and len(lines) == 2 else ("", "")


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


class Pair(Record):
    """Both sides of one round, which ran at the same time."""

    base: Round
    new: Round


def launch(plan: Plan, number: int) -> Pair:
    """Measure all points once on both sides, each in a fresh process, in turns.

    The base begins in odd rounds.  A candidate that a signal ended fails at every point of
    the base.  Raises UsageError when a process refuses its configuration or an interpreter
    cannot run, Unavailable when one ends without rows (code ``killed`` if by a signal, else
    ``round_failed``), and KeyboardInterrupt when it was interrupted.
    """
    with tempfile.TemporaryDirectory(prefix="mhaprof-ab-") as folder:
        # Peaks hardly vary: once is enough, and once more when all is measured once more.
        memory = number % plan.rounds == 1 % plan.rounds
        runs = [
            _Run(plan=plan, side=side, folder=Path(folder), memory=memory) for side in plan.sides
        ]
        order = runs if number % 2 else runs[::-1]
        codes = dict(zip(order, alternate(*(run.start for run in order)), strict=True))
        base = runs[0].round(number, code=codes[runs[0]])
        try:
            return Pair(base=base, new=runs[1].round(number, code=codes[runs[1]]))
        except Unavailable as error:
            if error.code != KILLED:
                raise
            ended = {"status": "failed", "reason": KILLED, "message": str(error)}
            known = (*KEY, *AttentionSpec.model_fields)
            rows = [{name: row.get(name) for name in known} | ended for row in base.rows]
            return Pair(base=base, new=Round(side="new", number=number, rows=rows))


@dataclass(frozen=True, kw_only=True)
class _Run:
    """One process of one side, and the files that it writes."""

    plan: Plan
    side: Side
    folder: Path
    memory: bool

    def _file(self, kind: str) -> Path:
        return self.folder / f"{self.side.name}-{kind}"

    def start(
        self, variables: Mapping[str, str], descriptors: Sequence[int]
    ) -> subprocess.Popen[bytes]:
        """Start the process; raises UsageError when the interpreter cannot be run."""
        side, plan = self.side, self.plan
        with self._file("out").open("wb") as out, self._file("err").open("wb") as err:
            try:
                return subprocess.Popen(
                    side.command(
                        plan.config,
                        plan.arguments,
                        self._file("samples"),
                        memory=self.memory,
                    ),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env={**side.environment(os.environ), **variables},
                    cwd=side.path,
                    pass_fds=descriptors,
                )
            except OSError as error:
                raise UsageError(
                    f"--{side.name} {side.python}: cannot be run: {error.strerror}; "
                    "expected a Python interpreter that has mhaprof"
                ) from error

    def round(self, number: int, *, code: int) -> Round:
        """Read what the process wrote, or raise what it said."""
        if code == EXIT_INTERRUPTED:
            raise KeyboardInterrupt
        document = self._document(code)
        rows = document["rows"]
        if self._file("samples").exists():
            raw_rows = json.loads(self._file("samples").read_text())["rows"]
            for row, raw in zip(rows, raw_rows, strict=True):
                row.update({name: raw.get(name) for name in RAW})
        environment = document.get("environment")
        return Round(side=self.side.name, number=number, rows=rows, environment=environment)

    def _document(self, code: int) -> dict[str, Any]:
        side = self.side
        ended_by = -code if code < 0 else code - 128
        if code < 0 or ended_by in (signal.SIGTERM, 1):  # 1: SIGHUP, which Windows has not
            name = signal_name(ended_by)
            raise Unavailable(f"--{side.name} {side.python}: killed by {name}", code=KILLED)
        try:
            document: dict[str, Any] = json.loads(self._file("out").read_bytes())
        except ValueError:
            document = {}
        if document.get("rows"):
            return document
        errors = self._file("err").read_text(errors="replace").strip().splitlines()
        lines = errors or [f"it ended with code {code}"]
        message = str(document.get("error", {}).get("message") or lines[-1])
        said = f"--{side.name} {side.python}: {message}"
        if code == EXIT_USAGE:
            raise UsageError(said)
        raise Unavailable(said, code="round_failed")
