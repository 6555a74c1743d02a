"""``mhaprof latency``: times of the attention asked for, each checked before it is taken."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mhaprof.cli.exits import exit_code, in_turn
from mhaprof.cli.model import ModelChoice, ModelFlags
from mhaprof.cli.options import AllowImport, ConfigFile, SpecFlags, flag, impl_option, listed, takes
from mhaprof.cli.output import Output, OutputFlags, check_writable, say, write_file
from mhaprof.cli.planning import plan, points_of, versions_of
from mhaprof.cli.progress import Bar
from mhaprof.cli.timing_options import TimingFlags, options_of, settings_of
from mhaprof.config import SettingsSection
from mhaprof.errors import UsageError
from mhaprof.measure.sampling import Progress, ProgressCallback
from mhaprof.measure.turns import Turns
from mhaprof.point import MeasureOptions, measure_point
from mhaprof.point.fresh import measure_replicated
from mhaprof.point.measuring import Metric
from mhaprof.records import (
    MOST,
    RAW_FIELDS,
    Environment,
    Measured,
    Point,
    Result,
    Settings,
)
from mhaprof.report.tabular import Row, row_of, to_json
from mhaprof.report.times import latency_view
from mhaprof.report.views import findings_notes

DEFAULT_IMPLEMENTATIONS = ("eager", "sdpa")
REPLICATES = "measure each point in this many fresh processes and show their spread"


@takes(given=SpecFlags, model=ModelFlags, timing=TimingFlags, out=OutputFlags)
def latency(
    config: ConfigFile = None,
    impl: Annotated[list[str] | None, impl_option("to time", "eager, sdpa")] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare/--no-compare",
            help="say which implementation is fastest and by how much, where several ran",
        ),
    ] = True,
    replicates: Annotated[
        int | None, flag("N", REPLICATES, "1: in this process", min=1, max=MOST)
    ] = None,
    memory: Annotated[
        bool,
        typer.Option("--memory/--no-memory", help="measure the peak memory of each point too"),
    ] = True,
    samples_out: Annotated[
        Path | None, typer.Option(help="write all raw samples to this JSON file", metavar="FILE")
    ] = None,
    allow_import: AllowImport = False,
    *,
    given: dict[str, list[object]],
    timing: SettingsSection,
    model: ModelChoice | None,
    out: Output,
) -> int:
    """Time attention: warmed up, checked against float64, with its spread.

    Without flags: dim 512, heads 8, tokens 1024, batch 32; eager and sdpa.
    """
    if samples_out is not None:
        check_writable(samples_out, flag="--samples-out")
    asked = plan(config, given, implementations=impl, model=model, allow_import=allow_import)
    if asked.modules:
        message = f"modules are not timed: {', '.join(each.point.name for each in asked.modules)}"
        if not asked.entries:
            raise UsageError(f"{message}; count them by mhaprof flops")
        say(message)
    implementations = tuple(listed(impl or DEFAULT_IMPLEMENTATIONS))
    versions = versions_of(asked.entries, implementations, allow_import=allow_import)
    section = asked.settings.merged(timing)
    planned = sum(len(entry.implementations or implementations) for entry in asked.entries)
    settings = settings_of(section, rows=planned)
    _check_settings(settings)
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
    turns = Turns.from_environment()
    if turns is not None and any(setting.device != "cpu" for setting in settings):
        # Before anything touches the device: the side that waits is no neighbour on it.
        turns.point()
        turns = None
    count = replicates or section.replicates or 1
    before = _environment(settings, elsewhere=count > 1)
    what: tuple[Metric, ...] = ("latency", "memory") if memory else ("latency",)
    measured = _measure_all(points, options, what=what, replicates=count, turns=turns)
    results = [*measured, *impossible]
    rows = [row_of(result, latency=True) for result in results]
    words = f"{settings[0].mode} call" + (", compiled" if settings[0].compile else "")
    view = latency_view(rows, title=f"Time of one {words}", compare=compare)
    after = _environment(settings, elsewhere=count > 1)
    where: dict[str, Any] = {"environment": before, "environment_after": after}
    out.emit(rows, [view], **where)
    for note in [*findings_notes(rows), *_peak_notes(rows)]:
        say(note)
    if samples_out is not None:
        samples = to_json(_with_samples(rows, results), **where)
        write_file(samples_out, samples, flag="--samples-out")
    return exit_code(results)


def _check_settings(settings: Sequence[Settings]) -> None:
    """Raise UsageError for a timer that a device has not; say what has no effect."""
    from mhaprof.measure.devices import require_timer

    for setting in settings:
        require_timer(setting.device or "cpu", setting.timer)
    on_cuda = any(str(setting.device).startswith("cuda") for setting in settings)
    if settings[0].tf32 and not on_cuda:
        say("tf32 is a format of CUDA devices: it changes nothing here")


def _environment(settings: Sequence[Settings], *, elsewhere: bool) -> Environment:
    """Return the environment now: of the accelerator where one is measured, with its threads.

    Where threads are an axis the rows alone say how many.  ``elsewhere`` leaves the
    accelerator to other processes, those that measure.
    """
    from mhaprof.measure.environment import collect, collect_elsewhere

    names = [setting.device or "cpu" for setting in settings]
    device = next((name for name in names if name != "cpu"), "cpu")
    threads = {setting.threads for setting in settings if setting.device == "cpu"}
    if elsewhere and device != "cpu":
        return collect_elsewhere(device)
    found = collect(device, threads=next(iter(threads), None))
    if len(threads) < 2:
        return found
    others = {name: value for name, value in found.settings.items() if name != "threads"}
    return found.model_copy(update={"settings": others})


def _peak_notes(rows: Sequence[Row]) -> list[str]:
    """Say what to do for timed devices that no roofline is known of."""
    from mhaprof.roofline import HINT

    unknown = {
        (str(row["device_name"]), row.get("threads"))
        for row in rows
        if row.get("latency_median_s") is not None and row.get("attained_fraction") is None
    }
    return [
        f"no roofline for {name}"
        + ("" if threads is None else f" at --threads {threads}")
        + f": {HINT}"
        + ("" if threads is None else f" --threads {threads}")
        for name, threads in sorted(unknown, key=str)
    ]


def _measure_all(
    points: Sequence[Point],
    options: MeasureOptions,
    *,
    what: tuple[Metric, ...],
    replicates: int,
    turns: Turns | None,
) -> list[Result]:
    """Measure point after point; a signal ends it and keeps what was measured."""
    with Bar(total=len(points)) as bar:

        def measure(point: Point) -> Result:
            bar.start(f"{point.name}, {point.implementation}")
            between = _between(bar, turns)
            if replicates == 1:
                return measure_point(point, what=what, options=options, progress=between)
            return _replicated(point, options, what=what, replicates=replicates, bar=bar)

        return list(in_turn(points, measure))


def _between(bar: Bar, turns: Turns | None) -> ProgressCallback:
    """Begin a point; return what is done between its batches: show progress, take turns.

    Turns are taken where all points are on a CPU.  An accelerator would hold the memory of
    both sides, and its noise is not the host's: there one side waits for the other's end.
    """
    if turns is not None:
        turns.point()

    def between(progress: Progress) -> float | None:
        bar.update(progress)
        return None if turns is None else turns.batch()

    return between


def _replicated(
    point: Point,
    options: MeasureOptions,
    *,
    what: tuple[Metric, ...],
    replicates: int,
    bar: Bar,
) -> Result:
    """Measure one point in fresh processes."""

    def done(number: int) -> None:
        bar.note(f"process {number} of {replicates} done")

    return measure_replicated(point, what=what, options=options, replicates=replicates, done=done)


def _with_samples(rows: Sequence[Row], results: Sequence[Result]) -> list[Row]:
    """Return the rows with their raw samples, in seconds, and a GPU's state around them."""
    full = []
    for row, result in zip(rows, results, strict=True):
        outcome = result.outcome
        timed = outcome.latency if isinstance(outcome, Measured) else None
        raw = timed.model_dump(include=set(RAW_FIELDS)) if timed else dict.fromkeys(RAW_FIELDS)
        full.append({**row, **raw})
    return full
