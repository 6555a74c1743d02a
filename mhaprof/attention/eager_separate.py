"""Split heads behind four separate linears, with queries and keys/values of their own.

The module of "K and V heads in multi-head attention": W_q, W_k, W_v, W_o, and a
``forward(Q, K, V)`` whose queries may come from another sequence than keys and values.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mhaprof.attention.base import Rejection
from mhaprof.attention.layers import Linear, SplitHeads, Weights, fill_linear
from mhaprof.attention.softmax import SoftmaxWeights
from mhaprof.records import Mode
from mhaprof.spec import AttentionSpec


class ExpandedCore(nn.Module):
    """softmax(Q K^T / sqrt(k)) V; shared key/value heads are repeated to every head."""

    sinks: nn.Parameter | None

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__()
        self.group = spec.heads // spec.kv_heads
        self.scale = spec.head_dim**0.5
        self.softmax = SoftmaxWeights(spec)
        self.register_parameter(
            "sinks", nn.Parameter(torch.empty(spec.heads)) if spec.sinks else None
        )

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Map q (B x h x N x k), k (B x g x M x k), v (B x g x M x v) to B x h x N x v."""
        if self.group > 1:
            keys = keys.repeat_interleave(self.group, dim=1)
            values = values.repeat_interleave(self.group, dim=1)
        scores = queries @ keys.transpose(-2, -1) / self.scale
        return self.softmax(scores, self.sinks) @ values  # type: ignore[no-any-return]


class SeparateHeads(SplitHeads):
    """Split heads with a linear each for q, k and v."""

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec, ExpandedCore(spec))
        width = spec.kv_heads * spec.head_dim
        self.q_proj = Linear(spec.dim, spec.heads * spec.head_dim, bias=spec.qkv_bias)
        if spec.kv_proj:
            self.k_proj = Linear(spec.dim, width, bias=spec.k_bias)
            self.v_proj = Linear(spec.dim, spec.kv_heads * spec.v_head_dim, bias=spec.qkv_bias)

    def project_query(self, x: Tensor) -> Tensor:
        """Return the queries alone, B x N x (h*k)."""
        return self.q_proj(x)  # type: ignore[no-any-return]

    def project(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return W_q of Q = ``x``, W_k and W_v of K = V = ``context``."""
        return self.q_proj(x), self.k_proj(context), self.v_proj(context)

    def load_canonical(self, weights: Weights) -> None:
        """Copy all canonical weights."""
        super().load_canonical(weights)
        fill_linear(self.q_proj, weights, "q")
        if self.spec.kv_proj:
            fill_linear(self.k_proj, weights, "k")
            fill_linear(self.v_proj, weights, "v")


class EagerSeparate:
    """The builder behind ``eager-separate``."""

    def build(self, spec: AttentionSpec) -> nn.Module:
        """Return the module with four linears."""
        return SeparateHeads(spec)

    def unavailable(
        self, spec: AttentionSpec, *, device: str, dtype: str, mode: Mode
    ) -> Rejection | None:
        """Return None: plain torch runs everywhere."""
        return None


EAGER_SEPARATE = EagerSeparate()
