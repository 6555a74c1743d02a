"""Independent heads and a concat: the paper's own formula, written literally.

    head_i = softmax(X W_i^Q (X W_i^K)^T / sqrt(k)) X W_i^V
    MultiHead = Concat(head_1, ..., head_h) W^O

(Vaswani et al. 2017, section 3.2.2.)  With grouped queries the heads of a group share
one W^K and W^V, whose products are computed once.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mhaprof.attention.base import Rejection
from mhaprof.attention.layers import Linear, RmsNorm, Weights, fill, fill_linear, write_last
from mhaprof.attention.softmax import SoftmaxWeights
from mhaprof.records import Mode
from mhaprof.spec import AttentionSpec


class Head(nn.Module):
    """One query head: its own W^Q, gate and sink, over keys and values it is given."""

    sink: nn.Parameter | None

    def __init__(self, spec: AttentionSpec, softmax: SoftmaxWeights) -> None:
        super().__init__()
        self.spec = spec
        # In a tuple, for the mask is one for all heads and belongs to none of them.
        self._softmax = (softmax,)
        self.q_proj = Linear(spec.dim, spec.head_dim, bias=spec.qkv_bias)
        if spec.output_gate != "none":
            width = spec.v_head_dim if spec.output_gate == "elementwise" else 1
            self.gate_proj = Linear(spec.dim, width, bias=spec.qkv_bias)
        self.register_parameter("sink", nn.Parameter(torch.empty(1)) if spec.sinks else None)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, q_norm: nn.Module | None) -> Tensor:
        """Map x (B x N x d), keys (B x M x k) and values (B x M x v) to B x N x v."""
        queries = self.q_proj(x)
        if q_norm is not None:
            queries = q_norm(queries)
        scores = queries @ keys.transpose(-2, -1) / self.spec.head_dim**0.5
        result = self._softmax[0](scores, self.sink) @ values
        if self.spec.output_gate != "none":
            result = result * torch.sigmoid(self.gate_proj(x))
        return result  # type: ignore[no-any-return]

    def load_canonical(self, weights: Weights, index: int) -> None:
        """Copy the rows of head ``index``."""
        fill_linear(self.q_proj, _rows(weights, index, self.spec.head_dim), "q")
        if self.spec.output_gate != "none":
            width = self.gate_proj.out_features
            fill_linear(self.gate_proj, _rows(weights, index, width), "gate")
        if self.sink is not None:
            fill(self.sink, weights["sinks"][index : index + 1])


class Group(nn.Module):
    """The heads that share one W^K and W^V (multi-head attention: one head each)."""

    def __init__(self, spec: AttentionSpec, softmax: SoftmaxWeights) -> None:
        super().__init__()
        self.spec = spec
        if spec.kv_proj:
            self.k_proj = Linear(spec.dim, spec.head_dim, bias=spec.k_bias)
            self.v_proj = Linear(spec.dim, spec.v_head_dim, bias=spec.qkv_bias)
        count = spec.heads // spec.kv_heads
        self.heads = nn.ModuleList(Head(spec, softmax) for _ in range(count))

    def load_canonical(self, weights: Weights, index: int) -> None:
        """Copy the rows of group ``index`` and of its heads."""
        if self.spec.kv_proj:
            fill_linear(self.k_proj, _rows(weights, index, self.spec.head_dim), "k")
            fill_linear(self.v_proj, _rows(weights, index, self.spec.v_head_dim), "v")
        for number, head in enumerate(self.heads):
            assert isinstance(head, Head)
            head.load_canonical(weights, index * len(self.heads) + number)


class PerHeadAttention(nn.Module):
    """h heads, each computed on its own, then concatenated and projected by W^O."""

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__()
        self.spec = spec
        self.softmax = SoftmaxWeights(spec)
        self.groups = nn.ModuleList(Group(spec, self.softmax) for _ in range(spec.kv_heads))
        self.q_norm: RmsNorm | None = None
        self.k_norm: RmsNorm | None = None
        if spec.qk_norm == "per-head":
            self.q_norm = RmsNorm(spec.head_dim)
            self.k_norm = RmsNorm(spec.head_dim) if spec.kv_proj else None
        if spec.out_proj:
            self.out_proj = Linear(spec.heads * spec.v_head_dim, spec.dim, bias=spec.out_bias)

    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        """Return B x N x d (without W_O: h*v); inputs as in ``base``."""
        results = []
        for index, group in enumerate(self.groups):
            assert isinstance(group, Group)
            keys, values = self._keys_values(index, group, x, rest)
            results += [head(x, keys, values, self.q_norm) for head in group.heads]
        joined = torch.cat(results, dim=-1)
        return self.out_proj(joined) if self.spec.out_proj else joined

    def _keys_values(
        self, index: int, group: Group, x: Tensor, rest: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor]:
        """Return the group's keys (B x M x k) and values (B x M x v)."""
        if not self.spec.kv_proj:
            return rest[0][:, index], rest[1][:, index]
        context = rest[0] if self.spec.is_cross else x
        keys, values = group.k_proj(context), group.v_proj(context)
        if self.k_norm is not None:
            keys = self.k_norm(keys)
        if self.spec.phase == "decode":
            keys = write_last(rest[0][:, index], keys)
            values = write_last(rest[1][:, index], values)
        return keys, values

    def load_canonical(self, weights: Weights) -> None:
        """Copy all canonical weights, each head its own rows."""
        for index, group in enumerate(self.groups):
            assert isinstance(group, Group)
            group.load_canonical(weights, index)
        if self.q_norm is not None:
            fill(self.q_norm.weight, weights["q_norm"])
        if self.k_norm is not None:
            fill(self.k_norm.weight, weights["k_norm"])
        if self.spec.out_proj:
            fill_linear(self.out_proj, weights, "o")


def _rows(weights: Weights, index: int, width: int) -> Weights:
    """Return all weights, cut to the rows of head ``index`` when heads are ``width`` wide."""
    return {name: value[index * width : (index + 1) * width] for name, value in weights.items()}


class PerHead:
    """The builder behind ``per-head``."""

    def build(self, spec: AttentionSpec) -> nn.Module:
        """Return the module of independent heads."""
        return PerHeadAttention(spec)

    def unavailable(
        self, spec: AttentionSpec, *, device: str, dtype: str, mode: Mode
    ) -> Rejection | None:
        """Return None: plain torch runs everywhere."""
        return None


PER_HEAD = PerHead()
