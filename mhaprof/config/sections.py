"""Sections of a file -> groups of points: what varies, what is fixed, what is allowed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mhaprof.config.conditions import Condition
from mhaprof.config.file import (
    SPEC_FIELDS,
    DefaultsSection,
    FileSection,
    PointSection,
    SweepSection,
)
from mhaprof.config.grid import Axis, point_name, size
from mhaprof.config.located import FaultList, Loc, nearest
from mhaprof.config.planned import ModelSource, ModuleRef
from mhaprof.config.yaml_tree import MapNode, value_at


@dataclass(frozen=True, kw_only=True)
class Permissions:
    """What a file may name: code to import, and implementations (None: any)."""

    allow_import: bool = False
    implementations: Collection[str] | None = None


@dataclass(frozen=True, kw_only=True)
class Group:
    """Points that share all but ``axes``: one entry of ``points``, one sweep.

    ``loc`` is where it stands.  ``name`` starts the names of its points.  A combination
    that makes no spec is a fault, or with ``skips`` a skip.  ``conditions`` come with
    the place where each is written.
    """

    loc: Loc
    fixed: Mapping[str, Any]
    axes: Sequence[Axis]
    implementations: tuple[str, ...] | None
    name: str = ""
    name_all: bool = False
    skips: bool = False
    conditions: tuple[tuple[Loc, Condition], ...] = ()
    model: ModelSource | None = None
    module: ModuleRef | None = None


def given_fields(section: PointSection | DefaultsSection) -> dict[str, Any]:
    """Return the spec fields that a section gives; an explicit null is among them."""
    given = section.model_fields_set
    return {name: getattr(section, name) for name in SPEC_FIELDS if name in given}


@dataclass(kw_only=True)
class Sections:
    """Make the groups of one file.  ``flags`` are axes that win over the file's."""

    written: FileSection
    faults: FaultList
    flags: Sequence[Axis] = ()
    permissions: Permissions = field(default_factory=Permissions)
    names: dict[str, Loc] = field(default_factory=dict)

    def groups(self) -> Iterator[Group]:
        """Yield the groups in the order of their points: points, sweeps, model, module."""
        self.check_implementations(("defaults",), self.defaults.implementations)
        for index, point in enumerate(self.written.points or ()):
            yield self.point(("points", index), point)
        yield from self.sweeps()
        self.check_sources((), self.written)
        named = self.written.module or self.written.model or self.written.preset
        swept = self.written.sweep or self.written.zip
        if named is not None and (self.written.module is not None or not swept):
            yield self.named((), self.written, named, {}, self.defaults.implementations)

    @property
    def defaults(self) -> DefaultsSection:
        """Return what every point starts from."""
        return self.written.defaults or DefaultsSection.model_validate({})

    def point(self, loc: Loc, point: PointSection) -> Group:
        """Return the group of one entry of ``points``."""
        own = given_fields(point)
        self.check_sources(loc, point)
        if point.module is not None:
            for key in own:
                message = "a module is counted as it is; give it kwargs and inputs instead"
                self.faults.add((*loc, key), key, message)
        self.check_name(loc, point.name)
        made = point_name(own, own.values()) or "defaults"
        name = point.name or point.module or point.model or point.preset or made
        return self.named(loc, point, name, own, self.implementations_of(loc, point))

    def check_name(self, loc: Loc, name: str | None) -> None:
        """Check that no other point has the name."""
        if name in self.names:
            place = value_at(self.faults.tree, (*self.names[name], "name"))
            message = f"{name} is the name of the point on line {place.line} too; rename one"
            self.faults.add((*loc, "name"), "name", message)
        elif name is not None:
            self.names[name] = loc

    def named(
        self,
        loc: Loc,
        section: PointSection | FileSection,
        name: str,
        own: Mapping[str, Any],
        implementations: tuple[str, ...] | None,
    ) -> Group:
        """Return the group of a section that has a name: it varies with flags alone."""
        module = None
        if section.module is not None:
            module = ModuleRef(
                target=section.module, kwargs=section.kwargs or {}, inputs=section.inputs or ()
            )
        source = next((key for key in ("module", "model", "preset") if getattr(section, key)), "")
        return Group(
            loc=loc or (source,),
            fixed={**given_fields(self.defaults), **own},
            axes=() if module else self.flags,
            implementations=implementations,
            name=name,
            model=self.model_of(loc, section),
            module=module,
        )

    def sweeps(self) -> Iterator[Group]:
        """Yield the group of each sweep; zip groups of the top level vary in each."""
        shared = [group.axis() for group in self.written.zip]
        if not self.written.sweep:
            if shared:
                yield self.grid(("zip",), shared, None, name_all=False)
            return
        for index, sweep in enumerate(self.written.sweep):
            loc = ("sweep", index)
            node = value_at(self.faults.tree, loc)
            order = [key.text for key, _ in node.entries] if isinstance(node, MapNode) else []
            own = sweep.axes(order)
            varied = {name for axis in own for name in axis.fields}
            for place, axis in enumerate(shared):
                for name in varied.intersection(axis.fields):
                    message = "varies in a sweep too; keep it in one of the two"
                    self.faults.add(("zip", place, name), name, message)
            yield self.grid(loc, own + shared, sweep, name_all=len(self.written.sweep) > 1)

    def grid(
        self, loc: Loc, axes: Sequence[Axis], sweep: SweepSection | None, *, name_all: bool
    ) -> Group:
        """Return the group of one sweep."""
        flagged = [name for axis in self.flags for name in axis.fields]
        left = [*(axis.without(flagged) for axis in axes), *self.flags]
        own = enumerate(sweep.exclude if sweep else ())
        everywhere = enumerate(self.written.exclude)
        return Group(
            loc=loc,
            fixed=given_fields(self.defaults),
            axes=left,
            implementations=self.implementations_of(loc, sweep or self.defaults),
            name_all=name_all or size(left) == 1,
            skips=True,
            conditions=(
                *(((*loc, "exclude", index), condition) for index, condition in own),
                *((("exclude", index), condition) for index, condition in everywhere),
            ),
            model=self.model_of((), self.written),
        )

    def implementations_of(
        self, loc: Loc, section: PointSection | SweepSection | DefaultsSection
    ) -> tuple[str, ...] | None:
        """Return the implementations of a section, or those of the defaults."""
        if section is self.defaults or "implementations" not in section.model_fields_set:
            return self.defaults.implementations
        self.check_implementations(loc, section.implementations)
        return section.implementations

    def check_implementations(self, loc: Loc, names: tuple[str, ...] | None) -> None:
        """Check that implementations exist, and that code may be imported for them."""
        known = self.permissions.implementations
        for index, name in enumerate(names or ()):
            message = None
            if ":" in name:
                message = None if self.permissions.allow_import else _import_refused(name)
            elif known is not None and name not in known:
                near = nearest(name, known)
                hint = f"did you mean {near}?" if near else f"expected one of {', '.join(known)}"
                message = f"{name} is not an implementation; {hint}"
            if message is not None:
                self.faults.add((*loc, "implementations", index), "implementations", message)

    def check_sources(self, loc: Loc, section: PointSection | FileSection) -> None:
        """Check what names a model or a module, and what belongs to it."""
        sources = [key for key in ("model", "preset", "module") if getattr(section, key)]
        for key in sources[1:]:
            self.faults.add((*loc, key), key, f"{sources[0]} is given too; keep one of them")
        if section.module is None:
            for key in ("kwargs", "inputs"):
                if getattr(section, key) is not None:
                    self.faults.add((*loc, key), key, "belongs to a module, and none is given")
            return
        if not self.permissions.allow_import:
            self.faults.add((*loc, "module"), "module", _import_refused(section.module))
        if section.inputs is None:
            self.faults.add(loc, "inputs", "is missing; expected shapes such as [2x128x64]")

    def model_of(self, loc: Loc, section: PointSection | FileSection) -> ModelSource | None:
        """Return the model that a section names, if any."""
        key = "model" if section.model is not None else "preset"
        reference: str | None = getattr(section, key)
        if reference is None:
            return None
        place = value_at(self.faults.tree, (*loc, key))
        hub = key == "model" and reference.startswith("hf:")
        return ModelSource(
            kind="preset" if key == "preset" else "hf" if hub else "file",
            reference=reference.removeprefix("hf:") if hub else reference,
            directory=Path(self.faults.file).parent,
            file=self.faults.file,
            line=place.line,
            column=place.column,
        )


def _import_refused(name: str) -> str:
    return f"{name} is code that would be imported; give --allow-import if you trust this file"
