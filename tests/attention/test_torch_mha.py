"""nn.MultiheadAttention takes the path that the implementation's name says."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from mhaprof import attention
from mhaprof.attention.base import canonical_weights, make_inputs
from mhaprof.spec import AttentionSpec

SPEC = AttentionSpec(batch=1, tokens=8, dim=32, heads=4, qkv_bias=True, out_bias=True)
NATIVE = "aten::_native_multi_head_attention"


def loaded(name: str) -> torch.nn.Module:
    implementation = attention.get(name)
    module = implementation.build(SPEC)
    implementation.load(module, SPEC, canonical_weights(SPEC, dtype=torch.float32, device="cpu"))
    return module.eval()


@pytest.mark.parametrize(
    ("name", "native", "sdpa"),
    [
        ("torch-mha", False, True),
        ("torch-mha-weights", False, False),
        ("torch-mha-fastpath", True, False),
    ],
)
def test_each_name_takes_its_path_in_eval_mode(name: str, native: bool, sdpa: bool) -> None:
    module = loaded(name)
    inputs = make_inputs(SPEC, dtype=torch.float32, device="cpu")
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU]) as recorded:
        module(*inputs)
    keys = {event.key for event in recorded.key_averages()}
    assert (NATIVE in keys) == native
    assert ("aten::scaled_dot_product_attention" in keys) == sdpa


def test_the_fast_path_is_never_left_without_a_word() -> None:
    module = loaded("torch-mha-fastpath")
    inputs = make_inputs(SPEC, dtype=torch.float32, device="cpu")
    with pytest.raises(RuntimeError, match="needs eval and no_grad"):
        module(*inputs)
    with pytest.raises(RuntimeError, match="needs eval and no_grad"), torch.no_grad():
        module.train()(*inputs)
