"""The exit code of a list of results."""

from __future__ import annotations

from collections.abc import Sequence

from mhaprof.errors import EXIT_FINDING, EXIT_OK, EXIT_POINT_FAILED
from mhaprof.records import Failed, Measured, Result, Skipped

FATAL_SKIPS = ("predicted_oom", "no_cuda", "no_mps", "no_xpu")
"""Skips that deny what was asked for, rather than say that it cannot be expressed."""


def exit_code(results: Sequence[Result]) -> int:
    """Return 4 when a point failed, was refused, or none was measured; 1 for a finding."""
    outcomes = [result.outcome for result in results]
    if any(isinstance(outcome, Failed) for outcome in outcomes) or any(
        isinstance(outcome, Skipped) and outcome.code in FATAL_SKIPS for outcome in outcomes
    ):
        return EXIT_POINT_FAILED
    if any(
        finding.blocking
        for outcome in outcomes
        if isinstance(outcome, Measured)
        for finding in outcome.findings
    ):
        return EXIT_FINDING
    points = [result.outcome for result in results if result.point.role == "point"]
    if points and not any(isinstance(outcome, Measured) for outcome in points):
        return EXIT_POINT_FAILED
    return EXIT_OK


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
