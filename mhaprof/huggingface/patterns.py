"""Which kind of attention each layer has: ``layer_types``, or the rule of older files.

Everything here returns one word for each layer, in the words of ``layer_types``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mhaprof.huggingface.family import Family
from mhaprof.huggingface.keys import Keys, is_list, shown

FULL = "full_attention"
SLIDING = "sliding_attention"
CHUNKED = "chunked_attention"
LINEAR = "linear_attention"
CROSS = "cross_attention"

INDEXED = "indexed_attention"

SAME_WORDS: Mapping[str, str] = {
    "attention": FULL,
    "deepseek_sparse_attention": INDEXED,
    "M": "mamba",
    "E": "moe",
    "-": "mlp",
    "*": FULL,
}
"""Other words for a kind, as hybrids of attention and state-space layers write it."""

EXPRESSIBLE = (FULL, SLIDING, CHUNKED, INDEXED)
"""The kinds that are softmax attention over keys: what mhaprof counts."""

COMBINED: Mapping[str, str] = {"attention_and_mamba": FULL}
"""Layers of a softmax attention and something else side by side: what the first is."""

STATELESS = ("moe", "mlp", "no_attention", "linear_layer")
"""Those of them that keep nothing of a sequence."""

KNOWN_APART = frozenset({LINEAR, "mamba", "mamba2", "conv", "recurrent", *STATELESS})
"""Kinds that are known to be no softmax attention: stated, and none of the count."""

TYPE_KEYS = ("layer_types", "layers_block_type")

SPELLINGS: Mapping[str, tuple[str, str]] = {
    "attn_type_list": (FULL, LINEAR),
    "hybrid_layer_pattern": (SLIDING, FULL),
    "full_attn_idxs": (FULL, "conv"),
    "attn_layer_indices": (FULL, "mamba"),
    "linear_attn_config": (FULL, LINEAR),
}
"""Keys that say where a kind is, as 1 of 0 and 1 or by its indices: it, and the others."""


def is_known(word: str) -> bool:
    """Say whether it is known of a kind what it is: attention, or surely none."""
    return word in EXPRESSIBLE or word in COMBINED or word in KNOWN_APART


def type_key(keys: Keys) -> str:
    """Name the key that a fault about a layer's kind belongs to."""
    return keys.given(*TYPE_KEYS) or TYPE_KEYS[0]


def layer_types(keys: Keys, family: Family, count: int) -> list[str]:
    """Return the kind of each of ``count`` layers, from the file or from the family's rule."""
    name = keys.given(*TYPE_KEYS)
    if name is None:
        return PATTERNS[family.pattern](keys, family, count)
    types = keys.words(name)
    if types is None:
        return [FULL] * count
    more = keys.values.get("num_nextn_predict_layers")
    if isinstance(more, int) and len(types) == count + more:
        types = types[:count]  # the layers that predict further tokens stand behind the others
    if len(types) != count:
        keys.fault(name, f"holds {len(types)} layers, {family.layers[0]} says {count}")
    types = [SAME_WORDS.get(word, word) for word in types]
    if SLIDING in types and keys.values.get("use_sliding_window") is False:
        keys.fault(name, f"{SLIDING} contradicts use_sliding_window: false")
    return types


def declared_types(keys: Keys) -> list[str]:
    """Return the kinds that the file names itself, before anything else is known of it."""
    name = keys.given(*TYPE_KEYS)
    return [SAME_WORDS.get(word, word) for word in keys.words(name) or ()] if name else []


def _full(_keys: Keys, _family: Family, count: int) -> list[str]:
    return [FULL] * count


def _all_slide(keys: Keys, family: Family, count: int) -> list[str]:
    """Slide everywhere as soon as there is a window (mistral, phi3, starcoder2)."""
    return [SLIDING if keys.given(*family.window) else FULL] * count


def _period(keys: Keys, family: Family) -> int:
    return keys.size(*family.period_names) or family.period


def _every_nth_full(keys: Keys, family: Family, count: int) -> list[str]:
    """Slide but in each n-th layer (gemma2, gemma3, cohere2, olmo3, gpt_oss).

    ``sliding_window_pattern`` may also be text such as ``LLLG`` (exaone4), whose last
    layer attends fully; without any window, every layer does.
    """
    name = keys.given(*family.period_names)
    if name is not None and isinstance(keys.values[name], str):
        return _lettered(keys, name, count)
    if _window_is_null(keys, family):
        return [FULL] * count
    n = _period(keys, family)
    return [FULL if (index + 1) % n == 0 else SLIDING for index in range(count)]


def _window_is_null(keys: Keys, family: Family) -> bool:
    """Say whether the file turns the window off, as opposed to not saying."""
    return any(name in keys.values and keys.values[name] is None for name in family.window)


def _lettered(keys: Keys, name: str, count: int) -> list[str]:
    letters = str(keys.values[name])
    if not letters or set(letters) - {"L", "G"}:
        keys.fault(name, f"{shown(letters)} is not a number or a text of L (local) and G (global)")
        return [FULL] * count
    types = [FULL if letters[index % len(letters)] == "G" else SLIDING for index in range(count)]
    return [*types[:-1], FULL]


def _first_of_n_full(keys: Keys, family: Family, count: int) -> list[str]:
    """Attend fully in layers 0, n, 2n (modernbert)."""
    n = _period(keys, family)
    return [FULL if index % n == 0 else SLIDING for index in range(count)]


def _slide_by_flag(keys: Keys, family: Family, count: int) -> list[str]:
    """Slide from layer ``max_window_layers`` on, if ``use_sliding_window`` (qwen2, qwen3)."""
    if not keys.flag("use_sliding_window") or keys.given(*family.window) is None:
        return [FULL] * count
    first = _max_window_layers(keys, count)
    return [SLIDING if index >= first else FULL for index in range(count)]


def _max_window_layers(keys: Keys, count: int) -> int:
    value = keys.values.get("max_window_layers")
    if value == 0 and not isinstance(value, bool):
        return 0
    first = keys.size("max_window_layers")
    if value is None:
        keys.fault(
            "max_window_layers", "is missing; with use_sliding_window it says where sliding starts"
        )
    return count if first is None else first


def _all_slide_by_flag(keys: Keys, family: Family, count: int) -> list[str]:
    """Slide in every layer if ``use_sliding_window`` (qwen3_moe)."""
    slides = keys.flag("use_sliding_window") and keys.given(*family.window) is not None
    return [SLIDING if slides else FULL] * count


def _flag_needs_types(keys: Keys, family: Family, count: int) -> list[str]:
    """Refuse ``use_sliding_window`` alone where versions of the code disagree (qwen2_moe)."""
    if keys.flag("use_sliding_window") and keys.given(*family.window) is not None:
        keys.fault(
            "use_sliding_window",
            "true does not say which layers slide (versions of the model's code differ); "
            "add layer_types",
        )
    return [FULL] * count


def _rope_layers(keys: Keys, family: Family, count: int) -> list[bool]:
    """Say which layers rotate: ``no_rope_layers`` holds 1 for those that *do*."""
    given = keys.values.get("no_rope_layers")
    if given is None or given == []:
        n = keys.size("no_rope_layer_interval") or family.period
        return [(index + 1) % n != 0 for index in range(count)]
    fine = is_list(given) and len(given) == count and all(each in (0, 1) for each in given)
    if not fine:
        keys.fault("no_rope_layers", f"{shown(given)} is not a list of 0 or 1 for {count} layers")
        return [False] * count
    return [bool(each) for each in given]


def _chunk_by_rope(keys: Keys, family: Family, count: int) -> list[str]:
    """Attend in chunks in the layers that rotate (llama4)."""
    if keys.given("attention_chunk_size") is None:
        if "attention_chunk_size" not in keys.values:
            keys.fault("attention_chunk_size", "is missing; write null if no layer is chunked")
        return [FULL] * count
    return [CHUNKED if rotates else FULL for rotates in _rope_layers(keys, family, count)]


def _slide_by_rope(keys: Keys, family: Family, count: int) -> list[str]:
    """Slide in the layers that do not rotate, if ``use_sliding_window`` (smollm3)."""
    if not keys.flag("use_sliding_window") or keys.given(*family.window) is None:
        return [FULL] * count
    return [FULL if rotates else SLIDING for rotates in _rope_layers(keys, family, count)]


def _attention_types(keys: Keys, _family: Family, count: int) -> list[str]:
    """Expand ``[[["global", "local"], 12]]`` (gpt_neo)."""
    words = {"global": FULL, "local": SLIDING}
    given = keys.values.get("attention_types")
    types: list[str] = []
    try:
        for names, times in given or ():
            if not isinstance(times, int) or not 0 < times * len(names) <= count:
                raise ValueError(times)
            types += [words[name] for name in names] * times
    except (TypeError, ValueError, KeyError):
        types = []
    if len(types) != count:
        keys.fault(
            "attention_types",
            f"{shown(given)} does not name global or local for {count} layers",
        )
        return [FULL] * count
    return types


def _linear_but_nth(keys: Keys, family: Family, count: int) -> list[str]:
    """Attend in each n-th layer, the others are linear attention (qwen3_next)."""
    n = _period(keys, family)
    return [FULL if (index + 1) % n == 0 else LINEAR for index in range(count)]


def _jamba(keys: Keys, _family: Family, count: int) -> list[str]:
    """Attend in the layers at ``attn_layer_offset`` of each ``attn_layer_period``."""
    period = keys.size("attn_layer_period", required=True) or 1
    offset = keys.values.get("attn_layer_offset")
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < period:
        keys.fault("attn_layer_offset", f"{shown(offset)} is not a whole number below {period}")
        return [FULL] * count
    return [FULL if index % period == offset else "mamba" for index in range(count)]


def _types_required(keys: Keys, _family: Family, count: int) -> list[str]:
    """Refuse a hybrid without ``layer_types``: what its layers are, only the file can say."""
    keys.fault(TYPE_KEYS[0], "is missing; this family mixes attention with other layers: add it")
    return [FULL] * count


def _spelled(keys: Keys, family: Family, count: int) -> list[str]:
    """Read the layers from whichever key of ``SPELLINGS`` the file has, or a text of letters."""
    letters = keys.given("hybrid_override_pattern")
    if letters is not None:
        words = [SAME_WORDS.get(each, each) for each in str(keys.values[letters])]
        if len(words) != count or set(words) - {*KNOWN_APART, FULL}:
            keys.fault(letters, f"does not name {count} layers by M, E, - and *")
        return (words + [FULL] * count)[:count]
    name = keys.given(*SPELLINGS)
    if name is None:
        if family.period:
            return PATTERNS["every-nth-full"](keys, family, count)
        return _types_required(keys, family, count)
    kind, other = SPELLINGS[name]
    given: Any = keys.values[name]
    if name == "linear_attn_config":
        inner = keys.nested(name)
        given = [] if inner is None else inner.values.get("full_attn_layers")
        fine = is_list(given) and all(type(each) is int and 0 < each <= count for each in given)
        given = [each - 1 for each in given] if fine else given
    flags = is_list(given) and name in ("attn_type_list", "hybrid_layer_pattern")
    if flags:
        fine = len(given) == count and all(each in (0, 1) for each in given)
        given = [index for index, each in enumerate(given) if each == 1]
    else:
        fine = is_list(given) and all(type(each) is int and 0 <= each < count for each in given)
    if not fine:
        keys.fault(name, f"{shown(keys.values[name])} does not say it for {count} layers")
        return [FULL] * count
    return [kind if index in set(given) else other for index in range(count)]


def _all_indexed(keys: Keys, _family: Family, count: int) -> list[str]:
    """Choose keys by an indexer in every layer, unless ``index_topk`` is null."""
    return [FULL if keys.values.get("index_topk", 0) is None else INDEXED] * count


def _combined(_keys: Keys, _family: Family, count: int) -> list[str]:
    return [next(iter(COMBINED))] * count


def _blocks(keys: Keys, _family: Family, count: int) -> list[str]:
    """Read ``block_configs``: an attention of each layer, which may be none or linear."""
    if keys.given("block_configs") is None:
        return [FULL] * count
    blocks = attention_blocks(keys, count)
    return [
        "no_attention"
        if each.get("no_op")
        else "linear_layer"
        if each.get("replace_with_linear")
        else FULL
        for each in blocks
    ]


def attention_blocks(keys: Keys, count: int) -> list[Mapping[str, Any]]:
    """Return the ``attention`` of each item of ``block_configs``; a fault if one has none."""
    given: Any = keys.values.get("block_configs")
    blocks = given if is_list(given) else []
    found = [each.get("attention") for each in blocks if isinstance(each, Mapping)]
    fine = [each for each in found if isinstance(each, Mapping)]
    if len(fine) != count:
        keys.fault("block_configs", f"does not hold the attention of {count} layers")
        return [{}] * count
    return fine


PATTERNS: Mapping[str, Callable[[Keys, Family, int], list[str]]] = {
    "full": _full,
    "all-slide": _all_slide,
    "every-nth-full": _every_nth_full,
    "first-of-n-full": _first_of_n_full,
    "slide-by-flag": _slide_by_flag,
    "all-slide-by-flag": _all_slide_by_flag,
    "flag-needs-types": _flag_needs_types,
    "chunk-by-rope": _chunk_by_rope,
    "slide-by-rope": _slide_by_rope,
    "attention-types": _attention_types,
    "linear-but-nth": _linear_but_nth,
    "jamba": _jamba,
    "types-required": _types_required,
    "spelled": _spelled,
    "spelled-or-full": lambda keys, family, count: (
        _spelled(keys, family, count) if keys.given(*SPELLINGS) else [FULL] * count
    ),
    "indexed": _all_indexed,
    "combined": _combined,
    "blocks": _blocks,
}
"""The rules by name, as the table of families refers to them."""
