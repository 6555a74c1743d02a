"""A configuration file -> named points, settings, and every fault with its place.

What is written (``config_file``, partial) and what is planned (``PlannedPoint``,
resolved) are two types.  A point is made of, later wins: the defaults of ``spec.py``,
``defaults`` of the file, the point or the combination of a sweep, flags.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mhaprof.config_file import ELSEWHERE, SYNONYMS, ConfigFile, Metric, SettingsSection
from mhaprof.config_file import config_schema as config_schema
from mhaprof.errors import ConfigError, LocatedFault, SpecError
from mhaprof.expansion import Expansion, ReadModel
from mhaprof.grid import Axis, distinct
from mhaprof.located import FaultList, Loc, check
from mhaprof.planned import ModelSource, ModuleRef, PlannedPoint, Skip
from mhaprof.sections import Permissions, Sections
from mhaprof.spec import checked_fields
from mhaprof.yaml_source import parse_yaml, read_text
from mhaprof.yaml_tree import ListNode, MapNode, Node

__all__ = [
    "Config",
    "ModelSource",
    "ModuleRef",
    "PlannedPoint",
    "SettingsSection",
    "Skip",
    "config_schema",
    "load_config",
    "parse_config",
]


@dataclass(frozen=True, kw_only=True)
class Config:
    """What a file plans.  ``text`` is the file itself; ``entries`` have unique names."""

    file: str
    name: str
    text: str
    entries: tuple[PlannedPoint, ...]
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
    faults += checked.faults
    written, sound = checked.value, tree
    if written is None:
        # Plan what is sound, so that the faults which only planning finds are told too.
        sound = _without(tree, checked.places)
        written = check(ConfigFile, sound, file=file).value
    if written is None:
        raise ConfigError(faults)
    planning = FaultList(file=file, tree=sound)
    groups = Sections(
        written=written,
        faults=planning,
        flags=flags,
        permissions=Permissions(allow_import=allow_import, implementations=implementations),
    ).groups()
    entries = Expansion(faults=planning, read_model=read_model).run(groups)
    faults += [fault for fault in planning.faults if checked.value or fault.message not in _VAIN]
    if faults:
        raise ConfigError(faults)
    return Config(
        file=file,
        name=written.name or Path(file).stem,
        text=text,
        entries=entries,
        settings=written.settings or SettingsSection(),
        measure=written.measure,
        reference=written.reference,
    )
