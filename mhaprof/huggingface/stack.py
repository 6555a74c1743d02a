"""One stack of layers (a decoder, an encoder, a vision tower) -> drafts of its layers.

A draft is a kind of layer with its specs not built yet: layers that cost the same have
equal drafts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mhaprof.huggingface.apart import apart
from mhaprof.huggingface.facts import Facts, layer_count, layer_keys, read_facts
from mhaprof.huggingface.family import Family, Image
from mhaprof.huggingface.keys import Keys, is_list, shown
from mhaprof.huggingface.patterns import (
    CHUNKED,
    COMBINED,
    CROSS,
    EXPRESSIBLE,
    FULL,
    INDEXED,
    SLIDING,
    layer_types,
    type_key,
)
from mhaprof.huggingface.plan import LayersApart
from mhaprof.spec import Phase


@dataclass(frozen=True, kw_only=True)
class Draft:
    """Equal layers: their name, the fields of their specs as sorted pairs, what they cache."""

    name: str
    indices: tuple[int, ...]
    spec: tuple[tuple[str, Any], ...]
    stored: tuple[tuple[str, Any], ...]
    cached: bool
    norm_biases: int
    params_beside: int = 0
    v_is_k: bool = False
    built: int | None = None

    @property
    def identity(self) -> tuple[object, ...]:
        """Return what layers of the same kind share."""
        return tuple(
            value for name, value in vars(self).items() if name not in ("indices", "built")
        )


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is asked of a stack: its tokens, and those of the sequence it crosses to."""

    tokens: int
    batch: int
    phase: Phase
    source_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The layers of one stack, and what stands apart from softmax attention."""

    drafts: tuple[Draft, ...]
    apart: tuple[LayersApart, ...]


def read_stack(
    keys: Keys,
    family: Family,
    run: Run,
    *,
    warnings: list[str],
    prefix: str = "",
    crosses_everywhere: bool = False,
) -> Stack:
    """Draft each layer of one stack.

    ``crosses_everywhere``: each layer has a cross-attention beside its self-attention.
    Faults are noted in ``keys``; the drafts are then incomplete.
    """
    count = layer_count(keys, family)
    if count is None:
        read_facts(keys, family, FULL, warnings)
        return Stack(drafts=(), apart=())
    types = layer_types(keys, family, count)
    crossing = keys.indices(family.cross_layers, count) if family.cross_layers else set()
    shared = _shared_layers(keys, family, types)
    equal: dict[tuple[int, str, bool, bool], list[int]] = {}
    each = layer_keys(keys, family, types)
    for index, (word, own) in enumerate(zip(types, each, strict=False)):
        equal.setdefault((id(own), word, index in crossing, index in shared), []).append(index)
    drafts: list[Draft] = []
    for (_, word, crosses, reuses), found in equal.items():
        own, indices = each[found[0]], tuple(found)
        attends = word in EXPRESSIBLE or word in COMBINED or crosses
        facts = read_facts(own, family, word, warnings) if attends else None
        if facts is None:
            continue
        if not crosses:
            limits = _limits(own, family, word, facts)
            name = prefix + COMBINED.get(word, word)
            drafts.append(_self_draft(indices, name, facts, family, run, limits, reuses))
        if crosses or crosses_everywhere:
            drafts.append(_cross_draft(indices, facts, family, run, prefix))
    beside = apart(keys, family, types)
    return Stack(drafts=() if keys.faults else tuple(drafts), apart=beside)


def _limits(keys: Keys, family: Family, word: str, facts: Facts) -> dict[str, int]:
    """Return the window of a sliding layer, the chunk of a chunked one, as spec fields.

    Of an indexed layer, the window has as many keys as the indexer chooses: wherever they
    lie, each query attends to so many.
    """
    if word == SLIDING:
        if keys.given(*family.window) is None:
            name = family.window[0]
            held = "is null" if name in keys.values else "is missing"
            keys.fault(name, f"{held}, and {type_key(keys)} has {SLIDING}")
        return {} if facts.window is None else {"window": facts.window}
    if word in (CHUNKED, INDEXED):
        size = keys.size("attention_chunk_size" if word == CHUNKED else "index_topk", required=True)
        return {} if size is None else {"chunk" if word == CHUNKED else "window": size}
    return {}


def _shared_layers(keys: Keys, family: Family, types: Sequence[str]) -> range:
    """Return the last layers, which reuse the keys and values of an earlier one of their type."""
    count = len(types)
    if family.kv_shared is None:
        return range(0)
    if family.kv_shared not in keys.values:
        keys.fault(family.kv_shared, "is missing; write 0 if no layer reuses keys and values")
        return range(0)
    if keys.values[family.kv_shared] in (0, None) and keys.values[family.kv_shared] is not False:
        return range(0)
    shared = keys.size(family.kv_shared)
    if shared is None:
        return range(0)
    if shared >= count or set(types[count - shared :]) - set(types[: count - shared]):
        keys.fault(
            family.kv_shared,
            f"{shared} of {count} layers leave no earlier layer of each type to share with",
        )
        return range(0)
    return range(count - shared, count)


def pairs(fields: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return spec fields as a draft holds them: sorted, without those not given."""
    return tuple(sorted((name, value) for name, value in fields.items() if value is not None))


def _shared_fields(facts: Facts, run: Run) -> dict[str, Any]:
    """Return the spec fields that self- and cross-attention have in common."""
    fields: dict[str, Any] = {
        "batch": run.batch,
        "phase": run.phase,
        "dim": facts.dim,
        **vars(facts.heads),
        "qkv_bias": facts.qkv_bias,
        "k_bias": facts.k_bias,
        "out_bias": facts.out_bias,
        "qk_norm": facts.qk_norm,
        "output_gate": facts.output_gate,
        "sinks": facts.sinks,
        "softcap": facts.softcap,
    }
    if facts.latent is not None:
        fields.update(vars(facts.latent))
    return fields


def _self_draft(
    indices: tuple[int, ...],
    name: str,
    facts: Facts,
    family: Family,
    run: Run,
    limits: dict[str, int],
    shared: bool,
) -> Draft:
    """Draft a self-attention; in decode one token runs against ``run.tokens`` of cache."""
    decodes = run.phase == "decode"
    fields = _shared_fields(facts, run) | {
        "tokens": 1 if decodes else run.tokens,
        "kv_tokens": run.tokens,
        "causal": ("bottom-right" if decodes else "top-left") if facts.causal else "none",
        "kv_proj": not shared,
    }
    kept = {} if INDEXED in name else limits  # the indexer chooses anew: every key is kept
    return Draft(
        name=f"{name}, shared kv" if shared else name,
        indices=indices,
        spec=pairs(fields | limits),
        stored=pairs(fields | kept),
        cached=facts.causal and family.cached and not shared,
        norm_biases=_norm_biases(facts),
        v_is_k=facts.v_is_k,
        built=facts.built,
    )


def _cross_draft(
    indices: tuple[int, ...], facts: Facts, family: Family, run: Run, prefix: str
) -> Draft:
    """Draft a cross-attention; in decode its keys and values were projected in prefill."""
    decodes = run.phase == "decode"
    fields = _shared_fields(facts, run) | {
        "tokens": 1 if decodes else run.tokens,
        "kv_tokens": run.source_tokens or run.tokens,
        "causal": "none",
    }
    if family.cross_layers is not None:
        fields["qk_norm"] = family.cross_norm
    return Draft(
        name=prefix + CROSS,
        indices=indices,
        spec=pairs(fields | {"kv_proj": not decodes}),
        stored=pairs(fields),
        cached=True,
        norm_biases=0,
        v_is_k=False,
        built=None,
    )


def _norm_biases(facts: Facts) -> int:
    """Count the biases of a LayerNorm on q and k, one for each of its weights."""
    return 2 * facts.heads.head_dim if facts.norm_bias else 0


def image_tokens(keys: Keys, image: Image) -> int | None:
    """Return the tokens of one image: patches that fit, and the learned tokens beside.

    ``image_size`` and ``patch_size`` hold one number or one for each side; a patch that
    does not fit entirely is dropped, as the convolution drops it.
    """
    sides = [_sides(keys, name) for name in ("image_size", "patch_size")]
    extra = image.extra
    if image.extra_key is not None and keys.values.get(image.extra_key) != 0:
        extra += keys.size(image.extra_key) or 0
    if sides[0] is None or sides[1] is None:
        return None
    patches = 1
    for pixels, patch in zip(sides[0], sides[1], strict=True):
        if patch > pixels:
            keys.fault("patch_size", f"{patch} is larger than image_size {pixels}")
            return None
        patches *= pixels // patch
    return patches + extra


def _sides(keys: Keys, name: str) -> tuple[int, int] | None:
    value = keys.values.get(name)
    if not is_list(value):
        side = keys.size(name, required=True)
        return None if side is None else (side, side)
    if not isinstance(value, Sequence) or len(value) != 2:
        keys.fault(name, f"{shown(value)} is not one number or two")
        return None
    both = keys.sizes(2, name)
    return None if both is None else (both[0], both[1])
