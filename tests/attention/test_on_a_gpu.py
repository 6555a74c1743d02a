"""On a CUDA device, too, every implementation agrees with the float64 reference or says why not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mhaprof import attention
from mhaprof.spec import AttentionSpec
from mhaprof.verification import CASES, verify

pytestmark = pytest.mark.gpu

WIDE: Mapping[str, AttentionSpec] = {
    "grouped": CASES["grouped"].replace(head_dim=16, v_head_dim=16),
    "softcap": CASES["softcap"].replace(head_dim=16, v_head_dim=32),
    "longer-than-a-block": CASES["longer-than-a-block"].replace(head_dim=16, v_head_dim=16),
    "latent-absorbed": AttentionSpec(
        batch=2,
        tokens=5,
        dim=24,
        heads=4,
        kv_lora_rank=16,
        qk_nope_head_dim=6,
        qk_rope_head_dim=16,
        v_head_dim=5,
        latent_form="absorbed",
        causal="top-left",
    ),
}
"""Cases that flex can do: its heads are at least 16 wide on a GPU."""


def cases_of(name: str, dtype: str) -> Mapping[str, AttentionSpec]:
    """All cases; for flex, whose kernels take seconds to compile, few, and one a dtype."""
    if name != "flex":
        return CASES
    return WIDE if dtype == "bfloat16" else {"grouped": WIDE["grouped"]}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", attention.names())
def test_no_check_fails_on_a_gpu(name: str, dtype: str) -> None:
    cases = cases_of(name, dtype)
    found = verify(implementations=[name], cases=cases, device="cuda", dtype=dtype)
    assert [verdict for verdict in found if verdict.status == "failed"] == []
    if name == "flex":
        ran = {verdict.case for verdict in found if verdict.status == "ok"}
        assert ran >= set(cases), "flex was not tested"


@pytest.mark.parametrize("name", ["sdpa-flash", "sdpa-efficient", "sdpa-cudnn", "flex"])
def test_fused_kernels_run_on_a_gpu(name: str) -> None:
    wide = CASES["self"].replace(head_dim=16, v_head_dim=16)
    found = verify(implementations=[name], cases={"self": wide}, device="cuda", dtype="float16")
    assert {verdict.status for verdict in found if verdict.case == "self"} == {"ok"}


@pytest.mark.parametrize("name", ["sdpa", "sdpa-flash", "sdpa-efficient", "sdpa-cudnn"])
def test_a_causal_mask_at_the_bottom_right_is_right_on_a_gpu(name: str) -> None:
    spec = AttentionSpec(
        batch=1, tokens=64, kv_tokens=192, dim=64, heads=2, head_dim=32, causal="bottom-right"
    )
    found = verify(implementations=[name], cases={"longer": spec}, device="cuda", dtype="float16")
    checked = [verdict for verdict in found if verdict.case == "longer"]
    assert [verdict for verdict in checked if verdict.status == "failed"] == []
    if name in ("sdpa", "sdpa-flash"):
        assert {verdict.status for verdict in checked} == {"ok"}
