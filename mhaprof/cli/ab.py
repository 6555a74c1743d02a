"""``mhaprof ab``: two interpreters or two checkouts against each other, on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from mhaprof import signals
from mhaprof.ab import DEFAULT_ROUNDS, TREATMENTS, Journal, Plan, Side, SideName, judge, run_ab
from mhaprof.cli.compare import Judging, JudgingFlags, emit
from mhaprof.cli.gate import conclude
from mhaprof.cli.options import flag, takes
from mhaprof.cli.output import Output, OutputFlags, say
from mhaprof.errors import EXIT_OK, UsageError
from mhaprof.records import MOST
from mhaprof.store.lock import WriterLock

FOLDER = Path("results/ab")
SIDES: dict[str, Any] = {"rich_help_panel": "Sides"}
PLACE = "folder to work in and to import from first,"


@takes(judging=JudgingFlags, output=OutputFlags)
def ab(
    config: Annotated[
        Path, typer.Argument(help="YAML file of points and sweeps", metavar="CONFIG")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="flags for `mhaprof latency`, after --: -- --threads 1 --impl sdpa",
            metavar="-- FLAGS",
        ),
    ] = None,
    base: Annotated[
        str | None, flag("PYTHON", "Python interpreter of the base", "this one", **SIDES)
    ] = None,
    new: Annotated[
        str | None, flag("PYTHON", "Python interpreter of the candidate", "this one", **SIDES)
    ] = None,
    base_path: Annotated[Path | None, flag("FOLDER", f"{PLACE} of the base", **SIDES)] = None,
    new_path: Annotated[Path | None, flag("FOLDER", f"{PLACE} of the candidate", **SIDES)] = None,
    rounds: Annotated[int, flag("N", "fresh processes a side", min=1, max=MOST)] = DEFAULT_ROUNDS,
    out: Annotated[
        Path | None,
        flag("FILE", "file of rounds to make or to resume", "results/ab/NAME-KEY.jsonl"),
    ] = None,
    *,
    judging: Judging,
    output: Output,
) -> int:
    """Measure two sides in interleaved rounds of fresh processes, and judge like a gate.

    On a CPU the two processes of a round take turns, and are in memory together;
    on an accelerator one follows the other.  What regresses or stays inconclusive
    is measured once more.  A run that was killed resumes with the same command.
    On a shared CPU give -- --threads 1: the time of one thread can be told from
    the work of others.
    """
    if not config.is_file():
        raise UsageError(f"{config}: there is no such file; expected a YAML file of points")
    plan = Plan(
        config=config,
        base=_side("base", base, base_path),
        new=_side("new", new, new_path),
        rounds=rounds,
        arguments=tuple(arguments or ()),
    )
    path = out or FOLDER / f"{config.stem}-{plan.key()}.jsonl"
    with writing(path):
        journal = Journal(path, plan)
        if journal.pairs:
            say(f"resuming {path}: {len(journal.pairs)} rounds are stored; delete it to begin anew")
        allowed = judging.allow_env_mismatch
        signals.enter("keeping")
        try:
            comparison = run_ab(
                plan, journal, judging.policy, allow_env_mismatch=allowed, progress=say
            )
        except KeyboardInterrupt:
            if not journal.pairs:
                raise
            signals.interrupted()
            signals.enter("writing")
            done = f"interrupted after {len(journal.pairs)} of {rounds} rounds, not decided"
            so_far = judge(journal, judging.policy, allow_env_mismatch={*TREATMENTS, *allowed})
            emit(so_far, output, title=f"ab: {config}: {done}", everything=True)
            say(f"{done}; the same command resumes {path}")
            return signals.exit_code(EXIT_OK)
    return conclude(comparison, output, title=f"ab: {config}", update=None)


def _side(name: SideName, python: str | None, path: Path | None) -> Side:
    if path is not None and not path.is_dir():
        raise UsageError(f"--{name}-path {path} is not a folder")
    folder = None if path is None else str(path.resolve())
    interpreter = python or sys.executable
    if os.path.dirname(interpreter):
        # Not resolved: a virtual environment's interpreter is a link.
        interpreter = os.path.abspath(interpreter)
    return Side(name=name, python=interpreter, path=folder)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Be the only one that writes a file of rounds.

    Raises Unavailable when another process does, UsageError where none can be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = WriterLock(path)
    except OSError as error:
        raise UsageError(f"--out {path} cannot be written: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()
