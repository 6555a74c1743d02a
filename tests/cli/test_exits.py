"""The exit code of a list of results, and what a pass of the bytes means."""

from __future__ import annotations

from mhaprof.cli.exits import exit_code
from mhaprof.point.roof import PASSES
from mhaprof.records import Failed, ImpossiblePoint, Result, Skipped


def skipped(code: str) -> Result:
    point = ImpossiblePoint(name="p", implementation="eager", given={"dim": 7})
    return Result(point=point, outcome=Skipped(code=code, message="not here"))


def test_nothing_asked_for_is_fine_and_nothing_measured_is_not() -> None:
    assert exit_code([]) == 0
    assert exit_code([skipped("backend_rejects_head_dim")]) == 4
    assert exit_code([skipped("no_cuda")]) == 4


def test_a_failure_is_a_failed_point() -> None:
    point = ImpossiblePoint(name="p", implementation="eager", given={"dim": 7})
    failed = Failed(code="error", message="it broke", traceback="")
    assert exit_code([Result(point=point, outcome=failed)]) == 4


def test_a_backward_pass_moves_twice_the_bytes_of_a_forward_pass() -> None:
    assert PASSES == {"forward": 1, "backward": 2, "forward-backward": 3}
