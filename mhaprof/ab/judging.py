"""The rounds of both sides -> rows of the two sides -> verdicts, as of a gate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

from mhaprof.ab.journal import Journal
from mhaprof.ab.sides import Round
from mhaprof.compare import Comparison, Policy, RunRows, compare
from mhaprof.compare import rounds as rounds_of_a_point

Key = tuple[Any, ...]

TREATMENTS = ("torch",)
"""Conditions that may differ because they are what is being compared."""

KEY = ("name", "role", "implementation", "device", "dtype", "threads", "cache", "mode", "compiled")
"""What tells the points of a round apart."""


def judge(
    journal: Journal, policy: Policy, *, allow_env_mismatch: Collection[str] = TREATMENTS
) -> Comparison:
    """Compare what is stored of both sides."""
    base, new = journal.of("base"), journal.of("new")
    shared = _contended(base) | _contended(new)
    by_cpu_time = shared & _with_cpu_time(base) & _with_cpu_time(new)
    return compare(
        _side_rows(base, by_cpu_time),
        _side_rows(new, by_cpu_time),
        policy,
        allow_env_mismatch=allow_env_mismatch,
    )


def _side_rows(rounds: Sequence[Round], by_cpu_time: Collection[Key]) -> RunRows:
    return RunRows(
        source=rounds[0].side,
        rows=fold(rounds, by_cpu_time=by_cpu_time),
        environment=rounds[0].environment,
    )


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
            if row.get("threads") == 1 and row.get("process_time_s")
        }
        for found in rounds
    ]
    return set.intersection(*per_round) if per_round else set()


def fold(rounds: Sequence[Round], *, by_cpu_time: Collection[Key]) -> list[dict[str, Any]]:
    """Fold the rounds of one side into one row per point.

    The statistic of a round is the minimum of CPU time for points in ``by_cpu_time``
    (the machine was shared), else the median that the round reports, in seconds.  A
    point that did not end ok in some round is what it was in that round.
    """
    gathered: dict[Key, list[dict[str, Any]]] = {}
    for found in rounds:
        for key, row in _keyed(found).items():
            gathered.setdefault(key, []).append(row)
    return [
        _folded(rows, rounds=len(rounds), cpu_time=key in by_cpu_time)
        for key, rows in gathered.items()
    ]


def _folded(rows: Sequence[dict[str, Any]], *, rounds: int, cpu_time: bool) -> dict[str, Any]:
    times = [min(row["process_time_s"]) for row in rows] if cpu_time else None
    folded = rounds_of_a_point.fold(rows, times_s=times)
    if folded["status"] == "ok" and len(rows) < rounds:
        missing = f"measured in {len(rows)} of {rounds} rounds"
        return folded | {"status": "failed", "reason": "rounds_missing", "message": missing}
    return folded | {"timer": "process", "flags": None} if cpu_time else folded
