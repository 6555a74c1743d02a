"""From what was given to a complete spec: defaults, derived fields, and every fault at once."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from mhaprof.errors import Fault, SpecError
from mhaprof.spec.partial import DEFAULT_TOKENS, DEFAULTS, MOST_SIZE, PartialSpec


def resolve_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check and complete the fields of a spec.

    ``given`` maps field names to values; ``None`` counts as not given.  Returns all
    fields of ``AttentionSpec``.  Raises ``SpecError`` with every fault.
    """
    faults: list[Fault] = []
    return complete(_well_typed(given, faults), faults)


class _FieldValues:
    """Hold the fields as attributes: copies of such a dict share its keys."""


def _blank_fields() -> dict[str, Any]:
    """Return every field with its fixed default or None, in the order of the spec.

    Grids hold many copies: as an instance's dict each takes 300 bytes instead of 830.
    """
    blank = _FieldValues()
    for name in PartialSpec.model_fields:
        setattr(blank, name, DEFAULTS.get(name))
    return vars(blank)


_BLANK_FIELDS = _blank_fields()
ALL_FIELDS = set(_BLANK_FIELDS)


def complete(fields: Mapping[str, Any], faults: list[Fault]) -> dict[str, Any]:
    """Complete well-typed fields; raise ``SpecError`` with ``faults`` and those found."""
    latent = "kv_lora_rank" in fields
    resolved = _BLANK_FIELDS.copy()
    if fields.get("phase") == "decode":
        resolved.update(tokens=1, kv_tokens=DEFAULT_TOKENS)
    resolved.update(fields)
    bad = {fault.field for fault in faults}
    _fill_sizes(resolved, latent=latent, bad=bad, faults=faults)
    _fill_masks(resolved, bad=bad, faults=faults)
    _fill_extras(resolved, latent=latent, bad=bad, faults=faults)
    if faults:
        raise SpecError(faults)
    return resolved


def checked_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given fields in their types, for ``AttentionSpec.from_checked``.

    ``None`` counts as not given.  Raises ``SpecError`` with every fault of a type.
    """
    faults: list[Fault] = []
    fields = _well_typed(given, faults)
    if faults:
        raise SpecError(faults)
    return fields


def _well_typed(given: Mapping[str, Any], faults: list[Fault]) -> dict[str, Any]:
    """Return the fields that are of the right type; note a fault for each other."""
    try:
        partial = PartialSpec.model_validate(dict(given))
    except ValidationError as error:
        for detail in error.errors():
            field = str(detail["loc"][0]) if detail["loc"] else "spec"
            message = type_fault(field, given.get(field), detail["type"])
            if all(fault.field != field for fault in faults):
                faults.append(Fault(field=field, message=message))
        wrong = {fault.field for fault in faults}
        kept = {name: value for name, value in given.items() if name not in wrong}
        partial = PartialSpec.model_validate(kept)
    return {name: value for name, value in partial if value is not None}


def type_fault(field: str, value: object, kind: str) -> str:
    """Word a type fault: what was given, what was expected."""
    if kind == "extra_forbidden":
        return f"{field} is not a field of an attention spec"
    return f"{field} {_shown(value)} is not {expected(field, kind)}"


@functools.cache
def expected(field: str, kind: str = "") -> str:
    """Say what a field takes; ``kind`` is the type of pydantic's error about it."""
    if kind == "less_than_equal":
        return f"a number of 64 bits, at most {MOST_SIZE}"
    schema = PartialSpec.model_json_schema()["properties"][field]
    options = [option for option in schema.get("anyOf", [schema]) if option.get("type") != "null"]
    option = options[0]
    if "enum" in option:
        words = [word for word in option["enum"] if word != "true"]
        return "one of " + ", ".join(words)
    return {
        "integer": "a whole number of at least 1",
        "boolean": "true or false",
        "number": "a number above 0",
    }[option["type"]]


def _shown(value: object) -> str:
    text = json.dumps(value, default=str) if not isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _fill_sizes(
    fields: dict[str, Any], *, latent: bool, bad: set[str], faults: list[Fault]
) -> None:
    """Fill token counts, head counts and head widths."""

    def fault(field: str, message: str) -> None:
        faults.append(Fault(field=field, message=message))

    if fields["kv_tokens"] is None:
        fields["kv_tokens"] = fields["tokens"]
    if fields["phase"] == "decode" and fields["tokens"] != 1 and "tokens" not in bad:
        fault(
            "tokens",
            f"phase decode computes one query token, tokens {fields['tokens']} was given; "
            f"give --kv-tokens {fields['tokens']} for the cache",
        )
    heads, kv_heads = fields["heads"], fields["kv_heads"]
    if kv_heads is None:
        fields["kv_heads"] = heads
    elif heads % kv_heads and not bad & {"heads", "kv_heads"}:
        fault(
            "kv_heads",
            f"heads {heads} is not a multiple of kv_heads {kv_heads}; kv_heads must divide heads",
        )
    if latent:
        _fill_latent(fields, bad=bad, faults=faults)
    else:
        for name in ("q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "latent_form"):
            if fields[name] not in (None, "none") and "kv_lora_rank" not in bad:
                fault(name, f"{name} {fields[name]} is of latent attention; give --kv-lora-rank")
        fields["latent_form"] = "none"
        if fields["head_dim"] is None and not bad & {"dim", "heads", "head_dim"}:
            if fields["dim"] % heads:
                fault(
                    "head_dim",
                    f"dim {fields['dim']} is not divisible by heads {heads}; give --head-dim",
                )
            else:
                fields["head_dim"] = fields["dim"] // heads
    if fields["v_head_dim"] is None:
        fields["v_head_dim"] = fields["head_dim"]


def _fill_latent(fields: dict[str, Any], *, bad: set[str], faults: list[Fault]) -> None:
    """Fill what latent attention derives; head_dim is the sum of its two parts."""
    missing = [
        name
        for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        if fields[name] is None and name not in bad
    ]
    for name in missing:
        flag = name.replace("_", "-")
        faults.append(Fault(field=name, message=f"latent attention needs {name}; give --{flag}"))
    if fields["kv_heads"] != fields["heads"] and not bad & {"heads", "kv_heads"}:
        faults.append(
            Fault(
                field="kv_heads",
                message=f"latent attention expands to every head: kv_heads {fields['kv_heads']} "
                f"is not heads {fields['heads']}; leave kv_heads out",
            )
        )
    if not fields["kv_proj"]:
        faults.append(Fault(field="kv_proj", message="latent attention has its own kv projections"))
    nope, rope = fields["qk_nope_head_dim"], fields["qk_rope_head_dim"]
    if nope is not None and rope is not None:
        if fields["head_dim"] not in (None, nope + rope) and "head_dim" not in bad:
            faults.append(
                Fault(
                    field="head_dim",
                    message=f"head_dim {fields['head_dim']} is not qk_nope_head_dim {nope} + "
                    f"qk_rope_head_dim {rope}; leave head_dim out",
                )
            )
        fields["head_dim"] = nope + rope
    if fields["latent_form"] in (None, "none"):
        fields["latent_form"] = "absorbed" if fields["phase"] == "decode" else "expanded"


def _fill_masks(fields: dict[str, Any], *, bad: set[str], faults: list[Fault]) -> None:
    """Settle the causal alignment and the window."""
    tokens, kv_tokens = fields["tokens"], fields["kv_tokens"]
    same = tokens == kv_tokens
    if fields["causal"] == "true":
        fields["causal"] = "top-left"
        if not same and not bad & {"tokens", "kv_tokens"}:
            faults.append(
                Fault(
                    field="causal",
                    message=f"causal with tokens {tokens} and kv_tokens {kv_tokens} needs an "
                    "alignment; give --causal top-left or --causal bottom-right",
                )
            )
    if fields["window"] is not None and fields["causal"] == "none" and not same:
        faults.append(
            Fault(
                field="window",
                message=f"window {fields['window']} with tokens {tokens} and kv_tokens "
                f"{kv_tokens} needs an alignment; give --causal top-left or bottom-right",
            )
        )
    if fields["chunk"] is not None:
        if fields["causal"] == "none" and "causal" not in bad:
            faults.append(
                Fault(
                    field="chunk",
                    message=f"chunk {fields['chunk']} is of causal attention; give --causal true",
                )
            )
        if fields["window"] is not None:
            faults.append(
                Fault(
                    field="chunk",
                    message=f"chunk {fields['chunk']} and window {fields['window']} exclude each "
                    "other; drop one of them",
                )
            )


def _fill_extras(
    fields: dict[str, Any], *, latent: bool, bad: set[str], faults: list[Fault]
) -> None:
    """Settle biases, norms and gates."""

    def fault(field: str, message: str) -> None:
        faults.append(Fault(field=field, message=message))

    if fields["k_bias"] is None:
        fields["k_bias"] = fields["qkv_bias"]
    if fields["out_bias"] and not fields["out_proj"] and "out_proj" not in bad:
        fault("out_bias", "out_bias is the bias of W_O, and out_proj is false; drop one of them")
    if latent and fields["qk_norm"] in ("per-head", "full"):
        fault(
            "qk_norm",
            f"latent attention norms its latents: qk_norm {fields['qk_norm']} "
            "is not none or latent",
        )
    if not latent and fields["qk_norm"] == "latent" and "kv_lora_rank" not in bad:
        fault("qk_norm", "qk_norm latent is of latent attention; give --kv-lora-rank")
