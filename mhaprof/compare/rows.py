"""Two runs as flat rows: which rows are the same point, and what differs around them.

A row is one line of ``--format json`` or ``csv``.  Rows are paired by what they
measure (spec, implementation, settings) and by name; what is left is paired with
less, so that a changed thread count is named as such and not as a vanished point.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mhaprof.compare.verdicts import Difference
from mhaprof.errors import NotComparable
from mhaprof.records import Environment
from mhaprof.spec import AttentionSpec

Row = Mapping[str, Any]

SPEC_COLUMNS = tuple(AttentionSpec.model_fields)
MODULE_COLUMNS = ("kwargs", "inputs")
"""What tells modules of the user apart, beside their target; lists and objects."""

SETTING_COLUMNS = ("device", "dtype", "threads", "timer", "cache", "mode", "compiled", "tf32")
CONDITIONS = (*SETTING_COLUMNS, "device_name", "torch", "driver")
"""Under which conditions a time or a measured peak was taken; a key of
``--allow-env-mismatch`` each.  Clocks and load change from minute to minute: not here."""

TIME_COLUMNS = ("latency_median_s", "replicate_medians_s", "samples_s")
"""A row with any of these has a time."""

NOT_RECORDED = "not recorded"


@dataclass(frozen=True, kw_only=True)
class RunRows:
    """The rows of one run, its environment if the file has one, and the file's name.

    ``paired``: its processes ran in rounds, each at the same time as one of another run.
    ``earlier`` rows of the file are of earlier plans, and left out.
    """

    source: str
    rows: Sequence[Row]
    environment: Environment | None = None
    paired: bool = False
    is_baseline: bool = False
    earlier: int = 0


def require_measured(base: RunRows) -> RunRows:
    """Return a run to compare with; raises NotComparable when no point of it was measured."""
    if not any(row.get("status") == "ok" and role_of(row) == "point" for row in base.rows):
        what = "no measured point" if base.rows else "no points"
        raise NotComparable(f"{base.source} holds {what}: there is no baseline to compare with")
    return base


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One point in both runs; a side that has no such point is None.

    ``redefined`` lists the spec fields that differ under the same name.
    """

    base: Row | None
    new: Row | None
    redefined: Sequence[str] = field(default_factory=tuple)

    @property
    def row(self) -> Row:
        """Return the row that names the point: the candidate's where there is one."""
        row = self.new if self.new is not None else self.base
        if row is None:
            raise ValueError("a pair has at least one side")
        return row


def pair_rows(base: Sequence[Row], new: Sequence[Row]) -> list[Pair]:
    """Pair the rows of two runs; reference rows without a partner are left out.

    Only columns that both runs have can tell points apart.
    """
    shared = _columns(base) & _columns(new)
    spec = [name for name in (*SPEC_COLUMNS, *MODULE_COLUMNS) if name in shared]
    settings = [name for name in SETTING_COLUMNS if name in shared]

    # A row without a time names no timer, and is the same point all the same.
    asked = [name for name in settings if name != "timer"]

    def what(row: Row) -> tuple[Hashable, ...]:
        return (row.get("implementation"), *(_hashable(row.get(name)) for name in spec))

    def how(row: Row) -> tuple[Hashable, ...]:
        return tuple(setting(row, name) for name in asked)

    def named(row: Row) -> tuple[Hashable, ...]:
        return (row.get("name"), role_of(row))

    def alike(before: Row, after: Row) -> int:
        return sum(setting(before, name) == setting(after, name) for name in settings)

    passes: Sequence[Callable[[Row], Hashable]] = (
        lambda row: (named(row), what(row), how(row)),
        lambda row: (role_of(row), what(row), how(row)),
        lambda row: (named(row), what(row)),
        lambda row: (named(row), row.get("implementation"), how(row)),
        lambda row: (named(row), row.get("implementation")),
    )
    found: dict[int, int] = {}
    for key in passes:
        _match(base, new, key, alike, found)
    pairs = [
        Pair(
            base=base[found[place]] if place in found else None,
            new=row,
            redefined=_redefined(base[found[place]], row, spec) if place in found else (),
        )
        for place, row in enumerate(new)
    ]
    taken = set(found.values())
    pairs += [Pair(base=row, new=None) for place, row in enumerate(base) if place not in taken]
    return [pair for pair in pairs if not _unpaired_reference(pair)]


def _columns(rows: Sequence[Row]) -> set[str]:
    return {name for row in rows for name in row}


def _hashable(value: Any) -> Hashable:
    return json.dumps(value, sort_keys=True) if isinstance(value, list | dict) else value


def setting(row: Row, name: str) -> Hashable:
    """Return the value of a column; which of several equal GPUs ran is not one."""
    value: Hashable = row.get(name)
    if name == "device" and isinstance(value, str):
        return value.partition(":")[0]
    return value


def role_of(row: Row) -> str:
    """Return the role of a row; what names none is a point."""
    return str(row.get("role") or "point")


def _match(
    base: Sequence[Row],
    new: Sequence[Row],
    key: Callable[[Row], Hashable],
    alike: Callable[[Row, Row], int],
    found: dict[int, int],
) -> None:
    """Add to ``found`` (new -> base) the rows with equal keys, if still free.

    Of several, the one whose settings are most ``alike``; of those, the first.
    """
    taken = set(found.values())
    free: dict[Hashable, list[int]] = {}
    for place, row in enumerate(base):
        if place not in taken:
            free.setdefault(key(row), []).append(place)
    for place, row in enumerate(new):
        partners = free.get(key(row))
        if place not in found and partners:
            best = max(partners, key=lambda partner: alike(base[partner], row))
            found[place] = best
            partners.remove(best)


def _redefined(base: Row, new: Row, spec: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in spec if base.get(name) != new.get(name))


def _unpaired_reference(pair: Pair) -> bool:
    return (pair.base is None or pair.new is None) and role_of(pair.row) == "reference"


def is_measured(row: Row) -> bool:
    """Say whether a row holds something that depends on the machine: a time or a peak."""
    return has_time(row) or row.get("peak_bytes") is not None


def has_time(row: Row) -> bool:
    """Say whether a row holds a time: a median, or what one can be made of."""
    return any(row.get(name) for name in TIME_COLUMNS)


def conditions(row: Row, environment: Environment | None) -> dict[str, str | None]:
    """Return the conditions of a measured row; None where nobody recorded them."""
    found = {name: setting(row, name) for name in SETTING_COLUMNS}
    software = environment.software if environment else {}
    hardware = environment.hardware if environment else {}
    on_cpu = found["device"] == "cpu"
    found["device_name"] = row.get("device_name") or hardware.get(
        "cpu_model" if on_cpu else "device_name"
    )
    found["torch"] = row.get("torch") or software.get("torch")
    found["driver"] = None if on_cpu else row.get("driver") or hardware.get("driver")
    return {name: None if value is None else str(value) for name, value in found.items()}


def differences(
    pairs: Sequence[Pair], base: Environment | None, new: Environment | None
) -> list[Difference]:
    """Return the conditions that differ between the two sides of measured pairs.

    A condition that one side alone recorded counts as different: nobody knows.
    Points with the same difference share one entry.
    """
    found: dict[tuple[str, str, str], list[str]] = {}
    for pair in pairs:
        if pair.base is None or pair.new is None:
            continue
        if not (is_measured(pair.base) and is_measured(pair.new)):
            continue
        before, after = conditions(pair.base, base), conditions(pair.new, new)
        for key in CONDITIONS:
            if before[key] != after[key]:
                values = (before[key] or NOT_RECORDED, after[key] or NOT_RECORDED)
                found.setdefault((key, *values), []).append(str(pair.row.get("name")))
    return [
        Difference(key=key, base=before, new=after, points=names)
        for (key, before, after), names in found.items()
    ]
