"""Two sides, interleaved: rounds of fresh processes, each measuring all points once.

The process is the unit of replication, so a round is one process of one side; base
and new alternate who goes first, so that what changes slowly on the machine falls on
both.  Each round is on disk before the next begins: a killed run resumes.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import ValidationError

from mhaprof.compare import Comparison, Policy, RunRows, compare
from mhaprof.compare import rounds as rounds_of_a_point
from mhaprof.errors import EXIT_INTERRUPTED, EXIT_USAGE, Unavailable, UsageError
from mhaprof.records import SCHEMA_VERSION, Environment, Record

SideName = Literal["base", "new"]
Progress = Callable[[str], None]
Key = tuple[Any, ...]

DEFAULT_ROUNDS = 5
"""Processes a side: the fewest with which six points can be judged together (Holm)."""

TREATMENTS = ("torch",)
"""Conditions that may differ because they are what is being compared."""

_RAW = ("samples_s", "process_time_s")
_KEY = ("name", "role", "implementation", "device", "dtype", "threads", "cache", "mode", "compiled")


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side: an interpreter, and a folder that it imports from before all others.

    A side with a folder also works in it: what lies in the caller's working directory
    would else be imported by both sides.
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
        return environment


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is compared: a configuration, two sides, rounds a side, further flags.

    ``arguments`` go to every ``mhaprof latency``.
    """

    config: Path
    base: Side
    new: Side
    rounds: int = DEFAULT_ROUNDS
    arguments: tuple[str, ...] = ()

    @property
    def sides(self) -> tuple[Side, Side]:
        """Return base and new."""
        return self.base, self.new

    def key(self) -> str:
        """Return what tells this comparison from others: content, sides and flags."""
        content = [self.config.read_text(encoding="utf-8"), *self.arguments]
        content += [f"{side.name} {side.python} {side.path}" for side in self.sides]
        return hashlib.sha256("\0".join(content).encode()).hexdigest()[:12]


class Round(Record):
    """One process of one side: its rows with raw samples, and where it ran."""

    side: SideName
    number: int
    rows: list[dict[str, Any]]
    environment: Environment | None = None


class Launch(Protocol):
    """Run one round of one side and return what it measured."""

    def __call__(self, plan: Plan, side: Side, number: int) -> Round:
        """Return the round; raises MhaprofError when nothing was measured."""
        ...


def launch(plan: Plan, side: Side, number: int) -> Round:
    """Measure all points in one fresh process.

    Raises UsageError when the process refuses its configuration or the interpreter
    cannot run, Unavailable (code ``round_failed``) when it ends without rows, and
    KeyboardInterrupt when it was interrupted.
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
                row.update({name: raw.get(name) for name in _RAW})
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
    raise Unavailable(said, code="round_failed")


class Journal:
    """The file of a comparison: a header, then one line per round."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path = path
        self.rounds: list[Round] = []
        header = {"schema_version": SCHEMA_VERSION, "kind": "ab", "key": plan.key()}
        if path.exists() and path.stat().st_size:
            self._read(header)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._append(json.dumps(header))

    def _read(self, header: Mapping[str, Any]) -> None:
        """Read the rounds; a last line cut short by a kill is dropped from the file."""
        text = self.path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        try:
            first, *lines = whole.splitlines()
            found = json.loads(first)
            rounds = [Round.model_validate_json(line) for line in lines]
        except (ValueError, ValidationError) as error:
            raise UsageError(f"{self.path} is not a file of mhaprof ab; give another --out") from (
                error
            )
        if found != header:
            raise UsageError(
                f"{self.path} holds another comparison (other configuration, interpreters, "
                "paths or flags); give another --out, or delete it"
            )
        if whole != text:
            with self.path.open("r+", encoding="utf-8") as file:
                file.truncate(len(whole.encode()))
        self.rounds = rounds

    def _append(self, line: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def add(self, found: Round) -> None:
        """Store a round: on disk when this returns."""
        self._append(found.model_dump_json())
        self.rounds.append(found)

    def has(self, side: Side, number: int) -> bool:
        """Say whether a round is stored."""
        return any(found.side == side.name and found.number == number for found in self.rounds)

    def of(self, side: SideName) -> list[Round]:
        """Return the rounds of one side in the order in which they were planned."""
        return sorted(
            (found for found in self.rounds if found.side == side),
            key=lambda found: found.number,
        )


def run_ab(
    plan: Plan,
    journal: Journal,
    policy: Policy,
    *,
    allow_env_mismatch: Collection[str] = (),
    launch: Launch = launch,
    progress: Progress = lambda message: None,
) -> Comparison:
    """Measure both sides, judge, and measure once more what regressed or stayed open.

    The second time adds as many rounds again, of all points; both are judged together.
    Raises what ``launch`` and ``compare`` raise.
    """
    allowed = {*TREATMENTS, *allow_env_mismatch}
    _measure(plan, journal, range(1, plan.rounds + 1), launch=launch, progress=progress)
    comparison = judge(journal, policy, allow_env_mismatch=allowed)
    again = remeasured(comparison)
    if again:
        numbers = range(plan.rounds + 1, 2 * plan.rounds + 1)
        if not all(journal.has(side, number) for side in plan.sides for number in numbers):
            progress(f"measuring once more: {', '.join(again[:3])}{', ...' if again[3:] else ''}")
        _measure(plan, journal, numbers, launch=launch, progress=progress)
        comparison = judge(journal, policy, allow_env_mismatch=allowed)
    return comparison


def _measure(
    plan: Plan, journal: Journal, numbers: range, *, launch: Launch, progress: Progress
) -> None:
    """Run the rounds that are not stored; the sides take turns in going first."""
    for number in numbers:
        for side in plan.sides if number % 2 else reversed(plan.sides):
            if not journal.has(side, number):
                progress(f"round {number} of {numbers[-1]}, {side.name}")
                journal.add(launch(plan, side, number))


def remeasured(comparison: Comparison) -> list[str]:
    """Return the points whose time regressed or could not be decided."""
    return [
        point.label
        for point, judgement in comparison.judgements()
        if judgement.metric == "latency" and judgement.verdict in ("regressed", "inconclusive")
    ]


def judge(
    journal: Journal, policy: Policy, *, allow_env_mismatch: Collection[str] = TREATMENTS
) -> Comparison:
    """Compare what is stored of both sides."""
    base, new = journal.of("base"), journal.of("new")
    shared = _contended(base) | _contended(new)
    by_cpu_time = shared & _with_cpu_time(base) & _with_cpu_time(new)
    return compare(
        _side_rows(base, by_cpu_time),
        _side_rows(new, by_cpu_time),
        policy,
        allow_env_mismatch=allow_env_mismatch,
    )


def _side_rows(rounds: Sequence[Round], by_cpu_time: Collection[Key]) -> RunRows:
    return RunRows(
        source=rounds[0].side,
        rows=fold(rounds, by_cpu_time=by_cpu_time),
        environment=rounds[0].environment,
    )


def _keyed(found: Round) -> dict[Key, dict[str, Any]]:
    """Return the rows of a round by what tells them apart; equal ones are numbered."""
    seen: defaultdict[Key, int] = defaultdict(int)
    rows = {}
    for row in found.rows:
        key = tuple(row.get(name) for name in _KEY)
        seen[key] += 1
        rows[(*key, seen[key])] = row
    return rows


def _contended(rounds: Sequence[Round]) -> set[Key]:
    """Return the points that shared the machine in any round."""
    return {
        key
        for found in rounds
        for key, row in _keyed(found).items()
        if "contended" in str(row.get("flags") or "")
    }


def _with_cpu_time(rounds: Sequence[Round]) -> set[Key]:
    """Return the points of one thread that have CPU times in every round.

    Several threads spin while they wait: their CPU time says nothing.
    """
    per_round = [
        {
            key
            for key, row in _keyed(found).items()
            if row.get("threads") == 1 and row.get("process_time_s")
        }
        for found in rounds
    ]
    return set.intersection(*per_round) if per_round else set()


def fold(rounds: Sequence[Round], *, by_cpu_time: Collection[Key]) -> list[dict[str, Any]]:
    """Fold the rounds of one side into one row per point.

    The statistic of a round is the minimum of CPU time for points in ``by_cpu_time``
    (the machine was shared), else the median that the round reports, in seconds.  A
    point that did not end ok in some round is what it was in that round.
    """
    gathered: dict[Key, list[dict[str, Any]]] = {}
    for found in rounds:
        for key, row in _keyed(found).items():
            gathered.setdefault(key, []).append(row)
    return [
        _folded(rows, rounds=len(rounds), cpu_time=key in by_cpu_time)
        for key, rows in gathered.items()
    ]


def _folded(rows: Sequence[dict[str, Any]], *, rounds: int, cpu_time: bool) -> dict[str, Any]:
    times = [min(row["process_time_s"]) for row in rows] if cpu_time else None
    folded = rounds_of_a_point.fold(rows, times_s=times)
    if folded["status"] == "ok" and len(rows) < rounds:
        missing = f"measured in {len(rows)} of {rounds} rounds"
        return folded | {"status": "failed", "reason": "rounds_missing", "message": missing}
    return folded | {"timer": "process", "flags": None} if cpu_time else folded
