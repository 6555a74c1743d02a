"""How often `mhaprof ab` cries wolf on identical code, and how often it sees a tenth.

The record of the issue is ten comparisons of six small points each, about half an hour
on an idle machine; a busy one makes everything inconclusive.  By default one is made:
``MHAPROF_AB_TIMES=10 pytest -m benchmark tests/benchmarks/test_ab_rates.py -s``
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TIMES = int(os.environ.get("MHAPROF_AB_TIMES", "1"))

CONFIG = """version: 1
defaults: {batch: 1, dim: 128, heads: 4}
points:
  - {name: tokens 192, tokens: 192}
  - {name: tokens 256, tokens: 256}
  - {name: heads 1, tokens: 256, heads: 1}
  - {name: heads 8, tokens: 256, heads: 8}
  - {name: tokens 320, tokens: 320}
  - {name: tokens 384, tokens: 384}
"""

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
            folder = tmp_path / f"{name}-{side}"
            folder.mkdir()
            (folder / "slowed.py").write_text(SLOWED.replace("FACTOR", str(factor)))
            folders.append(folder)
        return mhaprof(
            *("ab", config, "--base", sys.executable, "--new", sys.executable),
            *("--base-path", folders[0], "--new-path", folders[1]),
            *("--out", tmp_path / f"{name}.jsonl", "--format", "json"),
            *("--", "--device", "cpu", "--threads", 1, "--impl", "slowed:slowed"),
            *("--allow-import", "--min-time", 0.3, "--max-time", 1),
        )

    return run


def tallied(ran: Any) -> dict[str, int]:
    verdicts = [row["verdict"] for row in ran.rows if row["metric"] == "latency"]
    return {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))}


@pytest.mark.benchmark
@pytest.mark.timeout(7200)
def test_identical_interpreters_regress_at_most_once_in_sixty_points(run_ab: Compare) -> None:
    tallies = [tallied(run_ab(f"same{number}", 1.0, 1.0)) for number in range(TIMES)]
    print("A/A:", json.dumps(tallies))
    assert sum(tally.get("regressed", 0) for tally in tallies) <= 1


@pytest.mark.benchmark
@pytest.mark.timeout(7200)
def test_a_tenth_slower_is_caught_nine_times_in_ten(run_ab: Compare) -> None:
    codes, open_points = [], 0
    for number in range(TIMES):
        ran = run_ab(f"slow{number}", 1.0, 1.1)
        tally = tallied(ran)
        print("A/B:", json.dumps(tally))
        codes.append(ran.code)
        open_points += tally.get("inconclusive", 0)
    if codes.count(1) < 0.9 * TIMES and open_points > 3 * TIMES:
        pytest.skip(f"the machine is busy: {open_points} of {6 * TIMES} points inconclusive")
    assert codes.count(1) >= 0.9 * TIMES
