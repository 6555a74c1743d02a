"""``mhaprof verify``: what a user runs to trust an install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, get_args

import typer

from mhaprof import signals
from mhaprof.cli.options import AllowImport, choices, impl_option, listed, one_of, takes
from mhaprof.cli.output import Output, OutputFlags, say
from mhaprof.cli.progress import Bar
from mhaprof.errors import EXIT_FINDING, EXIT_OK
from mhaprof.point import count_point
from mhaprof.records import DEVICES, Dtype, Measured, Point
from mhaprof.report.view import View, number, text
from mhaprof.spec import AttentionSpec


@takes(out=OutputFlags)
def verify(
    impl: Annotated[list[str] | None, impl_option("to verify", "all")] = None,
    device: Annotated[str, typer.Option(help="where to run", metavar=DEVICES)] = "cpu",
    dtype: Annotated[str, typer.Option(help="element type", metavar=choices(Dtype))] = "float64",
    all_rows: Annotated[
        bool, typer.Option("--all", help="show every check, not a line per implementation")
    ] = False,
    allow_import: AllowImport = False,
    *,
    out: Output,
) -> int:
    """Check every implementation against the float64 reference, and all counters.

    Results and gradients on a set of shapes, the worked example and the order
    experiment of the articles, and the agreement of fvcore, torch and the closed form.
    Exits 1 on any difference.
    """
    from mhaprof import attention
    from mhaprof.measure.devices import resolve_device, threads
    from mhaprof.verification import CASES, verdicts

    dtype = one_of("--dtype", dtype, get_args(Dtype))
    names = tuple(listed(impl or attention.names()))
    for name in names:
        attention.get(name, allow_import=allow_import)
    rows: list[dict[str, Any]] = []
    place = resolve_device(device)
    # On shapes this small, threads of a CPU would only wait for each other.
    alone = threads(1 if place == "cpu" else None)
    with alone, Bar(total=len(names) * (2 + 3 * len(CASES))) as bar, _interruptible():
        for verdict in verdicts(
            implementations=names,
            device=place,
            dtype=dtype,
            counters=counters_disagree,
            allow_import=allow_import,
        ):
            bar.start(f"{verdict.implementation}, {verdict.check}")
            signals.enter("keeping")
            rows.append(
                {
                    "implementation": verdict.implementation,
                    "check": verdict.check,
                    "case": verdict.case,
                    "status": verdict.status,
                    "max_error": verdict.max_error,
                    "tolerance": verdict.tolerance,
                    "message": verdict.message,
                }
            )
    wrong = [row for row in rows if row["status"] == "failed"]
    for row in wrong:
        say(f"{row['implementation']}, {row['check']}, {row['case']}: {row['message']}")
    out.emit(rows, [_every_check(rows) if all_rows else _summary(rows)])
    return EXIT_FINDING if wrong else EXIT_OK


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let a signal end the checks: those that ran are shown."""
    try:
        yield
    except KeyboardInterrupt:
        signals.interrupted()
        say("interrupted: the checks that are not shown were not run")


def counters_disagree(implementation: str, spec: AttentionSpec) -> str | None:
    """Return how the counters of an implementation disagree on a spec, or None."""
    point = Point(name="verify", spec=spec, implementation=implementation)
    outcome = count_point(point, allow_import=True).outcome
    if isinstance(outcome, Measured):
        blocking = [finding.message for finding in outcome.findings if finding.blocking]
        return "; ".join(blocking) or None
    return outcome.message


def _every_check(rows: list[dict[str, Any]]) -> View:
    columns = [
        text("implementation", "implementation"),
        text("check", "check"),
        text("case", "case"),
        text("status", "status"),
        number("largest error", "max_error", lambda value: f"{value:.2g}"),
        number("tolerance", "tolerance", lambda value: f"{value:.2g}"),
        text("why", "message"),
    ]
    return View(title="Every check", columns=columns, rows=rows)


def _summary(rows: list[dict[str, Any]]) -> View:
    """Count the checks of each implementation by how they ended."""
    names = dict.fromkeys(row["implementation"] for row in rows)
    lines = []
    for name in names:
        mine = [row for row in rows if row["implementation"] == name]
        ended = {
            status: sum(row["status"] == status for row in mine)
            for status in ("ok", "failed", "skipped")
        }
        reasons = dict.fromkeys(
            row["message"].partition(":")[0] for row in mine if row["status"] == "skipped"
        )
        line = {"implementation": name, **ended, "why": ", ".join(r for r in reasons if r)}
        lines.append({**line, "status": "failed" if ended["failed"] else "ok"})
    columns = [
        text("implementation", "implementation"),
        number("ok", "ok", str),
        number("failed", "failed", str),
        number("skipped", "skipped", str),
        text("skipped because", "why"),
    ]
    return View(title="Checks of this install", columns=columns, rows=lines)
