"""The exit code of a list of results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mhaprof.errors import EXIT_FINDING, EXIT_OK, EXIT_POINT_FAILED
from mhaprof.records import Failed, Measured, Result, Skipped

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


def was_interrupted(results: Sequence[Result]) -> bool:
    """Say whether Ctrl-C cut one of the measurements short."""
    return any(
        (isinstance(result.outcome, Skipped) and result.outcome.code == "interrupted")
        or (
            isinstance(result.outcome, Measured)
            and any(finding.code == "interrupted" for finding in result.outcome.findings)
        )
        for result in results
    )
