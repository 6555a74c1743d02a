"""From a sweep's file and flags to its plan, and the plan as a table."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mhaprof import attention
from mhaprof.cli.model import ModelChoice
from mhaprof.cli.options import listed, one_of
from mhaprof.cli.planning import (
    Impossible,
    Planned,
    plan_flags,
    reference_points,
    under_flags,
    versions_of,
)
from mhaprof.cli.timing_options import options_of, settings_of
from mhaprof.config import Config, SettingsSection, load_config
from mhaprof.config.planned import NOTHING, PlannedPoint, Skip
from mhaprof.errors import UsageError
from mhaprof.module_source import code_of
from mhaprof.point.measuring import METRICS, Metric
from mhaprof.records import Point
from mhaprof.report.tabular import Row
from mhaprof.report.view import SHOWN, WIDE, View, count, duration, size, status, text
from mhaprof.report.views import names
from mhaprof.sweep.plan import PlanEntry, Shard, expand
from mhaprof.sweep.predict import ACCELERATOR_TFLOPS, CPU_TFLOPS_PER_THREAD, predict
from mhaprof.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from mhaprof.store.reading import Reader

FLAGS = "flags"
"""The name of a sweep of flags alone."""

COUNTED_IMPLEMENTATIONS = ("eager",)
TIMED_IMPLEMENTATIONS = ("eager", "sdpa")


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """What a sweep measures, and how: the file's settings with the flags' over them.

    ``not_timed`` names the modules that are counted, though times are asked for.
    ``digest`` is that of the whole plan: shards of one have it in common.
    """

    name: str
    text: str
    entries: list[PlanEntry]
    settings: SettingsSection
    not_timed: Sequence[str]
    digest: str

    @property
    def rounds(self) -> int:
        """Return how often each point is measured, each time in fresh processes."""
        return self.settings.rounds or self.settings.replicates or 1


@dataclass(frozen=True, kw_only=True)
class SweepRequest:
    """What the command line says beside the file; what is None leaves the file's word.

    ``given`` fields and ``flags`` win over the file's.  ``pooled`` says that CUDA
    devices were listed apart: points are for ``cuda`` then unless the file names
    devices.  ``resolve`` turns a device as given into the one to plan for.
    """

    given: Mapping[str, Sequence[object]]
    flags: SettingsSection
    implementations: Sequence[str] | None
    measure: Sequence[Metric] | None
    allow_import: bool
    pooled: bool
    resolve: Callable[[str], str]
    shard: Shard | None


def plan_sweep(config: Path | None, model: ModelChoice | None, asked: SweepRequest) -> SweepPlan:
    """Read a file, or a model's, and expand it.

    Raises ConfigError, SpecError or UsageError with every fault.
    """
    loaded = _loaded(config, model, asked)
    section = loaded.settings.merged(asked.flags)
    if asked.pooled and section.device is None:
        section = section.model_copy(update={"device": ("cuda",)})
    what: frozenset[Metric] = frozenset(asked.measure or loaded.measure)
    counting = what <= {"flops"}
    default = COUNTED_IMPLEMENTATIONS if counting else TIMED_IMPLEMENTATIONS
    names = tuple(listed(asked.implementations or default))
    points = under_flags(loaded.entries, asked.given, asked.implementations)
    specs = [
        Planned(name=point.name, spec=point.spec, implementations=point.implementations)
        for point in points
        if point.spec is not None and point.skip is None
    ]
    rows = sum(len(point.implementations or names) for point in points)
    settings = [] if counting else settings_of(section, rows=rows, resolve=asked.resolve)
    versions = versions_of(specs, names, allow_import=asked.allow_import)
    modules = {point.name: point.module for point in points if point.module and not point.skip}
    own = {*(each.target for each in modules.values()), *(name for name in versions if ":" in name)}
    entries = expand(
        points,
        implementations=names,
        versions=versions,
        codes={target: code_of(target) for target in own},
        settings=settings,
        what=what,
        options=options_of(section, allow_import=asked.allow_import),
        references=reference_points(specs) if loaded.reference and "flops" in what else (),
    )
    identities = "".join(sorted(entry.identity for entry in entries))
    if asked.shard is not None:
        entries = [entry for entry in entries if asked.shard.has(entry.identity)]
    return SweepPlan(
        name=loaded.name,
        text=loaded.text,
        entries=entries,
        settings=section,
        not_timed=list(modules) if "flops" in what and not counting else [],
        digest=hashlib.sha256(identities.encode()).hexdigest()[:16],
    )


def _loaded(config: Path | None, model: ModelChoice | None, asked: SweepRequest) -> Config:
    """Return the file's points, or a model's layers or the flags' as if a file named them."""
    if config is not None and model is not None:
        raise UsageError("CONFIG and --model or --preset were both given; give one")
    if config is None and model is None and not asked.given:
        raise UsageError(
            "sweep takes CONFIG, --model or --preset, or flags such as --heads 1,2,4; give one"
        )
    if config is not None:
        from mhaprof.cli.model_reading import read_model

        return load_config(
            config,
            allow_import=asked.allow_import,
            overrides=asked.given,
            implementations=attention.names(),
            read_model=read_model,
        )
    source = FLAGS if model is None else model.raw.source
    entries = plan_flags(asked.given) if model is None else model.planned(asked.given)
    return Config(
        file=source,
        name=re.sub(r"[^\w.-]+", "-", source).strip("-."),
        text="",
        entries=tuple(map(_planned_point, entries)),
        settings=SettingsSection(),
        measure=("flops",),
        reference=True,
    )


def _planned_point(entry: Planned | Impossible) -> PlannedPoint:
    """Return a point of flags as if a file named it."""
    if isinstance(entry, Planned):
        spec, skip, given = entry.spec, None, NOTHING
    else:
        spec, skip, given = None, Skip(entry.code, entry.message), entry.given
    return PlannedPoint(
        name=entry.name,
        spec=spec,
        implementations=None,
        skip=skip,
        given=given,
        model=None,
        module=None,
        line=0,
        column=0,
    )


def parse_metrics(text: str) -> list[Metric]:
    """Read ``flops,latency``.  Raises UsageError."""
    given = [one_of("--measure", name, METRICS) for name in listed([text])]
    return [metric for metric in METRICS if metric in given]


def parse_shard(text: str) -> Shard:
    """Read ``2/5``.  Raises UsageError."""
    found = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise UsageError(f"--shard {text!r} is not of the form I/N with 1 <= I <= N, such as 2/5")
    return Shard(index=int(found[1]), count=int(found[2]))


def plan_rows(plan: SweepPlan, reader: Reader | None) -> list[Row]:
    """Return one row per entry: what is stored, will be measured, or will be skipped.

    ``predicted_time_s`` is of all rounds that are still to be measured.
    """
    stored = (
        {}
        if reader is None
        else {(found.identity, found.round): found for found in reader.stored()}
    )
    rows: list[Row] = []
    for entry in plan.entries:
        found = [stored.get((entry.identity, number)) for number in range(plan.rounds)]
        settings = entry.point.settings if isinstance(entry.point, Point) else None
        row: Row = {
            "name": entry.point.name,
            "role": entry.point.role,
            "implementation": entry.point.implementation,
            "device": settings and settings.device,
            "dtype": settings and settings.dtype,
            "measure": " ".join(sorted(entry.what)),
            "status": "planned",
            "reason": None,
            "message": None,
            "rounds": sum(each is None for each in found),
            "predicted_time_s": None,
            "predicted_peak_bytes": None,
            "identity": entry.identity,
        }
        rows.append(row)
        if entry.skip is None and row["rounds"] == 0:
            first = next(each for each in found if each is not None)
            row.update(status="stored", reason=first.reason)
            continue
        prediction = predict(entry)
        if prediction.skip is not None:
            skip = prediction.skip
            row.update(status="skipped", reason=skip.code, message=skip.message, rounds=None)
            continue
        row.update(
            predicted_time_s=prediction.time_s * row["rounds"],
            predicted_peak_bytes=prediction.peak_bytes,
        )
    return rows


def plan_view(rows: Sequence[Row], *, lanes: int) -> View:
    """Show the plan with its sums."""
    columns = [
        *names(),
        *(text(name, name, once=True, rank=SHOWN) for name in ("device", "dtype")),
        count("rounds", "rounds", once=True, rank=SHOWN),
        duration("predicted time", "predicted_time_s"),
        size("predicted memory", "predicted_peak_bytes", rank=SHOWN),
        text("measure", "measure", rank=WIDE),
        status(),
    ]
    return View(title="Plan", columns=columns, rows=rows, notes=_sums(rows, lanes))


def _sums(rows: Sequence[Row], lanes: int) -> list[str]:
    counted = {
        name: sum(row["status"] == name for row in rows)
        for name in ("planned", "stored", "skipped")
    }
    total_s = sum(row["predicted_time_s"] or 0 for row in rows)
    largest = max((row["predicted_peak_bytes"] or 0 for row in rows), default=0)
    notes = [
        f"{len(rows)} points: {counted['planned']} to measure, {counted['stored']} stored, "
        f"{counted['skipped']} to skip."
    ]
    if counted["planned"]:
        at_once = f", {lanes} at a time" if lanes > 1 else ""
        notes.append(
            f"About {format_seconds(total_s / lanes)}{at_once}; where calls are long this assumes "
            f"{CPU_TFLOPS_PER_THREAD:g} TFLOP/s a CPU thread, {ACCELERATOR_TFLOPS:g} a GPU."
        )
    if largest:
        notes.append(f"The largest point needs about {format_bytes(largest)}.")
    skips = dict.fromkeys(row["message"] for row in rows if row["status"] == "skipped")
    return notes + [f"Skipped: {message}." for message in skips if message]
