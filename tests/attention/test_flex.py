"""flex_attention's block masks are computed from corners, and are torch's own."""

from __future__ import annotations

import itertools
from typing import Any

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


NARROW = {"kv_lora_rank": 8, "qk_nope_head_dim": 32, "qk_rope_head_dim": 8, "v_head_dim": 32}
RAISED = {"kv_lora_rank": 32, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 32}


@pytest.mark.parametrize(
    ("fields", "widths"),
    [
        ({"head_dim": 8, "v_head_dim": 64}, (8, 64)),
        ({"head_dim": 64, "v_head_dim": 8}, (64, 8)),
        ({**NARROW, "latent_form": "absorbed"}, (16, 8)),
        ({**RAISED, "latent_form": "expanded"}, (6, 32)),
    ],
)
def test_heads_too_narrow_for_triton_are_refused_on_a_gpu(
    fields: dict[str, Any], widths: tuple[int, int]
) -> None:
    flex, spec = attention.get("flex"), AttentionSpec(**fields)
    for device in ("cuda", "cuda:1", "xpu"):
        rejection = flex.rejects(spec, device=device, dtype="bfloat16")
        assert rejection is not None
        assert rejection.code == "backend_unavailable"
        assert "at least 16 wide; its keys are {} wide here, its values {}".format(*widths) in (
            rejection.message
        )
    assert flex.rejects(spec, device="cpu", dtype="bfloat16") is None


@pytest.mark.parametrize("fields", [{"head_dim": 16}, {**RAISED, "latent_form": "absorbed"}])
def test_heads_of_sixteen_are_not_too_narrow(fields: dict[str, Any]) -> None:
    rejection = attention.get("flex").rejects(
        AttentionSpec(**fields), device="cuda", dtype="bfloat16"
    )
    assert rejection is None or "wide" not in rejection.message
