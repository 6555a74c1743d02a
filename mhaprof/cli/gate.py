"""``mhaprof gate``: fail when the candidate is worse than the baseline."""

from __future__ import annotations

import inspect
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mhaprof.cli.compare import BaseFile, Judging, JudgingFlags, NewFile, emit, load_sides
from mhaprof.cli.options import option, takes
from mhaprof.cli.output import Output, OutputFlags, check_writable, say, write_file
from mhaprof.compare import Comparison, RunRows
from mhaprof.compare.baseline import ROOT, by_file, slug
from mhaprof.errors import EXIT_FINDING, UsageError
from mhaprof.report.benchmarks import (
    Row,
    bencher,
    github_benchmark,
    has_benchmarks,
    has_times,
    pyperf,
)
from mhaprof.report.ci import SUMMARY_LIMIT, summary, workflow_commands
from mhaprof.report.comparison import conclusion
from mhaprof.report.junit import to_junit

_OF_ROWS: Mapping[str, Callable[[Sequence[Row]], str]] = {
    "github_benchmark": github_benchmark,
    "bencher": bencher,
    "pyperf": pyperf,
}


@dataclass(frozen=True, kw_only=True)
class Exports:
    """Which further files are written, by the name of their flag."""

    paths: Mapping[str, Path]

    def write(self, comparison: Comparison, rows: Sequence[Row]) -> None:
        """Write each file atomically: the comparison as JUnit, the candidate's rows else.

        A suite without a time is none that pyperf reads, nor an empty list one that
        github-action-benchmark does: they are not written, and that is said.
        """
        for name, path in self.paths.items():
            if name == "pyperf" and not has_times(rows):
                say(f"--pyperf {path} is not written: no point of the candidate has a time")
                continue
            if name == "github_benchmark" and not has_benchmarks(rows):
                say(f"--github-benchmark {path} is not written: the candidate has no number")
                continue
            text = to_junit(comparison) if name == "junit" else _OF_ROWS[name](rows)
            write_file(path, text, flag=f"--{name.replace('_', '-')}")


class _ExportFlags:
    """``--junit``, ``--github-benchmark``, ``--bencher`` and ``--pyperf``, a file each."""

    _HELP: Mapping[str, str] = {
        "junit": "also write the verdicts as JUnit XML",
        "github_benchmark": "also write the candidate for github-action-benchmark "
        "(tool customSmallerIsBetter)",
        "bencher": "also write the candidate in Bencher Metric Format",
        "pyperf": "also write the candidate's times as a pyperf 1.0 suite",
    }

    def parameters(self) -> list[inspect.Parameter]:
        """Return one option per format."""
        return [
            option(name, Path | None, help=text, metavar="FILE", rich_help_panel="Exports")
            for name, text in self._HELP.items()
        ]

    def collect(self, values: Mapping[str, Any]) -> Exports:
        """Keep what was given; refuse a file that cannot be created before any work."""
        paths = {name: path for name, path in values.items() if path is not None}
        for name, path in paths.items():
            check_writable(path, flag=f"--{name.replace('_', '-')}")
        return Exports(paths=paths)


ExportFlags = _ExportFlags()


@takes(judging=JudgingFlags, exports=ExportFlags, out=OutputFlags)
def gate(base: BaseFile, new: NewFile, *, judging: Judging, exports: Exports, out: Output) -> int:
    """Fail when a count, a status, a time or a peak became worse than in the baseline.

    Exit codes: 0 fine, 1 regressed, 2 usage, 3 no baseline, or nothing comparable,
    4 a point still fails, 5 inconclusive under --strict.  On GitHub Actions it
    also writes annotations and the job summary.
    """
    baseline, candidate = load_sides(base, new)
    if base.samefile(new):
        say(f"{new} is on both sides, and a file is never worse than itself: nothing was tested")
    comparison = judging.judge(baseline, candidate)
    regressed = comparison.exit_code == EXIT_FINDING
    update = _update_command(base, new, candidate) if regressed else None
    code = conclude(comparison, out, title=f"gate: {base} -> {new}", update=update)
    exports.write(comparison, candidate.rows)
    return code


def _update_command(base: Path, new: Path, candidate: RunRows) -> str | None:
    """Return the command that accepts the candidate; None where a point of it failed.

    It writes the very baseline that was given, where BASE is one in its place.
    """
    folder = base.parent.parent
    try:
        written = by_file(candidate, name=base.stem)
    except UsageError:
        return None
    command = ["mhaprof", "baseline", "update", str(new)]
    if any((folder / relative).resolve() == base.resolve() for relative in written):
        command += [] if slug(new.stem) == base.stem else ["--name", base.stem]
        command += [] if folder.resolve() == ROOT.resolve() else ["--directory", str(folder)]
        return shlex.join(command)
    return f"{shlex.join(command)} (and give the file it writes as BASE)"


def conclude(comparison: Comparison, out: Output, *, title: str, update: str | None) -> int:
    """Show what matters, tell GitHub, say how it ended; return the exit code."""
    emit(comparison, out, title=title, everything=False)
    tell_github(comparison, os.environ, title=title, on_stdout=out.format == "table")
    for sentence in conclusion(comparison, update=update):
        say(sentence)
    return comparison.exit_code


def tell_github(
    comparison: Comparison, environment: Mapping[str, str], *, title: str, on_stdout: bool
) -> None:
    """Write annotations and the job summary where the environment asks for them.

    GitHub reads annotations from both streams; they go to stderr where stdout holds data.
    """
    if environment.get("GITHUB_ACTIONS") == "true":
        for command in workflow_commands(comparison):
            print(command, file=sys.stdout if on_stdout else sys.stderr)
    target = environment.get("GITHUB_STEP_SUMMARY")
    if not target:
        return
    path = Path(target)
    try:
        room = SUMMARY_LIMIT - (path.stat().st_size if path.exists() else 0)
        text = summary(comparison, title=title, limit=room)
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        say(f"GITHUB_STEP_SUMMARY {target} cannot be written: {error.strerror or error}")
