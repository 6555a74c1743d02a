"""flex_attention: masks as mask_mods, soft-capping as a score_mod.

On accelerators it is compiled, whole or not at all.  On a CPU its operators run one
by one, as torch does without a compiler (whose kernel takes tens of seconds to make):
the whole score matrix is in memory, and there are no gradients.  Compiling the module
that ``build`` returns compiles it there, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from mhaprof.attention.base import Rejection, hides_nothing
from mhaprof.attention.latent import LatentAttention
from mhaprof.attention.layers import FusedHeads, core_kv_heads, core_widths
from mhaprof.records import Mode
from mhaprof.spec import AttentionSpec

FLEX_DEVICES = ("cpu", "cuda", "xpu")
"""Device types that flex_attention is run on."""

LEAST_WIDTH = 16
"""Least width of keys and of values whose products triton can take."""

BLOCK = 128
"""Tokens on a side of a mask's blocks: flex_attention's own default."""

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def mask_mod(spec: AttentionSpec) -> MaskMod:
    """Return the spec's mask as flex_attention wants it, a function of indices.

    The definition is that of ``formulas.exact_pairs``.
    """
    offset = spec.kv_tokens - spec.tokens if spec.causal == "bottom-right" else 0
    causal, window = spec.causal != "none", spec.window

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = query + offset - key
        if window is None:
            return distance >= 0
        if causal:
            return (distance >= 0) & (distance < window)
        return (distance > -window) & (distance < window)

    return visible


def block_mask(spec: AttentionSpec, *, device: torch.device) -> BlockMask | None:
    """Return the spec's mask by blocks, or None when it hides nothing.

    ``create_block_mask`` evaluates every pair (16 GiB at 131072 tokens); a band is
    known at the corners of a block: the distances from query to key inside it are
    all whole numbers between those of two opposite corners.
    """
    if hides_nothing(spec):
        return None
    rows = torch.arange(0, spec.tokens, BLOCK, device=device)[:, None]
    columns = torch.arange(0, spec.kv_tokens, BLOCK, device=device)
    last_rows = (rows + BLOCK).clamp(max=spec.tokens) - 1
    last_columns = (columns + BLOCK).clamp(max=spec.kv_tokens) - 1
    offset = spec.kv_tokens - spec.tokens if spec.causal == "bottom-right" else 0
    nearest, farthest = rows + offset - last_columns, last_rows + offset - columns
    low = 0 if spec.causal != "none" else 1 - (spec.window or 0)
    high = spec.window or spec.tokens + spec.kv_tokens
    touched = (farthest >= low) & (nearest < high)
    complete = (last_rows - rows == BLOCK - 1) & (last_columns - columns == BLOCK - 1)
    full = (nearest >= low) & (farthest < high) & complete
    partial_count, partial_indices = _ordered(touched & ~full)
    full_count, full_indices = _ordered(full)
    return BlockMask.from_kv_blocks(
        partial_count,
        partial_indices,
        full_count,
        full_indices,
        BLOCK_SIZE=BLOCK,
        mask_mod=mask_mod(spec),
        seq_lengths=(spec.tokens, spec.kv_tokens),
    )


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many blocks of each row are set, and the columns, set ones first."""
    indices = torch.argsort(blocks.int(), dim=-1, descending=True, stable=True)
    count = blocks.sum(dim=-1)
    return count.int()[None, None].contiguous(), indices.int()[None, None].contiguous()


def score_mod(softcap: float) -> ScoreMod:
    """Return soft-capping as flex_attention wants it: a function of one scaled score."""

    def capped(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return capped


@lru_cache(maxsize=2)
def _traced(backend: str) -> Callable[..., Any]:
    """Return flex_attention traced once; a graph that breaks is an error, no fallback."""
    return torch.compile(flex_attention, backend=backend, dynamic=False, fullgraph=True)


class FlexCore(nn.Module):
    """flex_attention with the spec's mask, scale and soft-capping."""

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__()
        device = torch.empty(0).device
        self.backend = "eager" if device.type == "cpu" else "inductor"
        self.options: dict[str, Any] = {
            "block_mask": block_mask(spec, device=device),
            "score_mod": None if spec.softcap is None else score_mod(spec.softcap),
            "scale": spec.head_dim**-0.5,
            "enable_gqa": core_kv_heads(spec) != spec.heads,
        }
        # Kernels are made for one shape: a sweep must not run into the limit of
        # compilations that torch allows for one function.
        torch.compiler.reset()

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Map q (B x h x N x k), k (B x g x M x k), v (B x g x M x v) to B x h x N x v."""
        # Inside a module that is being compiled, flex_attention is traced with the rest.
        if torch.compiler.is_compiling():
            return cast(Tensor, flex_attention(queries, keys, values, **self.options))
        return cast(Tensor, _traced(self.backend)(queries, keys, values, **self.options))


class Flex:
    """The builder behind ``flex``."""

    def build(self, spec: AttentionSpec) -> nn.Module:
        """Return split heads, or latent attention, around flex_attention."""
        core = FlexCore(spec)
        return LatentAttention(spec, core) if spec.is_latent else FusedHeads(spec, core)

    def unavailable(
        self, spec: AttentionSpec, *, device: str, dtype: str, mode: Mode
    ) -> Rejection | None:
        """Return why flex_attention cannot run on the device."""
        kind = device.partition(":")[0]
        if kind not in FLEX_DEVICES:
            return Rejection(
                code="backend_unavailable",
                message=f"flex runs on {', '.join(FLEX_DEVICES)}, not on {kind}",
            )
        if kind == "cpu":
            if mode != "forward":
                return Rejection(
                    code="backward_unsupported", message="flex computes no gradients on cpu"
                )
            return None
        keys, values = core_widths(spec)
        if min(keys, values) < LEAST_WIDTH:
            return Rejection(
                code="backend_unavailable",
                message=f"flex on {kind} is compiled by triton, for heads that are at least "
                f"{LEAST_WIDTH} wide; its keys are {keys} wide here, its values {values}",
            )
        if find_spec("triton") is None:
            return Rejection(
                code="backend_unavailable",
                message=f"flex on {kind} is compiled by triton, which does not run here",
            )
        return None


FLEX = Flex()
