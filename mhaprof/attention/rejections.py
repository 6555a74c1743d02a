"""Why an implementation cannot do a spec: stable codes, and what makes each apply.

Nothing here imports torch: whether a spec can be expressed is a property of the spec.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mhaprof.attention.base import Rejection, has_blind_queries
from mhaprof.spec import AttentionSpec

REJECTION_CODES: Mapping[str, str] = {
    "backend_unavailable": "torch has no such kernel for this shape, dtype and device",
    "backward_unsupported": "it computes no gradients (here)",
    "bias_unsupported": "its biases are all or none",
    "blind_queries_unsupported": "a query that sees no key gives NaN, not zeros",
    "chunk_unsupported": "it has no chunked mask",
    "cross_unsupported": "keys and values come from the queries' own sequence",
    "decode_unsupported": "it takes no cache of keys and values",
    "dtype_unsupported": "the device does not have the dtype",
    "gqa_unsupported": "it has one key/value head per query head",
    "head_dim_unsupported": "its head_dim is dim / heads",
    "heads_unsupported": "it cannot have that many heads",
    "kv_proj_required": "it projects keys and values itself",
    "latent_unsupported": "it has no latent attention",
    "not_checkable": "its weights cannot be set, so its result cannot be checked",
    "out_proj_required": "it has an output projection that cannot be left out",
    "output_gate_unsupported": "it has no output gate",
    "qk_norm_unsupported": "it has no such norm on queries and keys",
    "qkv_bias_required": "it has biases that cannot be left out",
    "sinks_unsupported": "it has no sink logits",
    "softcap_unsupported": "it cannot cap the logits",
    "spec_unsupported": "the implementation that the user brought refuses the spec",
    "v_head_dim_unsupported": "its value heads are as wide as its query heads",
}
"""Every code that ``rejects`` can return, with what it means."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One thing that an implementation cannot express.

    ``reason`` completes the sentence "<name> ..."; it may name fields of the spec as
    ``{spec.kv_heads}``.
    """

    code: str
    reason: str
    applies: Callable[[AttentionSpec], bool]

    def rejection(self, name: str, spec: AttentionSpec) -> Rejection:
        """Return the rejection of ``spec`` by the implementation ``name``."""
        return Rejection(code=self.code, message=f"{name} {self.reason.format(spec=spec)}")


LATENT = Limit(
    code="latent_unsupported",
    reason="has no latent attention; drop kv_lora_rank or use eager",
    applies=lambda spec: spec.is_latent,
)
GQA = Limit(
    code="gqa_unsupported",
    reason="has one key/value head per query head; kv_heads {spec.kv_heads} "
    "is not heads {spec.heads}",
    applies=lambda spec: spec.kv_heads != spec.heads,
)
HEAD_DIM = Limit(
    code="head_dim_unsupported",
    reason="has head_dim = dim / heads; head_dim {spec.head_dim} x heads {spec.heads} "
    "is not dim {spec.dim}",
    applies=lambda spec: spec.head_dim * spec.heads != spec.dim,
)
V_HEAD_DIM = Limit(
    code="v_head_dim_unsupported",
    reason="has value heads as wide as query heads; v_head_dim {spec.v_head_dim} "
    "is not head_dim {spec.head_dim}",
    applies=lambda spec: spec.v_head_dim != spec.head_dim,
)
NO_OUT_PROJ = Limit(
    code="out_proj_required",
    reason="cannot leave out its output projection W_O",
    applies=lambda spec: not spec.out_proj,
)
NO_KV_PROJ = Limit(
    code="kv_proj_required",
    reason="projects keys and values itself; kv_proj false cannot be expressed",
    applies=lambda spec: not spec.kv_proj,
)
PARTIAL_BIAS = Limit(
    code="bias_unsupported",
    reason="has biases on q, k, v and W_O together or on none (qkv_bias {spec.qkv_bias}, "
    "k_bias {spec.k_bias}, out_bias {spec.out_bias})",
    applies=lambda spec: not spec.qkv_bias == spec.k_bias == spec.out_bias,
)
NO_BIAS = Limit(
    code="qkv_bias_required",
    reason="has biases that cannot be left out; give --qkv-bias and --out-bias",
    applies=lambda spec: not spec.qkv_bias,
)
QK_NORM = Limit(
    code="qk_norm_unsupported",
    reason="has no norm on queries and keys (qk_norm {spec.qk_norm})",
    applies=lambda spec: spec.qk_norm != "none",
)
QK_NORM_FULL = Limit(
    code="qk_norm_unsupported",
    reason="keeps its heads apart; qk_norm full is one norm over all of them",
    applies=lambda spec: spec.qk_norm == "full",
)
OUTPUT_GATE = Limit(
    code="output_gate_unsupported",
    reason="has no output gate (output_gate {spec.output_gate})",
    applies=lambda spec: spec.output_gate != "none",
)
SINKS = Limit(
    code="sinks_unsupported",
    reason="has no sink logits in its softmax",
    applies=lambda spec: spec.sinks,
)
SOFTCAP = Limit(
    code="softcap_unsupported",
    reason="cannot cap the logits (softcap {spec.softcap})",
    applies=lambda spec: spec.softcap is not None,
)
ODD_HEADS = Limit(
    code="heads_unsupported",
    reason="exists for even numbers of heads alone (heads {spec.heads})",
    applies=lambda spec: spec.heads % 2 == 1,
)
DECODE = Limit(
    code="decode_unsupported",
    reason="takes no cache of keys and values",
    applies=lambda spec: spec.phase == "decode",
)
CHUNK = Limit(
    code="chunk_unsupported",
    reason="has no chunked mask; drop chunk {spec.chunk} or use eager or sdpa",
    applies=lambda spec: spec.chunk is not None,
)
CROSS = Limit(
    code="cross_unsupported",
    reason="takes keys and values from the queries' own sequence; kv_tokens {spec.kv_tokens} "
    "is not tokens {spec.tokens}",
    applies=lambda spec: spec.is_cross,
)
BLIND = Limit(
    code="blind_queries_unsupported",
    reason="gives NaN for a query that sees no key (tokens {spec.tokens}, kv_tokens "
    "{spec.kv_tokens}, causal {spec.causal})",
    applies=has_blind_queries,
)
