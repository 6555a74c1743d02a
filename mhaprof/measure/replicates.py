"""Fresh processes that measure the same point: the unit of replication.

Memory layout, frequency and placement are drawn once per process; iterations inside
one do not show how far another would lie.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence

from pydantic import ValidationError

from mhaprof.records import Failed, Run

TAIL_LINES = 5
"""Lines of a failed process's stderr that its message keeps."""


def run_replicates(
    command: Sequence[str],
    *,
    count: int,
    timeout_s: float,
    done: Callable[[int], None] | None = None,
) -> list[Run | Failed]:
    """Run ``command`` in ``count`` fresh processes, one after another.

    ``command`` is a whole argument vector that measures its point once and prints one
    ``Run`` as JSON on stdout (it must not ask for replicates itself).  ``done`` is
    called with the number finished.  A process that dies, times out
    or prints something else becomes ``Failed``; the others go on.  An interrupt (Ctrl-C)
    keeps the runs that are complete, fewer than ``count``; with none it is raised again.
    """
    outcomes: list[Run | Failed] = []
    for index in range(count):
        try:
            outcomes.append(_replicate(command, timeout_s))
        except KeyboardInterrupt:
            if not any(isinstance(outcome, Run) for outcome in outcomes):
                raise
            break
        if done is not None:
            done(index + 1)
    return outcomes


def _replicate(command: Sequence[str], timeout_s: float) -> Run | Failed:
    try:
        finished = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return Failed(code="timeout", message=f"a replicate took longer than {timeout_s:g} s")
    if finished.returncode < 0:
        return Failed(
            code="died", message=f"a replicate was killed by signal {-finished.returncode}"
        )
    # A row that failed exits non-zero and still prints its run.
    try:
        return Run.model_validate(json.loads(finished.stdout))
    except (ValueError, ValidationError):
        tail = " ".join(finished.stderr.strip().splitlines()[-TAIL_LINES:])
        return Failed(
            code="replicate_failed",
            message=f"a replicate exited with {finished.returncode} and no result: {tail}",
        )


def replicate_medians(outcomes: Sequence[Run | Failed], *, identity: str) -> list[float]:
    """Return the median latency, in seconds, of one point in each run that measured it."""
    medians = []
    for outcome in outcomes:
        if isinstance(outcome, Failed):
            continue
        for result in outcome.results:
            if result.point.identity() != identity or result.outcome.status != "ok":
                continue
            if result.outcome.latency is not None:
                medians.append(result.outcome.latency.summary.median)
    return medians
