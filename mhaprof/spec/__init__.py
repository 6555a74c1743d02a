"""One attention problem: frozen, fully resolved, hashable, with a content key.

``PartialSpec`` is what a user writes (any field may be missing), ``AttentionSpec``
is what everything else works on (every field concrete).  ``AttentionSpec(...)``
resolves: it fills what follows from the rest and reports all faults at once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from mhaprof.spec.partial import (
    DEFAULT_BATCH,
    DEFAULT_DIM,
    DEFAULT_HEADS,
    DEFAULT_TOKENS,
    DEFAULTS,
    DERIVED_DEFAULTS,
    Causal,
    Flag,
    LatentForm,
    OutputGate,
    PartialSpec,
    Phase,
    QKNorm,
    Size,
    integral,
)
from mhaprof.spec.resolution import ALL_FIELDS, checked_fields, complete, expected, resolve_fields

__all__ = [
    "DEFAULTS",
    "DEFAULT_BATCH",
    "DEFAULT_DIM",
    "DEFAULT_HEADS",
    "DEFAULT_TOKENS",
    "DERIVED_DEFAULTS",
    "AttentionSpec",
    "Causal",
    "Flag",
    "LatentForm",
    "OutputGate",
    "PartialSpec",
    "Phase",
    "QKNorm",
    "Size",
    "checked_fields",
    "expected",
    "integral",
]


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
        object.__setattr__(spec, "__dict__", complete(given, []))
        object.__setattr__(spec, "__pydantic_fields_set__", ALL_FIELDS)
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
