"""Rows as the JSON that benchmark trackers and pyperf read.

    github-action-benchmark   a list of {name, unit, value, range, extra}, smaller is better
                              (range and extra are strings)
    Bencher Metric Format     {benchmark: {measure: {value, lower_value, upper_value}}},
                              its measure ``latency`` is in nanoseconds
    pyperf 1.0                a suite with one benchmark per timed row, in seconds

Rows that did not end ok, and reference rows, are left out: they are no benchmarks.  They
are labelled all the same, so that the label of a point does not depend on the others' fate.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mhaprof.compare.labels import labels
from mhaprof.units import milliseconds, nanoseconds

BENCHER_NAME_LENGTH = 1024
PYPERF_VERSION = "1.0"

Row = Mapping[str, Any]

_COUNTS = (("macs", "MACs"), ("peak_bytes", "bytes"))
_METADATA = ("implementation", "device", "device_name", "dtype", "threads", "timer", "cache")


def _benchmarks(rows: Sequence[Row]) -> Iterator[tuple[str, Row]]:
    points = [row for row in rows if row.get("role") != "reference"]
    for label, row in zip(labels(points), points, strict=True):
        if row["status"] == "ok":
            yield label, row


def github_benchmark(rows: Sequence[Row]) -> str:
    """Return JSON for github-action-benchmark's ``customSmallerIsBetter``."""
    entries: list[dict[str, Any]] = []
    for label, row in _benchmarks(rows):
        extra = _extra(row)
        if row.get("latency_median_s") is not None:
            entry = {
                "name": f"{label} latency",
                "unit": "ms",
                "value": milliseconds(row["latency_median_s"]),
                "extra": extra,
            }
            low, high = row.get("latency_ci_low_s"), row.get("latency_ci_high_s")
            if low is not None and high is not None:
                entry["range"] = f"± {milliseconds(high - low) / 2:.4g}"
            entries.append(entry)
        entries += [
            {"name": f"{label} {column}", "unit": unit, "value": row[column], "extra": extra}
            for column, unit in _COUNTS
            if row.get(column) is not None
        ]
    return json.dumps(entries, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _extra(row: Row) -> str:
    return "\n".join(f"{name}: {row[name]}" for name in _METADATA if row.get(name) is not None)


def bencher(rows: Sequence[Row]) -> str:
    """Return Bencher Metric Format: latency in nanoseconds, MACs and peak bytes."""
    found: dict[str, dict[str, Any]] = {}
    for label, row in _benchmarks(rows):
        measures: dict[str, Any] = {}
        if row.get("latency_median_s") is not None:
            values = {
                "value": row["latency_median_s"],
                "lower_value": row.get("latency_ci_low_s"),
                "upper_value": row.get("latency_ci_high_s"),
            }
            measures["latency"] = {
                name: nanoseconds(value) for name, value in values.items() if value is not None
            }
        for column, _ in _COUNTS:
            if row.get(column) is not None:
                measures[column.replace("_", "-")] = {"value": row[column]}
        if measures:
            found[label[:BENCHER_NAME_LENGTH]] = measures
    return json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def has_benchmarks(rows: Sequence[Row]) -> bool:
    """Say whether ``github_benchmark`` would hold an entry."""
    columns = ("latency_median_s", *(column for column, _ in _COUNTS))
    return any(row.get(name) is not None for _, row in _benchmarks(rows) for name in columns)


def has_times(rows: Sequence[Row]) -> bool:
    """Say whether a suite of pyperf would hold a benchmark: it takes no time of 0."""
    return any(row.get("latency_median_s") for _, row in _benchmarks(rows))


def pyperf(rows: Sequence[Row]) -> str:
    """Return a pyperf 1.0 suite: one run per process where there are several.

    Values are seconds per call: the medians of the processes, or the raw samples, or
    the median alone, whatever the row has.
    """
    suite = [
        _pyperf_benchmark(label, row)
        for label, row in _benchmarks(rows)
        if row.get("latency_median_s")
    ]
    document = {"version": PYPERF_VERSION, "benchmarks": suite}
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _pyperf_benchmark(label: str, row: Row) -> dict[str, Any]:
    replicates, samples = row.get("replicate_medians_s"), row.get("samples_s")
    if replicates:
        runs = [{"values": [value]} for value in replicates]
    else:
        runs = [{"values": list(samples) if samples else [row["latency_median_s"]]}]
    metadata = {"name": label, "unit": "second", "loops": 1}
    metadata |= {name: row[name] for name in _METADATA if row.get(name) not in (None, "")}
    return {"metadata": metadata, "runs": runs}
