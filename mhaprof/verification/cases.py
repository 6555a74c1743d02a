"""What is checked: small shapes, the worked example, the order experiment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mhaprof.spec import AttentionSpec

if TYPE_CHECKING:
    from torch import Tensor


def _case(**fields: Any) -> AttentionSpec:
    small = {"batch": 2, "tokens": 5, "dim": 24, "heads": 4}
    return AttentionSpec(**{**small, **fields})


def _decode(**fields: Any) -> AttentionSpec:
    return _case(phase="decode", tokens=1, kv_tokens=9, **fields)


def _latent(**fields: Any) -> AttentionSpec:
    ranks = {"kv_lora_rank": 7, "qk_nope_head_dim": 6, "qk_rope_head_dim": 2, "v_head_dim": 5}
    return _case(**{**ranks, **fields})


CASES: Mapping[str, AttentionSpec] = {
    "self": _case(),
    "biases": _case(qkv_bias=True, out_bias=True),
    "cross": _case(kv_tokens=7, qkv_bias=True, out_bias=True),
    "grouped": _case(kv_heads=2),
    "multi-query-cross": _case(kv_heads=1, kv_tokens=3),
    "wide-heads": _case(head_dim=8),
    "wide-values": _case(v_head_dim=8, kv_heads=2),
    "no-key-bias": _case(qkv_bias=True, k_bias=False),
    "key-bias-alone": _case(k_bias=True, kv_tokens=7),
    "no-out-proj": _case(out_proj=False),
    "no-kv-proj": _case(kv_proj=False, kv_tokens=9, kv_heads=2, qk_norm="per-head"),
    "causal": _case(causal="top-left", qkv_bias=True, out_bias=True),
    "causal-top-left-more-keys": _case(causal="top-left", kv_tokens=8),
    "causal-top-left-more-queries": _case(causal="top-left", kv_tokens=3),
    "causal-bottom-right": _case(causal="bottom-right", kv_tokens=8),
    "queries-without-keys": _case(causal="bottom-right", kv_tokens=3),
    "window": _case(window=2, qkv_bias=True, out_bias=True),
    "causal-window": _case(causal="top-left", window=2),
    "window-past-the-keys": _case(causal="top-left", window=1, kv_tokens=3),
    "causal-window-bottom-right": _case(causal="bottom-right", window=2, kv_tokens=9),
    "longer-than-a-block": _case(
        batch=1, tokens=150, dim=32, causal="top-left", window=20, kv_heads=2
    ),
    "chunked": _case(causal="top-left", chunk=2, kv_heads=2),
    "chunked-bottom-right": _case(causal="bottom-right", chunk=3, kv_tokens=8),
    "chunk-past-the-keys": _case(causal="top-left", chunk=2, kv_tokens=3),
    "decode": _decode(kv_heads=2),
    "decode-chunked": _decode(causal="bottom-right", chunk=4),
    "decode-window": _decode(causal="bottom-right", window=3),
    "decode-top-left": _decode(causal="top-left"),
    "norm-per-head": _case(qk_norm="per-head"),
    "norm-full": _case(qk_norm="full", kv_heads=2),
    "gate-per-head": _case(output_gate="per-head", qkv_bias=True),
    "gate-elementwise": _case(output_gate="elementwise"),
    "sinks": _case(sinks=True, kv_heads=2),
    "sinks-without-keys": _case(sinks=True, causal="bottom-right", kv_tokens=3),
    "softcap": _case(softcap=1.5, causal="top-left"),
    "latent": _latent(),
    "latent-normed": _latent(q_lora_rank=9, qkv_bias=True, qk_norm="latent"),
    "latent-absorbed": _latent(latent_form="absorbed", causal="top-left"),
    "latent-cross": _latent(
        kv_tokens=8, latent_form="absorbed", output_gate="per-head", sinks=True
    ),
    "latent-decode": _decode(
        kv_lora_rank=7, qk_nope_head_dim=6, qk_rope_head_dim=2, v_head_dim=5, qk_norm="latent"
    ),
    "latent-decode-expanded": _decode(
        kv_lora_rank=7,
        qk_nope_head_dim=6,
        qk_rope_head_dim=2,
        v_head_dim=5,
        latent_form="expanded",
    ),
}
"""The shapes that are checked, small, one for each thing that a spec can say."""

ORDER_TOKENS = ((1.0, 2.0), (2.0, 3.0), (3.0, 4.0))
"""The tokens of the order experiment; its second run swaps the last two."""


def worked_example() -> tuple[AttentionSpec, dict[str, Tensor], Tensor, Tensor]:
    """Return spec, canonical weights, input and result of the article's example.

    x1 = (1, 1), x2 = (1, 0), q1 = (1, 2), q2 = (1, 1), k1 = v1 = (1, 0),
    k2 = v2 = (0, 1), d = 2: b1 = (0.33, 0.67), b2 = (0.50, 0.50).  W_O is the identity.
    """
    import torch

    spec = AttentionSpec(batch=1, tokens=2, dim=2, heads=1)
    # The article multiplies from the right (x W); canonical weights are W transposed.
    key = torch.tensor([[0.0, 1.0], [1.0, -1.0]], dtype=torch.float64).T
    weights = {
        "w_q": torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64).T,
        "w_k": key,
        "w_v": key,
        "w_o": torch.eye(2, dtype=torch.float64),
    }
    x = torch.tensor([[[1.0, 1.0], [1.0, 0.0]]], dtype=torch.float64)
    first = 1 / (1 + math.exp(1 / math.sqrt(2)))
    result = torch.tensor([[[first, 1 - first], [0.5, 0.5]]], dtype=torch.float64)
    return spec, weights, x, result
