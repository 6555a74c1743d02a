"""What a user writes of a spec: every field may be missing, each has its type and meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

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


MOST_SIZE = 2**63 - 1
"""The largest size that torch takes: an int64."""

Size = Annotated[int, Field(strict=True, ge=1, le=MOST_SIZE), BeforeValidator(integral)]
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
