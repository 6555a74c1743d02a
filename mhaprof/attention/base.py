"""What an implementation is: the protocol, canonical weights, and how inputs are made.

Canonical weights are one dict of tensors that every implementation loads in its own
layout, so that all compute the same function:

    w_q (h*k x d)  w_k (g*k x d)  w_v (g*v x d)  w_o (d x h*v), rows of head 0 first,
    b_q  b_k  b_v  b_o            where the spec has the bias
    w_gate  b_gate                output gate (h rows per-head, h*v elementwise)
    q_norm  k_norm                RMSNorm weights (k wide per-head, h*k and g*k wide full)
    sinks (h)                     learned sink logits

Latent attention has w_o, b_o, gate and sinks as above, and

    w_q ((n+p)*h x d)             without a query rank c, else
    w_q_down (c x d)  b_q_down  w_q_up ((n+p)*h x c)
    w_kv_down (r+p x d)  b_kv_down  w_k_up (h*n x r)  w_v_up (h*v x r)
    q_norm (c)  kv_norm (r)       with qk_norm latent

(h heads, g kv_heads, k head_dim, v v_head_dim, d dim, r kv_lora_rank, n and p the
qk_nope and qk_rope head dims, as in ``formulas.py``.)

Inputs, in the order that a module's ``forward`` takes them:

    prefill, tokens == kv_tokens    x (B x N x d)
    prefill, tokens != kv_tokens    x, context (B x M x d)
    kv_proj false                   x, k (B x g x M x k), v (B x g x M x v)
    decode                          x (B x 1 x d), k_cache (B x g x M x k), v_cache (B x g x M x v);
                                    the last slot is overwritten by the new token's k and v
    decode, latent                  x, latent_cache (B x M x (r+p)); last slot likewise

The result is B x N x d, or B x N x (h*v) without the output projection.  A query that
the mask shows no key gives zeros.  Positions are not encoded: rotation is elementwise
and outside of attention, so the rotated part of latent attention is used as it comes.

Importing this module does not import torch.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mhaprof.formulas import dense_pairs, exact_pairs

if TYPE_CHECKING:
    import torch
    from torch import nn

    from mhaprof.records import Mode
    from mhaprof.spec import AttentionSpec


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """Why an implementation cannot do a spec on a device: a stable code and a sentence.

    The codes are the keys of ``rejections.REJECTION_CODES``.
    """

    code: str
    message: str


class Implementation(Protocol):
    """One way to compute attention.

    ``version`` goes into a point's identity: raise it when the code changes what is
    measured.  ``fused`` says that scores are never held in memory as a whole.
    ``backend`` is the one attention backend that it asks for (``flash``, ``flex``),
    ``records.AUTO_BACKEND`` where it leaves the choice to torch, or None.
    ``counter_note`` is None, or says why tracers cannot follow (the closed form then
    counts alone).
    """

    # Read-only, so that a frozen object is an implementation too.
    @property
    def name(self) -> str:
        """Return the name in the table, as in flags, YAML and rows."""
        ...

    @property
    def version(self) -> int:
        """Return the version that goes into a point's identity."""
        ...

    @property
    def fused(self) -> bool:
        """Say whether scores are never held in memory as a whole."""
        ...

    @property
    def backend(self) -> str | None:
        """Return the backend that it asks for, ``auto`` where torch chooses, or None."""
        ...

    @property
    def counter_note(self) -> str | None:
        """Return None, or why tracers cannot follow."""
        ...

    @property
    def description(self) -> str:
        """Return one line for lists of implementations."""
        ...

    def rejects(
        self, spec: AttentionSpec, *, device: str, dtype: str, mode: Mode = "forward"
    ) -> Rejection | None:
        """Return why the spec cannot be expressed or run, or None.

        ``device`` is ``meta`` for counting (only what cannot be expressed counts then,
        nothing is allocated and torch is not imported), else a torch device string.
        """
        ...

    def holds_scores(self, *, device: str) -> bool:
        """Say whether the whole score matrix is in memory at once on ``device``."""
        ...

    def build(self, spec: AttentionSpec) -> nn.Module:
        """Return a module on the current default device and dtype, weights arbitrary."""
        ...

    def load(
        self, module: nn.Module, spec: AttentionSpec, weights: dict[str, torch.Tensor]
    ) -> None:
        """Copy canonical weights into a module that ``build`` returned."""
        ...


def latent_dims(spec: AttentionSpec) -> tuple[int, int, int]:
    """Return kv_lora_rank, qk_nope_head_dim and qk_rope_head_dim of a latent spec.

    Raises TypeError for a spec that is not latent attention.
    """
    rank, nope, rope = spec.kv_lora_rank, spec.qk_nope_head_dim, spec.qk_rope_head_dim
    if rank is None or nope is None or rope is None:
        raise TypeError("not a latent attention spec")
    return rank, nope, rope


def output_shape(spec: AttentionSpec) -> tuple[int, int, int]:
    """Return the shape of the result: batch, tokens, and dim or heads * v_head_dim."""
    width = spec.dim if spec.out_proj else spec.heads * spec.v_head_dim
    return spec.batch, spec.tokens, width


def input_shapes(spec: AttentionSpec) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the inputs, in the order of the table at the top."""
    x = (spec.batch, spec.tokens, spec.dim)
    if spec.is_latent and spec.phase == "decode":
        rank, _, rope = latent_dims(spec)
        return x, (spec.batch, spec.kv_tokens, rank + rope)
    if spec.phase == "decode" or not spec.kv_proj:
        heads = (spec.batch, spec.kv_heads, spec.kv_tokens)
        return x, (*heads, spec.head_dim), (*heads, spec.v_head_dim)
    if spec.is_cross:
        return x, (spec.batch, spec.kv_tokens, spec.dim)
    return (x,)


def make_inputs(
    spec: AttentionSpec, *, seed: int = 0, dtype: torch.dtype, device: str
) -> tuple[torch.Tensor, ...]:
    """Return the inputs, drawn from N(0, 1) on ``device``; on ``meta``, empty tensors.

    The same seed, dtype and device give the same values.  Never zeros: arithmetic on
    zeros draws less power and reads as faster on GPUs.
    """
    import torch

    shapes = input_shapes(spec)
    if device == "meta":
        return tuple(torch.empty(shape, dtype=dtype, device=device) for shape in shapes)
    generator = torch.Generator(device=device).manual_seed(seed)
    return tuple(
        torch.randn(shape, generator=generator, dtype=dtype, device=device) for shape in shapes
    )


def canonical_weights(
    spec: AttentionSpec, *, seed: int = 0, dtype: torch.dtype, device: str
) -> dict[str, torch.Tensor]:
    """Return the canonical weights, the same values on every device.

    A matrix is drawn from N(0, 1/sqrt(fan_in)) and its bias likewise, so that scores
    and outputs stay near 1; norm weights lie around 1, sinks come from N(0, 1).  Each
    is drawn in float64 on the CPU from its own seed, then cast: adding a bias to a
    spec leaves the other weights alone.  On ``meta``, empty tensors.
    """
    import torch

    weights = {}
    for name, shape in weight_shapes(spec).items():
        if device == "meta":
            weights[name] = torch.empty(shape, dtype=dtype, device=device)
            continue
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
        values = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        if name.endswith("_norm"):
            values = 1 + 0.1 * values
        elif name != "sinks":
            values = values / math.sqrt(_fan_in(spec, name))
        weights[name] = values.to(device=device, dtype=dtype)
    return weights


def weight_shapes(spec: AttentionSpec) -> dict[str, tuple[int, ...]]:
    """Return the shape of each canonical weight that the spec has."""
    inner = spec.heads * spec.v_head_dim
    shapes = _latent_weight_shapes(spec) if spec.is_latent else _projection_shapes(spec)
    if spec.out_proj:
        shapes["w_o"] = (spec.dim, inner)
        if spec.out_bias:
            shapes["b_o"] = (spec.dim,)
    if spec.output_gate != "none":
        gate = inner if spec.output_gate == "elementwise" else spec.heads
        shapes["w_gate"] = (gate, spec.dim)
        if spec.qkv_bias:
            shapes["b_gate"] = (gate,)
    if spec.sinks:
        shapes["sinks"] = (spec.heads,)
    return shapes


def _projection_shapes(spec: AttentionSpec) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the q, k and v projections and their norms."""
    q, k = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    v = spec.kv_heads * spec.v_head_dim
    shapes: dict[str, tuple[int, ...]] = {"w_q": (q, spec.dim)}
    if spec.qkv_bias:
        shapes["b_q"] = (q,)
    if spec.kv_proj:
        shapes |= {"w_k": (k, spec.dim), "w_v": (v, spec.dim)}
        if spec.k_bias:
            shapes["b_k"] = (k,)
        if spec.qkv_bias:
            shapes["b_v"] = (v,)
    if spec.qk_norm != "none":
        full = spec.qk_norm == "full"
        shapes["q_norm"] = (q if full else spec.head_dim,)
        if spec.kv_proj:
            shapes["k_norm"] = (k if full else spec.head_dim,)
    return shapes


def _latent_weight_shapes(spec: AttentionSpec) -> dict[str, tuple[int, ...]]:
    """Return the shapes of latent attention's projections and norms."""
    rank, nope, rope = latent_dims(spec)
    queries = spec.heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {}
    if spec.q_lora_rank is None:
        shapes["w_q"] = (queries, spec.dim)
    else:
        shapes |= {
            "w_q_down": (spec.q_lora_rank, spec.dim),
            "w_q_up": (queries, spec.q_lora_rank),
        }
    shapes |= {
        "w_kv_down": (rank + rope, spec.dim),
        "w_k_up": (spec.heads * nope, rank),
        "w_v_up": (spec.heads * spec.v_head_dim, rank),
    }
    if spec.qkv_bias:
        shapes["b_kv_down"] = (rank + rope,)
        if spec.q_lora_rank is not None:
            shapes["b_q_down"] = (spec.q_lora_rank,)
    if spec.qk_norm == "latent":
        shapes["kv_norm"] = (rank,)
        if spec.q_lora_rank is not None:
            shapes["q_norm"] = (spec.q_lora_rank,)
    return shapes


def _fan_in(spec: AttentionSpec, name: str) -> int:
    """Return the inputs that one output of a projection sums over."""
    shapes = weight_shapes(spec)
    return shapes["w" + name[1:]][1]


def hides_nothing(spec: AttentionSpec) -> bool:
    """Say whether the mask lets every pair through (decode, aligned at the end)."""
    return exact_pairs(spec) == dense_pairs(spec)


def has_blind_queries(spec: AttentionSpec) -> bool:
    """Say whether some query sees no key at all; its result is then zero."""
    surplus = spec.tokens - spec.kv_tokens
    if spec.causal == "bottom-right":
        return surplus > 0
    if spec.causal != "top-left":
        return False
    if spec.chunk is not None:
        return (spec.tokens - 1) // spec.chunk * spec.chunk >= spec.kv_tokens
    return spec.window is not None and surplus >= spec.window


def is_plain_causal(spec: AttentionSpec) -> bool:
    """Say whether the mask is causal alone: the window or chunk, if any, cuts nothing."""
    reach = spec.kv_tokens if spec.causal == "bottom-right" else spec.tokens
    limits = [limit for limit in (spec.window, spec.chunk) if limit is not None]
    return spec.causal != "none" and all(limit >= reach for limit in limits)


def visible_mask(spec: AttentionSpec, *, device: str | None = None) -> torch.Tensor | None:
    """Return the boolean N x M mask, true where a query sees a key; None if everywhere.

    The definition is that of ``formulas.exact_pairs``: query i sits at position i
    (top-left, or no causal mask) or i + M - N (bottom-right); it sees keys up to its
    position, the last ``window`` of them, or those of its own ``chunk``; a window
    without causal mask is symmetric.
    ``device`` defaults to torch's default; on ``meta`` the mask is empty.
    """
    import torch

    if hides_nothing(spec):
        return None
    shape = (spec.tokens, spec.kv_tokens)
    empty = torch.empty(0, device=device)
    if empty.device.type == "meta":
        return torch.empty(shape, dtype=torch.bool, device=empty.device)
    keys = torch.arange(spec.kv_tokens, device=empty.device)
    positions = torch.arange(spec.tokens, device=empty.device)[:, None]
    if spec.causal == "bottom-right":
        positions = positions + (spec.kv_tokens - spec.tokens)
    # Each comparison gives booleans at once: no N x M tensor of integers ever exists.
    visible = torch.ones(shape, dtype=torch.bool, device=empty.device)
    if spec.causal != "none":
        visible &= keys <= positions
    if spec.window is not None:
        visible &= keys > positions - spec.window
        if spec.causal == "none":
            visible &= keys < positions + spec.window
    if spec.chunk is not None:
        visible &= keys // spec.chunk == positions // spec.chunk
    return visible


def hidden_mask(spec: AttentionSpec, *, device: str | None = None) -> torch.Tensor | None:
    """Return the complement of ``visible_mask``: true where a key is hidden."""
    mask = visible_mask(spec, device=device)
    if mask is None or mask.device.type == "meta":
        return mask
    return mask.logical_not_()
