"""What a configuration plans: points, each with its spec, its model, or its module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from mhaprof.spec import AttentionSpec

NOTHING: Mapping[str, Any] = MappingProxyType({})
"""No fields."""


class Skip(NamedTuple):
    """Why a combination is not measured: ``excluded`` or ``impossible_spec``, and a sentence."""

    code: str
    message: str


@dataclass(frozen=True, kw_only=True)
class ModuleRef:
    """A module to count: ``package.module:Class``, its kwargs, its inputs as text (``2x128``)."""

    target: str
    kwargs: Mapping[str, Any]
    inputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """A model whose layers are points, and where the file names it.

    ``reference`` is a path (kind ``file``, relative to ``directory``, that of the
    configuration), ``ORG/NAME`` (kind ``hf``) or the name of a preset.
    """

    kind: Literal["file", "hf", "preset"]
    reference: str
    directory: Path
    file: str
    line: int
    column: int

    @property
    def path(self) -> Path:
        """Return where the config.json of kind ``file`` is."""
        return self.directory / self.reference


class PlannedPoint(NamedTuple):
    """One named point of a file, at ``line`` and ``column``.  A tuple: grids make many.

    It has a ``spec``, or a ``model`` that is still to be read, or a ``module``, or a
    ``skip`` (an excluded point keeps its spec).  ``given`` holds the fields that were
    given where there is no spec.  ``implementations`` is None where the file names none.
    """

    name: str
    spec: AttentionSpec | None
    implementations: tuple[str, ...] | None
    skip: Skip | None
    given: Mapping[str, Any]
    model: ModelSource | None
    module: ModuleRef | None
    line: int
    column: int
