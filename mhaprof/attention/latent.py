"""Latent attention (MLA): expanded for prefill, absorbed for decode.

Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1 and appendix C.  The cached latent
of a token is its (normed) compressed vector c (r wide) followed by one rotated key
part (p wide) that all heads share.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mhaprof.attention.base import latent_dims
from mhaprof.attention.layers import (
    Linear,
    OutputStage,
    RmsNorm,
    Weights,
    fill,
    fill_linear,
    split_heads,
    write_last,
)
from mhaprof.spec import AttentionSpec


class HeadwiseLinear(nn.Module):
    """One matrix per head: B x h x N x ``width`` to B x h x N x ``out_width``."""

    def __init__(self, heads: int, width: int, out_width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, width, out_width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the product, one batched multiplication over the heads."""
        batch, heads, tokens, _ = x.shape
        stacked = x.transpose(0, 1).reshape(heads, batch * tokens, -1)
        product = torch.bmm(stacked, self.weight)
        return product.view(heads, batch, tokens, -1).transpose(0, 1)


class LatentQuery(nn.Module):
    """Project x to queries, directly or through a low rank with its norm."""

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__()
        self.spec = spec
        width = spec.heads * spec.head_dim
        if spec.q_lora_rank is None:
            self.full = Linear(spec.dim, width, bias=False)
            return
        self.down = Linear(spec.dim, spec.q_lora_rank, bias=spec.qkv_bias)
        self.up = Linear(spec.q_lora_rank, width, bias=False)
        if spec.qk_norm == "latent":
            self.norm = RmsNorm(spec.q_lora_rank)

    def forward(self, x: Tensor) -> Tensor:
        """Return B x h x N x (n+p)."""
        if self.spec.q_lora_rank is None:
            return split_heads(self.full(x), self.spec.heads)
        low = self.down(x)
        if self.spec.qk_norm == "latent":
            low = self.norm(low)
        return split_heads(self.up(low), self.spec.heads)

    def load_canonical(self, weights: Weights) -> None:
        """Copy the canonical weights of the queries."""
        if self.spec.q_lora_rank is None:
            fill_linear(self.full, weights, "q")
            return
        fill_linear(self.down, weights, "q_down")
        fill_linear(self.up, weights, "q_up")
        if self.spec.qk_norm == "latent":
            fill(self.norm.weight, weights["q_norm"])


class LatentAttention(OutputStage):
    """Attention over a low-rank latent; ``core`` as in ``SplitHeads``.

    Expanded, the latent of every token is raised to keys and values of all heads.
    Absorbed, the queries are carried into the latent space and the contexts out of
    it: one shared key/value head of r+p (keys) and r (values), nothing is raised.
    """

    def __init__(self, spec: AttentionSpec, core: nn.Module) -> None:
        super().__init__(spec)
        rank, nope, rope = latent_dims(spec)
        self.rank, self.nope, self.rope = rank, nope, rope
        self.core = core
        self.q_proj = LatentQuery(spec)
        self.kv_down = Linear(spec.dim, rank + rope, bias=spec.qkv_bias)
        if spec.qk_norm == "latent":
            self.kv_norm = RmsNorm(rank)
        if spec.latent_form == "absorbed":
            self.q_absorb = HeadwiseLinear(spec.heads, nope, rank)
            self.v_absorb = HeadwiseLinear(spec.heads, rank, spec.v_head_dim)
        else:
            self.k_proj = Linear(rank, spec.heads * nope, bias=False)
            self.v_proj = Linear(rank, spec.heads * spec.v_head_dim, bias=False)

    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        """Return B x N x d (without W_O: h*v); inputs as in ``base``."""
        queries = self.q_proj(x)
        latent = self._latent(rest[0] if self.spec.is_cross else x)
        if self.spec.phase == "decode":
            latent = write_last(rest[0], latent)
        attend = self._absorbed if self.spec.latent_form == "absorbed" else self._expanded
        return self.finish(x, attend(queries, latent))

    def _latent(self, source: Tensor) -> Tensor:
        """Return what is cached of each token: B x T x (r+p)."""
        latent: Tensor = self.kv_down(source)
        if self.spec.qk_norm != "latent":
            return latent
        compressed, shared = torch.split_with_sizes(latent, (self.rank, self.rope), dim=-1)
        return torch.cat([self.kv_norm(compressed), shared], dim=-1)

    def _expanded(self, queries: Tensor, latent: Tensor) -> Tensor:
        """Attend with keys and values raised from the latent, B x h x N x v."""
        heads = self.spec.heads
        compressed, shared = torch.split_with_sizes(latent, (self.rank, self.rope), dim=-1)
        raised = split_heads(self.k_proj(compressed), heads)
        keys = torch.cat([raised, shared[:, None].expand(-1, heads, -1, -1)], dim=-1)
        values = split_heads(self.v_proj(compressed), heads)
        return self.core(queries, keys, values)  # type: ignore[no-any-return]

    def _absorbed(self, queries: Tensor, latent: Tensor) -> Tensor:
        """Attend in the latent space, B x h x N x v."""
        plain, rotated = torch.split_with_sizes(queries, (self.nope, self.rope), dim=-1)
        carried = torch.cat([self.q_absorb(plain), rotated], dim=-1)
        keys = latent[:, None]
        context = self.core(carried, keys, keys[..., : self.rank])
        return self.v_absorb(context)  # type: ignore[no-any-return]

    def load_canonical(self, weights: Weights) -> None:
        """Copy all canonical weights; absorbed ones are laid out per head."""
        super().load_canonical(weights)
        self.q_proj.load_canonical(weights)
        fill_linear(self.kv_down, weights, "kv_down")
        if self.spec.qk_norm == "latent":
            fill(self.kv_norm.weight, weights["kv_norm"])
        if self.spec.latent_form == "absorbed":
            per_head = (self.spec.heads, -1, self.rank)
            fill(self.q_absorb.weight, weights["w_k_up"].view(per_head))
            fill(self.v_absorb.weight, weights["w_v_up"].view(per_head).transpose(1, 2))
        else:
            fill_linear(self.k_proj, weights, "k_up")
            fill_linear(self.v_proj, weights, "v_up")
        if self.spec.sinks:
            fill(self.core.sinks, weights["sinks"])  # type: ignore[arg-type]
