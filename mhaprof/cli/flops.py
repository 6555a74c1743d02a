"""``mhaprof flops``: exact counts of the attention asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from functools import partial
from typing import Annotated, Any

import typer

from mhaprof.cli.exits import exit_code, in_turn
from mhaprof.cli.model import ModelChoice, ModelFlags
from mhaprof.cli.module import count_modules
from mhaprof.cli.options import (
    AllowImport,
    ConfigFile,
    SpecFlags,
    flag,
    impl_option,
    listed,
    one_of,
    takes,
)
from mhaprof.cli.output import Output, OutputFlags, say
from mhaprof.cli.planning import (
    AskedModule,
    Impossible,
    Plan,
    plan,
    points_of,
    reference_points,
    versions_of,
)
from mhaprof.config.planned import Again
from mhaprof.errors import EXIT_FINDING, EXIT_OK, UsageError
from mhaprof.module_source import module_point, parse_kwargs
from mhaprof.point import COUNTERS, DEFAULT_CACHE_DTYPE, MeasureOptions, measure_point
from mhaprof.records import Point, Result
from mhaprof.report.explain import explain as explanation
from mhaprof.report.tabular import Row, row_of
from mhaprof.report.view import View
from mhaprof.report.views import breakdown_view, counts_view, findings_notes
from mhaprof.units import DTYPE_BYTES

DEFAULT_IMPLEMENTATIONS = ("eager",)
MODULE: dict[str, Any] = {"rich_help_panel": "Your own module"}


@takes(given=SpecFlags, model=ModelFlags, out=OutputFlags)
def flops(
    config: ConfigFile = None,
    impl: Annotated[list[str] | None, impl_option("to count", "eager")] = None,
    counter: Annotated[
        list[str] | None,
        flag("|".join(COUNTERS), "counters (a list); closed-form alone imports no torch", "all"),
    ] = None,
    breakdown: Annotated[bool, typer.Option("--breakdown", help="show each stage")] = False,
    reference: Annotated[
        bool | None,
        typer.Option(
            "--reference/--no-reference",
            help="add the row of one full head without W_O, which ratios refer to",
            show_default="reference, unless CONFIG says no",
        ),
    ] = None,
    backward: Annotated[
        bool, typer.Option("--backward", help="add the FLOPs of the backward pass")
    ] = False,
    cache_dtype: Annotated[
        str,
        flag("|".join(DTYPE_BYTES), "dtype of the KV cache and of the bytes in FLOPs per byte"),
    ] = DEFAULT_CACHE_DTYPE,
    explain: Annotated[
        bool, typer.Option("--explain", help="show the formula with its numbers in it")
    ] = False,
    module: Annotated[
        str | None,
        flag("PACKAGE.MODULE:CLASS", "count this module instead (its code is imported)", **MODULE),
    ] = None,
    kwargs: Annotated[
        str, flag("JSON", "its constructor's arguments, a JSON object", **MODULE)
    ] = "{}",
    input: Annotated[
        list[str] | None,
        flag("SHAPE", "shapes of its inputs (a list): 2x128x64, 2x128:int64, 2x8:bf16", **MODULE),
    ] = None,
    allow_uncounted: Annotated[
        list[str] | None,
        flag("NAME", "let these operators, such as mine::op, stay without a count (a list)"),
    ] = None,
    allow_import: AllowImport = False,
    *,
    given: dict[str, list[object]],
    model: ModelChoice | None,
    out: Output,
) -> int:
    """Count the operations of attention, exactly: by fvcore, torch and the closed form.

    Without flags: dim 512, heads 8, tokens 1024, batch 32.  A flag takes a list
    (--heads 1,2,4), which makes a grid.
    """
    counters = tuple(one_of("--counter", name, COUNTERS) for name in listed(counter or COUNTERS))
    cache_dtype = one_of("--cache-dtype", cache_dtype, DTYPE_BYTES)
    if module is not None:
        if config is not None or given or impl or model:
            raise UsageError("--module counts that module alone; drop the file and other flags")
        if explain:
            raise UsageError("a module has no formula that --explain could show; drop it")
        point = module_point(module, module, parse_kwargs(kwargs), listed(input or ()))
        asked = Plan(modules=[AskedModule(point=point)])
    else:
        if input or kwargs != "{}":
            raise UsageError("--kwargs and --input are of a module; name it by --module")
        asked = plan(config, given, implementations=impl, model=model, allow_import=allow_import)
    reference = asked.reference if reference is None else reference
    options = MeasureOptions(
        counters=counters,
        backward=backward,
        cache_dtype=cache_dtype,
        allow_import=allow_import,
        allow_uncounted=tuple(listed(allow_uncounted or asked.settings.allow_uncounted or ())),
    )
    implementations = tuple(listed(impl or DEFAULT_IMPLEMENTATIONS))
    with redirect_stdout(sys.stderr):  # code of the user may print; our data stays apart
        own = count_modules(asked.modules, options)
        points = _planned(asked, implementations, allow_import=allow_import, reference=reference)
    # Rows of a large grid that no table needs are written one by one, and not kept.
    streamed = isinstance(asked.entries, Again) and not out.has_views
    ends: dict[Hashable, Result] = {}

    def counted() -> Iterator[Row]:
        results = in_turn(points(), partial(_count, options=options))
        return _rows(results, ends, reference=reference, noted=streamed)

    rows = () if streamed else list(counted())
    explained = {entry.name: explanation(entry.spec) for entry in (asked.specs if explain else ())}
    out.emit(
        Again(counted, size=len(asked.entries)) if streamed else [*rows, *own.rows],
        [*_views(rows, breakdown=breakdown), *own.views] if out.has_views else [],
        texts=list(explained.values()),
        **(dict[str, Any](explanations=explained) if explain else {}),
    )
    for note in [*findings_notes(rows), *own.notes]:
        say(note)
    return exit_code(ends.values()) or (EXIT_FINDING if own.blocked else EXIT_OK)


def _planned(
    asked: Plan, implementations: Sequence[str], *, allow_import: bool, reference: bool
) -> Callable[[], Iterator[Point | Result]]:
    """Return what yields the reference rows, then every point; impossible ones are skipped rows."""
    versions = versions_of(asked.entries, implementations, allow_import=allow_import)
    references = reference_points(asked.specs) if reference else []

    def planned() -> Iterator[Point | Result]:
        yield from references
        for entry in asked.entries:
            if isinstance(entry, Impossible):
                yield from map(entry.result, entry.implementations or implementations)
            else:
                yield from points_of(entry, implementations, versions)

    return planned


def _count(point: Point, *, options: MeasureOptions) -> Result:
    with redirect_stdout(sys.stderr):
        return measure_point(point, what={"flops"}, options=options)


def _rows(
    results: Iterable[Result], ends: dict[Hashable, Result], *, reference: bool, noted: bool
) -> Iterator[Row]:
    """Yield the row of each result; ``ends`` keeps one result of each way to end.

    ``noted`` says what a row has found at once.
    """
    for result in results:
        row = row_of(result)
        if not reference:
            row["ratio_to_reference"] = None
        ends.setdefault((row["role"], result.outcome.status, row["status"], row["reason"]), result)
        for note in findings_notes([row]) if noted else ():
            say(note)
        yield row


def _views(rows: Sequence[dict[str, object]], *, breakdown: bool) -> list[View]:
    if not rows:
        return []
    if breakdown:
        return [breakdown_view(rows, title="MACs by stage")]
    return [counts_view(rows, title="Operations of one forward pass, dense")]
