"""One name per row: for verdicts, and for formats that know a benchmark by its name alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mhaprof.compare.rows import picked

_PLACE = ("device", "dtype")
_USUAL: Mapping[str, object] = {
    "threads": None,
    "mode": "forward",
    "cache": "cold",
    "compiled": False,
    "tf32": False,
}
"""Settings that are named where they are not the usual."""

_COLUMNS = ("name", "implementation", *_PLACE, *_USUAL)


def labels(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a stable label per row: ``paper [sdpa] (cpu, float32, threads=2)``.

    Settings other than the usual are named; rows that still look alike are numbered.
    """
    seen: Counter[str] = Counter()
    found = []
    for row in rows:
        label = label_of(row)
        seen[label] += 1
        found.append(label if seen[label] == 1 else f"{label} #{seen[label]}")
    return found


def label_of(row: Mapping[str, Any]) -> str:
    """Return the label of one row, before any numbering."""
    name, implementation, *values = picked(row, _COLUMNS)
    words = [str(value) for value in values[: len(_PLACE)] if value is not None]
    words += [
        f"{setting}={value}"
        for (setting, usual), value in zip(_USUAL.items(), values[len(_PLACE) :], strict=True)
        if value is not None and value != usual
    ]
    where = f" ({', '.join(words)})" if words else ""
    return f"{' '.join(str(name).split())} [{implementation}]{where}"
