"""``mhaprof latency``: times of the attention asked for, each checked before it is taken."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from mhaprof.cli.exits import exit_code, was_interrupted
from mhaprof.cli.model import ModelChoice, ModelFlags
from mhaprof.cli.options import SpecFlags, takes
from mhaprof.cli.output import Output, OutputFlags, check_writable, say, write_atomically
from mhaprof.cli.planning import plan, points_of, versions_of
from mhaprof.cli.progress import Bar
from mhaprof.cli.timing_options import TimingFlags, options_of, settings_of
from mhaprof.config import SettingsSection
from mhaprof.errors import EXIT_INTERRUPTED
from mhaprof.point import MeasureOptions, measure_point
from mhaprof.point.fresh import measure_replicated
from mhaprof.point.measuring import Metric
from mhaprof.records import Measured, Point, Result, Skipped
from mhaprof.report.tabular import Row, row_of, to_json
from mhaprof.report.times import latency_view
from mhaprof.report.views import findings_notes

DEFAULT_IMPLEMENTATIONS = ("eager", "sdpa")
METRICS: tuple[Metric, ...] = ("latency", "memory")


@takes(given=SpecFlags, model=ModelFlags, timing=TimingFlags, out=OutputFlags)
def latency(
    config: Annotated[
        Path | None, typer.Argument(help="YAML file of points and sweeps", metavar="[CONFIG]")
    ] = None,
    impl: Annotated[
        list[str] | None,
        typer.Option(help="implementation to time (repeatable)", show_default="eager, sdpa"),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare/--no-compare",
            help="say which implementation is fastest and by how much, where several ran",
        ),
    ] = True,
    replicates: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="measure each point in this many fresh processes and show their spread",
            show_default="1: in this process",
        ),
    ] = None,
    samples_out: Annotated[
        Path | None, typer.Option(help="write all raw samples to this JSON file")
    ] = None,
    allow_import: Annotated[
        bool, typer.Option("--allow-import", help="let CONFIG or --impl name code to import")
    ] = False,
    *,
    given: dict[str, list[object]],
    timing: SettingsSection,
    model: ModelChoice | None,
    out: Output,
) -> int:
    """Time attention: warmed up, checked against float64, with its spread.

    Without flags: dim 512, heads 8, tokens 1024, batch 32; eager and sdpa.
    """
    from mhaprof.measure.environment import collect

    if samples_out is not None:
        check_writable(samples_out, flag="--samples-out")
    asked = plan(config, given, model=model, allow_import=allow_import)
    implementations = tuple(impl or DEFAULT_IMPLEMENTATIONS)
    versions = versions_of(asked.entries, implementations, allow_import=allow_import)
    section = asked.settings.merged(timing)
    settings = settings_of(section)
    options = options_of(section, allow_import=allow_import)
    points = [
        point
        for entry in asked.specs
        for setting in settings
        for point in points_of(entry, implementations, versions, setting)
    ]
    impossible = [
        entry.result(name)
        for entry in asked.impossible
        for name in entry.implementations or implementations
    ]
    device = settings[0].device or "cpu"
    before = collect(device)
    count = replicates or section.replicates or 1
    results = [*_measure_all(points, options, replicates=count), *impossible]
    rows = [row_of(result, latency=True) for result in results]
    title = f"Time of one {settings[0].mode} call"
    out.emit(
        rows,
        [latency_view(rows, title=title, compare=compare)],
        environment=before,
        environment_after=collect(device),
    )
    for note in findings_notes(rows):
        say(note)
    if samples_out is not None:
        write_atomically(samples_out, to_json(_with_samples(rows, results)))
    return EXIT_INTERRUPTED if was_interrupted(results) else exit_code(results)


def _measure_all(
    points: Sequence[Point], options: MeasureOptions, *, replicates: int
) -> list[Result]:
    """Measure point after point; Ctrl-C ends it and keeps what was measured."""
    results: list[Result] = []
    with Bar(total=len(points)) as bar:
        for point in points:
            bar.start(f"{point.name}, {point.implementation}")
            try:
                result = _measure(point, options, replicates=replicates, bar=bar)
            except KeyboardInterrupt:
                message = "interrupted before it was measured"
                results += [
                    Result(point=rest, outcome=Skipped(code="interrupted", message=message))
                    for rest in points[len(results) :]
                ]
                break
            results.append(result)
            if was_interrupted([result]):
                break
    return results


def _measure(point: Point, options: MeasureOptions, *, replicates: int, bar: Bar) -> Result:
    """Measure one point here, or in fresh processes."""
    if replicates == 1:
        return measure_point(point, what=METRICS, options=options, progress=bar.update)

    def done(number: int) -> None:
        bar.note(f"process {number} of {replicates} done")

    return measure_replicated(
        point, what=METRICS, options=options, replicates=replicates, done=done
    )


def _with_samples(rows: Sequence[Row], results: Sequence[Result]) -> list[Row]:
    """Return the rows with their raw samples, in seconds."""
    full = []
    for row, result in zip(rows, results, strict=True):
        outcome = result.outcome
        timed = outcome.latency if isinstance(outcome, Measured) else None
        kept = ("samples_s", "process_time_s", "enqueue_s", "graph_samples_s")
        raw = timed.model_dump(include=set(kept)) if timed else dict.fromkeys(kept)
        full.append({**row, **raw})
    return full
