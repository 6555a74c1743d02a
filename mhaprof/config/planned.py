"""What a configuration plans: points, each with its spec, its model, or its module."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

from mhaprof.spec import AttentionSpec

T = TypeVar("T")

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


class Again(Collection[T]):
    """Items that ``make`` yields anew at each reading: of a million none is kept."""

    def __init__(self, make: Callable[[], Iterator[T]], *, size: int) -> None:
        self._make, self._size = make, size

    def __iter__(self) -> Iterator[T]:
        return self._make()

    def __len__(self) -> int:
        return self._size

    def __contains__(self, item: object) -> bool:
        return any(each == item for each in self)
