"""Axes -> combinations: ranges, zipped groups, the product, and a name for each point."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_POINTS = 1_000_000
"""The most points of one file; more is a typo in a range."""

Row = tuple[Any, ...]


class RangeError(ValueError):
    """Say what is wrong with a range: what was given, what is expected."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Fields that vary together: each row holds one value for each of ``fields``."""

    fields: tuple[str, ...]
    rows: tuple[Row, ...]

    def without(self, fields: Iterable[str]) -> Axis:
        """Return the axis without some fields; rows that become equal are one."""
        kept = [index for index, name in enumerate(self.fields) if name not in set(fields)]
        rows = (tuple(row[index] for index in kept) for row in self.rows)
        return Axis(fields=tuple(self.fields[index] for index in kept), rows=distinct(rows))


def distinct(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return the values in their order, each once."""
    return tuple(dict.fromkeys(values))


def size(axes: Sequence[Axis]) -> int:
    """Return the number of combinations, without making them."""
    return math.prod(len(axis.rows) for axis in axes)


def too_many(given: Iterable[Sequence[object]]) -> str | None:
    """Say how many points lists of values make, when those are more than are planned."""
    count = math.prod(map(len, given))
    return f"{count} points; at most {MAX_POINTS} are planned" if count > MAX_POINTS else None


def combinations(
    axes: Sequence[Axis], *, name_all: bool = False
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the fields of each combination and its name (``heads=4 tokens=128``).

    The first axis varies slowest.  Names hold the fields that vary, or all of them.
    """
    columns = [
        [
            (
                dict(zip(axis.fields, row, strict=True)),
                point_name(axis.fields, row) if name_all or len(axis.rows) > 1 else "",
            )
            for row in axis.rows
        ]
        for axis in axes
        if axis.fields
    ]
    for chosen in itertools.product(*columns):
        fields: dict[str, Any] = {}
        for part, _ in chosen:
            fields.update(part)
        yield fields, " ".join(text for _, text in chosen if text)


def point_name(fields: Iterable[str], values: Iterable[Any]) -> str:
    """Name a point by its fields, in the words of the file (``heads=4 out_proj=false``)."""
    pairs = zip(fields, values, strict=True)
    return " ".join(f"{field}={worded(value)}" for field, value in pairs)


def worded(value: object) -> str:
    """Write a value as in the file; a field that is not given is ``none``."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def range_values(given: Mapping[str, Any]) -> list[int]:
    """Return the numbers of a range, both ends included.

    ``{pow2: [64, 8192]}`` are the powers of two from 64 to 8192; ``{range: [8, 64, 8]}``
    are 8, 16, ... 64 (the step is 1 if left out; a last value past the end is left
    out).  Raises ``RangeError``.
    """
    if len(given) != 1 or not set(given) <= {"pow2", "range"}:
        raise RangeError("expected {pow2: [64, 8192]} or {range: [8, 64, 8]}")
    kind, bounds = next(iter(given.items()))
    lengths = (2,) if kind == "pow2" else (2, 3)
    if not isinstance(bounds, list) or len(bounds) not in lengths:
        wanted = "[first, last]" if kind == "pow2" else "[first, last, step]"
        raise RangeError(f"{kind} takes {wanted}")
    numbers = [_whole(bound, kind) for bound in bounds]
    if numbers[1] < numbers[0]:
        raise RangeError(f"{kind} goes up, and {numbers[1]} is below {numbers[0]}")
    return _powers(*numbers) if kind == "pow2" else _steps(*numbers)


def _whole(value: object, kind: str) -> int:
    """Return a bound as a whole number of at least 1."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RangeError(f"{kind} takes whole numbers of at least 1")
    return value


def _powers(first: int, last: int) -> list[int]:
    for end in (first, last):
        if end & (end - 1):
            below = 1 << (end.bit_length() - 1)
            raise RangeError(
                f"pow2 goes from one power of two to another, and {end} is "
                f"none; the nearest are {below} and {2 * below}"
            )
    return [1 << power for power in range(first.bit_length() - 1, last.bit_length())]


def _steps(first: int, last: int, step: int = 1) -> list[int]:
    count = (last - first) // step + 1
    if count > MAX_POINTS:
        raise RangeError(f"{count} values; at most {MAX_POINTS} are planned")
    return list(range(first, last + 1, step))
