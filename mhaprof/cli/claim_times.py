"""The times of the claim's cases: where equal counts are not equal time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mhaprof import formulas
from mhaprof.cli.exits import in_turn
from mhaprof.cli.progress import Bar
from mhaprof.point import MeasureOptions, measure_point
from mhaprof.records import Latency, Measured, Outcome, Point, Result, Settings
from mhaprof.report.tabular import Row
from mhaprof.units import format_seconds

IMPLEMENTATIONS = ("eager", "sdpa")

CPU_MACS = 4_000_000_000
"""MACs of one timed call on a CPU, so that all cases take about a minute."""

CPU_TIME_S = 1.5
"""Longest sampling of one case on a CPU."""


def add_times(rows: Sequence[Row], points: Sequence[Point], *, device: str) -> list[str]:
    """Add the median time of each implementation, with its interval, to each row.

    On a CPU the batch is cut to what finishes in about a minute.  Ratios are to the first
    row, one full head.  Returns sentences: the conditions, what could not be timed and
    why, what was noisy, how far equal counts lie apart.
    """
    from mhaprof.measure.devices import device_name, resolve_device

    place = resolve_device(device)
    batch = _batch_of(points[0], place)
    options = MeasureOptions(max_time_s=CPU_TIME_S if place == "cpu" else 15.0)
    settings = Settings(device=place, dtype="float32")
    cases = [
        point.model_copy(
            update={
                "spec": point.spec.replace(batch=batch),
                "implementation": name,
                "settings": settings,
            }
        )
        for point in points
        for name in IMPLEMENTATIONS
    ]
    with Bar(total=len(cases)) as bar:

        def measure(case: Point) -> Result:
            bar.start(f"{case.name}, {case.implementation}")
            return measure_point(case, what={"latency"}, options=options, progress=bar.update)

        results = list(in_turn(cases, measure))
    refused, flags = [], Counter[str]()
    for row, result in zip((row for row in rows for _ in IMPLEMENTATIONS), results, strict=True):
        outcome, name = result.outcome, result.point.implementation
        latency = outcome.latency if isinstance(outcome, Measured) else None
        row["latency_batch"] = batch
        _add(row, rows[0], name, latency)
        if latency is not None:
            flags.update(_flags(latency))
        else:
            refused.append(f"Not timed: {result.point.name}, {name}: {_why(outcome)}.")
    return [
        f"Times: batch {batch}, float32, on {device_name(place)}"
        + (" (the counts are of the whole batch)." if batch != points[0].spec.batch else "."),
        *refused,
        *(f"Of {len(rows) * len(IMPLEMENTATIONS)} times, {n} {flag}." for flag, n in flags.items()),
        *_insight(rows),
    ]


def _why(outcome: Outcome) -> str:
    return "no time" if isinstance(outcome, Measured) else f"{outcome.code}: {outcome.message}"


def _flags(latency: Latency) -> list[str]:
    """Return in words what speaks against relying on a time."""
    unsettled = [] if latency.converged else ["did not converge (their interval is wide)"]
    return unsettled + [f"were {flag}" for flag in latency.flags]


def _batch_of(point: Point, device: str) -> int:
    if device != "cpu":
        return point.spec.batch
    macs = formulas.total_macs(point.spec) // point.spec.batch
    return max(1, min(point.spec.batch, CPU_MACS // macs))


def _add(row: Row, first: Row, name: str, latency: Latency | None) -> None:
    summary = latency.summary if latency is not None else None
    key = f"latency_{name}_median_s"
    row[key] = summary.median if summary else None
    row[f"latency_{name}_ci_low_s"] = summary.ci_low if summary else None
    row[f"latency_{name}_ci_high_s"] = summary.ci_high if summary else None
    row[f"latency_{name}_flags"] = " ".join(latency.flags) or None if latency else None
    row[f"latency_{name}_ratio"] = row[key] / first[key] if row[key] and first[key] else None


def _insight(rows: Sequence[Row]) -> list[str]:
    """Say how far times of equal counts lie apart, from what was measured."""
    alike = [row for row in rows if row["macs"] == rows[0]["macs"]]
    sentences = []
    for name in IMPLEMENTATIONS:
        times = [(row[f"latency_{name}_median_s"], row["name"]) for row in alike]
        measured = [(time, case) for time, case in times if time]
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
