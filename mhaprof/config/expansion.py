"""Groups of points -> planned points, with the faults that only appear then."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mhaprof.config.conditions import ConditionError
from mhaprof.config.file import SPEC_FIELDS
from mhaprof.config.grid import MAX_POINTS, combinations, size
from mhaprof.config.located import FaultList, Loc
from mhaprof.config.planned import NOTHING, Again, ModelSource, PlannedPoint, Skip
from mhaprof.config.sections import Group
from mhaprof.config.yaml_tree import MapNode, Node, value_at
from mhaprof.errors import ConfigError, LocatedFault, SpecError, UsageError
from mhaprof.spec import DEFAULT_TOKENS, DEFAULTS, AttentionSpec

Fields = Mapping[str, Any]
ReadModel = Callable[[ModelSource, Fields], Iterable[tuple[str, AttentionSpec]]]
"""Reads a model: its source and the given fields -> a label and a spec for each layer kind."""

KEPT = 10_000
"""Points that are kept in memory; those of a larger grid are made anew at each reading."""


@dataclass(kw_only=True)
class Expansion:
    """Plan the points of groups; ``points`` maps unique names to them."""

    faults: FaultList
    read_model: ReadModel | None = None
    points: dict[str, PlannedPoint] = field(default_factory=dict)
    unanswered: set[Loc] = field(default_factory=set)

    def run(self, groups: Iterable[Group]) -> Collection[PlannedPoint]:
        """Plan all groups, unless they hold too many points; of a large grid none is kept."""
        total = 0
        groups = list(groups)
        for group in groups:
            total += size(group.axes)
            if total > MAX_POINTS:
                message = f"the file makes {total} points up to here; at most {MAX_POINTS}"
                self.faults.add(group.loc, str(group.loc[0]), message)
                return ()
        if total > KEPT and len(groups) == 1 and not (groups[0].model or groups[0].module):
            found = Again(lambda: self.passing(groups[0]), size=total)
            deque(found, maxlen=0)  # for its faults
            return found
        for group in groups:
            deque(self.expand(group), maxlen=0)
        return tuple(self.points.values())

    def passing(self, group: Group) -> Iterator[PlannedPoint]:
        """Yield the points of the only group, whose names all differ, and keep none."""
        for _ in self.expand(group):
            made = tuple(self.points.values())
            self.points.clear()
            yield from made

    def expand(self, group: Group) -> Iterator[None]:
        """Plan the combinations of one group, one at each step."""
        fixed, prefix, node = group.fixed, group.name, value_at(self.faults.tree, group.loc)
        for varied, text in combinations(group.axes, name_all=group.name_all):
            name = f"{prefix} {text}" if prefix and text else prefix or text or "defaults"
            fields = {**fixed, **varied}
            if group.module is not None:
                self.add(group, node, name, given=NOTHING)
            elif group.model is None:
                self.resolve(group, node, name, fields)
            else:
                self.read(group, node, name, fields)
            yield

    def resolve(self, group: Group, node: Node, name: str, fields: dict[str, Any]) -> None:
        """Plan a combination that is a spec, or that is impossible."""
        try:
            spec = AttentionSpec.from_checked(fields)
        except SpecError as error:
            if not group.skips:
                self.impossible(group.loc, error)
                return
            skip = _impossible(error)
            if group.conditions:
                skip = self.excluded(group, _tentative(fields)) or skip
            self.add(group, node, name, given=fields, skip=skip)
            return
        excluded = self.excluded(group, vars(spec)) if group.conditions else None
        self.add(group, node, name, spec=spec, skip=excluded)

    def read(self, group: Group, node: Node, name: str, fields: Fields) -> None:
        """Plan the layers of a model; what its reader refuses is a fault, or a skip."""
        model, read = group.model, self.read_model
        if model is None or read is None:
            self.add(group, node, name, given=fields)
            return
        try:
            for label, spec in read(model, fields):
                excluded = self.excluded(group, vars(spec))
                self.add(group, node, f"{name} {label}", spec=spec, skip=excluded)
        except ConfigError as error:
            self.faults.extend(error.faults)
        except UsageError as error:
            if isinstance(error, SpecError) and group.skips:
                self.add(group, node, name, given=fields, skip=_impossible(error))
                return
            self.faults.extend(
                LocatedFault(
                    file=model.file,
                    line=model.line,
                    column=model.column,
                    key="preset" if model.kind == "preset" else "model",
                    message=line,
                )
                for line in str(error).splitlines()
            )

    def excluded(self, group: Group, known: Fields) -> Skip | None:
        """Return the skip of the first condition that holds; one without answer is a fault."""
        for loc, condition in group.conditions:
            if loc in self.unanswered:
                continue
            try:
                if condition.holds(known):
                    return Skip("excluded", f"excluded by {condition.text!r}")
            except ConditionError as error:
                self.unanswered.add(loc)
                self.faults.add(loc, "exclude", str(error))
        return None

    def impossible(self, loc: Loc, error: SpecError) -> None:
        """Put the faults of a point's spec where the fields that cause them are given.

        A field is looked up in the point, then in the defaults; the one that a fault is
        about comes first, then those that its message names, last named first.
        """
        for fault in error.faults:
            words = re.findall(r"[a-z_]+", fault.message.partition(";")[0])
            named = [fault.field, *(word for word in reversed(words) if word in SPEC_FIELDS)]
            sections: list[Loc] = [loc, ("defaults",)]
            places = [(*section, key) for section in sections for key in named]
            given = (place for place in places if is_given(self.faults.tree, place))
            place = next(given, loc)
            key = str(place[-1]) if place != loc else fault.field
            self.faults.add(place, key, as_keys(fault.message))

    def add(
        self,
        group: Group,
        node: Node,
        name: str,
        *,
        spec: AttentionSpec | None = None,
        given: Fields = NOTHING,
        skip: Skip | None = None,
    ) -> None:
        """Add a point.  The same point of two sweeps is one; another gets another name."""
        wanted, copies = name, 1
        while True:
            point = PlannedPoint(
                name=name,
                spec=spec,
                implementations=group.implementations,
                skip=skip,
                given=given,
                model=group.model if spec is None else None,
                module=group.module,
                line=node.line,
                column=node.column,
            )
            known = self.points.setdefault(name, point)
            if known is point or same_content(known, point):
                return
            copies += 1
            name = f"{wanted} ({copies})"


def same_content(one: PlannedPoint, other: PlannedPoint) -> bool:
    """Say whether two points of one name are the same point."""
    return all(
        getattr(one, name) == getattr(other, name)
        for name in ("spec", "implementations", "skip", "given", "module", "model")
    )


def _impossible(error: SpecError) -> Skip:
    return Skip("impossible_spec", as_keys(str(error)))


def as_keys(message: str) -> str:
    """Name the keys of a file where a message names flags (``--kv-heads``)."""
    return re.sub(r"--([a-z][a-z-]*)", lambda match: match[1].replace("-", "_"), message)


def is_given(tree: Node, loc: Loc) -> bool:
    """Say whether a key is given in a section of the file."""
    section = value_at(tree, loc[:-1])
    return isinstance(section, MapNode) and section.value(str(loc[-1])) is not None


def _tentative(given: Fields) -> dict[str, Any]:
    """Complete the fields of an impossible spec as far as they go, for conditions."""
    fields: dict[str, Any] = {**dict.fromkeys(SPEC_FIELDS), **DEFAULTS}
    if given.get("phase") == "decode":
        fields.update(tokens=1, kv_tokens=DEFAULT_TOKENS)
    fields.update((name, value) for name, value in given.items() if value is not None)
    dim, heads = fields["dim"], fields["heads"]
    derived = {
        "kv_tokens": fields["tokens"],
        "kv_heads": heads,
        "head_dim": None if dim % heads else dim // heads,
        "k_bias": fields["qkv_bias"],
        "latent_form": "none",
    }
    fields.update((name, value) for name, value in derived.items() if fields[name] is None)
    if fields["v_head_dim"] is None:
        fields["v_head_dim"] = fields["head_dim"]
    return fields
