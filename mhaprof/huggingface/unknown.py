"""What is assumed of a model_type that is not in the table, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace

from mhaprof.huggingface.family import Family, Key, Norm
from mhaprof.huggingface.keys import Keys, architectures, shown
from mhaprof.huggingface.patterns import declared_types

UNKNOWN = Family(
    head_dim=("head_dim", "d_kv"),
    qkv_bias=Key(names=("attention_bias", "qkv_bias", "use_bias")),
    out_bias=Key(names=("attention_bias", "use_bias")),
    norm=Norm(kind="per-head", given=Key(names=("use_qk_norm", "qk_norm"))),
    softcap="attn_logit_softcapping",
)
"""The standard keys, where a file of an unknown family keeps them."""

READ = frozenset(
    {
        *UNKNOWN.dim, *UNKNOWN.heads, *UNKNOWN.kv_heads, *UNKNOWN.head_dim, *UNKNOWN.layers,
        "attention_bias", "qkv_bias", "use_bias", "use_qk_norm", "qk_norm", "is_causal",
        "attn_logit_softcapping", "sliding_window", "sliding_window_pattern", "layer_types",
        "use_sliding_window", "max_window_layers", "layers_block_type", "per_layer_config",
        "mlp_layer_types", "is_decoder",
    }
)  # fmt: skip
"""What is read of a file of an unknown family."""

LATENT_READ = frozenset(
    {"q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}
    | {"qk_head_dim", "head_dim"}
)
"""What is read beside it where attention is latent."""

ATTENTION_WORDS = re.compile(
    "attn|attention|head|(^|_)kv(_|$)|window|^swa_|^sparse|^index_|qkv|qk_|^(use_)?bias$"
    "|per_layer|lora_rank|sink|^mla|gating|output_gate|^linear_|hybrid|block_configs|block_types"
    "|layer_pattern|^ssm|mamba|^cross_|encoder_decoder|kv_shared|multi_query|bidirectional"
    "|latent|^local_|^global_|compress|full_attn|use_cla|layernorm_qk|num_(query|key)"
)
"""Words of keys that may concern attention."""

OTHER_WORDS = re.compile(
    "drop|implementation|init|in_fp32|scal|multiplier|temperature|floor|mlp|moe|expert|ffn|router"
    "|rope|rotary|token|label|lm_head|classifier|vision|image|audio|output_attentions|flash|sdpa"
    "|backend|_act|nextn|per_layer_input|position|eps|loss|mtp|headroom"
)
"""Words of keys that look like it and do not change shapes, masks or caches."""


def is_read(name: str, family: Family) -> bool:
    """Say whether a row reads a key, or the key is of no attention."""
    if not ATTENTION_WORDS.search(name) or OTHER_WORDS.search(name):
        return True
    return f"'{name}'" in repr(family) or (family.latent and name in LATENT_READ)


def assumed_family(
    keys: Keys, model_type: str, warnings: list[str], *, tower: bool = False
) -> Family:
    """Fit the standard keys to a file of an unknown family, and warn what was assumed.

    ``tower``: a tower of images or sounds, which attends in both directions.  Notes a fault for a
    key that changes the attention in a way that only the family's code would explain.
    """
    latent = bool(keys.given("kv_lora_rank"))
    for name, value in keys.values.items():
        if (
            name in READ
            or (latent and name in LATENT_READ)
            or value in (None, False, 0, [], {}, "")
        ):
            continue
        if ATTENTION_WORDS.search(name) and not OTHER_WORDS.search(name):
            keys.fault(
                name,
                f"{shown(value)} may change the attention, and mhaprof does not know how "
                f"model_type {model_type} reads it; --assume {name}=ignored goes on without it",
            )
    family, said = _heads(keys)
    causal = not tower and not _is_encoder(keys)
    family = replace(family, causal=causal)
    family, kinds = _layer_kinds(keys, family)
    said += kinds
    if not keys.given("attention_bias", "qkv_bias", "use_bias"):
        said.append("no biases")
    if not keys.given("use_qk_norm", "qk_norm") and not family.latent:
        said.append("no norms on q and k")
    if keys.given("image_size") and keys.given("patch_size"):
        said.append("tokens as asked for, not made of image_size and patch_size")
    said.insert(0, "causal" if causal else "not causal")
    warnings.append(f"model_type {model_type} is not known; assumed: {', '.join(said)}")
    return family


def _is_encoder(keys: Keys) -> bool:
    """Say whether a file says by itself that its model attends in both directions."""
    built = [str(name) for name in architectures(keys)]
    if any(name.endswith(("MaskedLM", "EncoderModel", "PreTraining")) for name in built):
        return True
    generates = any(name.endswith(("CausalLM", "LMHeadModel")) for name in built)
    return keys.values.get("is_decoder") is False and not generates


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
