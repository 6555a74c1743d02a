"""The rounds of both sides -> rows of the two sides -> verdicts, as of a gate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from mhaprof import stats
from mhaprof.ab.journal import Journal
from mhaprof.ab.sides import KEY, Round
from mhaprof.compare import Comparison, Policy, RunRows, compare
from mhaprof.compare import rounds as rounds_of_a_point

Key = tuple[Any, ...]

TREATMENTS = ("torch",)
"""Conditions that may differ because they are what is being compared."""


def judge(
    journal: Journal, policy: Policy, *, allow_env_mismatch: Collection[str] = TREATMENTS
) -> Comparison:
    """Compare what is stored of both sides, round by round."""
    base, new = journal.of("base"), journal.of("new")
    shared = _contended(base) | _contended(new)
    by_cpu_time = shared & _with_cpu_time(base) & _with_cpu_time(new)
    times: dict[str, defaultdict[Key, list[float]]] = {
        side: defaultdict(list) for side in ("base", "new")
    }
    for one, other in zip(base, new, strict=True):
        rows, others = _keyed(one), _keyed(other)
        for key in rows.keys() & others.keys():
            pair = _statistics(rows[key], others[key], cpu_time=key in by_cpu_time)
            if pair is not None:
                times["base"][key].append(pair[0])
                times["new"][key].append(pair[1])
    base_run, new_run = (
        RunRows(
            source=found[0].side,
            rows=fold(found, by_cpu_time=by_cpu_time, times_s=times[found[0].side]),
            environment=found[0].environment,
            paired=True,
        )
        for found in (base, new)
    )
    return compare(base_run, new_run, policy, allow_env_mismatch=allow_env_mismatch)


def _statistics(
    base: Mapping[str, Any], new: Mapping[str, Any], *, cpu_time: bool
) -> tuple[float, float] | None:
    """Return the statistic of both sides of one round of a point, in seconds.

    The minimum of CPU time where the machine was shared, else the median of the samples.
    Of as many samples on either side: the two took turns, and what one of them took
    alone, after the other had enough, met other noise.
    """
    column = "process_time_s" if cpu_time else "samples_s"
    one: list[float] = base.get(column) or []
    other: list[float] = new.get(column) or []
    count = min(len(one), len(other))
    if count:
        statistic: Callable[[list[float]], float] = min if cpu_time else stats.median
        return statistic(one[:count]), statistic(other[:count])
    medians = base.get("latency_median_s"), new.get("latency_median_s")
    return (medians[0], medians[1]) if medians[0] and medians[1] else None


def _keyed(found: Round) -> dict[Key, dict[str, Any]]:
    """Return the rows of a round by what tells them apart; equal ones are numbered."""
    seen: defaultdict[Key, int] = defaultdict(int)
    rows = {}
    for row in found.rows:
        key = tuple(row.get(name) for name in KEY)
        seen[key] += 1
        rows[(*key, seen[key])] = row
    return rows


def _contended(rounds: Sequence[Round]) -> set[Key]:
    """Return the points that shared the machine in any round."""
    return {
        key
        for found in rounds
        for key, row in _keyed(found).items()
        if "contended" in str(row.get("flags") or "")
    }


def _with_cpu_time(rounds: Sequence[Round]) -> set[Key]:
    """Return the points of one thread that have CPU times in every round.

    Several threads spin while they wait: their CPU time says nothing.
    """
    per_round = [
        {
            key
            for key, row in _keyed(found).items()
            if row.get("threads") == 1 and min(row.get("process_time_s") or [0]) > 0
        }
        for found in rounds
    ]
    return set.intersection(*per_round) if per_round else set()


def fold(
    rounds: Sequence[Round],
    *,
    by_cpu_time: Collection[Key] = (),
    times_s: Mapping[Key, Sequence[float]] | None = None,
) -> list[dict[str, Any]]:
    """Fold the rounds of one side into one row per point.

    ``times_s`` holds the statistic of each round, in seconds; points in ``by_cpu_time``
    were timed by the process's clock.  A point that did not end ok in some round is what
    it was in that round.
    """
    gathered: dict[Key, list[dict[str, Any]]] = {}
    for found in rounds:
        for key, row in _keyed(found).items():
            gathered.setdefault(key, []).append(row)
    return [
        _folded(
            rows,
            rounds=len(rounds),
            times_s=(times_s or {}).get(key),
            cpu_time=key in by_cpu_time,
        )
        for key, rows in gathered.items()
    ]


def _folded(
    rows: Sequence[dict[str, Any]],
    *,
    rounds: int,
    times_s: Sequence[float] | None,
    cpu_time: bool,
) -> dict[str, Any]:
    folded = rounds_of_a_point.fold(rows, times_s=times_s)
    if folded["status"] == "ok" and len(rows) < rounds:
        missing = f"measured in {len(rows)} of {rounds} rounds"
        return folded | {"status": "failed", "reason": "rounds_missing", "message": missing}
    by_clock = {"timer": "process", "flags": None} if cpu_time and len(rows) > 1 else {}
    return folded | by_clock
