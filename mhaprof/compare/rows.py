"""Two runs as flat rows: which rows are the same point, and what differs around them.

A row is one line of ``--format json`` or ``csv``.  Rows are paired by what they
measure (spec, implementation, settings) and by name; what is left is paired with
less, so that a changed thread count is named as such and not as a vanished point.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import eq, itemgetter
from sys import intern
from typing import Any, NamedTuple

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


class Places(dict[str, int]):
    """Where the value of each column is, for all rows of the same columns; -1: it is null."""

    def __init__(self, columns: Iterable[str], null: Iterable[str] = ()) -> None:
        super().__init__({name: place for place, name in enumerate(columns)})
        for name in null:
            self.setdefault(name, -1)
        self.names = tuple(self)
        self.getters: dict[tuple[str, ...], Callable[[Sequence[Any]], tuple[Any, ...]]] = {}

    def getter(self, names: tuple[str, ...]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
        """Return what gets the values of at least two columns."""
        found = self.getters.get(names)
        if found is None:
            found = self.getters[names] = itemgetter(*[self.get(name, -1) for name in names])
        return found


class PackedRow(Mapping[str, Any]):
    """One of many rows with the same columns: a fifth of the memory of a dict."""

    __slots__ = ("packed", "places")

    def __init__(self, places: Places, values: Iterable[Any]) -> None:
        self.places = places
        self.packed = (*[intern(each) if type(each) is str else each for each in values], None)

    def __getitem__(self, name: str) -> Any:
        return self.packed[self.places[name]]

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a column, or ``default`` where the row has no such column."""
        place = self.places.get(name)
        return default if place is None else self.packed[place]

    def __contains__(self, name: object) -> bool:
        return name in self.places

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def picked(row: Row, names: tuple[str, ...]) -> tuple[Any, ...]:
    """Return the values of at least two columns; None where a row has not one."""
    if isinstance(row, PackedRow):
        return row.places.getter(names)(row.packed)
    return tuple(map(row.get, names))


def names_of(row: Row) -> tuple[str, ...]:
    """Return the columns of a row."""
    return row.places.names if isinstance(row, PackedRow) else tuple(row)


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


class Pair(NamedTuple):
    """One point in both runs; a side that has no such point is None.

    ``redefined`` lists the spec fields that differ under the same name.
    """

    base: Row | None
    new: Row | None
    redefined: Sequence[str] = ()

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
    spec = tuple(name for name in SPEC_COLUMNS if name in shared)
    nested = tuple(name for name in MODULE_COLUMNS if name in shared)
    settings = tuple(name for name in SETTING_COLUMNS if name in shared)

    # A row without a time names no timer, and is the same point all the same.
    asked = tuple(name for name in settings if name != "timer")

    def what(row: Row) -> tuple[Hashable, ...]:
        own = [_text(row, name) for name in nested]
        return (*picked(row, ("implementation", "implementation", *spec)), *own)

    def how(row: Row) -> tuple[Hashable, ...]:
        return _settings(row, asked)

    def named(row: Row) -> tuple[Hashable, ...]:
        return (row.get("name"), role_of(row))

    passes: Sequence[Callable[[Row], Hashable]] = (
        lambda row: (named(row), what(row), how(row)),
        lambda row: (role_of(row), what(row), how(row)),
        lambda row: (named(row), what(row)),
        lambda row: (named(row), row.get("implementation"), how(row)),
        lambda row: (named(row), row.get("implementation")),
    )
    found: dict[int, int] = {}
    for key in passes[:3]:
        _match(base, new, key, settings, found)
    same = set(found)
    for key in passes[3:]:
        _match(base, new, key, settings, found)
    pairs = []
    for place, row in enumerate(new):
        if place not in found:
            pairs.append(Pair(base=None, new=row))
            continue
        partner = base[found[place]]
        moved = () if place in same else (*spec, *nested)
        redefined = tuple([name for name in moved if partner.get(name) != row.get(name)])
        pairs.append(Pair(base=partner, new=row, redefined=redefined))
    taken = set(found.values())
    pairs += [Pair(base=row, new=None) for place, row in enumerate(base) if place not in taken]
    return [pair for pair in pairs if not _unpaired_reference(pair)]


def _columns(rows: Sequence[Row]) -> set[str]:
    return set().union(*dict.fromkeys(map(names_of, rows)))


def _text(row: Row, name: str) -> str | None:
    value = row.get(name)
    return None if value is None else json.dumps(value, sort_keys=True)


def setting(row: Row, name: str) -> Hashable:
    """Return the value of a column; which of several equal GPUs ran is not one."""
    value: Hashable = row.get(name)
    if name == "device" and isinstance(value, str):
        return value.partition(":")[0]
    return value


def _settings(row: Row, names: tuple[str, ...]) -> tuple[Hashable, ...]:
    if ":" in str(row.get("device")) or len(names) < 2:
        return tuple([setting(row, name) for name in names])
    return picked(row, names)


def role_of(row: Row) -> str:
    """Return the role of a row; what names none is a point."""
    return str(row.get("role") or "point")


def _match(
    base: Sequence[Row],
    new: Sequence[Row],
    key: Callable[[Row], Hashable],
    settings: tuple[str, ...],
    found: dict[int, int],
) -> None:
    """Add to ``found`` (new -> base) the rows with equal keys, if still free.

    Of several, the one with the most equal ``settings``; of those, the first.
    """
    taken = set(found.values())
    left = [place for place in range(len(new)) if place not in found]
    if not left or len(taken) == len(base):
        return
    free: dict[Hashable, list[int] | _Choice] = {}
    for place, row in enumerate(base):
        if place not in taken:
            free.setdefault(key(row), []).append(place)  # type: ignore[union-attr]
    for place in left:
        wanted = key(new[place])
        partners = free.get(wanted)
        if isinstance(partners, list) and len(partners) > 1:
            partners = free[wanted] = _Choice(base, partners, settings)
        if partners:
            found[place] = (
                partners.pop()
                if isinstance(partners, list)
                else partners.pop(_settings(new[place], settings))
            )


class _Choice:
    """Rows of equal keys, by their settings: one by one, a file of equal rows takes hours."""

    def __init__(
        self, rows: Sequence[Row], places: Sequence[int], settings: tuple[str, ...]
    ) -> None:
        self._left: dict[tuple[Hashable, ...], deque[int]] = {}
        for place in places:
            self._left.setdefault(_settings(rows[place], settings), deque()).append(place)

    def __len__(self) -> int:
        return len(self._left)

    def pop(self, wanted: tuple[Hashable, ...]) -> int:
        """Take the row of the most equal settings; of several the first."""
        left = self._left
        best = max(left, key=lambda under: (sum(map(eq, under, wanted)), -left[under][0]))
        place = left[best].popleft()
        if not left[best]:
            del left[best]
        return place


def _unpaired_reference(pair: Pair) -> bool:
    return (pair.base is None or pair.new is None) and role_of(pair.row) == "reference"


def is_measured(row: Row) -> bool:
    """Say whether a row holds something that depends on the machine: a time or a peak."""
    return has_time(row) or row.get("peak_bytes") is not None


def has_time(row: Row) -> bool:
    """Say whether a row holds a time: a median, or what one can be made of."""
    return any(picked(row, TIME_COLUMNS))


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
    known: dict[Hashable, dict[str, str | None]] = {}

    def seen(row: Row, environment: Environment | None) -> dict[str, str | None]:
        key = (environment is base, *picked(row, CONDITIONS))
        return known.get(key) or known.setdefault(key, conditions(row, environment))

    for pair in pairs:
        if pair.base is None or pair.new is None:
            continue
        if not (is_measured(pair.base) and is_measured(pair.new)):
            continue
        before, after = seen(pair.base, base), seen(pair.new, new)
        if before == after:
            continue
        for key in CONDITIONS:
            if before[key] != after[key]:
                values = (before[key] or NOT_RECORDED, after[key] or NOT_RECORDED)
                found.setdefault((key, *values), []).append(str(pair.row.get("name")))
    return [
        Difference(key=key, base=before, new=after, points=names)
        for (key, before, after), names in found.items()
    ]
