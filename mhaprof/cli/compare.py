"""``mhaprof compare``: two runs side by side, with a verdict and a reason per metric."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from mhaprof.cli.options import listed, option, takes
from mhaprof.cli.output import Output, OutputFlags, say
from mhaprof.compare import (
    CONDITIONS,
    PRESETS,
    Comparison,
    Policy,
    RunRows,
    load_policy,
    require_conditions,
)
from mhaprof.compare import compare as compare_runs
from mhaprof.errors import EXIT_OK
from mhaprof.report.comparison import document_of, rows_of, view_of
from mhaprof.report.runfile import load_baseline, load_candidate, load_run

BaseFile = Annotated[
    Path, typer.Argument(help="run file or baseline to compare with", metavar="BASE")
]
NewFile = Annotated[Path, typer.Argument(help="run file of the candidate", metavar="NEW")]


@dataclass(frozen=True, kw_only=True)
class Judging:
    """By which rules two runs are compared."""

    policy: Policy
    allow_env_mismatch: tuple[str, ...]

    def judge(self, base: RunRows, new: RunRows) -> Comparison:
        """Compare two runs; raises NotComparable naming what differs."""
        allowed = self.allow_env_mismatch
        comparison = compare_runs(base, new, self.policy, allow_env_mismatch=allowed)
        names = [(point.name, point.implementation) for point in comparison.points]
        for rule in self.policy.unused_rules(names):
            say(
                f"policy: no point matches name {rule.name!r}, implementation "
                f"{rule.implementation!r}"
            )
        return comparison


class _JudgingFlags:
    """``--policy``, ``--strict`` and ``--allow-env-mismatch``."""

    def parameters(self) -> list[inspect.Parameter]:
        """Return the three options."""
        panel = {"rich_help_panel": "Judging"}
        return [
            option(
                "policy",
                str | None,
                help=f"a YAML file of rules, or a preset: {', '.join(PRESETS)}",
                show_default="default",
                metavar="FILE|PRESET",
                **panel,
            ),
            option(
                "strict",
                bool,
                default=False,
                help="exit 5 when something is inconclusive",
                **panel,
            ),
            option(
                "allow_env_mismatch",
                list[str] | None,
                help="compare although these conditions differ (a list): " + ", ".join(CONDITIONS),
                metavar="KEY",
                **panel,
            ),
        ]

    def collect(self, values: Mapping[str, Any]) -> Judging:
        """Load the policy."""
        policy = load_policy(values["policy"])
        if values["strict"]:
            policy = policy.model_copy(update={"strict": True})
        allowed = tuple(listed(values["allow_env_mismatch"] or ()))
        require_conditions(allowed)
        return Judging(policy=policy, allow_env_mismatch=allowed)


JudgingFlags = _JudgingFlags()


@takes(judging=JudgingFlags, out=OutputFlags)
def compare(base: BaseFile, new: NewFile, *, judging: Judging, out: Output) -> int:
    """Compare two runs point by point: metrics, ratio with interval, verdict, reason.

    Exits 0 whatever it finds; `mhaprof gate` fails on a regression.
    """
    comparison = judging.judge(*load_sides(base, new, baselines=True))
    emit(comparison, out, title=f"{base} -> {new}", everything=True)
    return EXIT_OK


def load_sides(base: Path, new: Path, *, baselines: bool = False) -> tuple[RunRows, RunRows]:
    """Read a baseline (or a run in its place) and a run; with ``baselines`` also two of them."""
    baseline = load_baseline(base)
    candidate = load_run(new) if baselines and baseline.is_baseline else load_candidate(new)
    for run in (baseline, candidate):
        if run.earlier:
            say(f"{run.source}: rows of earlier plans, not judged: {run.earlier}")
    return baseline, candidate


def emit(comparison: Comparison, out: Output, *, title: str, everything: bool) -> None:
    """Write a comparison in the format asked for; sentences alone where no row is shown."""
    if not out.has_views:
        out.emit(rows_of(comparison), [], **document_of(comparison))
        return
    view = view_of(comparison, title=title, everything=everything)
    if view.rows:
        out.emit([], [view])
    else:
        out.write("\n".join([title, *view.notes]) + "\n")
