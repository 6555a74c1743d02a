"""Split-head attention in plain torch: the correctness reference.

A module in the style of vision transformers: one fused linear for q, k and v, heads
by splitting, scores scaled by 1/sqrt(head_dim), softmax, weighted sum, concat, W_O.
Query heads that share a key/value head are stacked along the tokens, so that grouped
queries need no copy of K and V; the products counted are those of every query head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mhaprof.attention.base import Rejection
from mhaprof.attention.latent import LatentAttention
from mhaprof.attention.layers import FusedHeads, core_kv_heads
from mhaprof.attention.softmax import SoftmaxWeights
from mhaprof.records import Mode
from mhaprof.spec import AttentionSpec


class EagerCore(nn.Module):
    """softmax(Q K^T / sqrt(k)) V with the whole score matrix in memory."""

    sinks: nn.Parameter | None

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__()
        self.kv_heads = core_kv_heads(spec)
        self.scale = spec.head_dim**-0.5
        self.softmax = SoftmaxWeights(spec)
        self.register_parameter(
            "sinks", nn.Parameter(torch.empty(spec.heads)) if spec.sinks else None
        )

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Map q (B x h x N x k), k (B x g x M x k), v (B x g x M x v) to B x h x N x v."""
        batch, heads, tokens, _ = queries.shape
        stacked = (batch, self.kv_heads, heads // self.kv_heads * tokens, -1)
        scores = (queries * self.scale).reshape(stacked) @ keys.transpose(-2, -1)
        weights = self.softmax(scores.reshape(batch, heads, tokens, -1), self.sinks)
        context: Tensor = weights.reshape(stacked) @ values
        return context.reshape(batch, heads, tokens, -1)


class Eager:
    """The builder behind ``eager``."""

    def build(self, spec: AttentionSpec) -> nn.Module:
        """Return a module for any valid spec."""
        core = EagerCore(spec)
        return LatentAttention(spec, core) if spec.is_latent else FusedHeads(spec, core)

    def unavailable(
        self, spec: AttentionSpec, *, device: str, dtype: str, mode: Mode
    ) -> Rejection | None:
        """Return None: plain torch runs everywhere."""
        return None


EAGER = Eager()
