"""flex_attention's block masks are computed from corners, and are torch's own."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from mhaprof import attention
from mhaprof.attention.flex import block_mask, mask_mod
from mhaprof.spec import AttentionSpec

# 129 queries of 256 keys, and a window of 255, put the edge of the band on a block's corner.
SPECS = [
    AttentionSpec(tokens=tokens, kv_tokens=kv_tokens, causal=causal, window=window)
    for tokens, kv_tokens, causal, window in itertools.product(
        (1, 129, 300), (100, 256, 300), ("none", "top-left", "bottom-right"), (None, 1, 129, 255)
    )
    if causal != "none" or (window is not None and tokens == kv_tokens)
]


@pytest.mark.parametrize("causal", ["none", "top-left", "bottom-right"])
def test_block_masks_equal_those_that_torch_finds_pair_by_pair(causal: str) -> None:
    compared = 0
    for spec in (spec for spec in SPECS if spec.causal == causal):
        mine = block_mask(spec, device=torch.device("cpu"))
        if mine is None:
            continue
        theirs = create_block_mask(
            mask_mod(spec), None, None, spec.tokens, spec.kv_tokens, device="cpu"
        )
        assert mine.shape == theirs.shape
        for part in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"):
            assert torch.equal(getattr(mine, part), getattr(theirs, part)), (spec, part)
        compared += 1
    assert compared > 0


def test_a_long_block_mask_takes_kilobytes() -> None:
    spec = AttentionSpec(tokens=131_072, causal="top-left", window=4096)
    mask = block_mask(spec, device=torch.device("cpu"))
    assert mask is not None
    assert mask.kv_indices.numel() == 1024 * 1024


def test_gradients_on_a_cpu_are_refused() -> None:
    flex = attention.get("flex")
    assert flex.rejects(AttentionSpec(), device="cpu", dtype="float32") is None
    rejection = flex.rejects(
        AttentionSpec(), device="cpu", dtype="float32", mode="forward-backward"
    )
    assert rejection is not None
    assert rejection.code == "backward_unsupported"
