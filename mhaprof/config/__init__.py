"""A configuration file -> named points, settings, and every fault with its place.

What is written (``config.file``, partial) and what is planned (``PlannedPoint``,
resolved) are two types.  A point is made of, later wins: the defaults of ``spec.py``,
``defaults`` of the file, the point or the combination of a sweep, flags.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mhaprof.config.expansion import Expansion, ReadModel
from mhaprof.config.file import (
    CONFIG_VERSION,
    ELSEWHERE,
    SOURCE_KEYS,
    SYNONYMS,
    ConfigFile,
    Metric,
    SettingsSection,
    schema_text,
)
from mhaprof.config.grid import Axis, distinct
from mhaprof.config.located import FaultList, Loc, check
from mhaprof.config.planned import ModelSource, ModuleRef, PlannedPoint, Skip
from mhaprof.config.sections import Permissions, Sections
from mhaprof.config.yaml_source import parse_yaml, read_text
from mhaprof.config.yaml_tree import ListNode, MapNode, Node, ScalarNode
from mhaprof.errors import ConfigError, Fault, LocatedFault, SpecError
from mhaprof.spec import checked_fields

__all__ = [
    "Config",
    "ModelSource",
    "ModuleRef",
    "PlannedPoint",
    "SettingsSection",
    "Skip",
    "load_config",
    "parse_config",
    "schema_text",
]


@dataclass(frozen=True, kw_only=True)
class Config:
    """What a file plans.  ``text`` is the file itself; ``entries`` have unique names."""

    file: str
    name: str
    text: str
    entries: Collection[PlannedPoint]
    settings: SettingsSection
    measure: tuple[Metric, ...]
    reference: bool


def load_config(
    path: Path,
    *,
    allow_import: bool = False,
    overrides: Mapping[str, Sequence[object]] | None = None,
    implementations: Collection[str] | None = None,
    read_model: ReadModel | None = None,
) -> Config:
    """Read a file and plan its points; the keywords are those of ``parse_config``.

    Raises ``ConfigError`` with every fault of the file, ``SpecError`` for overrides.
    """
    return parse_config(
        read_text(path),
        file=str(path),
        allow_import=allow_import,
        overrides=overrides,
        implementations=implementations,
        read_model=read_model,
    )


def parse_config(
    text: str,
    *,
    file: str,
    allow_import: bool = False,
    overrides: Mapping[str, Sequence[object]] | None = None,
    implementations: Collection[str] | None = None,
    read_model: ReadModel | None = None,
) -> Config:
    """Plan the points of YAML text.

    ``file`` names it in messages, and paths in it start where that file is.
    ``overrides`` maps fields to values of flags: they win, and several are an axis.
    ``implementations`` are the names that exist; None lets any pass.  ``read_model``
    turns models into layers; without it they stay ``ModelSource``.

    Raises ``ConfigError`` with every fault, ``SpecError`` for overrides of a wrong type.
    """
    flags = _axes(overrides or {})
    tree, faults = _mapping(text, file)
    checked = check(ConfigFile, tree, file=file, synonyms=SYNONYMS, elsewhere=ELSEWHERE)
    if _is_newer(tree):
        raise ConfigError([fault for fault in checked.faults if fault.key == "version"])
    faults += checked.faults
    # The sound part is planned all the same: faults that only planning finds are told too.
    sound = tree if checked.value else _without(tree, checked.places)
    written = checked.value or check(ConfigFile, sound, file=file).value
    if written is None or ("defaults",) in {place[:1] for place in checked.places}:
        raise ConfigError(distinct(faults))
    planning = FaultList(file=file, tree=sound)
    groups = Sections(
        written=written,
        faults=planning,
        flags=flags,
        permissions=Permissions(allow_import=allow_import, implementations=implementations),
    ).groups()
    entries = Expansion(faults=planning, read_model=read_model).run(groups)
    faults += planning.faults
    if not entries and not faults:
        message = "nothing to measure; give points, sweep, model or module"
        faults = [LocatedFault(file=file, line=1, column=1, key="points", message=message)]
    if faults:
        raise ConfigError(distinct(faults))
    return Config(
        file=file,
        name=written.name or Path(file).stem,
        text=text,
        entries=entries,
        settings=written.settings or SettingsSection.model_validate({}),
        measure=written.measure,
        reference=written.reference,
    )


def _axes(overrides: Mapping[str, Sequence[object]]) -> tuple[Axis, ...]:
    """Return one axis for each field that flags give, its values in their types."""
    faults: list[Fault] = []
    axes = []
    for name, values in overrides.items():
        rows = []
        for value in values:
            try:
                rows.append((checked_fields({name: value}).get(name),))
            except SpecError as error:
                faults += error.faults
        axes.append(Axis(fields=(name,), rows=distinct(rows)))
    if faults:
        raise SpecError(faults)
    return tuple(axes)


def _mapping(text: str, file: str) -> tuple[MapNode, list[LocatedFault]]:
    """Read the text, which has to hold a mapping."""
    tree, faults = parse_yaml(text, file=file)
    if isinstance(tree, MapNode):
        return tree, faults
    if not faults:
        line, column = (tree.line, tree.column) if tree else (1, 1)
        kind = "list" if isinstance(tree, ListNode) else "single value"
        found = f"a {kind} is not a mapping of keys" if tree else "the file is empty"
        message = f"{found}; start with version: {CONFIG_VERSION}, then points or sweep"
        faults = [LocatedFault(file=file, line=line, column=column, key="file", message=message)]
    raise ConfigError(faults)


def _is_newer(tree: MapNode) -> bool:
    """Say whether the file is of a later version, whose other faults mean nothing here."""
    version = tree.value("version")
    value = version.value if isinstance(version, ScalarNode) else None
    return isinstance(value, int) and value > CONFIG_VERSION


def _without(tree: MapNode, places: Iterable[Loc]) -> MapNode:
    """Return the tree without the entries of lists and the keys that have faults."""
    faulty = {place[:2] for place in places}
    if any(place[0] in SOURCE_KEYS for place in faulty):
        faulty.update((key,) for key in SOURCE_KEYS)
    entries: list[tuple[ScalarNode, Node]] = []
    for key, value in tree.entries:
        indices = {place[1] for place in faulty if place[0] == key.text and len(place) == 2}
        listed = isinstance(value, ListNode) and all(isinstance(i, int) for i in indices)
        if key.text == "version" or (key.text,) in faulty or (indices and not listed):
            continue
        if isinstance(value, ListNode) and indices:
            items = tuple(item for i, item in enumerate(value.items) if i not in indices)
            if items:
                kept = ListNode(line=value.line, column=value.column, items=items)
                entries.append((key, kept))
        else:
            entries.append((key, value))
    version = ScalarNode(line=1, column=1, value=CONFIG_VERSION, text=str(CONFIG_VERSION))
    named = ScalarNode(line=1, column=1, value="version", text="version")
    return MapNode(line=tree.line, column=tree.column, entries=((named, version), *entries))
