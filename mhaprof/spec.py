"""One attention problem: frozen, fully resolved, hashable, with a content key.

``PartialSpec`` is what a user writes (any field may be missing), ``AttentionSpec``
is what everything else works on (every field concrete).  ``AttentionSpec(...)``
resolves: it fills what follows from the rest and reports all faults at once.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from mhaprof.errors import Fault, SpecError

Causal = Literal["none", "top-left", "bottom-right"]
Phase = Literal["prefill", "decode"]
QKNorm = Literal["none", "per-head", "full", "latent"]
OutputGate = Literal["none", "per-head", "elementwise"]
LatentForm = Literal["none", "expanded", "absorbed"]

DEFAULT_BATCH = 32
DEFAULT_TOKENS = 1024
DEFAULT_DIM = 512
DEFAULT_HEADS = 8


def integral(value: object) -> object:
    """Turn ``1e3`` (a YAML float) into the integer that it is; leave the rest."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _alignment(value: object) -> object:
    """Let ``causal: true`` and ``causal: false`` through as words."""
    if isinstance(value, bool):
        return "true" if value else "none"
    return "none" if value == "false" else value


Size = Annotated[int, Field(strict=True, ge=1), BeforeValidator(integral)]
Flag = Annotated[bool, Field(strict=True)]


class PartialSpec(BaseModel):
    """Hold the fields that a user gave; ``None`` means not given.

    The field names are the YAML keys, the flags (``kv_heads`` is ``--kv-heads``)
    and the columns of every row.  Descriptions serve the help and the JSON Schema.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    batch: Size | None = Field(None, description="sequences in the batch")
    tokens: Size | None = Field(None, description="query tokens (1 in phase decode)")
    kv_tokens: Size | None = Field(
        None, description="key/value tokens; in phase decode the cache, new token included"
    )
    dim: Size | None = Field(None, description="model width")
    heads: Size | None = Field(None, description="query heads")
    kv_heads: Size | None = Field(None, description="key/value heads (1: MQA, fewer: GQA)")
    head_dim: Size | None = Field(None, description="width of one query or key head")
    v_head_dim: Size | None = Field(None, description="width of one value head")
    out_proj: Flag | None = Field(None, description="with the output projection W_O")
    kv_proj: Flag | None = Field(
        None, description="with its own K and V projections; without, K and V come in projected"
    )
    qkv_bias: Flag | None = Field(None, description="bias on the q, k and v projections")
    k_bias: Flag | None = Field(None, description="bias on the k projection, where it differs")
    out_bias: Flag | None = Field(None, description="bias on the output projection")
    causal: Annotated[
        Literal["none", "top-left", "bottom-right", "true"] | None,
        BeforeValidator(
            _alignment,
            json_schema_input_type=Literal["none", "top-left", "bottom-right", "true"]
            | bool
            | None,
        ),
    ] = Field(None, description="causal mask and its alignment when tokens != kv_tokens")
    window: Size | None = Field(
        None, description="sliding window: keys that one query sees, its own position included"
    )
    chunk: Size | None = Field(
        None,
        description="chunked causal attention: a query sees its own chunk of so many positions",
    )
    phase: Phase | None = Field(None, description="prefill, or decode: one token against a cache")
    qk_norm: QKNorm | None = Field(None, description="RMSNorm on queries and keys")
    output_gate: OutputGate | None = Field(None, description="sigmoid gate on the heads' output")
    sinks: Flag | None = Field(None, description="one learned sink logit per head")
    softcap: Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)] | None = Field(
        None, description="logits become softcap * tanh(logits / softcap)"
    )
    q_lora_rank: Size | None = Field(None, description="latent attention: rank of the queries")
    kv_lora_rank: Size | None = Field(
        None, description="latent attention: rank of the cached latent; its presence selects MLA"
    )
    qk_nope_head_dim: Size | None = Field(
        None, description="latent attention: part of head_dim without rotation"
    )
    qk_rope_head_dim: Size | None = Field(
        None, description="latent attention: rotated part of head_dim, shared by the heads"
    )
    latent_form: LatentForm | None = Field(
        None, description="latent attention: expand the latent (prefill) or absorb (decode)"
    )


DEFAULTS: Mapping[str, Any] = {
    "batch": DEFAULT_BATCH,
    "tokens": DEFAULT_TOKENS,
    "dim": DEFAULT_DIM,
    "heads": DEFAULT_HEADS,
    "out_proj": True,
    "kv_proj": True,
    "qkv_bias": False,
    "out_bias": False,
    "causal": "none",
    "phase": "prefill",
    "qk_norm": "none",
    "output_gate": "none",
    "sinks": False,
}
"""Defaults that do not follow from other fields; stated here and nowhere else."""

DERIVED_DEFAULTS: Mapping[str, str] = {
    "kv_tokens": "tokens; in phase decode 1024",
    "kv_heads": "heads",
    "head_dim": "dim / heads",
    "v_head_dim": "head_dim",
    "k_bias": "qkv_bias",
    "window": "none",
    "chunk": "none",
    "softcap": "none",
    "q_lora_rank": "none: queries are projected directly",
    "kv_lora_rank": "none: not latent attention",
    "qk_nope_head_dim": "none",
    "qk_rope_head_dim": "none",
    "latent_form": "expanded in prefill, absorbed in decode",
}
"""Defaults that follow from other fields, in words, for help and documentation."""


class AttentionSpec(BaseModel):
    """Describe one attention problem completely.

    Shapes: the query input is ``batch x tokens x dim``; keys and values come from
    the same input when ``tokens == kv_tokens``, else from a second one of
    ``batch x kv_tokens x dim`` (cross-attention); in phase ``decode`` from a cache
    of ``kv_tokens`` entries, the new token's included.

    ``None`` in ``window``, ``chunk``, ``softcap`` or a latent rank means *there is none*, never
    *not decided yet*.  With ``kv_lora_rank`` the spec is latent attention (MLA):
    ``head_dim`` is then ``qk_nope_head_dim + qk_rope_head_dim``.

    Raises ``SpecError`` with every fault found.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    batch: int
    tokens: int
    kv_tokens: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    out_proj: bool
    kv_proj: bool
    qkv_bias: bool
    k_bias: bool
    out_bias: bool
    causal: Causal
    window: int | None
    chunk: int | None
    phase: Phase
    qk_norm: QKNorm
    output_gate: OutputGate
    sinks: bool
    softcap: float | None
    q_lora_rank: int | None
    kv_lora_rank: int | None
    qk_nope_head_dim: int | None
    qk_rope_head_dim: int | None
    latent_form: LatentForm

    # The fields are all required, but the resolver fills them: say so to type checkers.
    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, value: Any) -> Any:
        if isinstance(value, AttentionSpec):
            return value
        return resolve_fields(value)

    @classmethod
    def from_checked(cls, fields: Mapping[str, Any]) -> AttentionSpec:
        """Resolve fields whose types ``PartialSpec`` has checked, for grids of many points.

        Gives the same spec, or the same ``SpecError``, as ``AttentionSpec(**fields)`` in
        about a tenth of the time: nothing is validated twice.  ``None`` is not given.
        """
        given = {name: value for name, value in fields.items() if value is not None}
        spec = cls.__new__(cls)
        object.__setattr__(spec, "__dict__", _completed(given, []))
        object.__setattr__(spec, "__pydantic_fields_set__", _ALL_FIELDS)
        object.__setattr__(spec, "__pydantic_extra__", None)
        object.__setattr__(spec, "__pydantic_private__", None)
        return spec

    @property
    def is_latent(self) -> bool:
        """Say whether keys and values come from a low-rank latent (MLA)."""
        return self.kv_lora_rank is not None

    @property
    def is_cross(self) -> bool:
        """Say whether keys and values come from a second sequence."""
        return self.phase == "prefill" and self.kv_proj and self.tokens != self.kv_tokens

    @property
    def is_masked(self) -> bool:
        """Say whether some query-key pairs are masked by position."""
        return self.causal != "none" or self.window is not None or self.chunk is not None

    @property
    def new_kv_tokens(self) -> int:
        """Count the tokens whose keys and values are projected: not the cached ones."""
        if not self.kv_proj:
            return 0
        return self.tokens if self.phase == "decode" else self.kv_tokens

    def replace(self, **changes: Any) -> AttentionSpec:
        """Return a copy with other values, resolved and checked anew.

        Fields that were derived from a changed one keep their old value: name them too.
        """
        return AttentionSpec(**{**self.model_dump(), **changes})

    def key(self) -> str:
        """Return the content key: the same for equal specs, on every machine."""
        text = json.dumps(self.model_dump(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def reference(self) -> AttentionSpec:
        """Return one full head without W_O on the same tokens: what ratios refer to."""
        return AttentionSpec(
            batch=self.batch,
            tokens=self.tokens,
            kv_tokens=self.kv_tokens,
            dim=self.dim,
            heads=1,
            head_dim=self.dim,
            out_proj=False,
            phase=self.phase,
        )


def resolve_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check and complete the fields of a spec.

    ``given`` maps field names to values; ``None`` counts as not given.  Returns all
    fields of ``AttentionSpec``.  Raises ``SpecError`` with every fault.
    """
    faults: list[Fault] = []
    return _completed(_well_typed(given, faults), faults)


class _FieldValues:
    """Hold the fields as attributes: copies of such a dict share its keys."""


def _blank_fields() -> dict[str, Any]:
    """Return every field with its fixed default or None, in the order of the spec.

    Grids hold many copies: as an instance's dict each takes 300 bytes instead of 830.
    """
    blank = _FieldValues()
    for name in AttentionSpec.model_fields:
        setattr(blank, name, DEFAULTS.get(name))
    return vars(blank)


_BLANK_FIELDS = _blank_fields()
_ALL_FIELDS = set(_BLANK_FIELDS)


def _completed(fields: Mapping[str, Any], faults: list[Fault]) -> dict[str, Any]:
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
    return f"{field} {_shown(value)} is not {expected(field)}"


@functools.cache
def expected(field: str) -> str:
    """Say in words what a field takes (``a whole number of at least 1``)."""
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
