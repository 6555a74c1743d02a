"""One name per row: for verdicts, and for formats that know a benchmark by its name alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_PLACE = ("device", "dtype")
_USUAL: Mapping[str, object] = {
    "threads": None,
    "mode": "forward",
    "cache": "cold",
    "compiled": False,
    "tf32": False,
}
"""Settings that are named where they are not the usual."""


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
    words = [str(row[name]) for name in _PLACE if row.get(name) is not None]
    words += [
        f"{name}={row[name]}"
        for name, usual in _USUAL.items()
        if row.get(name) not in (None, usual)
    ]
    where = f" ({', '.join(words)})" if words else ""
    name = " ".join(str(row["name"]).split())
    return f"{name} [{row['implementation']}]{where}"
