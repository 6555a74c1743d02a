"""Measure point after point until a signal comes; the exit code of the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from mhaprof import signals
from mhaprof.errors import EXIT_FINDING, EXIT_OK, EXIT_POINT_FAILED
from mhaprof.records import Failed, Measured, Point, Result, Skipped

FATAL_SKIPS = ("predicted_oom", "no_cuda", "no_mps", "no_xpu")
"""Skips that deny what was asked for, rather than say that it cannot be expressed."""


def exit_code(results: Iterable[Result]) -> int:
    """Return 4 when a point failed, was refused, or none was measured; 1 for a finding."""
    failed = found = False
    points = measured = 0
    for result in results:
        outcome = result.outcome
        points += result.point.role == "point"
        if isinstance(outcome, Measured):
            measured += result.point.role == "point"
            if outcome.findings:
                found = found or any(finding.blocking for finding in outcome.findings)
        else:
            failed = failed or isinstance(outcome, Failed) or outcome.code in FATAL_SKIPS
    if failed:
        return EXIT_POINT_FAILED
    if found:
        return EXIT_FINDING
    return EXIT_POINT_FAILED if points and not measured else EXIT_OK


def in_turn(
    points: Iterable[Point | Result], measure: Callable[[Point], Result]
) -> Iterator[Result]:
    """Measure point after point; a signal ends it, and the others are skips that say so.

    From the first result on a signal interrupts nothing but a measurement.  Results among
    the points stay in their place.
    """
    stopped = False
    for point in points:
        if isinstance(point, Result):
            yield point
            continue
        try:
            if stopped:
                raise KeyboardInterrupt
            with signals.interruptible():
                result = measure(point)
        except KeyboardInterrupt:
            stopped = True
            message = "interrupted before it was measured"
            result = Result(point=point, outcome=Skipped(code="interrupted", message=message))
        else:
            stopped = _is_cut(result)
        signals.enter("writing")
        if stopped:
            signals.interrupted()
        yield result


def _is_cut(result: Result) -> bool:
    """Say whether a signal cut the samples short."""
    outcome = result.outcome
    return isinstance(outcome, Measured) and any(
        finding.code == "interrupted" for finding in outcome.findings
    )
