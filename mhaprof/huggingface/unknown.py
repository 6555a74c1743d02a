"""What is assumed of a model_type that is not in the table, and what is refused."""

from __future__ import annotations

from dataclasses import replace

from mhaprof.huggingface.family import Family, Key, Norm
from mhaprof.huggingface.keys import Keys, shown
from mhaprof.huggingface.patterns import declared_types

UNKNOWN = Family(
    head_dim=("head_dim", "d_kv"),
    qkv_bias=Key(names=("attention_bias", "qkv_bias", "use_bias")),
    out_bias=Key(names=("attention_bias", "use_bias")),
    norm=Norm(kind="per-head", given=Key(names=("use_qk_norm", "qk_norm"))),
    softcap="attn_logit_softcapping",
)
"""The standard keys, where a file of an unknown family keeps them."""

AMBIGUOUS_KEYS = (
    "attention_chunk_size",
    "attention_types",
    "attn_layer_indices",
    "attn_layer_period",
    "attn_type_list",
    "block_configs",
    "block_types",
    "cross_attention_layers",
    "dense_attention_every_n_layers",
    "full_attention_interval",
    "full_attn_idxs",
    "global_head_dim",
    "hybrid_layer_pattern",
    "hybrid_override_pattern",
    "index_topk",
    "interleaved_sliding_window",
    "kv_n_heads",
    "linear_attn_config",
    "multi_query",
    "multi_query_attention",
    "multi_query_group_num",
    "n_head_kv",
    "num_attention_groups",
    "num_global_key_value_heads",
    "num_key_value_groups",
    "num_kv_heads",
    "num_kv_shared_layers",
    "sparse_config",
    "ssm_cfg",
    "use_cla",
)
"""Keys that change which layers attend, or to how many heads: without a row in the table
of families they cannot be read, and are refused by name."""


def assumed_family(
    keys: Keys, model_type: str, warnings: list[str], *, tower: bool = False
) -> Family:
    """Fit the standard keys to a file of an unknown family, and warn what was assumed.

    ``tower``: a tower of images or sounds, which attends in both directions.  Notes a fault for a
    key that changes the attention in a way that only the family's code would explain.
    """
    for name in AMBIGUOUS_KEYS:
        if keys.values.get(name) not in (None, False, 0, []):
            keys.fault(
                name,
                f"{shown(keys.values[name])} changes the attention in a way that model_type "
                f"{model_type} alone would explain, and mhaprof does not know it",
            )
    family, said = _heads(keys)
    if tower:
        family = replace(family, causal=False)
    family, kinds = _layer_kinds(keys, family)
    said += kinds
    if not keys.given("attention_bias", "qkv_bias", "use_bias"):
        said.append("no biases")
    if not keys.given("use_qk_norm", "qk_norm") and not family.latent:
        said.append("no norms on q and k")
    if keys.given("image_size") and keys.given("patch_size"):
        said.append("tokens as asked for, not made of image_size and patch_size")
    said.insert(0, "not causal" if tower else "causal")
    warnings.append(f"model_type {model_type} is not known; assumed: {', '.join(said)}")
    return family


def _heads(keys: Keys) -> tuple[Family, list[str]]:
    """Settle kv_heads and head_dim, or latent attention; say what was assumed."""
    if keys.given("kv_lora_rank"):
        latent = replace(
            UNKNOWN,
            latent=True,
            head_dim=(),
            out_bias=UNKNOWN.qkv_bias,
            norm=Norm(kind="latent"),
        )
        return latent, ["latent attention with norms on its latents"]
    said = []
    if not keys.given("num_key_value_heads"):
        said.append("kv_heads = num_attention_heads")
    if not keys.given(*UNKNOWN.head_dim):
        said.append("head_dim = hidden_size / num_attention_heads")
    return UNKNOWN, said


def _layer_kinds(keys: Keys, family: Family) -> tuple[Family, list[str]]:
    """Settle which layers slide; say what was assumed."""
    if declared_types(keys):
        return family, []
    if keys.given("sliding_window_pattern"):
        names = ("sliding_window_pattern",)
        return replace(family, pattern="every-nth-full", period=1, period_names=names), []
    if keys.given("use_sliding_window"):
        return replace(family, pattern="slide-by-flag"), []
    unused = " (sliding_window is not used)" if keys.given("sliding_window") else ""
    return family, [f"every layer attends to all{unused}"]
