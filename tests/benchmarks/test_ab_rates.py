"""How often `mhaprof ab` cries wolf on identical code, and how often it sees a tenth.

The record of the issue is ten comparisons of six small points each, which takes about half
an hour on an idle machine and says little on a busy one (everything is inconclusive):
``MHAPROF_AB_TIMES=10 pytest -m benchmark tests/benchmarks/test_ab_rates.py -s``

Without the variable one comparison of two points is made of each kind, in two to four minutes:
enough to see a gate that no longer works, and too little to know a rate.  There, what the
noise of the machine leaves open is skipped, with the figures printed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FULL = 10
"""Comparisons of each kind that the issue asks for."""

TIMES = int(os.environ.get("MHAPROF_AB_TIMES", "1"))
IS_FULL = TIMES >= FULL

POINTS = [
    "  - {name: tokens 256, tokens: 256}",
    "  - {name: tokens 384, tokens: 384}",
    "  - {name: tokens 192, tokens: 192}",
    "  - {name: heads 1, tokens: 256, heads: 1}",
    "  - {name: heads 8, tokens: 256, heads: 8}",
    "  - {name: tokens 320, tokens: 320}",
]

SHOWN = len(POINTS) if IS_FULL else 2
"""Points of each comparison: all, or the first ones."""

HEAD = ["version: 1", "defaults: {batch: 1, dim: 128, heads: 4}", "points:"]
CONFIG = "\n".join([*HEAD, *POINTS[:SHOWN], ""])

SLOWER = 1.1

SLOWED = """
import time
from mhaprof import attention

eager = attention.get("eager")


class Slowed:
    name, version, fused, counter_note = "slowed:slowed", 1, False, None
    description = "eager, slowed on purpose"

    def __getattr__(self, name):
        return getattr(eager, name)

    def rejects(self, *args, **kwargs):
        return eager.rejects(*args, **kwargs)

    def holds_scores(self, **kwargs):
        return eager.holds_scores(**kwargs)

    def load(self, *args):
        eager.load(*args)

    def build(self, spec):
        module = eager.build(spec)
        forward = module.forward

        def slowed(*inputs):
            start = time.thread_time()
            result = forward(*inputs)
            end = start + FACTOR * (time.thread_time() - start)
            while time.thread_time() < end:
                pass
            return result

        module.forward = slowed
        return module


slowed = Slowed()
"""

Compare = Callable[[str, float, float], Any]


@pytest.fixture
def run_ab(mhaprof: Any, tmp_path: Path) -> Compare:
    """Compare eager slowed by one factor with eager slowed by another."""
    config = tmp_path / "points.yaml"
    config.write_text(CONFIG)

    def run(name: str, base: float, new: float) -> Any:
        folders = []
        for side, factor in (("base", base), ("new", new)):
            folder = tmp_path / f"{name.replace('/', '')}-{side}"
            folder.mkdir()
            (folder / "slowed.py").write_text(SLOWED.replace("FACTOR", str(factor)))
            folders.append(folder)
        return mhaprof(
            *("ab", config, "--base", sys.executable, "--new", sys.executable),
            *("--base-path", folders[0], "--new-path", folders[1]),
            *("--out", tmp_path / f"{name.replace('/', '')}.jsonl", "--format", "json"),
            *("--", "--device", "cpu", "--threads", 1, "--impl", "slowed:slowed"),
            *("--allow-import", "--min-time", 0.3, "--max-time", 0.6),
        )

    return run


def tallied(ran: Any) -> dict[str, int]:
    verdicts = [row["verdict"] for row in ran.rows if row["metric"] == "latency"]
    return {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))}


def compared(run_ab: Compare, name: str, new: float) -> list[tuple[int, dict[str, int]]]:
    """Compare ``TIMES`` times; print and return each exit code with its verdicts."""
    found = []
    for number in range(TIMES):
        ran = run_ab(f"{name}{number}", 1.0, new)
        found.append((ran.code, tallied(ran)))
        ratios = [round(row["ratio"], 3) for row in ran.rows if row["metric"] == "latency"]
        print(f"{name} {number + 1} of {TIMES}: {json.dumps(found[-1][1])}, ratios {ratios}")
    return found


@pytest.mark.benchmark
@pytest.mark.timeout(7200)
def test_identical_interpreters_regress_at_most_once_in_sixty_points(run_ab: Compare) -> None:
    tallies = [tally for _, tally in compared(run_ab, "A/A", 1.0)]
    alarms = sum(tally.get("regressed", 0) for tally in tallies)
    print(f"A/A: {alarms} false regressions in {TIMES * SHOWN} points")
    assert alarms <= 1


@pytest.mark.benchmark
@pytest.mark.timeout(7200)
def test_a_tenth_slower_is_caught_nine_times_in_ten(run_ab: Compare) -> None:
    found = compared(run_ab, "A/B", SLOWER)
    caught = [code for code, _ in found].count(1)
    print(f"A/B: caught {caught} of {TIMES}")
    if not IS_FULL and all(code == 1 or "inconclusive" in tally for code, tally in found):
        if caught < TIMES:
            pytest.skip(f"caught {caught} of {TIMES}; the others are inconclusive: a busy machine")
        return
    assert caught >= 0.9 * TIMES
