"""The parts that implementations are made of: projections, norms, heads, the cache.

No part initialises its weights: canonical weights are loaded, and initialising on
meta tensors would import torch's compiler (seconds) for nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from mhaprof.attention.base import latent_dims
from mhaprof.spec import AttentionSpec

NORM_EPSILON = 1e-6
"""Added to the mean square in RMSNorm, as in Qwen3 and DeepSeek-V3."""

Weights = dict[str, Tensor]


class Linear(nn.Linear):
    """A linear layer that leaves its weights uninitialised."""

    def reset_parameters(self) -> None:
        """Do nothing: the weights come from outside."""


class RmsNorm(nn.Module):
    """Divide by the root mean square of the last axis (``width`` wide), then weigh."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of ``x``."""
        mean_square = (x * x).mean(-1, keepdim=True)
        return x * torch.rsqrt(mean_square + NORM_EPSILON) * self.weight


def fill(parameter: Tensor | None, *parts: Tensor) -> None:
    """Copy ``parts``, one below the other, into a parameter (None: there is none)."""
    if parameter is None:
        return
    with torch.no_grad():
        parameter.copy_(parts[0] if len(parts) == 1 else torch.cat(parts))


def fill_linear(linear: nn.Linear, weights: Weights, name: str) -> None:
    """Copy ``w_<name>`` and, where the layer has a bias, ``b_<name>`` into it."""
    fill(linear.weight, weights[f"w_{name}"])
    if linear.bias is not None:
        fill(linear.bias, weights[f"b_{name}"])


def separate(x: Tensor, heads: int) -> Tensor:
    """Turn ... x (heads * width) into ... x heads x width, a view."""
    return x.view(*x.shape[:-1], heads, -1)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Turn B x N x (heads * width) into B x heads x N x width."""
    return separate(x, heads).transpose(1, 2)


def write_last(cache: Tensor, new: Tensor) -> Tensor:
    """Overwrite the cache's last token (axis -2) with ``new`` and return the cache.

    In place, without a copy of the cache.  When gradients are wanted the result is a
    tensor of its own, for autograd must not see the cache change from call to call.
    """
    cache.detach()[..., -1:, :].copy_(new.detach())
    if torch.is_grad_enabled() and (new.requires_grad or cache.requires_grad):
        return torch.cat([cache[..., :-1, :], new], dim=-2)
    return cache


def core_kv_heads(spec: AttentionSpec) -> int:
    """Return the key/value heads of the core: one for absorbed latent attention."""
    return 1 if spec.latent_form == "absorbed" else spec.kv_heads


def core_widths(spec: AttentionSpec) -> tuple[int, int]:
    """Return how wide the core's queries and keys are, and its values."""
    if spec.latent_form != "absorbed":
        return spec.head_dim, spec.v_head_dim
    rank, _, rope = latent_dims(spec)
    return rank + rope, rank


class OutputStage(nn.Module):
    """What follows the heads: the output gate, the concat, and W_O.

    Subclasses call ``finish`` at the end of ``forward``.
    """

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__()
        self.spec = spec
        inner = spec.heads * spec.v_head_dim
        if spec.output_gate != "none":
            gate = inner if spec.output_gate == "elementwise" else spec.heads
            self.gate_proj = Linear(spec.dim, gate, bias=spec.qkv_bias)
        if spec.out_proj:
            self.out_proj = Linear(inner, spec.dim, bias=spec.out_bias)

    def finish(self, x: Tensor, heads: Tensor) -> Tensor:
        """Gate and concat ``heads`` (B x h x N x v) and project them to B x N x d."""
        heads = heads.transpose(1, 2)
        if self.spec.output_gate != "none":
            gate = torch.sigmoid(self.gate_proj(x))
            heads = heads * separate(gate, self.spec.heads)
        joined = heads.flatten(2)
        return self.out_proj(joined) if self.spec.out_proj else joined

    def load_canonical(self, weights: Weights) -> None:
        """Copy the canonical weights of gate and output projection."""
        if self.spec.output_gate != "none":
            fill_linear(self.gate_proj, weights, "gate")
        if self.spec.out_proj:
            fill_linear(self.out_proj, weights, "o")


class SplitHeads(OutputStage):
    """Attention that makes its heads by splitting projected vectors.

    ``core`` maps q (B x h x N x k), k (B x g x M x k) and v (B x g x M x v) to the
    heads' outputs (B x h x N x v).  Subclasses say how inputs are projected.
    """

    def __init__(self, spec: AttentionSpec, core: nn.Module) -> None:
        super().__init__(spec)
        self.core = core
        if spec.qk_norm != "none":
            full = spec.qk_norm == "full"
            self.q_norm = RmsNorm(spec.head_dim * (spec.heads if full else 1))
            if spec.kv_proj:
                self.k_norm = RmsNorm(spec.head_dim * (spec.kv_heads if full else 1))

    def project_query(self, x: Tensor) -> Tensor:
        """Return the queries alone, B x N x (h*k): for specs without kv_proj."""
        raise NotImplementedError

    def project(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q (B x N x h*k) of ``x``, k (B x T x g*k) and v (B x T x g*v) of ``context``."""
        raise NotImplementedError

    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        """Return B x N x d (without W_O: h*v); inputs as in ``base``."""
        spec = self.spec
        if not spec.kv_proj:
            keys, values = rest
            queries = self._queries(self.project_query(x))
            return self.finish(x, self.core(queries, keys, values))
        context = rest[0] if spec.is_cross else x
        flat_q, flat_k, flat_v = self.project(x, context)
        queries = self._queries(flat_q)
        keys = self._keys(flat_k)
        values = split_heads(flat_v, spec.kv_heads)
        if spec.phase == "decode":
            k_cache, v_cache = rest
            keys, values = write_last(k_cache, keys), write_last(v_cache, values)
        return self.finish(x, self.core(queries, keys, values))

    def _queries(self, flat: Tensor) -> Tensor:
        if self.spec.qk_norm == "full":
            return split_heads(self.q_norm(flat), self.spec.heads)
        queries = split_heads(flat, self.spec.heads)
        return self.q_norm(queries) if self.spec.qk_norm == "per-head" else queries

    def _keys(self, flat: Tensor) -> Tensor:
        if self.spec.qk_norm == "full":
            return split_heads(self.k_norm(flat), self.spec.kv_heads)
        keys = split_heads(flat, self.spec.kv_heads)
        return self.k_norm(keys) if self.spec.qk_norm == "per-head" else keys

    def load_canonical(self, weights: Weights) -> None:
        """Copy the canonical weights of norms, sinks, gate and output projection."""
        super().load_canonical(weights)
        if self.spec.qk_norm != "none":
            fill(self.q_norm.weight, weights["q_norm"])
            if self.spec.kv_proj:
                fill(self.k_norm.weight, weights["k_norm"])
        if self.spec.sinks:
            fill(self.core.sinks, weights["sinks"])  # type: ignore[arg-type]


class FusedProjection(nn.Module):
    """One linear layer for q, k and v, its rows in that order.

    ``bias`` is one vector when q, k and v all have one, as in nn.MultiheadAttention;
    when only some have, each is a parameter of its own, added to its part.
    """

    q_bias: nn.Parameter | None
    k_bias: nn.Parameter | None
    v_bias: nn.Parameter | None

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__()
        q, k = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        self.widths = (q, k, spec.kv_heads * spec.v_head_dim)
        self.weight = nn.Parameter(torch.empty(sum(self.widths), spec.dim))
        self.flags = (spec.qkv_bias, spec.k_bias, spec.qkv_bias)
        one = all(self.flags)
        self.bias = nn.Parameter(torch.empty(sum(self.widths))) if one else None
        for name, width, has_bias in zip("qkv", self.widths, self.flags, strict=True):
            own = nn.Parameter(torch.empty(width)) if has_bias and not one else None
            self.register_parameter(f"{name}_bias", own)

    def forward(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q of ``x``, k and v of ``context``: one product when they are the same."""
        if context is x:
            together = functional.linear(x, self.weight, self.bias)
            q, k, v = torch.split_with_sizes(together, self.widths, dim=-1)
        else:
            rows = self.widths[0]
            q_bias, kv_bias = (
                (None, None) if self.bias is None else (self.bias[:rows], self.bias[rows:])
            )
            q = functional.linear(x, self.weight[:rows], q_bias)
            both = functional.linear(context, self.weight[rows:], kv_bias)
            k, v = torch.split_with_sizes(both, self.widths[1:], dim=-1)
        if self.bias is None and any(self.flags):
            q = q if self.q_bias is None else q + self.q_bias
            k = k if self.k_bias is None else k + self.k_bias
            v = v if self.v_bias is None else v + self.v_bias
        return q, k, v

    def load_canonical(self, weights: Weights) -> None:
        """Copy the canonical weights of the three projections."""
        fill(self.weight, weights["w_q"], weights["w_k"], weights["w_v"])
        if self.bias is not None:
            fill(self.bias, weights["b_q"], weights["b_k"], weights["b_v"])
            return
        for name, has_bias in zip("qkv", self.flags, strict=True):
            if has_bias:
                fill(getattr(self, f"{name}_bias"), weights[f"b_{name}"])


class FusedHeads(SplitHeads):
    """Split heads behind one fused projection ``in_proj`` (``q_proj`` without kv_proj)."""

    def __init__(self, spec: AttentionSpec, core: nn.Module) -> None:
        super().__init__(spec, core)
        if spec.kv_proj:
            self.in_proj = FusedProjection(spec)
        else:
            self.q_proj = Linear(spec.dim, spec.heads * spec.head_dim, bias=spec.qkv_bias)

    def project_query(self, x: Tensor) -> Tensor:
        """Return the queries alone, B x N x (h*k)."""
        return self.q_proj(x)  # type: ignore[no-any-return]

    def project(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v, flat, from the fused projection."""
        return self.in_proj(x, context)  # type: ignore[no-any-return]

    def load_canonical(self, weights: Weights) -> None:
        """Copy all canonical weights."""
        super().load_canonical(weights)
        if self.spec.kv_proj:
            self.in_proj.load_canonical(weights)
        else:
            fill_linear(self.q_proj, weights, "q")
