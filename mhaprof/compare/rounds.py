"""Several rounds of one point -> one row, whose times are those of the rounds.

A round is one fresh process.  What no machine can blur (counts, names) and the conditions
have to be the same in all of them: else the row fails, saying what is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mhaprof import stats
from mhaprof.compare.exact import BASELINE_COLUMNS, stages_of
from mhaprof.compare.rows import CONDITIONS, Row, setting
from mhaprof.records import RAW_FIELDS


def fold(rounds: Sequence[Row], *, times_s: Sequence[float] | None = None) -> dict[str, Any]:
    """Fold the rows of one point, one per round, into one row.

    ``times_s`` holds the statistic of each round, in seconds; by default the median that each
    reports. They become ``replicate_medians_s``; peaks become their median (of two the lower:
    noise adds), flags are gathered. A round that did not end ok makes the row what that round
    was; rounds that contradict each other make it ``failed`` (``rounds_disagree``).
    """
    broken = next((row for row in rounds if row["status"] != "ok"), None)
    if broken is not None or len(rounds) == 1:
        return dict(broken or rounds[0])
    folded = {name: value for name, value in rounds[0].items() if name not in RAW_FIELDS}
    different = _different(rounds)
    if different:
        message = f"the rounds contradict each other: {'; '.join(different)}"
        return folded | {"status": "failed", "reason": "rounds_disagree", "message": message}
    flags = {flag for row in rounds for flag in str(row.get("flags") or "").split()}
    folded["flags"] = " ".join(sorted(flags)) or None
    peaks = sorted(row["peak_bytes"] for row in rounds if row.get("peak_bytes") is not None)
    if peaks:
        folded["peak_bytes"] = peaks[(len(peaks) - 1) // 2]
    if times_s is None:
        times_s = [row["latency_median_s"] for row in rounds if row.get("latency_median_s")]
    return folded | _of_times(times_s) if times_s else folded


def _of_times(times_s: Sequence[float]) -> dict[str, Any]:
    """Return the columns of a time whose processes are known."""
    middle = stats.median(times_s)
    return {
        "latency_median_s": middle,
        "latency_ci_low_s": None,
        "latency_ci_high_s": None,
        "replicate_medians_s": list(times_s),
        "replicates": len(times_s),
        "replicate_spread": (max(times_s) - min(times_s)) / middle,
    }


def _different(rounds: Sequence[Row]) -> list[str]:
    """Word each exact column and condition that is not the same in all rounds."""
    columns = dict.fromkeys((*BASELINE_COLUMNS, *stages_of(*rounds), *CONDITIONS))
    found = []
    for name in columns:
        values = dict.fromkeys(str(setting(row, name)) for row in rounds)
        if len(values) > 1:
            found.append(f"{name} {', '.join(values)}")
    return found
