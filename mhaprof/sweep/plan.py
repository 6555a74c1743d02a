"""What a sweep will do: one entry per point, implementation, device, dtype and threads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mhaprof.config.planned import NOTHING, PlannedPoint
from mhaprof.module_source import module_point
from mhaprof.point import MeasureOptions
from mhaprof.point.measuring import Metric
from mhaprof.records import ImpossiblePoint, ModulePoint, Point, Settings, Skipped, digest
from mhaprof.runners.base import Task


@dataclass(frozen=True, kw_only=True)
class PlanEntry:
    """One row to be: a point and what to measure of it, or the reason why it is skipped.

    ``identity`` is the hash of the point's content and of what is measured; two
    entries of one plan never share it.
    """

    identity: str
    ordinal: int
    point: Point | ModulePoint | ImpossiblePoint
    what: frozenset[Metric]
    options: MeasureOptions = field(default_factory=MeasureOptions)
    skip: Skipped | None = None

    def task(self, number: int) -> Task:
        """Return the task of one round."""
        assert not isinstance(self.point, ImpossiblePoint)
        return Task(
            identity=self.identity,
            round=number,
            point=self.point,
            what=self.what,
            options=self.options,
        )


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One part of ``count`` that a plan is split into; ``index`` counts from 1."""

    index: int
    count: int

    def has(self, identity: str) -> bool:
        """Say whether a point belongs to this shard: by its hash, wherever it is planned."""
        return int(identity, 16) % self.count == self.index - 1


def identity_of(
    point: Point | ModulePoint | ImpossiblePoint, what: frozenset[Metric], options: MeasureOptions
) -> str:
    """Return the hash of a point, of what is measured of it, and of how it is counted."""
    content: dict[str, object] = {"point": point.identity(), "measure": sorted(what)}
    if "flops" in what:
        counted = {"counters", "backward", "cache_dtype"}
        if options.allow_uncounted:  # left out where empty: old files keep their identities
            counted.add("allow_uncounted")
        content |= options.model_dump(include=counted)
    return digest(content)


@dataclass(frozen=True, kw_only=True)
class _Item:
    """An entry before it has its identity and its place."""

    point: Point | ModulePoint | ImpossiblePoint
    what: frozenset[Metric]
    skip: Skipped | None = None


def expand(
    points: Iterable[PlannedPoint],
    *,
    implementations: Sequence[str],
    versions: Mapping[str, int],
    settings: Sequence[Settings],
    what: frozenset[Metric],
    options: MeasureOptions,
    references: Iterable[Point] = (),
    codes: Mapping[str, str] = NOTHING,
) -> list[PlanEntry]:
    """Return one entry per point, implementation and settings, each measurement once.

    ``implementations`` are those of points that name none; ``versions`` has the version
    of each.  ``references`` are counted, first.  Settings mean nothing where no time is
    taken, and are left out.  ``codes`` has the fingerprint of each code of the user's.
    Points that are skipped (excluded, impossible, modules of which only times are asked)
    become entries that say so.
    """
    chosen = (Settings(),) if what <= {"flops"} else settings
    items = [_Item(point=point, what=frozenset({"flops"})) for point in references]
    for planned in points:
        skip = _skip_of(planned, what)
        if planned.module is not None:
            items.append(_module(planned, what, skip, codes))
            continue
        for name in planned.implementations or implementations:
            if skip is not None:
                items.append(_Item(point=_skipped(planned, name), what=what, skip=skip))
                continue
            for setting in chosen:
                point = _point(planned, name, versions[name], setting, codes.get(name))
                items.append(_Item(point=point, what=what))
    return _numbered(items, options)


def _numbered(items: Iterable[_Item], options: MeasureOptions) -> list[PlanEntry]:
    """Give each item its identity and its place; of equal ones the first stays."""
    entries: dict[str, PlanEntry] = {}
    for item in items:
        identity = identity_of(item.point, item.what, options)
        if identity not in entries:
            entries[identity] = PlanEntry(
                identity=identity,
                ordinal=len(entries),
                point=item.point,
                what=item.what,
                options=options,
                skip=item.skip,
            )
    return list(entries.values())


def _module(
    planned: PlannedPoint, what: frozenset[Metric], skip: Skipped | None, codes: Mapping[str, str]
) -> _Item:
    """Return the entry of a module: counted, whatever else is asked for.  Raises UsageError."""
    module = planned.module
    assert module is not None
    code = codes.get(module.target)
    point = module_point(planned.name, module.target, module.kwargs, module.inputs, code=code)
    return _Item(point=point, what=what if skip else frozenset({"flops"}), skip=skip)


def _point(
    planned: PlannedPoint, name: str, version: int, settings: Settings, code: str | None
) -> Point:
    assert planned.spec is not None
    return Point.trusted(
        name=planned.name,
        role="point",
        spec=planned.spec,
        implementation=name,
        implementation_version=version,
        settings=settings,
        code=code,
    )


def _skipped(planned: PlannedPoint, name: str) -> ImpossiblePoint:
    """Return the row of a point that is not measured; an excluded one shows its spec."""
    given = dict(planned.given) if planned.spec is None else planned.spec.model_dump()
    return ImpossiblePoint(name=planned.name, implementation=name, given=given)


def _skip_of(planned: PlannedPoint, what: frozenset[Metric]) -> Skipped | None:
    """Return why a point is not measured, or None."""
    if planned.skip is not None:
        return Skipped(code=planned.skip.code, message=planned.skip.message)
    if planned.module is not None and "flops" not in what:
        message = "a module of yours is counted, not timed; measure flops"
        return Skipped(code="module_not_timed", message=message)
    return None
