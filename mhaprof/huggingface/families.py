"""What each family of models keeps in its config.json, and what its code fixes: one table.

A new family is one row in ``FAMILIES`` (or ``SEQ2SEQ``) and one case in
``tests/model/test_families.py``, which checks the row against the real module.

Source of each row: the family's ``modeling_*.py`` and ``configuration_*.py`` in
transformers 5.24.  A default in here is one that the code fixes for a *flag*; sizes
have no defaults, because a class's default is some other model's size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from mhaprof.huggingface.family import Family, Image, Key, Names, Norm, Seq2Seq

ATTENTION_BIAS = Key(names=("attention_bias",))
ATTENTION_BIAS_ON = Key(names=("attention_bias",), default=True)

LLAMA = Family(qkv_bias=ATTENTION_BIAS, out_bias=ATTENTION_BIAS)
UNBIASED = Family(kv_heads_required=True)
QWEN2 = Family(
    qkv_bias=True, kv_heads_required=True, pattern="slide-by-flag", head_dim=("head_dim",)
)
QWEN3 = replace(LLAMA, kv_heads_required=True, head_dim_required=True, norm=Norm(kind="per-head"))
GATED = replace(QWEN3, output_gate="elementwise", pattern="linear-but-nth", period=4)
GEMMA = replace(
    LLAMA,
    kv_heads_required=True,
    head_dim_required=True,
    bidirectional="use_bidirectional_attention",
)
GEMMA2 = replace(GEMMA, pattern="every-nth-full", period=2, softcap="attn_logit_softcapping")
GLM4 = replace(
    LLAMA, qkv_bias=ATTENTION_BIAS_ON, out_bias=False, kv_heads_required=True,
    head_dim_required=True,
)  # fmt: skip
LATENT = Family(
    latent=True, head_dim=(), qkv_bias=ATTENTION_BIAS, out_bias=ATTENTION_BIAS,
    norm=Norm(kind="latent"),
)  # fmt: skip
GPT = Family(
    dim=("n_embd", "hidden_size"), heads=("n_head", "num_attention_heads"),
    layers=("n_layer", "num_hidden_layers"), kv_rule="heads", head_dim=(),
)  # fmt: skip
BERT = Family(
    kv_rule="heads", head_dim=(), qkv_bias=True, out_bias=True, causal=Key(names=("is_decoder",))
)
ENCODER = replace(BERT, causal=False)
VIT = replace(
    ENCODER, head_dim=("head_dim",), qkv_bias=Key(names=("qkv_bias",), default=True), image=Image()
)
CLIP_VISION = replace(ENCODER, image=Image())

_ROWS: tuple[tuple[Names, Family], ...] = (
    (("llama", "granite", "granitemoe", "granitemoeshared", "olmo", "nemotron", "arcee"), LLAMA),
    (("granitemoehybrid",), replace(LLAMA, pattern="types-required")),
    (("mistral",), replace(UNBIASED, pattern="all-slide")),
    (("ministral",), replace(UNBIASED, pattern="all-slide")),
    (("ministral3",), replace(UNBIASED, head_dim_required=True, pattern="all-slide")),
    (("mixtral",), replace(UNBIASED, pattern="all-slide")),
    (("minimax",), replace(UNBIASED, pattern="types-required")),
    (("qwen2",), QWEN2),
    (
        ("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_5_omni_text"),
        replace(QWEN2, head_dim=()),
    ),
    (
        ("qwen2_moe",),
        replace(
            QWEN2, qkv_bias=Key(names=("qkv_bias",), default=True), pattern="flag-needs-types"
        ),
    ),
    (("qwen3",), replace(QWEN3, pattern="slide-by-flag")),
    (("qwen3_moe",), replace(QWEN3, head_dim_required=False, pattern="all-slide-by-flag")),
    (("qwen3_vl", "qwen3_vl_text"), QWEN3),
    (("qwen3_vl_moe", "qwen3_vl_moe_text"), replace(QWEN3, head_dim_required=False)),
    (
        ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
        replace(GATED, period_names=("full_attention_interval",)),
    ),
    (("gemma",), GEMMA),
    (("gemma2", "vaultgemma"), GEMMA2),
    (
        ("gemma3", "gemma3_text"),
        replace(
            GEMMA2, norm=Norm(kind="per-head"), period=6, period_names=("sliding_window_pattern",)
        ),
    ),
    (
        ("gemma3n", "gemma3n_text"),
        replace(
            GEMMA, norm=Norm(kind="per-head"), pattern="every-nth-full", period=5,
            kv_shared="num_kv_shared_layers",
        ),
    ),
    (("phi3",), Family(pattern="all-slide")),
    (
        ("phi",),
        Family(
            qkv_bias=True, out_bias=True,
            norm=Norm(kind="per-head", given=Key(names=("qk_layernorm",)), bias=True),
        ),
    ),
    (("phimoe",), replace(LLAMA, kv_heads_required=True, pattern="all-slide")),
    (
        ("falcon", "RefinedWeb", "RefinedWebModel"),
        Family(
            heads=("num_attention_heads", "n_head"), layers=("num_hidden_layers", "n_layer"),
            kv_heads=("num_kv_heads", "n_head_kv"), kv_rule="falcon", head_dim=(),
            qkv_bias=Key(names=("bias",)), out_bias=Key(names=("bias",)),
        ),
    ),
    (("gpt_bigcode",), replace(GPT, kv_rule="multi-query", qkv_bias=True, out_bias=True)),
    (("gpt2",), replace(GPT, qkv_bias=True, out_bias=True)),
    (("gptj", "codegen"), GPT),
    (
        ("gpt_neo",),
        Family(
            heads=("num_heads", "num_attention_heads"), layers=("num_layers", "num_hidden_layers"),
            kv_rule="heads", head_dim=(), out_bias=True, pattern="attention-types",
            window=("window_size",),
        ),
    ),
    (
        ("gpt_neox",),
        Family(
            kv_rule="heads", head_dim=(), qkv_bias=ATTENTION_BIAS_ON, out_bias=ATTENTION_BIAS_ON
        ),
    ),
    (
        ("bloom",),
        replace(
            GPT, dim=("hidden_size", "n_embed"), qkv_bias=True, out_bias=True
        ),
    ),
    (
        ("opt",),
        Family(
            kv_rule="heads", head_dim=(), qkv_bias=Key(names=("enable_bias",), default=True),
            out_bias=Key(names=("enable_bias",), default=True),
        ),
    ),
    (
        ("mpt",),
        replace(
            GPT, dim=("d_model", "hidden_size"), heads=("n_heads", "num_attention_heads"),
            layers=("n_layers", "num_hidden_layers"), kv_rule="key", kv_group="attn_config",
            kv_heads=("kv_n_heads",),
        ),
    ),
    (
        ("stablelm",),
        Family(
            kv_heads_required=True, head_dim=(), qkv_bias=Key(names=("use_qkv_bias",)),
            norm=Norm(kind="full", given=Key(names=("qk_layernorm",))),
        ),
    ),
    (
        ("persimmon",),
        Family(
            kv_rule="heads", head_dim=(), qkv_bias=True, out_bias=True,
            norm=Norm(kind="per-head", given=Key(names=("qk_layernorm",), default=True), bias=True),
        ),
    ),
    (("olmo2", "olmoe"), replace(LLAMA, norm=Norm(kind="full"))),
    (("olmo3",), replace(LLAMA, norm=Norm(kind="full"), pattern="every-nth-full", period=4)),
    (("cohere",), replace(LLAMA, norm=Norm(kind="full", given=Key(names=("use_qk_norm",))))),
    (
        ("cohere2",),
        replace(
            LLAMA, pattern="every-nth-full", period=4, period_names=("sliding_window_pattern",)
        ),
    ),
    (
        ("starcoder2",),
        Family(
            kv_heads_required=True, qkv_bias=Key(names=("use_bias",), default=True),
            out_bias=Key(names=("use_bias",), default=True), pattern="all-slide",
        ),
    ),
    (
        ("ernie4_5", "ernie4_5_moe"),
        Family(
            kv_heads_required=True, qkv_bias=Key(names=("use_bias",)),
            out_bias=Key(names=("use_bias",)),
        ),
    ),
    (("glm", "glm4"), GLM4),
    (
        ("glm4_moe",),
        replace(
            GLM4, qkv_bias=ATTENTION_BIAS, head_dim_required=False,
            norm=Norm(kind="per-head", given=Key(names=("use_qk_norm",))),
        ),
    ),
    (
        ("seed_oss",),
        replace(
            GLM4, out_bias=Key(names=("attention_out_bias",)),
        ),
    ),
    (
        ("gpt_oss",),
        replace(
            GEMMA, qkv_bias=ATTENTION_BIAS_ON, out_bias=ATTENTION_BIAS_ON, sinks=True,
            pattern="every-nth-full", period=2,
        ),
    ),
    (
        ("exaone4",),
        Family(
            kv_heads_required=True, norm=Norm(kind="per-head"), pattern="every-nth-full", period=4,
            period_names=("sliding_window_pattern",),
        ),
    ),
    (("hunyuan_v1_dense", "hunyuan_v1_moe", "apertus"), replace(LLAMA, norm=Norm(kind="per-head"))),
    (("minimax_m2",), replace(UNBIASED, head_dim_required=True, norm=Norm(kind="full"))),
    (("smollm3",), replace(LLAMA, kv_heads_required=True, pattern="slide-by-rope", period=4)),
    (("llama4", "llama4_text"), replace(GEMMA, pattern="chunk-by-rope", period=4)),
    (("jamba",), replace(UNBIASED, head_dim=(), pattern="jamba")),
    (
        ("mllama", "mllama_text_model"),
        Family(
            kv_heads_required=True, head_dim=(), cross_layers="cross_attention_layers",
            cross_norm="per-head",
        ),
    ),
    (
        ("deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25", "glm4_moe_lite", "mistral4"),
        LATENT,
    ),
    (("bert", "roberta", "xlm-roberta", "camembert", "electra"), BERT),
    (("mpnet", "wav2vec2", "hubert", "siglip_text_model"), ENCODER),
    (
        ("distilbert",),
        replace(
            ENCODER, dim=("dim", "hidden_size"), heads=("n_heads", "num_attention_heads"),
            layers=("n_layers", "num_hidden_layers"),
        ),
    ),
    (
        ("modernbert",),
        replace(
            ENCODER, qkv_bias=ATTENTION_BIAS, out_bias=ATTENTION_BIAS, pattern="first-of-n-full",
            period=3, period_names=("global_attn_every_n_layers",), window=("local_attention",),
            half_window=True,
        ),
    ),
    (("eurobert",), replace(LLAMA, causal=False)),
    (("vit", "vit_mae", "vit_msn", "dinov2"), VIT),
    (("deit",), replace(VIT, image=Image(extra=2))),
    (("dinov2_with_registers",), replace(VIT, image=Image(extra_key="num_register_tokens"))),
    (
        ("dinov3_vit",),
        replace(
            CLIP_VISION, qkv_bias=Key(names=("query_bias",), default=True),
            k_bias=Key(names=("key_bias",)), out_bias=Key(names=("proj_bias",), default=True),
            image=Image(extra_key="num_register_tokens"),
        ),
    ),
    (("beit",), replace(VIT, qkv_bias=True, k_bias=False)),
    (("clip_vision_model", "blip_vision_model", "llama4_vision_model"), CLIP_VISION),
    (
        ("siglip_vision_model", "idefics3", "idefics3_vision", "smolvlm", "smolvlm_vision"),
        replace(CLIP_VISION, image=Image(extra=0)),
    ),
    (("pixtral",), replace(CLIP_VISION, qkv_bias=False, out_bias=False, image=Image(extra=0))),
    (
        ("internvl_vision",),
        replace(
            CLIP_VISION, qkv_bias=ATTENTION_BIAS,
            norm=Norm(kind="full", given=Key(names=("use_qk_norm",))),
        ),
    ),
)  # fmt: skip

_T5_ENCODER = Family(
    dim=("d_model", "hidden_size"), heads=("num_heads", "num_attention_heads"),
    layers=("num_layers", "num_hidden_layers"), kv_rule="heads", head_dim=("d_kv",),
    head_dim_required=True, causal=False,
)  # fmt: skip
_BART_ENCODER = Family(
    dim=("d_model", "hidden_size"), heads=("encoder_attention_heads",), layers=("encoder_layers",),
    kv_rule="heads", head_dim=(), qkv_bias=True, out_bias=True, causal=False,
)  # fmt: skip
_BART_DECODER = replace(
    _BART_ENCODER, heads=("decoder_attention_heads",), layers=("decoder_layers",), causal=True
)

_SEQ2SEQ_ROWS: tuple[tuple[Names, Seq2Seq], ...] = (
    (
        ("t5", "mt5", "umt5"),
        Seq2Seq(
            encoder=_T5_ENCODER,
            decoder=replace(
                _T5_ENCODER, causal=True, layers=("num_decoder_layers",),
                layers_otherwise=("num_layers", "num_hidden_layers"),
            ),
        ),
    ),
    (
        (
            "bart", "mbart", "plbart", "pegasus", "marian", "m2m_100", "blenderbot",
            "blenderbot-small",
        ),
        Seq2Seq(encoder=_BART_ENCODER, decoder=_BART_DECODER),
    ),
    (
        ("led",),
        Seq2Seq(
            encoder=replace(
                _BART_ENCODER, pattern="all-slide", window=("attention_window",), half_window=True
            ),
            decoder=_BART_DECODER,
        ),
    ),
    (
        ("whisper",),
        Seq2Seq(
            encoder=replace(_BART_ENCODER, k_bias=False),
            decoder=replace(_BART_DECODER, k_bias=False),
            source_tokens="max_source_positions",
        ),
    ),
)  # fmt: skip


Row = TypeVar("Row")


def _by_name(rows: Iterable[tuple[Names, Row]]) -> Mapping[str, Row]:
    return {name: row for names, row in rows for name in names}


FAMILIES: Mapping[str, Family] = _by_name(_ROWS)
"""``model_type`` -> where the facts are."""

SEQ2SEQ: Mapping[str, Seq2Seq] = _by_name(_SEQ2SEQ_ROWS)
"""``model_type`` of encoder-decoder models."""
