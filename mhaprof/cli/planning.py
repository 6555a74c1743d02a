"""From flags and files to the points that a command measures."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mhaprof import attention
from mhaprof.cli.output import say
from mhaprof.config import PlannedPoint, SettingsSection, load_config
from mhaprof.config.grid import too_many
from mhaprof.config.planned import Again
from mhaprof.errors import Fault, SpecError, UsageError
from mhaprof.module_source import module_point
from mhaprof.records import ImpossiblePoint, ModulePoint, Point, Result, Settings, Skipped
from mhaprof.spec import AttentionSpec, checked_fields

if TYPE_CHECKING:
    from mhaprof.cli.model import ModelChoice


COUNTED = Settings()
"""The settings of points that are counted alone: none."""


class Planned(NamedTuple):
    """A named spec, with the implementations that its file asks for, if any."""

    name: str
    spec: AttentionSpec
    implementations: Sequence[str] | None = None


@dataclass(frozen=True, kw_only=True)
class Impossible:
    """A combination of a grid that makes no spec, kept as a row that says so."""

    name: str
    given: Mapping[str, Any]
    code: str
    message: str
    implementations: Sequence[str] | None = None

    def result(self, implementation: str) -> Result:
        """Return the row: skipped, with the reason."""
        return Result(
            point=ImpossiblePoint(
                name=self.name, implementation=implementation, given=dict(self.given)
            ),
            outcome=Skipped(code=self.code, message=self.message),
        )


def plan_flags(given: Mapping[str, Sequence[object]]) -> list[Planned | Impossible]:
    """Expand flags: one point, or the grid of the flags that hold a list.

    A single impossible spec raises ``SpecError``; in a grid it becomes a skip.  A value
    of the wrong type raises ``SpecError`` in a grid too.
    """
    check_types(given)
    varied = [name for name, values in given.items() if len(values) > 1]
    planned: list[Planned | Impossible] = []
    if refused := too_many(given.values()):
        raise UsageError(f"the flags make {refused}")
    for values in itertools.product(*given.values()):
        fields = dict(zip(given, values, strict=True))
        shown = {name: fields[name] for name in varied or fields}
        name = " ".join(f"{field}={worded(value)}" for field, value in shown.items()) or "default"
        try:
            planned.append(Planned(name=name, spec=AttentionSpec(**fields)))
        except SpecError as error:
            if not varied:
                raise
            planned.append(
                Impossible(name=name, given=fields, code="impossible_spec", message=str(error))
            )
    if not any(isinstance(point, Planned) for point in planned):
        raise SpecError([]) if not planned else _all_impossible(planned)
    return planned


def check_types(given: Mapping[str, Sequence[object]]) -> None:
    """Raise SpecError for every value that is of the wrong type."""
    faults: list[Fault] = []
    for name, values in given.items():
        for value in values:
            try:
                checked_fields({name: value})
            except SpecError as error:
                faults += error.faults
    if faults:
        raise SpecError(faults)


def _all_impossible(planned: Iterable[Planned | Impossible]) -> SpecError:
    messages = {point.message for point in planned if isinstance(point, Impossible)}
    return SpecError([Fault(field="spec", message=message) for message in sorted(messages)])


def worded(value: object) -> str:
    """Return the value of a field as the names of points have it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def versions_of(
    planned: Iterable[Planned | Impossible], asked: Sequence[str], *, allow_import: bool
) -> dict[str, int]:
    """Return the version of every implementation that is asked for.

    Raises UsageError for an unknown name, and for code of the user's that is no
    implementation, before anything is measured.
    """
    specs: dict[str, AttentionSpec | None] = {}
    for entry in planned:
        for name in entry.implementations or asked:
            if specs.get(name) is None:
                specs[name] = entry.spec if isinstance(entry, Planned) else None
    versions = {}
    for name, spec in specs.items():
        implementation = attention.get(name, allow_import=allow_import)
        if ":" in name and spec is not None:
            from mhaprof.attention.user import try_out

            try_out(implementation, spec)
        versions[name] = implementation.version
    return versions


def points_of(
    planned: Planned,
    implementations: Sequence[str],
    versions: Mapping[str, int],
    settings: Settings = COUNTED,
) -> list[Point]:
    """Return one point per implementation."""
    return [
        Point.trusted(
            name=planned.name,
            role="point",
            spec=planned.spec,
            implementation=name,
            implementation_version=versions[name],
            settings=settings,
            code=None,
        )
        for name in planned.implementations or implementations
    ]


def reference_points(planned: Iterable[Planned]) -> list[Point]:
    """Return the distinct reference rows: one full head without W_O per shape."""
    shapes = {_reference_shape(point.spec): point.spec for point in planned}
    specs = [spec.reference() for spec in shapes.values()]
    many = len(specs) > 1
    return [
        Point(
            name=_reference_name(spec) if many else "one full head, no W_O",
            role="reference",
            spec=spec,
            implementation="eager",
        )
        for spec in specs
    ]


def _reference_shape(spec: AttentionSpec) -> tuple[object, ...]:
    """Return what a reference takes over: equal shapes have the same one."""
    return spec.batch, spec.tokens, spec.kv_tokens, spec.dim, spec.phase


def _reference_name(spec: AttentionSpec) -> str:
    tokens = f"tokens={spec.tokens}"
    if spec.kv_tokens != spec.tokens:
        tokens += f" kv_tokens={spec.kv_tokens}"
    return f"one full head, no W_O: batch={spec.batch} {tokens} dim={spec.dim}"


@dataclass(frozen=True, kw_only=True)
class AskedModule:
    """A module to count; ``place`` is where a file asks for it (``a.yaml:3:5``), if one does."""

    point: ModulePoint
    place: str | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a file and flags ask for: points, modules to count, and the file's settings."""

    entries: Collection[Planned | Impossible] = ()
    modules: list[AskedModule] = field(default_factory=list)
    settings: SettingsSection = field(default_factory=SettingsSection)
    reference: bool = True

    @property
    def specs(self) -> Iterator[Planned]:
        """Yield the entries that have a spec."""
        return (entry for entry in self.entries if isinstance(entry, Planned))

    @property
    def impossible(self) -> Iterator[Impossible]:
        """Yield the entries that have none."""
        return (entry for entry in self.entries if isinstance(entry, Impossible))


def plan(
    config: Path | None,
    given: Mapping[str, Sequence[object]],
    *,
    implementations: Sequence[str] | None = None,
    model: ModelChoice | None = None,
    allow_import: bool = False,
) -> Plan:
    """Plan what a file, a model's layers, or flags ask for; flags win over a file.

    ``implementations`` are those of ``--impl``, in the place of the file's.

    Raises ConfigError, SpecError or UsageError with every fault.
    """
    if config is None:
        return Plan(entries=plan_flags(given) if model is None else model.planned(given))
    if model is not None:
        raise UsageError("CONFIG and --model or --preset were both given; give one")
    from mhaprof.cli.model_reading import read_model

    loaded = load_config(
        config,
        allow_import=allow_import,
        overrides=given,
        implementations=attention.names(),
        read_model=read_model,
    )
    points: Collection[PlannedPoint] = loaded.entries
    entries: Collection[Planned | Impossible] = ()
    if isinstance(points, Again):  # one grid, no module among its points
        asked: dict[str, Any] = {"implementations": None} if implementations else {}
        grid = points
        entries = Again(lambda: (_entry(point._replace(**asked)) for point in grid), size=len(grid))
        points = []
    else:
        points = under_flags(points, given, implementations)
    return Plan(
        entries=entries or [_entry(point) for point in points if point.module is None],
        modules=[
            AskedModule(
                point=module_point(point.name, module.target, module.kwargs, module.inputs),
                place=f"{config}:{point.line}:{point.column}",
            )
            for point in points
            if (module := point.module) is not None and point.skip is None
        ],
        settings=loaded.settings,
        reference=loaded.reference,
    )


def under_flags(
    points: Collection[PlannedPoint], given: Iterable[str], implementations: Sequence[str] | None
) -> Collection[PlannedPoint]:
    """Let ``--impl`` win over the file; name, or refuse, modules: flags change nothing of them."""
    modules = [point.name for point in points if point.module is not None]
    flags = [f"--{name.replace('_', '-')}" for name in (*given, *["impl"] * bool(implementations))]
    message = f"{', '.join(flags)}: a module is measured as its kwargs and inputs in the file say"
    if flags and modules and len(modules) == len(points):
        raise UsageError(f"{message}, and the file has no other point; drop the flag")
    if flags and modules:
        say(f"{message}: {', '.join(modules)}")
    if not implementations:
        return points
    return [point._replace(implementations=None) for point in points]


def _entry(point: PlannedPoint) -> Planned | Impossible:
    """Turn one point of a file into what the commands measure."""
    if point.skip is not None:
        given = point.spec.model_dump() if point.spec is not None else dict(point.given)
        return Impossible(
            name=point.name,
            given=given,
            code=point.skip.code,
            message=point.skip.message,
            implementations=point.implementations,
        )
    assert point.spec is not None
    return Planned(name=point.name, spec=point.spec, implementations=point.implementations)
