"""The same model with other numbers: ``kv_heads=4``, ``window=4096``, ``cache_dtype=int8``."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mhaprof.errors import SpecError, UsageError
from mhaprof.huggingface.plan import LayerKind, ModelPlan
from mhaprof.spec import AttentionSpec
from mhaprof.units import CACHE_BITS, DTYPE_WORDS

SIZES = (
    "batch",
    "tokens",
    "dim",
    "heads",
    "kv_heads",
    "head_dim",
    "v_head_dim",
    "window",
    "chunk",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
)
LATENT_ONLY = frozenset({"q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"})
CLEARABLE = frozenset({"window", "chunk", "q_lora_rank"})
"""Fields that ``none`` turns off."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One what-if: its text as given, new values of spec fields, and of the cache's dtype."""

    text: str
    fields: Mapping[str, int | None]
    cache_dtype: str | None


def parse_changes(text: str) -> list[Change]:
    """Read ``kv_heads=4``, several at once (``kv_heads=4,window=4096``), or ``kv_heads=1,2,4``.

    A list makes a change for each of its values.  Raises UsageError for an unknown name
    or a value that is no number.
    """
    values: dict[str, list[str]] = {}
    name = ""
    for part in text.split(","):
        given, separator, value = part.partition("=")
        if not separator and not name:
            raise UsageError(f"--what-if {part!r} is not of the form name=value")
        if separator:
            name = given.strip()
            if name in values:
                raise UsageError(f"--what-if {text}: {name} is given twice; repeat --what-if")
        values.setdefault(name, []).append((value if separator else part).strip())
    return [
        parse_change(",".join(map("=".join, zip(values, chosen, strict=True))))
        for chosen in itertools.product(*values.values())
    ]


def parse_change(text: str) -> Change:
    """Read one change of one or more fields, one value each."""
    fields: dict[str, int | None] = {}
    cache_dtype = None
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name == "cache_dtype":
            cache_dtype = DTYPE_WORDS.get(value, value)
            if cache_dtype not in CACHE_BITS:
                raise UsageError(f"--what-if {part}: not one of {', '.join(CACHE_BITS)}")
        elif name in SIZES:
            fields[name] = _size(name, value)
        else:
            raise UsageError(f"--what-if {name}: not one of {', '.join((*SIZES, 'cache_dtype'))}")
    return Change(text=text, fields=fields, cache_dtype=cache_dtype)


def _size(name: str, value: str) -> int | None:
    if value in ("none", "null") and name in CLEARABLE:
        return None
    if not value.isdecimal() or len(value) > 18 or int(value) < 1:
        raise UsageError(f"--what-if {name}={value}: {name} takes a whole number of at least 1")
    return int(value)


def changed(plan: ModelPlan, change: Change) -> ModelPlan:
    """Return the plan with the change in every kind of layer where it has a meaning.

    Raises UsageError where the change makes an impossible attention, or where no layer
    has such a field.
    """
    fields = dict(change.fields)
    tokens = fields.pop("tokens", None)
    base = plan if tokens is None else plan.at(tokens)
    kinds = tuple(_changed_kind(kind, fields, change.text) for kind in base.kinds)
    touched = any(new != old for new, old in zip(kinds, base.kinds, strict=True))
    meant = any(_applicable(kind, kind.spec, fields) for kind in base.kinds)
    if fields and not touched and not meant:
        raise UsageError(f"{change.text}: no layer of {plan.source} has that")

    def rebuild(count: int) -> ModelPlan:
        again = plan.at(count)
        return replace(
            again,
            kinds=tuple(_changed_kind(kind, fields, change.text) for kind in again.kinds),
        )

    remembered: Callable[[int], ModelPlan] = functools.lru_cache(maxsize=256)(rebuild)
    return replace(base, kinds=kinds, rebuild=remembered)


def _changed_kind(kind: LayerKind, fields: Mapping[str, Any], text: str) -> LayerKind:
    return replace(
        kind,
        spec=_changed_spec(kind, kind.spec, fields, text),
        stored=_changed_spec(kind, kind.stored, fields, text),
    )


def _changed_spec(
    kind: LayerKind, spec: AttentionSpec, fields: Mapping[str, Any], text: str
) -> AttentionSpec:
    meant = _applicable(kind, spec, fields)
    if not meant:
        return spec
    try:
        return spec.replace(**_tied(spec, meant))
    except SpecError as error:
        raise UsageError(f"{text}: {kind.name}: {error}") from error


def _applicable(kind: LayerKind, spec: AttentionSpec, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that mean something for this kind of layer."""
    skipped: set[str] = set()
    if spec.is_latent:
        skipped |= {"kv_heads", "head_dim"}
    else:
        skipped |= LATENT_ONLY
    if kind.is_cross or spec.causal == "none":
        skipped |= {"window", "chunk"}
    return {name: value for name, value in fields.items() if name not in skipped}


def _tied(spec: AttentionSpec, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Add what was equal before and has to stay equal: kv_heads, v_head_dim, head_dim."""
    tied = dict(fields)
    if "heads" in fields and spec.kv_heads == spec.heads:
        tied.setdefault("kv_heads", fields["heads"])
    if "head_dim" in fields and spec.v_head_dim == spec.head_dim:
        tied.setdefault("v_head_dim", fields["head_dim"])
    if spec.is_latent:
        tied["head_dim"] = None
    if fields.get("window") is not None:
        tied.setdefault("chunk", None)
    if fields.get("chunk") is not None:
        tied.setdefault("window", None)
    return tied
