"""From the keys of one layer to its sizes and what else costs anything.

The order in which ``head_dim`` is found: latent ranks; explicit; ``d_kv``; dim / heads,
only if that divides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mhaprof.huggingface.family import Fact, Family
from mhaprof.huggingface.keys import MAX_LAYERS, Keys, is_list, shown
from mhaprof.huggingface.patterns import INDEXED, SLIDING, TYPE_KEYS, attention_blocks
from mhaprof.huggingface.unknown import is_read
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
    """The heads of one layer; ``v_head_dim`` where values are of another width."""

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int | None


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What one layer is made of."""

    dim: int
    heads: Heads
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
    v_is_k: bool
    built: int | None


def layer_count(keys: Keys, family: Family) -> int | None:
    """Return the number of layers, or None with a fault noted."""
    listed = keys.given(*TYPE_KEYS, "hybrid_override_pattern")
    if family.pattern == "spelled" and listed and keys.given(*family.layers) is None:
        value = keys.values[listed]  # of nemotron_h the list alone counts
        if isinstance(value, str | list) and 0 < len(value) <= MAX_LAYERS:
            return len(value)
    if family.layers_otherwise and keys.given(*family.layers) is None:
        return keys.size(*family.layers_otherwise, required=True, limit=MAX_LAYERS)
    return keys.size(*family.layers, required=True, limit=MAX_LAYERS)


def layer_keys(keys: Keys, family: Family, types: Sequence[str]) -> list[Keys]:
    """Return the keys as each layer reads them; equal layers share one object.

    What all share, replaced by: the item of a list of sizes; the row's own keys of a kind
    of layer; ``per_layer_config``, as transformers 5 writes it.
    """
    count = len(types)
    changes: list[dict[str, Any]] = [{} for _ in types]
    for name in (*family.heads, *family.kv_heads, *family.head_dim, *family.window):
        if is_list(keys.values.get(name)):
            for change, value in zip(changes, keys.sizes(count, name) or (), strict=False):
                change[name] = value
    if family.pattern == "blocks" and keys.given("block_configs"):
        for change, block in zip(changes, attention_blocks(keys, count), strict=True):
            if block.get("n_heads_in_group") is not None:
                change.update(_block(keys, family, block))
    given = _per_layer(keys, family, count)
    if given is None:
        for change, word in zip(changes, types, strict=False):
            change.update(_of_type(keys, family, word))
    else:
        for index, values in given.items():
            changes[index] |= values
    made: dict[str, Keys] = {}
    for change in changes:
        if str(change) not in made:
            values = {**keys.values, **change} if change else keys.values
            made[str(change)] = Keys(values=values, path=keys.path, faults=keys.faults)
    return [made[str(change)] for change in changes]


def _block(keys: Keys, family: Family, block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the key/value heads of a layer of which the file says how many share one."""
    heads, group = keys.size(*family.heads), Keys(values=block, faults=keys.faults)
    shared = group.size("n_heads_in_group")
    if heads is None or shared is None or heads % shared:
        keys.fault("block_configs", f"n_heads_in_group {shared} does not divide {heads} heads")
        return {}
    return {family.kv_heads[0]: heads // shared}


def _of_type(keys: Keys, family: Family, word: str) -> dict[str, Any]:
    """Return what the row says that layers of a kind read in place of a key.

    The first of its expressions that the file has; ``a?b`` needs the flag ``b``.
    """
    found = {}
    for name, alternatives in family.by_type.get(word, {}).items():
        for text in alternatives:
            own, _, gate = text.partition("?")
            value = keys.expression(own) if not gate or keys.flag(gate) else None
            if value is not None:
                found[name] = value
                break
    return found


def _per_layer(keys: Keys, family: Family, count: int) -> dict[int, Mapping[str, Any]] | None:
    """Return ``per_layer_config`` by layer; None if the file has none."""
    given = keys.values.get("per_layer_config")
    if given is None:
        return None
    items = given.items() if isinstance(given, Mapping) else [("", None)]
    found: dict[int, Mapping[str, Any]] = {}
    for name, values in items:
        index = int(name) if str(name).isdecimal() and len(str(name)) < 9 else count
        if not isinstance(values, Mapping) or index >= count or index in found:
            keys.fault("per_layer_config", f"{shown(name)} is no layer below {count} with its keys")
        elif values.get("skip"):
            keys.fault("per_layer_config", f"layer {index} skips {shown(values['skip'])}")
        else:
            found[index] = values
            for unread in (key for key in values if not is_read(key, family)):
                keys.fault("per_layer_config", f"{unread} of layer {index} is not known to count")
    return found


def fact(keys: Keys, known: Fact) -> bool:
    """Return a flag that is fixed or stated."""
    if isinstance(known, bool):
        return known
    return keys.flag(*known.names, default=known.default)


def is_causal(keys: Keys, family: Family) -> bool:
    """Say whether a stack masks the future, without reading its sizes."""
    if _is_bidirectional(keys, family):
        return False
    return fact(keys, family.causal) and keys.flag("is_causal", default=True)


def _is_bidirectional(keys: Keys, family: Family) -> bool:
    """Say whether the row's flag turns the mask off; gemma4 writes ``all`` or ``vision``."""
    name = family.bidirectional
    if name is None or keys.values.get(name) == "vision":
        return False
    return keys.values.get(name) == "all" or keys.flag(name)


def read_facts(keys: Keys, family: Family, word: str, warnings: list[str]) -> Facts | None:
    """Read everything that costs anything of a layer; None when a fault makes it impossible."""
    dim = keys.size(*family.dim, required=True)
    latent = _latent(keys, family) if family.latent else None
    heads = _heads(keys, family, dim, latent, warnings)
    causal = is_causal(keys, family)
    slides = word == SLIDING and keys.given(*family.window)
    window = keys.size(*family.window) if slides else None
    if window is not None and (family.half_window or _is_bidirectional(keys, family)):
        window = window // 2 + 1
    has_norm = family.norm.kind != "none" and fact(keys, family.norm.given)
    qkv_bias = fact(keys, family.qkv_bias)
    k_bias = qkv_bias if family.k_bias is None else fact(keys, family.k_bias)
    out_bias = fact(keys, family.out_bias)
    softcap = keys.number(family.softcap) if family.softcap else None
    if dim is None or heads is None or (family.latent and latent is None):
        return None
    return Facts(
        dim=dim,
        heads=heads,
        latent=latent,
        qkv_bias=qkv_bias,
        k_bias=k_bias,
        out_bias=out_bias,
        qk_norm=family.norm.kind if has_norm else "none",
        norm_bias=family.norm.bias and has_norm,
        output_gate=family.output_gate,
        sinks=_sinks(keys, family, word),
        softcap=softcap,
        causal=causal,
        window=window,
        v_is_k=word != SLIDING and family.v_is_k is not None and keys.flag(family.v_is_k),
        built=_built(keys, family),
    )


def _built(keys: Keys, family: Family) -> int | None:
    """Return how many layers are built, where one is applied several times (ALBERT)."""
    sizes = [keys.size(name) or 1 for name in family.built]
    return math.prod(sizes) if sizes else None


def _sinks(keys: Keys, family: Family, word: str) -> bool:
    """Say whether a layer of a kind has sinks: as the row fixes, or by its flag of the kind."""
    if isinstance(family.sinks, bool):
        return family.sinks
    return fact(keys, family.sinks.get(word, False))


def _latent(keys: Keys, family: Family) -> LatentFacts | None:
    """Read the ranks; ``q_lora_rank: null`` means that queries are projected directly."""
    q_rank = keys.size("q_lora_rank")
    if "q_lora_rank" not in keys.values:
        keys.fault("q_lora_rank", "is missing; write null if queries are projected directly")
    if INDEXED in family.apart and q_rank is None:
        keys.fault("q_lora_rank", "is null, and the indexer reads the latent of the queries")
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


def _heads(
    keys: Keys, family: Family, dim: int | None, latent: LatentFacts | None, warnings: list[str]
) -> Heads | None:
    """Return the heads of a layer."""
    heads = keys.size(*family.heads, required=True)
    if heads is None:
        return None
    kv_heads = heads if family.latent else _kv_heads(keys, family, heads)
    if kv_heads is None:
        return None
    if heads % kv_heads:
        keys.fault(
            keys.given(*family.kv_heads) or family.kv_heads[0],
            f"{kv_heads} does not divide {keys.given(*family.heads)} {heads}",
        )
        return None
    head_dim = _head_dim(keys, family, heads, dim, latent, warnings)
    if head_dim is None:
        return None
    v_head_dim = keys.size(*family.v_head_dim) if family.v_head_dim else None
    return Heads(heads=heads, kv_heads=kv_heads, head_dim=head_dim, v_head_dim=v_head_dim)


def _kv_heads(keys: Keys, family: Family, heads: int) -> int | None:
    """Apply the family's rule for key/value heads."""
    if family.kv_rule == "heads":
        return heads
    if family.kv_rule in ("multi-query", "falcon"):
        # falcon-40b as first published (RefinedWeb) has neither flag: n_head_kv alone says it
        old = keys.given("n_head_kv") is not None and keys.given("multi_query") is None
        shared = keys.flag("multi_query", default=True)
        grouped = family.kv_rule == "falcon" and keys.flag("new_decoder_architecture", default=old)
        if not grouped:
            return 1 if shared else heads
    if family.kv_group is not None:
        empty = Keys(values={}, path=(*keys.path, family.kv_group), faults=keys.faults)
        keys = keys.nested(family.kv_group) or empty
    if keys.given(*family.kv_heads) is not None:
        return keys.size(*family.kv_heads)
    if family.kv_heads_required and family.kv_heads[0] not in keys.values:
        keys.fault(
            family.kv_heads[0],
            "is missing; this family's code does not derive it, so the KV cache is not known",
        )
        return None
    return heads


def _head_dim(
    keys: Keys,
    family: Family,
    heads: int,
    dim: int | None,
    latent: LatentFacts | None,
    warnings: list[str],
) -> int | None:
    """Find the width of a head in the order that this module's docstring gives."""
    if family.latent:
        return None if latent is None else latent.qk_nope_head_dim + latent.qk_rope_head_dim
    if keys.given(*family.head_dim) is not None:
        return keys.size(*family.head_dim)
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
    width = _divided(keys, family, dim, heads)
    given = keys.values.get("head_dim")
    if given is not None and given != width:
        warnings.append(
            f"head_dim {shown(given)} is ignored: this family's code takes "
            f"{family.dim[0]} / {family.heads[0]}"
        )
    return width


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
