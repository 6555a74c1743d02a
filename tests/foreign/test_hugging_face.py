"""Attention blocks of Hugging Face transformers count what the closed form says.

Each block is built on meta from a small raw config and called as its model calls it.
What the closed form says comes from an ``AttentionSpec`` that is written out here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from mhaprof import AttentionSpec, count_flops, formulas

BATCH, TOKENS = 2, 10

LLAMA = {
    "hidden_size": 96,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "vocab_size": 512,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ENCODER = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}
GPT = {"n_embd": 96, "n_head": 6, "n_layer": 2, "n_positions": 64, "vocab_size": 512}
RANKS = {"kv_lora_rank": 28, "qk_nope_head_dim": 20, "qk_rope_head_dim": 8, "v_head_dim": 12}
LATENT = {**LLAMA, **RANKS, "num_key_value_heads": 6, "q_lora_rank": 40}
BART = {
    "d_model": 96,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "vocab_size": 512,
}
T5 = {"d_model": 96, "d_kv": 24, "num_heads": 6, "d_ff": 128, "num_layers": 2, "vocab_size": 512}
BIASES = {"qkv_bias": True, "out_bias": True}
GQA = {"kv_heads": 2}


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def rotated(width: int) -> Callable[[torch.Tensor], dict[str, Any]]:
    """Give cosines and sines that are ``width`` wide."""
    return lambda x: {
        "position_embeddings": (empty(*x.shape[:2], width), empty(*x.shape[:2], width)),
        "attention_mask": None,
    }


HEAD_WIDE = rotated(16)
"""Rotation of whole heads, 96 / 6 wide."""


def plain(x: torch.Tensor) -> dict[str, Any]:
    return {"attention_mask": None}


def complex_rotation(x: torch.Tensor) -> dict[str, Any]:
    return {
        "position_embeddings": empty(*x.shape[:2], 4, dtype=torch.complex64),
        "attention_mask": None,
    }


def falcon(x: torch.Tensor) -> dict[str, Any]:
    mask = empty(BATCH, 1, TOKENS, TOKENS)
    return {"alibi": None, **rotated(16)(x), "attention_mask": mask}


def bloom(x: torch.Tensor) -> dict[str, Any]:
    return {
        "residual": empty(*x.shape),
        "alibi": empty(BATCH * 6, 1, TOKENS),
        "attention_mask": empty(BATCH, 1, TOKENS, TOKENS),
    }


@dataclass(frozen=True, kw_only=True)
class Block:
    """A family's attention class (``package:Class``), its raw config, and its spec.

    ``norms`` are its parameters beside projections and sinks.
    """

    path: str
    raw: Mapping[str, Any]
    spec: Mapping[str, Any] = field(default_factory=dict)
    call: Callable[[torch.Tensor], dict[str, Any]] = HEAD_WIDE
    model_type: str | None = None
    norms: int = 0
    implementations: tuple[str, ...] = ("eager", "sdpa")

    def build(self, implementation: str) -> Any:
        """Return the block on meta, with the attention implementation asked for."""
        from transformers import AutoConfig

        package, _, name = self.path.partition(":")
        module = importlib.import_module(f"transformers.models.{package}.modeling_{package}")
        config = AutoConfig.for_model(self.model_type or package, **self.raw)
        config._attn_implementation = implementation
        block = getattr(module, name)
        with torch.device("meta"):
            if package in ("bart", "whisper"):
                return block(embed_dim=96, num_heads=6, config=config)
            if package in ("vit", "distilbert"):
                return block(config)
            return block(config, layer_idx=0)


QUICK = {
    "llama, grouped": Block(path="llama:LlamaAttention", raw=LLAMA, spec=GQA),
    "llama, wide heads and biases": Block(
        path="llama:LlamaAttention",
        raw={**LLAMA, "head_dim": 24, "attention_bias": True},
        spec={**GQA, **BIASES, "head_dim": 24},
        call=rotated(24),
    ),
    "qwen3, normed": Block(
        path="qwen3:Qwen3Attention",
        raw={**LLAMA, "head_dim": 24},
        spec={**GQA, "head_dim": 24, "qk_norm": "per-head"},
        call=rotated(24),
        norms=48,
    ),
    "gpt2, Conv1D": Block(path="gpt2:GPT2Attention", raw=GPT, spec=BIASES, call=plain),
    "bert, no W_O": Block(
        path="bert:BertSelfAttention",
        raw=ENCODER,
        spec={"qkv_bias": True, "out_proj": False},
        call=plain,
    ),
    "bloom, baddbmm": Block(
        path="bloom:BloomAttention",
        raw={"hidden_size": 96, "n_head": 6, "n_layer": 2, "vocab_size": 512},
        spec=BIASES,
        call=bloom,
        implementations=("eager",),
    ),
    "deepseek_v3, latent": Block(
        path="deepseek_v3:DeepseekV3Attention",
        raw=LATENT,
        spec={**RANKS, "q_lora_rank": 40, "qk_norm": "latent"},
        call=rotated(8),
        norms=68,
    ),
}

SLOW = {
    "mistral": Block(path="mistral:MistralAttention", raw=LLAMA, spec=GQA),
    "mixtral": Block(path="mixtral:MixtralAttention", raw=LLAMA, spec=GQA),
    "qwen2": Block(
        path="qwen2:Qwen2Attention", raw=LLAMA, spec={**GQA, "qkv_bias": True, "out_bias": False}
    ),
    "gemma2, soft-capped": Block(
        path="gemma2:Gemma2Attention",
        raw={**LLAMA, "head_dim": 24, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 50.0},
        spec={**GQA, "head_dim": 24, "softcap": 50.0},
        call=rotated(24),
        implementations=("eager",),
    ),
    "phi3, fused": Block(path="phi3:Phi3Attention", raw=LLAMA, spec=GQA),
    "phi": Block(
        path="phi:PhiAttention",
        raw={**LLAMA, "partial_rotary_factor": 0.5},
        spec={**GQA, **BIASES},
        call=rotated(8),
    ),
    "olmo2, fully normed": Block(
        path="olmo2:Olmo2Attention", raw=LLAMA, spec={**GQA, "qk_norm": "full"}, norms=128
    ),
    "cohere2": Block(path="cohere2:Cohere2Attention", raw=LLAMA, spec=GQA),
    "falcon, one key": Block(
        path="falcon:FalconAttention",
        raw={**ENCODER, "multi_query": True},
        spec={"kv_heads": 1},
        call=falcon,
    ),
    "falcon, grouped": Block(
        path="falcon:FalconAttention",
        raw={**ENCODER, "new_decoder_architecture": True, "num_kv_heads": 2},
        spec=GQA,
        call=falcon,
    ),
    "gpt_bigcode, one key": Block(
        path="gpt_bigcode:GPTBigCodeAttention",
        raw={**GPT, "multi_query": True},
        spec={"kv_heads": 1, **BIASES},
        call=plain,
    ),
    "gpt_neox": Block(path="gpt_neox:GPTNeoXAttention", raw=ENCODER, spec=BIASES, call=rotated(4)),
    "opt": Block(path="opt:OPTAttention", raw={**ENCODER, "ffn_dim": 128}, spec=BIASES, call=plain),
    "vit": Block(
        path="vit:ViTAttention",
        raw={**ENCODER, "image_size": 32, "patch_size": 8, "qkv_bias": True},
        spec=BIASES,
        call=plain,
    ),
    "distilbert": Block(
        path="distilbert:DistilBertSelfAttention",
        raw={"dim": 96, "n_heads": 6, "n_layers": 2, "hidden_dim": 128, "vocab_size": 512},
        spec=BIASES,
        call=plain,
    ),
    "bart": Block(path="bart:BartAttention", raw=BART, spec=BIASES, call=plain),
    "whisper, no key bias": Block(
        path="whisper:WhisperAttention", raw=BART, spec={**BIASES, "k_bias": False}, call=plain
    ),
    "t5, wide heads": Block(
        path="t5:T5Attention", raw=T5, spec={"head_dim": 24}, call=lambda x: {"mask": None}
    ),
    "deepseek_v2, no query rank": Block(
        path="deepseek_v2:DeepseekV2Attention",
        raw={**LATENT, "q_lora_rank": None},
        spec={**RANKS, "qk_norm": "latent"},
        call=complex_rotation,
        norms=28,
    ),
    "gpt_oss, sinks": Block(
        path="gpt_oss:GptOssAttention",
        raw={**LLAMA, "head_dim": 24, "max_position_embeddings": 131072},
        spec={**GQA, **BIASES, "head_dim": 24, "sinks": True},
        call=rotated(12),
        implementations=("eager",),
    ),
    "qwen3_next, gated": Block(
        path="qwen3_next:Qwen3NextAttention",
        raw={**LLAMA, "head_dim": 32},
        spec={**GQA, "head_dim": 32, "output_gate": "elementwise", "qk_norm": "per-head"},
        call=rotated(8),
        norms=64,
    ),
}

CASES = [
    pytest.param(block, implementation, id=f"{name}, {implementation}", marks=marks)
    for blocks, marks in ((QUICK, ()), (SLOW, pytest.mark.slow))
    for name, block in blocks.items()
    for implementation in block.implementations
]


@pytest.mark.parametrize(("block", "implementation"), CASES)
def test_a_block_counts_the_closed_form_and_its_parameters(
    transformers: Any, block: Block, implementation: str
) -> None:
    spec = AttentionSpec(batch=BATCH, tokens=TOKENS, dim=96, **{"heads": 6, **block.spec})
    x = empty(BATCH, TOKENS, 96)
    counted = count_flops(block.build(implementation).eval(), [x], kwargs=block.call(x))
    assert counted.macs == formulas.total_macs(spec)
    assert counted.fvcore_macs == counted.torch_macs == counted.by_module[""] == counted.macs
    assert counted.uncounted_ops == {}
    learned = formulas.params(spec)
    assert learned.norms == block.norms
    assert counted.params == learned.projections + learned.norms + learned.sinks


def test_grouped_attention_is_counted_projection_by_projection(transformers: Any) -> None:
    x = empty(BATCH, TOKENS, 96)
    block = QUICK["llama, grouped"]
    spec = AttentionSpec(batch=BATCH, tokens=TOKENS, dim=96, heads=6, kv_heads=2)
    stages = formulas.stage_macs(spec)
    for implementation in ("eager", "sdpa"):
        counted = count_flops(block.build(implementation), [x], kwargs=block.call(x))
        parts = {name: counted.by_module[f"{name[0]}_proj"] for name in ("q", "k", "v", "o")}
        assert parts == {
            "q": stages["q_proj"],
            "k": stages["k_proj"],
            "v": stages["v_proj"],
            "o": stages["out_proj"],
        }
        assert counted.macs - sum(parts.values()) == stages["scores"] + stages["context"]


def test_a_whole_model_counts_attention_layer_by_layer(transformers: Any) -> None:
    config = transformers.AutoConfig.for_model("llama", **LLAMA)
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(config, attn_implementation="sdpa")
    ids = empty(BATCH, TOKENS, dtype=torch.int64)
    counted = count_flops(model, [], kwargs={"input_ids": ids, "use_cache": False})
    spec = AttentionSpec(batch=BATCH, tokens=TOKENS, dim=96, heads=6, kv_heads=2)
    for layer in range(2):
        assert counted.by_module[f"layers.{layer}.self_attn"] == formulas.total_macs(spec)
        assert counted.by_module[f"layers.{layer}.mlp"] == 3 * BATCH * TOKENS * 96 * 128
