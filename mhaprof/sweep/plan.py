"""What a sweep will do: one entry per point, implementation, device, dtype and threads."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

from mhaprof.point import MeasureOptions
from mhaprof.point.measuring import Metric
from mhaprof.records import ImpossiblePoint, Point, Skipped
from mhaprof.runners.base import Task


@dataclass(frozen=True, kw_only=True)
class PlanEntry:
    """One row to be: a point and what to measure of it, or the reason why it is skipped.

    ``identity`` is the hash of the point's content and of what is measured; two
    entries of one plan never share it.
    """

    identity: str
    ordinal: int
    point: Point | ImpossiblePoint
    what: frozenset[Metric]
    options: MeasureOptions = field(default_factory=MeasureOptions)
    skip: Skipped | None = None

    def task(self, number: int) -> Task:
        """Return the task of one round."""
        assert isinstance(self.point, Point)
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
    point: Point | ImpossiblePoint, what: frozenset[Metric], options: MeasureOptions
) -> str:
    """Return the hash of a point, of what is measured of it, and of how it is counted."""
    content: dict[str, object] = {"point": point.identity(), "measure": sorted(what)}
    if "flops" in what:
        content |= options.model_dump(include={"counters", "backward", "cache_dtype"})
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
