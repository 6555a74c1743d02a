"""Closed forms: MACs per stage, exact pairs, parameters, bytes, KV cache.

Everything is an exact Python int, instant at any size: no mask is ever built.

Letters, in this file only:

    B batch   N query tokens   M key/value tokens   T tokens newly projected to K and V
    d dim     h heads          g kv_heads           k head_dim   v v_head_dim
    P query-key pairs of one head        r kv_lora_rank   n qk_nope_head_dim   p qk_rope_head_dim

Sources: Vaswani et al. 2017, section 3.2 (stages); measuring.md of the project
(pairs); DeepSeek-V2 (arXiv 2405.04434), section 2.1 and appendix C (latent
attention, expanded and absorbed).
"""

from __future__ import annotations

from typing import NamedTuple

from mhaprof.spec import AttentionSpec

STAGES = ("q_proj", "k_proj", "v_proj", "scores", "context", "out_proj")
"""The stages of standard attention, in the order of the data flow."""

EXTRA_STAGES = ("kv_down", "q_absorb", "v_absorb", "gate_proj")
"""Stages that only latent attention or a gated output has."""

CORE_STAGES = ("scores", "context")
"""The stages that grow with query-key pairs; all others are projections."""

SOFTMAX_OPS_PER_SCORE = 3
"""Exponential, sum and division for each score (the maximum is not counted)."""


def dense_pairs(spec: AttentionSpec) -> int:
    """Count the query-key pairs of one head without any mask: N * M."""
    return spec.tokens * spec.kv_tokens


def exact_pairs(spec: AttentionSpec) -> int:
    """Count the query-key pairs of one head that the mask lets through.

    Query i sits at position ``i + s`` among the keys: s = 0 (top-left or no causal
    mask), s = M - N (bottom-right).  Causal: it sees keys up to its position; with a
    window W only the last W of those positions; a window without causal mask is
    symmetric (|i - j| < W).  Queries before the first key see none.  A chunk cuts the
    positions into blocks of its size: a query sees its own block up to its position.
    """
    n, m, window = spec.tokens, spec.kv_tokens, spec.window
    if spec.causal == "none":
        if window is None:
            return n * m
        return _clamped_sum(n, window, m) - _clamped_sum(n, 1 - window, m)
    first = 1 if spec.causal == "top-left" else 1 + m - n
    if spec.chunk is not None:
        return _chunked_pairs(n, m, first - 1, spec.chunk)
    pairs = _clamped_sum(n, first, m)
    if window is not None:
        pairs -= _clamped_sum(n, first - window, m)
    return pairs


def _clamped_sum(n: int, first: int, top: int) -> int:
    """Sum ``min(max(first + i, 0), top)`` over i in 0..n-1, in closed form."""

    def ramp(start: int) -> int:
        """Sum ``max(start + i, 0)``: an arithmetic series."""
        last = start + n - 1
        if last <= 0:
            return 0
        low = max(start, 0)
        return (low + last) * (last - low + 1) // 2

    return ramp(first) - ramp(first - top)


def _chunked_pairs(n: int, m: int, first: int, chunk: int) -> int:
    """Count causal pairs inside chunks, for queries at positions first..first+n-1.

    Position p < M sees ``p % chunk + 1`` keys.  Positions behind the last key (top-left
    with N > M) see the keys of their chunk, if it holds any.
    """

    def seen_before(position: int) -> int:
        whole, rest = divmod(position, chunk)
        return whole * (chunk * (chunk + 1) // 2) + rest * (rest + 1) // 2

    end = first + n
    pairs = seen_before(min(end, m)) - seen_before(min(max(first, 0), m))
    start = (m - 1) // chunk * chunk
    behind = min(end, start + chunk) - max(first, m)
    return pairs + max(behind, 0) * (m - start)


def stage_macs(spec: AttentionSpec, *, exact: bool = False) -> dict[str, int]:
    """Return the MACs of each stage of one forward pass (1 per multiply-add).

    Dense by default, as fvcore and torch count; ``exact`` counts scores and context
    over the pairs that the mask lets through.  Softmax, scaling, masks, norms,
    rotation and gates' multiplications are elementwise and not in here.
    Stages that the spec does not have are absent, except the six of ``STAGES``.
    """
    pairs = exact_pairs(spec) if exact else dense_pairs(spec)
    if spec.is_latent:
        return _latent_macs(spec, pairs)
    b, d = spec.batch, spec.dim
    h, g, k, v = spec.heads, spec.kv_heads, spec.head_dim, spec.v_head_dim
    queries, new = b * spec.tokens, b * spec.new_kv_tokens
    macs = {
        "q_proj": queries * d * h * k,
        "k_proj": new * d * g * k,
        "v_proj": new * d * g * v,
        "scores": b * h * pairs * k,
        "context": b * h * pairs * v,
        "out_proj": queries * h * v * d if spec.out_proj else 0,
    }
    if spec.output_gate != "none":
        macs["gate_proj"] = queries * d * _gate_width(spec)
    return macs


def _gate_width(spec: AttentionSpec) -> int:
    """Return the outputs of the projection that computes the output gate."""
    return spec.heads * (spec.v_head_dim if spec.output_gate == "elementwise" else 1)


def _latent_dims(spec: AttentionSpec) -> tuple[int, int, int]:
    """Return kv_lora_rank, qk_nope_head_dim and qk_rope_head_dim of a latent spec."""
    rank, nope, rope = spec.kv_lora_rank, spec.qk_nope_head_dim, spec.qk_rope_head_dim
    if rank is None or nope is None or rope is None:
        raise TypeError("not a latent attention spec")
    return rank, nope, rope


def _latent_macs(spec: AttentionSpec, pairs: int) -> dict[str, int]:
    """Return the stages of latent attention.

    ``kv_down`` makes the cached latent (rank + rope) of new tokens.  Expanded:
    ``k_proj`` and ``v_proj`` raise the latent of all M tokens to every head.
    Absorbed: ``q_absorb`` and ``v_absorb`` carry queries into, and contexts out of,
    the latent space, where scores and context are computed; nothing is raised.
    """
    b, d, h, v = spec.batch, spec.dim, spec.heads, spec.v_head_dim
    r, n, p = _latent_dims(spec)
    queries, latents = b * spec.tokens, b * spec.kv_tokens
    if spec.q_lora_rank is None:
        q_weights = d * h * (n + p)
    else:
        q_weights = d * spec.q_lora_rank + spec.q_lora_rank * h * (n + p)
    macs = {
        "q_proj": queries * q_weights,
        "kv_down": b * spec.new_kv_tokens * d * (r + p),
    }
    if spec.latent_form == "absorbed":
        macs |= {
            "k_proj": 0,
            "v_proj": 0,
            "q_absorb": queries * h * n * r,
            "scores": b * h * pairs * (r + p),
            "context": b * h * pairs * r,
            "v_absorb": queries * h * r * v,
        }
    else:
        macs |= {
            "k_proj": latents * r * h * n,
            "v_proj": latents * r * h * v,
            "scores": b * h * pairs * (n + p),
            "context": b * h * pairs * v,
        }
    macs["out_proj"] = queries * h * v * d if spec.out_proj else 0
    if spec.output_gate != "none":
        macs["gate_proj"] = queries * d * _gate_width(spec)
    return macs


def total_macs(spec: AttentionSpec, *, exact: bool = False) -> int:
    """Return the MACs of one forward pass: the sum of ``stage_macs``."""
    return sum(stage_macs(spec, exact=exact).values())


def reference_macs(spec: AttentionSpec) -> int:
    """Return the MACs of one full head without W_O on the same tokens.

    The sum of ``stage_macs`` of ``spec.reference()``, without making that spec.
    """
    b, d, n, m = spec.batch, spec.dim, spec.tokens, spec.kv_tokens
    new = n if spec.phase == "decode" else m
    return b * d * (d * (n + 2 * new) + 2 * n * m)


def core_macs(spec: AttentionSpec, *, exact: bool = False) -> int:
    """Return the MACs of scores and context alone."""
    macs = stage_macs(spec, exact=exact)
    return sum(macs[stage] for stage in CORE_STAGES)


def backward_macs(spec: AttentionSpec, *, fused: bool) -> int:
    """Return the MACs of one backward pass, gradients of inputs and weights included.

    Each product has two gradients: twice the forward.  ``fused`` attention does not
    keep its weights and recomputes the scores: 2.5 times for the core.
    """
    core = core_macs(spec)
    rest = total_macs(spec) - core
    recomputed = stage_macs(spec)["scores"] if fused else 0
    return 2 * (rest + core) + recomputed


def softmax_ops(spec: AttentionSpec) -> int:
    """Return the softmax operations, three per dense score, sinks included."""
    scores = dense_pairs(spec) + (spec.tokens if spec.sinks else 0)
    return SOFTMAX_OPS_PER_SCORE * spec.batch * spec.heads * scores


class Params(NamedTuple):
    """Learned parameters: projections with their biases, and apart norms and sinks."""

    projections: int
    norms: int
    sinks: int


def params(spec: AttentionSpec) -> Params:
    """Count the learned parameters of one attention layer."""
    d, h, g = spec.dim, spec.heads, spec.kv_heads
    k, v = spec.head_dim, spec.v_head_dim
    if spec.is_latent:
        projections, norms = _latent_params(spec)
    else:
        projections = d * h * k + spec.qkv_bias * h * k
        if spec.kv_proj:
            projections += d * g * (k + v) + spec.k_bias * g * k + spec.qkv_bias * g * v
        norms = 0 if spec.qk_norm == "none" else _norm_params(spec)
    if spec.out_proj:
        projections += h * v * d + spec.out_bias * d
    if spec.output_gate != "none":
        projections += (d + spec.qkv_bias) * _gate_width(spec)
    return Params(projections=projections, norms=norms, sinks=h if spec.sinks else 0)


def _norm_params(spec: AttentionSpec) -> int:
    """Count the weights of the norms of queries and, where they are projected, keys."""
    heads = {"per-head": (1, 1), "full": (spec.heads, spec.kv_heads)}[spec.qk_norm]
    return spec.head_dim * (heads[0] + (heads[1] if spec.kv_proj else 0))


def _latent_params(spec: AttentionSpec) -> tuple[int, int]:
    """Count the projections (biases on the down projections only) and latent norms.

    Source: the ``attention_bias`` of DeepSeek-V3 in transformers, which puts biases
    on q_a_proj, kv_a_proj_with_mqa and o_proj alone.
    """
    d, h, v = spec.dim, spec.heads, spec.v_head_dim
    r, n, p = _latent_dims(spec)
    q_rank = spec.q_lora_rank
    queries = d * h * (n + p) if q_rank is None else d * q_rank + q_rank * h * (n + p)
    projections = queries + d * (r + p) + r * h * (n + v)
    if spec.qkv_bias:
        projections += (q_rank or 0) + r + p
    norms = (q_rank or 0) + r if spec.qk_norm == "latent" else 0
    return projections, norms


def kv_bytes_per_token(spec: AttentionSpec, *, dtype_bytes: int) -> int:
    """Return the cache bytes that one token adds in one layer.

    Latent attention caches the latent and the shared rotated key; a layer without
    its own K and V projections caches nothing.
    """
    if spec.is_latent:
        r, _, p = _latent_dims(spec)
        return (r + p) * dtype_bytes
    if not spec.kv_proj:
        return 0
    return spec.kv_heads * (spec.head_dim + spec.v_head_dim) * dtype_bytes


def kv_cache_bytes(spec: AttentionSpec, *, dtype_bytes: int, windowed: bool = True) -> int:
    """Return the cache bytes of the whole batch at kv_tokens, in one layer.

    A window (or a chunk) caps the tokens kept, unless ``windowed`` is false.
    """
    tokens = _kept_tokens(spec) if windowed else spec.kv_tokens
    return spec.batch * tokens * kv_bytes_per_token(spec, dtype_bytes=dtype_bytes)


def _kept_tokens(spec: AttentionSpec) -> int:
    """Return the cached tokens that a later query can still see: a window or chunk of them."""
    limits = [limit for limit in (spec.window, spec.chunk) if limit is not None]
    return min([spec.kv_tokens, *limits])


def moved_bytes(
    spec: AttentionSpec,
    *,
    dtype_bytes: int,
    fused: bool,
    cache_dtype_bytes: int | None = None,
    learned: Params | None = None,
) -> int:
    """Return the bytes that one forward pass has to move at least.

    Each operand is counted once: inputs, parameters, the output; in prefill the new
    keys and values are written, in decode the cache is read (and the new entry
    written): what a window or chunk keeps of it, or all of it where the attention is
    not ``fused``, which also writes and reads the scores and the weights
    (4 x B * h * N * M).  Caches are assumed to hold everything
    between the two uses of an operand: a lower bound, as a roofline wants it.
    ``cache_dtype_bytes`` is the width of keys and values, where it differs; ``learned``
    are the ``params``, where they are known.
    """
    b, d = spec.batch, spec.dim
    counted = learned or params(spec)
    elements = b * spec.tokens * d + counted.projections + counted.norms + counted.sinks
    if spec.is_cross:
        elements += b * spec.kv_tokens * d
    width = d if spec.out_proj else spec.heads * spec.v_head_dim
    elements += b * spec.tokens * width
    if not fused:
        elements += 4 * b * spec.heads * dense_pairs(spec)
    decodes = spec.phase == "decode"
    read = _kept_tokens(spec) if fused and decodes else spec.kv_tokens
    if spec.kv_proj:
        per_token = kv_bytes_per_token(spec, dtype_bytes=1)
        cached = b * per_token * (read * decodes + spec.new_kv_tokens)
    else:
        cached = b * read * spec.kv_heads * (spec.head_dim + spec.v_head_dim)
    return elements * dtype_bytes + cached * (cache_dtype_bytes or dtype_bytes)
