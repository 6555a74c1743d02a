"""Given the same canonical weights, every implementation computes what eager computes."""

from __future__ import annotations

from functools import cache

import pytest

from mhaprof import attention
from mhaprof.attention.rejections import REJECTION_CODES
from mhaprof.verification import CASES, Verdict, verify

FLEX_IN_EVERY_RUN = ("softcap", "longer-than-a-block")
"""flex is traced anew for each case (about a second): the others are slow tests."""

PAIRS = [
    pytest.param(
        name,
        case,
        marks=[pytest.mark.slow] if name == "flex" and case not in FLEX_IN_EVERY_RUN else [],
    )
    for name in attention.names()
    for case in CASES
]


@cache
def all_verdicts(name: str, only: str | None) -> dict[tuple[str, str], Verdict]:
    cases = CASES if only is None else {only: CASES[only]}
    found = verify(implementations=[name], cases=cases)
    return {(verdict.case, verdict.check): verdict for verdict in found}


@pytest.mark.parametrize(("name", "case"), PAIRS)
def test_an_implementation_agrees_with_eager_or_says_why_not(name: str, case: str) -> None:
    found = all_verdicts(name, case if name == "flex" else None)
    for check in ("forward", "gradients"):
        verdict = found[case, check]
        if verdict.status == "skipped":
            assert verdict.message.partition(":")[0] in REJECTION_CODES
        else:
            assert verdict.status == "ok", verdict
            assert verdict.max_error is not None
            assert verdict.max_error < 1e-12


@pytest.mark.parametrize("case", CASES)
def test_eager_expresses_every_spec(case: str) -> None:
    eager = attention.get("eager")
    for device in ("meta", "cpu"):
        assert eager.rejects(CASES[case], device=device, dtype="float64") is None


@pytest.mark.parametrize("name", ["eager", "eager-separate", "per-head", "sdpa", "torch-mha"])
def test_the_documents_implementations_reproduce_example_and_order(name: str) -> None:
    found = {verdict.check: verdict for verdict in verify(implementations=[name], cases={})}
    assert found["worked-example"].status == "ok"
    assert found["order"].status == "ok"
