"""The times of the claim's cases: where equal counts are not equal time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mhaprof import formulas
from mhaprof.cli.exits import in_turn
from mhaprof.cli.progress import Bar
from mhaprof.point import MeasureOptions, measure_point
from mhaprof.records import Point, Result, Settings
from mhaprof.report.tabular import Row, row_of
from mhaprof.report.times import claim_times_view, contention_advice
from mhaprof.report.view import View
from mhaprof.units import format_seconds

IMPLEMENTATIONS = ("eager", "sdpa")

CPU_MACS = 4_000_000_000
"""MACs of one timed call on a CPU, so that all cases take about a minute."""

CPU_TIME_S = 1.5
"""Longest sampling of one case on a CPU."""


def time_cases(points: Sequence[Point], *, device: str) -> tuple[list[Row], View]:
    """Time each case by each implementation; return rows of their own, and their table.

    On a CPU the batch is cut to what finishes in about a minute: counts in these rows are
    of that batch.  ``latency_ratio`` is to the first case, one full head.  The table says
    the conditions, what could not be timed and why, what was noisy, how far equal counts
    lie apart.
    """
    from mhaprof.measure.devices import device_name, resolve_device

    place = resolve_device(device)
    batch = _batch_of(points[0], place)
    options = MeasureOptions(max_time_s=CPU_TIME_S if place == "cpu" else 15.0)
    cases = [
        point.model_copy(
            update={
                "spec": point.spec.replace(batch=batch),
                "implementation": name,
                "settings": Settings(device=place, dtype="float32"),
            }
        )
        for point in points
        for name in IMPLEMENTATIONS
    ]
    with Bar(total=len(cases)) as bar:

        def measure(case: Point) -> Result:
            bar.start(f"{case.name}, {case.implementation}")
            return measure_point(case, what={"latency"}, options=options, progress=bar.update)

        rows = [row_of(result, latency=True) for result in in_turn(cases, measure)]
    for row in rows:
        first = next(each for each in rows if each["implementation"] == row["implementation"])
        times = row["latency_median_s"], first["latency_median_s"]
        row["latency_ratio"] = times[0] / times[1] if all(times) else None
    title = f"Times of the cases: batch {batch}, float32, on {device_name(place)}"
    notes = [*_refusals(rows), *_flags(rows), *contention_advice(rows), *_insight(rows)]
    return rows, claim_times_view(rows, title=title, notes=notes)


def _refusals(rows: Sequence[Row]) -> list[str]:
    return [
        f"Not timed: {row['name']}, {row['implementation']}: {row['reason']}: {row['message']}."
        for row in rows
        if row["latency_median_s"] is None
    ]


def _flags(rows: Sequence[Row]) -> list[str]:
    """Say what speaks against relying on the times, and how often."""
    said = Counter(f"were {flag}" for row in rows for flag in (row["flags"] or "").split())
    said["did not converge (their interval is wide)"] = sum(
        row["converged"] is False for row in rows
    )
    return [f"Of {len(rows)} times, {count} {what}." for what, count in said.items() if count]


def _batch_of(point: Point, device: str) -> int:
    if device != "cpu":
        return point.spec.batch
    macs = formulas.total_macs(point.spec) // point.spec.batch
    return max(1, min(point.spec.batch, CPU_MACS // macs))


def _insight(rows: Sequence[Row]) -> list[str]:
    """Say how far times of equal counts lie apart, from what was measured."""
    sentences = []
    for name in IMPLEMENTATIONS:
        measured = [
            (row["latency_median_s"], row["name"])
            for row in rows
            if row["implementation"] == name
            and row["latency_median_s"]
            and row["macs"] == rows[0]["macs"]
        ]
        if measured:
            (least, fast), (most, slow) = min(measured), max(measured)
            sentences.append(
                f"Equal counts, {name}: from {format_seconds(least)} ({fast}) to "
                f"{format_seconds(most)} ({slow}), {most / least:.2f} times."
            )
    return [
        *sentences,
        "eager holds batch x heads x tokens x tokens scores in memory, which grow with heads; "
        "sdpa fuses them away where a fused kernel takes the shape.",
    ]
