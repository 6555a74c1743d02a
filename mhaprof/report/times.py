"""The view of times: one row a point, and which implementation is fastest."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mhaprof.report.tabular import Row
from mhaprof.report.view import (
    KEPT,
    SHOWN,
    WIDE,
    Column,
    View,
    count,
    duration,
    interval,
    number,
    size,
    status,
    text,
)
from mhaprof.report.views import FVCORE_TITLE, names, reason_notes, shape_columns
from mhaprof.spec import AttentionSpec
from mhaprof.stats import median
from mhaprof.units import format_ratio, format_seconds, format_si

SAME_PROBLEM = (
    *AttentionSpec.model_fields,
    *("device", "device_name", "torch", "dtype", "threads"),
    *("mode", "cache", "timer", "compiled", "tf32"),
)
"""The columns that have to be equal for two times to be compared."""

_RAN = ("device_name", "torch", "timer")
"""Those of them that only a measured row knows."""

_ASKED = tuple(key for key in SAME_PROBLEM if key not in _RAN)


FLAGS = {
    "contended": "other work ran beside it",
    "throttled": "the device lowered its clocks",
    "power_limited": "the power limit set the clocks",
    "launch_bound": "the host's launches set the pace",
    "above_peak": "faster than the device can be: the peak or the count is wrong",
    "compile_fallback": "torch.compile fell back",
    "imprecise": "its interval is wider than --precision asks",
}
"""What a flag says, in a few words."""


def latency_view(rows: Sequence[Row], *, title: str, compare: bool = True) -> View:
    """Show medians with their spread, rates, and how far behind the fastest each is."""
    rows = [dict(row) for row in rows]
    for _, group in _problems(rows):
        fastest = min(row["latency_median_s"] for row in group)
        for row in group if len(group) > 1 else ():
            row["ratio_to_fastest"] = row["latency_median_s"] / fastest
    has = {key for row in rows for key, value in row.items() if value is not None}
    masked = any(row.get("macs_exact") != row.get("macs") for row in rows)

    def where(key: str, plain: object = None) -> int:
        return WIDE if all(row.get(key) in (None, plain) for row in rows) else SHOWN

    columns = [
        *names(),
        *shape_columns(rows),
        *(text(key, key, once=True, rank=where(key)) for key in ("device", "dtype")),
        count("threads", "threads", once=True, rank=where("threads")),
        text("mode", "mode", once=True, rank=where("mode", "forward")),
        text("compiled", "compiled", once=True, rank=where("compiled", False)),
        Column(title="median", key="latency_median_s", cell=_median, exact=_exact),
        number("to fastest", "ratio_to_fastest", _factor, rank=where("ratio_to_fastest")),
        number("TFLOP/s", "tflops_per_s", _rate, rank=SHOWN),
        number(
            "TFLOP/s, unmasked", "tflops_per_s_exact", _rate, rank=SHOWN if masked else WIDE
        ),
        number("of roof", "attained_fraction", _percent, rank=where("attained_fraction")),
        size("peak memory", "peak_bytes", rank=where("peak_bytes")),
        size(
            "predicted peak", "predicted_peak_bytes",
            rank=WIDE if "peak_bytes" in has else SHOWN,
        ),
        number("spread of processes", "replicate_spread", _percent, rank=where("replicates")),
        duration("graph", "graph_median_s", rank=where("enqueue_median_s")),
        duration("enqueue", "enqueue_median_s", rank=where("enqueue_median_s")),
        interval("95 % interval", "latency_ci_low_s", rank=WIDE),
        duration("p5", "latency_p5_s", rank=WIDE),
        duration("p95", "latency_p95_s", rank=WIDE),
        count("samples", "samples", rank=WIDE),
        text("converged", "converged", rank=WIDE),
        *(text(key, key, once=True, rank=WIDE) for key in ("timer", "cache")),
        text("backend", "resolved_backend", once=True, rank=WIDE),
        text("bound", "bound", rank=WIDE),
        duration("first call", "first_call_s", rank=WIDE),
        Column(
            title="flags", key="flags", cell=_said, numeric=False,
            rank=KEPT if any(map(_said, rows)) else WIDE,
        ),
        replace(status(), rank=WIDE),
    ]  # fmt: skip
    notes = [*(comparison_notes(rows) if compare else ()), *flag_notes(rows)]
    return View(title=title, columns=columns, rows=rows, notes=notes)


def pivot_view(rows: Sequence[Row], *, title: str) -> View | None:
    """Set implementations side by side, a line a problem; None where there is only one.

    Rounds of a point are joined.  What could not be timed has its reason in the place of
    its time.
    """
    names = list(dict.fromkeys(row["implementation"] for row in rows))
    if len(names) < 2:
        return None
    lines: list[Row] = []
    for group in _lines(rows):
        first = next(iter(group.values()))
        macs = dict.fromkeys(row["macs"] for row in group.values() if row.get("macs"))
        status = None if any(map(_stands, group.values())) else "skipped"
        lines.append({**first, "status": status, "macs": list(macs), "times": group})
    columns = [
        text("name", "name", once=True),
        *shape_columns(lines),
        *(text(key, key, once=True, rank=SHOWN) for key in ("device", "dtype", "threads", "mode")),
        Column(
            title="MACs",
            key="macs",
            cell=lambda line: " / ".join(map(format_si, line["macs"])),
            rank=SHOWN,
        ),
        *(Column(title=name, key=name, cell=_beside(name)) for name in names),
    ]
    shown = [cell for line in lines for name in names for cell in [_beside(name)(line)]]
    marks = {
        "*": "the fastest of its line, the others as a multiple of it",
        "~": "not distinguishable from the fastest",
        "!": "flagged, see --columns name,implementation,latency_median_s,flags",
    }
    legend = [f"{sign} {words}" for sign, words in marks.items() if any(sign in c for c in shown)]
    notes = [*([f"{'; '.join(legend)}."] if legend else ()), *reason_notes(rows)]
    return View(title=title, columns=columns, rows=lines, notes=notes)


def claim_times_view(rows: Sequence[Row], *, title: str, notes: Sequence[str]) -> View:
    """Show the times of the claim's cases, a line a case, with the counts that were timed."""
    lines = [group for group in _lines(rows) if group]
    columns = [text("case", "name"), count(FVCORE_TITLE, "macs", rank=SHOWN)]
    for name in dict.fromkeys(row["implementation"] for row in rows):
        columns += [
            Column(title=name, key=name, cell=_of(name, _ended)),
            Column(title="ratio", key=f"{name} ratio", cell=_of(name, _to_first), rank=SHOWN),
        ]
    shown = [{**next(iter(group.values())), "times": group, "status": None} for group in lines]
    notes = ["ratio: to the time of one full head by the same implementation.", *notes]
    return View(title=title, columns=columns, rows=shown, notes=notes)


def _of(name: str, form: Callable[[Row], str]) -> Callable[[Row], str]:
    return lambda line: form(line["times"].get(name, {}))


def _ended(row: Row) -> str:
    return _median(row) or str(row.get("reason") or "")


def _to_first(row: Row) -> str:
    return "" if row.get("latency_ratio") is None else format_ratio(row["latency_ratio"])


def _lines(rows: Sequence[Row]) -> list[dict[str, Row]]:
    """Group rows by what was asked for and where it ran: a row per implementation.

    What was not measured ran nowhere: it stands in each line that asks for the same.
    """
    asked: dict[str, dict[str, dict[str, list[Row]]]] = {}
    for row in rows:
        problem = json.dumps([row.get(key) for key in ("name", *_ASKED)], default=str)
        timed = row.get("latency_median_s") is not None
        place = json.dumps([row.get(key) for key in _RAN]) if timed else ""
        groups = asked.setdefault(problem, {}).setdefault(place, {})
        groups.setdefault(row["implementation"], []).append(row)
    lines = []
    for places in asked.values():
        missing = {name: found[0] for name, found in places.pop("", {}).items()}
        for group in places.values() or ({},):
            lines.append(missing | {name: _joined(found) for name, found in group.items()})
    return lines


def _beside(name: str) -> Callable[[Row], str]:
    """Return how one implementation's cell of a line is worded."""

    def cell(line: Row) -> str:
        timed = [each for each in line["times"].values() if _stands(each)]
        row = line["times"].get(name, {})
        if not _stands(row):
            return str(row.get("reason") or row.get("status") or "")
        fastest = min(timed, key=lambda each: each["latency_median_s"])
        shown = format_seconds(row["latency_median_s"]) + "!" * bool(_flags(row))
        if len(timed) < 2:
            return shown
        if row is fastest:
            return f"{shown} *"
        low, _ = ratio_bounds(fastest, row)
        same = low is not None and low <= 1
        return (
            f"{shown} {'~' * same}{_factor(row['latency_median_s'] / fastest['latency_median_s'])}x"
        )

    return cell


def _stands(row: Row) -> bool:
    """Say whether a row has a time, and nothing in it is wrong."""
    return row.get("latency_median_s") is not None and row.get("status") != "failed"


def _median(row: Row) -> str:
    """Word the median with the larger half of its 95 % interval, in percent."""
    middle = row.get("latency_median_s")
    if middle is None:
        return ""
    low, high = row.get("latency_ci_low_s"), row.get("latency_ci_high_s")
    if low is None or high is None:
        return format_seconds(middle)
    return f"{format_seconds(middle)} ±{_percent(max(high - middle, middle - low) / middle)}"


def _exact(row: Row) -> str:
    return "" if row.get("latency_median_s") is None else f"{row['latency_median_s']!r} s"


def _flags(row: Row) -> str:
    """Return what speaks against relying on a row's time."""
    late = ["imprecise"] if row.get("converged") is False else []
    return " ".join(dict.fromkeys([*str(row.get("flags") or "").split(), *late]))


def _said(row: Row) -> str:
    """Return the flags of a time, or why there is none."""
    ended = [str(row[key]) for key in ("status", "reason") if row.get(key)]
    return _flags(row) if row.get("status") in ("ok", None) else ": ".join(ended)


def flag_notes(rows: Sequence[Row]) -> list[str]:
    """Explain the flags that occur, in a line, and say what to do about other work."""
    seen = dict.fromkeys(flag for row in rows for flag in _flags(row).split())
    legend = [f"{flag}: {FLAGS.get(flag, flag)}" for flag in seen]
    return [*([f"{'; '.join(legend)}."] if legend else ()), *contention_advice(rows)]


def _rate(value: float) -> str:
    return f"{value:.4g}"


def _factor(value: float) -> str:
    return f"{value:.2f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


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
    """Join the times of one point, measured several times: the interval spans all of theirs.

    What speaks against one of them speaks against all.
    """
    if len(rounds) == 1:
        return rounds[0]
    lows: list[Any] = [row.get("latency_ci_low_s") for row in rounds]
    highs: list[Any] = [row.get("latency_ci_high_s") for row in rounds]
    worst = next((row for row in rounds if row.get("status") == "failed"), rounds[0])
    return {
        **worst,
        "latency_median_s": median([row["latency_median_s"] for row in rounds]),
        "latency_ci_low_s": None if None in lows else min(lows),
        "latency_ci_high_s": None if None in highs else max(highs),
        "flags": " ".join(dict.fromkeys(flag for row in rounds for flag in _flags(row).split())),
    }


def _label(row: Row, alike: Sequence[Row] = ()) -> str:
    """Name a problem; of several that look ``alike``, by what tells them apart too."""
    number = row.get("round")
    name = row["name"] if number is None else row["name"].removesuffix(f", round {number + 1}")
    count = row.get("threads")
    words = [str(row[key]) for key in ("device", "dtype") if row.get(key) is not None]
    words += [] if count is None else [f"{count} thread{'' if count == 1 else 's'}"]
    words += [
        f"{field}={row.get(field)}"
        for field in SAME_PROBLEM
        if len({str(other.get(field)) for other in alike}) > 1
    ]
    return f"{name} ({', '.join(words)})" if words else str(name)


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
