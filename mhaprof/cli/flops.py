"""``mhaprof flops``: exact counts of the attention asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Optional

import typer

from mhaprof.cli.options import SpecFlags, takes
from mhaprof.cli.output import Output, OutputFlags, say
from mhaprof.cli.planning import Impossible, plan, points_of, reference_points
from mhaprof.errors import EXIT_FINDING, EXIT_OK, EXIT_POINT_FAILED, UsageError
from mhaprof.point import COUNTERS, DEFAULT_CACHE_DTYPE, count_point
from mhaprof.records import Failed, Measured, Result
from mhaprof.report.tabular import row_of
from mhaprof.report.view import View
from mhaprof.report.views import breakdown_view, counts_view, findings_notes
from mhaprof.units import DTYPE_BYTES

DEFAULT_IMPLEMENTATIONS = ("eager",)


@takes(given=SpecFlags, out=OutputFlags)
def flops(
    config: Annotated[
        Optional[Path], typer.Argument(help="YAML file of points and sweeps", metavar="[CONFIG]")
    ] = None,
    impl: Annotated[
        Optional[list[str]],
        typer.Option(help="implementation to count (repeatable)", show_default="eager"),
    ] = None,
    counter: Annotated[
        Optional[list[str]],
        typer.Option(
            help="counter to use (repeatable); closed-form alone imports no torch",
            metavar="|".join(COUNTERS),
            show_default="all three, which must agree",
        ),
    ] = None,
    breakdown: Annotated[bool, typer.Option("--breakdown", help="show each stage")] = False,
    reference: Annotated[
        bool,
        typer.Option(
            "--reference/--no-reference",
            help="add the row of one full head without W_O, which ratios refer to",
        ),
    ] = True,
    backward: Annotated[
        bool, typer.Option("--backward", help="add the FLOPs of the backward pass")
    ] = False,
    cache_dtype: Annotated[
        str,
        typer.Option(
            help="dtype of the KV cache and of the bytes in FLOPs per byte",
            metavar="|".join(DTYPE_BYTES),
        ),
    ] = DEFAULT_CACHE_DTYPE,
    *,
    given: dict[str, list[object]],
    out: Output,
) -> int:
    """Count the operations of attention, exactly: by fvcore, torch and the closed form.

    Without flags: dim 512, heads 8, tokens 1024, batch 32.  A flag takes a list
    (--heads 1,2,4), which makes a grid.
    """
    counters = _checked_counters(counter)
    if cache_dtype not in DTYPE_BYTES:
        raise UsageError(f"--cache-dtype {cache_dtype!r} is not one of {', '.join(DTYPE_BYTES)}")
    planned = plan(config, given)
    implementations = tuple(impl or DEFAULT_IMPLEMENTATIONS)
    results: list[Result] = []
    if reference:
        results += [
            count_point(point, counters=counters, backward=backward, cache_dtype=cache_dtype)
            for point in reference_points(p for p in planned if not isinstance(p, Impossible))
        ]
    for entry in planned:
        if isinstance(entry, Impossible):
            results += [entry.result(name) for name in entry.implementations or implementations]
            continue
        for point in points_of(entry, implementations):
            results.append(
                count_point(point, counters=counters, backward=backward, cache_dtype=cache_dtype)
            )
    rows = [row_of(result) for result in results]
    if not reference:
        for row in rows:
            row["ratio_to_reference"] = None
    out.emit(rows, _views(rows, breakdown=breakdown))
    for note in findings_notes(rows):
        say(note)
    return exit_code(results)


def _views(rows: Sequence[dict[str, object]], *, breakdown: bool) -> list[View]:
    title = "MACs by stage" if breakdown else "Operations of one forward pass, dense"
    if breakdown:
        return [breakdown_view(rows, title=title)]
    return [counts_view(rows, title=title)]


def _checked_counters(given: Sequence[str] | None) -> tuple[str, ...]:
    for name in given or ():
        if name not in COUNTERS:
            raise UsageError(f"--counter {name!r} is not one of {', '.join(COUNTERS)}")
    return tuple(given or COUNTERS)


def exit_code(results: Sequence[Result]) -> int:
    """Return 1 for a blocking finding, 4 when a point failed or none was measured."""
    outcomes = [result.outcome for result in results if result.point.role == "point"]
    everything = [result.outcome for result in results]
    if any(isinstance(outcome, Failed) for outcome in everything):
        return EXIT_POINT_FAILED
    if any(
        finding.blocking
        for outcome in everything
        if isinstance(outcome, Measured)
        for finding in outcome.findings
    ):
        return EXIT_FINDING
    if outcomes and not any(isinstance(outcome, Measured) for outcome in outcomes):
        return EXIT_POINT_FAILED
    return EXIT_OK
