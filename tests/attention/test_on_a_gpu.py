"""On a CUDA device, too, every implementation agrees with the float64 reference or says why not."""

from __future__ import annotations

import pytest

from mhaprof import attention
from mhaprof.verification import CASES, verify

COMPILED = ("grouped", "softcap", "longer-than-a-block")
"""Cases for flex, whose kernels take seconds to compile."""


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", attention.names())
def test_no_check_fails_on_a_gpu(name: str, dtype: str) -> None:
    cases = {case: CASES[case] for case in COMPILED} if name == "flex" else CASES
    found = verify(implementations=[name], cases=cases, device="cuda", dtype=dtype)
    assert [verdict for verdict in found if verdict.status == "failed"] == []


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["sdpa-flash", "sdpa-efficient", "sdpa-cudnn", "flex"])
def test_fused_kernels_run_on_a_gpu(name: str) -> None:
    found = verify(
        implementations=[name], cases={"self": CASES["wide-heads"]}, device="cuda", dtype="float16"
    )
    assert {verdict.status for verdict in found if verdict.case == "self"} == {"ok"}
