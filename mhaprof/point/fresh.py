"""Measure a point in fresh processes: the spread between processes beside the one within.

``python -m mhaprof.point.fresh JSON`` measures one point, once, and prints a ``Run``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from mhaprof.formulas import reference_macs
from mhaprof.point.measuring import Metric, measure_point
from mhaprof.point.options import MeasureOptions
from mhaprof.records import Failed, Finding, Measured, Outcome, Point, Record, Result, Run
from mhaprof.stats import median

STARTUP_S = 120.0
"""Time that a fresh process may take beside its measuring: imports, compilation, checks."""


class Request(Record):
    """What one fresh process is asked to measure."""

    point: Point
    what: tuple[Metric, ...]
    options: MeasureOptions


def measure_replicated(
    point: Point,
    *,
    what: tuple[Metric, ...],
    options: MeasureOptions,
    replicates: int,
    done: Callable[[int], None] | None = None,
) -> Result:
    """Measure a point in ``replicates`` fresh processes, one after another.

    The result is that of the process whose median is the middle one, with the medians
    of all (seconds) in ``replicate_medians_s``.  Processes that measured nothing are
    left out; if none did, the first one's outcome stands.  What Ctrl-C cut short has the
    finding ``interrupted``.
    """
    from mhaprof.measure.replicates import replicate_medians, run_replicates

    request = Request(point=point, what=what, options=options)
    command = [sys.executable, "-m", "mhaprof.point.fresh", request.model_dump_json()]
    timeout_s = STARTUP_S + 4 * options.max_time_s
    runs = run_replicates(command, count=replicates, timeout_s=timeout_s, done=done)
    outcomes = [run if isinstance(run, Failed) else run.results[0].outcome for run in runs]
    medians = replicate_medians(runs, identity=point.identity())
    outcome = _middle(outcomes, medians)
    if len(runs) < replicates and isinstance(outcome, Measured):
        message = f"interrupted: {len(runs)} of {replicates} processes"
        cut = Finding(code="interrupted", message=message)
        outcome = outcome.model_copy(update={"findings": [cut, *outcome.findings]})
    return Result(
        point=point,
        outcome=outcome,
        reference_macs=reference_macs(point.spec),
    )


def _middle(outcomes: list[Outcome], medians: list[float]) -> Outcome:
    """Return the outcome whose median is nearest to the middle, with all medians."""
    timed = [
        (outcome, outcome.latency)
        for outcome in outcomes
        if isinstance(outcome, Measured) and outcome.latency is not None
    ]
    if not timed:
        return outcomes[0]
    centre = median(medians)
    outcome, latency = min(timed, key=lambda pair: abs(pair[1].summary.median - centre))
    kept = latency.model_copy(update={"replicate_medians_s": medians})
    return outcome.model_copy(update={"latency": kept})


def main(text: str) -> None:
    """Measure what the JSON asks for and print the run as JSON."""
    request = Request.model_validate(json.loads(text))
    result = measure_point(request.point, what=request.what, options=request.options)
    print(Run(results=[result]).model_dump_json())


if __name__ == "__main__":
    main(sys.argv[1])
