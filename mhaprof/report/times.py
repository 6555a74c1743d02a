"""The view of times: one row a point, and which implementation is fastest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mhaprof.report.tabular import Row
from mhaprof.report.view import View, count, interval, number, status, text
from mhaprof.spec import AttentionSpec
from mhaprof.stats import median
from mhaprof.units import format_bytes, format_percent, format_seconds

SAME_PROBLEM = (
    *AttentionSpec.model_fields,
    *("device", "device_name", "torch", "dtype", "threads"),
    *("mode", "cache", "timer", "compiled", "tf32"),
)
"""The columns that have to be equal for two times to be compared."""


def latency_view(rows: Sequence[Row], *, title: str, compare: bool = True) -> View:
    """Show medians with their spread, how they were taken, and rates."""
    columns = [text("name", "name"), text("implementation", "implementation")]
    columns += [count(name, name) for name in ("batch", "tokens", "dim", "heads")]
    columns += [text("device", "device"), text("dtype", "dtype")]
    if any(row.get("threads") is not None for row in rows):
        columns.append(count("threads", "threads"))
    if len({row.get("mode") for row in rows}) > 1:
        columns.append(text("mode", "mode"))
    columns += [
        number("median", "latency_median_s", format_seconds),
        interval("95 % interval", "latency_ci_low_s"),
        number("p5", "latency_p5_s", format_seconds),
        number("p95", "latency_p95_s", format_seconds),
        count("samples", "samples"),
        text("converged", "converged"),
    ]
    if any(row.get("enqueue_median_s") for row in rows):
        columns += [
            number("graph", "graph_median_s", format_seconds),
            number("enqueue", "enqueue_median_s", format_seconds),
        ]
    if any(row.get("replicates") for row in rows):
        columns.append(number("spread of processes", "replicate_spread", format_percent))
    columns += [
        number("TFLOP/s (dense)", "tflops_per_s", _rate),
        text("timer", "timer"),
        text("cache", "cache"),
        text("backend", "resolved_backend"),
    ]
    if any(row.get("macs_exact") != row.get("macs") for row in rows):
        columns.append(number("TFLOP/s (exact pairs)", "tflops_per_s_exact", _rate))
    if any(row.get("bound") for row in rows):
        columns += [
            text("bound", "bound"),
            number("attained", "attained_fraction", format_percent),
        ]
    if any(row.get("compiled") for row in rows):
        columns.append(number("first call", "first_call_s", format_seconds))
    columns.append(number("predicted peak", "predicted_peak_bytes", format_bytes))
    if any(row.get("peak_bytes") is not None for row in rows):
        columns.append(number("measured peak", "peak_bytes", format_bytes))
    columns.append(status())
    notes = [*(comparison_notes(rows) if compare else ()), *contention_advice(rows)]
    return View(title=title, columns=columns, rows=rows, notes=notes)


def _rate(value: float) -> str:
    return f"{value:.4g}"


def contention_advice(rows: Sequence[Row]) -> list[str]:
    """Say what to do about times that other work disturbed, in one sentence."""
    disturbed = [row for row in rows if "contended" in str(row.get("flags") or "")]
    if not disturbed:
        return []
    advice = ["--replicates 5 (in a sweep --rounds 5) shows the spread of fresh processes"]
    if any(row["device"] != "cpu" for row in disturbed):
        advice.insert(0, "another --device may be free")
    if any((row.get("threads") or 1) > 1 for row in disturbed):
        advice.insert(0, "--threads 1 tells the time of one thread from the work of others")
    return [f"{len(disturbed)} of {len(rows)} rows are contended: {'; '.join(advice)}."]


def comparison_notes(rows: Sequence[Row]) -> list[str]:
    """Say for each problem that several implementations ran which was fastest.

    The ratio of medians is given with the interval that the two medians' 95 % intervals
    span; intervals that overlap, or are not there, are "not distinguishable".
    """
    notes = []
    for name, group in _problems(rows):
        if len(group) < 2:
            continue
        ordered = sorted(group, key=lambda row: row["latency_median_s"])
        fastest, rest = ordered[0], ordered[1:]
        notes.append(
            f"{name}: fastest is {fastest['implementation']}, "
            f"{format_seconds(fastest['latency_median_s'])}; "
            + "; ".join(_against(fastest, row) for row in rest)
            + "."
        )
    return notes


def _problems(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Return each problem that was timed, with one row per implementation that ran it."""
    groups: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        if row.get("latency_median_s") is not None:
            key = json.dumps([row.get(name) for name in SAME_PROBLEM], default=str)
            groups.setdefault(key, {}).setdefault(row["implementation"], []).append(row)
    problems = [[_joined(rounds) for rounds in group.values()] for group in groups.values()]
    alike: dict[str, list[Row]] = {}
    for group in problems:
        alike.setdefault(_label(group[0]), []).append(group[0])
    return [(_label(group[0], alike[_label(group[0])]), group) for group in problems]


def _joined(rounds: Sequence[Row]) -> Row:
    """Join the times of one point, measured several times: the interval spans all of theirs."""
    if len(rounds) == 1:
        return rounds[0]
    lows: list[Any] = [row.get("latency_ci_low_s") for row in rounds]
    highs: list[Any] = [row.get("latency_ci_high_s") for row in rounds]
    return {
        **rounds[0],
        "latency_median_s": median([row["latency_median_s"] for row in rounds]),
        "latency_ci_low_s": None if None in lows else min(lows),
        "latency_ci_high_s": None if None in highs else max(highs),
    }


def _label(row: Row, alike: Sequence[Row] = ()) -> str:
    """Name a problem; of several that look ``alike``, by what tells them apart too."""
    number = row.get("round")
    name = row["name"] if number is None else row["name"].removesuffix(f", round {number + 1}")
    count = row.get("threads")
    words = [row["device"], row["dtype"]]
    words += [] if count is None else [f"{count} thread{'' if count == 1 else 's'}"]
    words += [
        f"{field}={row.get(field)}"
        for field in SAME_PROBLEM
        if len({str(other.get(field)) for other in alike}) > 1
    ]
    return f"{name} ({', '.join(words)})"


def _against(fastest: Row, row: Row) -> str:
    ratio = row["latency_median_s"] / fastest["latency_median_s"]
    low, high = ratio_bounds(fastest, row)
    if low is not None and high is not None:
        spread = f" ({low:.2f} .. {high:.2f})"
        if low <= 1:
            return f"{row['implementation']} is not distinguishable, {ratio:.2f} times{spread}"
        return f"{row['implementation']} takes {ratio:.2f} times{spread}"
    few = "too few samples for an interval"
    return f"{row['implementation']} is not distinguishable, {ratio:.2f} times ({few})"


def ratio_bounds(base: Row, new: Row) -> tuple[Any, Any]:
    """Return the least and largest ratio new/base that the intervals allow, or Nones."""
    keys = ("latency_ci_low_s", "latency_ci_high_s")
    if any(row.get(key) is None for row in (base, new) for key in keys):
        return None, None
    low = new["latency_ci_low_s"] / base["latency_ci_high_s"]
    high = new["latency_ci_high_s"] / base["latency_ci_low_s"]
    return low, high
