"""From the keys of one stack of layers to the sizes of each layer.

The order in which ``head_dim`` is found: latent ranks; one for each layer; explicit;
``d_kv``; dim / heads, only if that divides.
"""

from __future__ import annotations

from dataclasses import dataclass

from mhaprof.huggingface.family import Fact, Family, Names
from mhaprof.huggingface.keys import MAX_LAYERS, Keys, shown
from mhaprof.spec import OutputGate, QKNorm


@dataclass(frozen=True, kw_only=True)
class LatentFacts:
    """The ranks and parts of latent attention."""

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, kw_only=True)
class Heads:
    """The heads of one layer."""

    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the layers of one stack share, and the heads of each."""

    dim: int
    heads: tuple[Heads, ...]
    latent: LatentFacts | None
    qkv_bias: bool
    k_bias: bool
    out_bias: bool
    qk_norm: QKNorm
    norm_bias: bool
    output_gate: OutputGate
    sinks: bool
    softcap: float | None
    causal: bool
    window: int | None


def layer_count(keys: Keys, family: Family) -> int | None:
    """Return the number of layers, or None with a fault noted."""
    if family.layers_otherwise and keys.given(*family.layers) is None:
        return keys.size(*family.layers_otherwise, required=True, limit=MAX_LAYERS)
    return keys.size(*family.layers, required=True, limit=MAX_LAYERS)


def fact(keys: Keys, known: Fact) -> bool:
    """Return a flag that is fixed or stated."""
    if isinstance(known, bool):
        return known
    return keys.flag(*known.names, default=known.default)


def read_facts(keys: Keys, family: Family, count: int, warnings: list[str]) -> Facts | None:
    """Read everything that costs anything; None when a fault makes it impossible."""
    dim = keys.size(*family.dim, required=True)
    latent = _latent(keys) if family.latent else None
    heads = _heads_of_layers(keys, family, count, dim, latent, warnings)
    causal = fact(keys, family.causal)
    window = keys.size(*family.window) if keys.given(*family.window) else None
    if family.half_window and window is not None:
        window = window // 2 + 1
    if family.bidirectional is not None and keys.flag(family.bidirectional):
        causal = False
        window = None if window is None else window // 2 + 1
    has_norm = family.norm.kind != "none" and fact(keys, family.norm.given)
    qkv_bias = fact(keys, family.qkv_bias)
    k_bias = qkv_bias if family.k_bias is None else fact(keys, family.k_bias)
    out_bias = fact(keys, family.out_bias)
    softcap = keys.number(family.softcap) if family.softcap else None
    if dim is None or heads is None or (family.latent and latent is None):
        return None
    return Facts(
        dim=dim,
        heads=tuple(heads),
        latent=latent,
        qkv_bias=qkv_bias,
        k_bias=k_bias,
        out_bias=out_bias,
        qk_norm=family.norm.kind if has_norm else "none",
        norm_bias=family.norm.bias and has_norm,
        output_gate=family.output_gate,
        sinks=family.sinks,
        softcap=softcap,
        causal=causal,
        window=window,
    )


def _latent(keys: Keys) -> LatentFacts | None:
    """Read the ranks; ``q_lora_rank: null`` means that queries are projected directly."""
    q_rank = keys.size("q_lora_rank")
    if "q_lora_rank" not in keys.values:
        keys.fault("q_lora_rank", "is missing; write null if queries are projected directly")
    rank = keys.size("kv_lora_rank", required=True)
    nope = keys.size("qk_nope_head_dim", required=True)
    rope = keys.size("qk_rope_head_dim", required=True)
    value = keys.size("v_head_dim", required=True)
    if rank is None or nope is None or rope is None or value is None:
        return None
    whole = keys.size("qk_head_dim")
    if whole is not None and whole != nope + rope:
        keys.fault(
            "qk_head_dim",
            f"{whole} contradicts qk_nope_head_dim {nope} + qk_rope_head_dim {rope}",
        )
    return LatentFacts(
        q_lora_rank=q_rank,
        kv_lora_rank=rank,
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
        v_head_dim=value,
    )


def _heads_of_layers(
    keys: Keys,
    family: Family,
    count: int,
    dim: int | None,
    latent: LatentFacts | None,
    warnings: list[str],
) -> list[Heads] | None:
    """Return the heads of each layer; a key that holds a list says them one by one."""
    heads = keys.sizes(count, *family.heads)
    if heads is None:
        one = keys.size(*family.heads, required=True)
        if one is None:
            return None
        heads = [one] * count
    kv_heads = heads if family.latent else _kv_heads(keys, family, heads)
    if kv_heads is None:
        return None
    for query, key_value in zip(heads, kv_heads, strict=True):
        if query % key_value:
            keys.fault(
                keys.given(*family.kv_heads) or family.kv_heads[0],
                f"{key_value} does not divide {keys.given(*family.heads)} {query}",
            )
            return None
    head_dims = _head_dims(keys, family, heads, dim, latent, warnings)
    if head_dims is None:
        return None
    return [
        Heads(heads=query, kv_heads=key_value, head_dim=width)
        for query, key_value, width in zip(heads, kv_heads, head_dims, strict=True)
    ]


def _kv_heads(keys: Keys, family: Family, heads: list[int]) -> list[int] | None:
    """Apply the family's rule for key/value heads."""
    if family.kv_rule == "heads":
        return heads
    if family.kv_rule in ("multi-query", "falcon"):
        # falcon-40b as first published (RefinedWeb) has neither flag: n_head_kv alone says it
        old = keys.given("n_head_kv") is not None and keys.given("multi_query") is None
        shared = keys.flag("multi_query", default=True)
        grouped = family.kv_rule == "falcon" and keys.flag("new_decoder_architecture", default=old)
        if not grouped:
            return [1] * len(heads) if shared else heads
    if keys.given(*family.kv_heads) is not None:
        return _each(keys, len(heads), family.kv_heads)
    if family.kv_heads_required and family.kv_heads[0] not in keys.values:
        keys.fault(
            family.kv_heads[0],
            "is missing; this family's code does not derive it, so the KV cache is not known",
        )
        return None
    return heads


def _each(keys: Keys, count: int, names: Names) -> list[int] | None:
    """Return one size for each layer: a list as it is, one number for all."""
    listed = keys.sizes(count, *names)
    if listed is not None:
        return listed
    one = keys.size(*names)
    return None if one is None else [one] * count


def _head_dims(
    keys: Keys,
    family: Family,
    heads: list[int],
    dim: int | None,
    latent: LatentFacts | None,
    warnings: list[str],
) -> list[int] | None:
    """Find the width of a head in the order that this module's docstring gives."""
    if family.latent:
        if latent is None:
            return None
        return [latent.qk_nope_head_dim + latent.qk_rope_head_dim] * len(heads)
    if keys.given(*family.head_dim) is not None:
        return _each(keys, len(heads), family.head_dim)
    if family.head_dim_required:
        held = "is null" if family.head_dim[0] in keys.values else "is missing"
        keys.fault(
            family.head_dim[0],
            f"{held}; this family's code does not derive it from "
            f"{family.dim[0]} / {family.heads[0]}: add it",
        )
        return None
    if dim is None:
        return None
    widths = [_divided(keys, family, dim, count) for count in heads]
    given = keys.values.get("head_dim")
    if given is not None and given not in widths:
        warnings.append(
            f"head_dim {shown(given)} is ignored: this family's code takes "
            f"{family.dim[0]} / {family.heads[0]}"
        )
    return None if None in widths else [width for width in widths if width is not None]


def _divided(keys: Keys, family: Family, dim: int, heads: int) -> int | None:
    if dim % heads == 0:
        return dim // heads
    dim_name = keys.given(*family.dim) or family.dim[0]
    heads_name = keys.given(*family.heads) or family.heads[0]
    if family.head_dim:
        keys.fault(
            family.head_dim[0],
            f"is not given, and {dim_name} {dim} is not divisible by {heads_name} {heads}; "
            f"add {family.head_dim[0]}",
        )
    else:
        keys.fault(dim_name, f"{dim} is not divisible by {heads_name} {heads}")
    return None
