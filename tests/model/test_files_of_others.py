"""Files that are no config.json of transformers: read, or told apart in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mhaprof.errors import UsageError
from mhaprof.huggingface import layers_of
from mhaprof.huggingface.cost import cost_of

META = {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "multiple_of": 1024}
MISTRAL = {
    "dim": 5120,
    "n_layers": 40,
    "n_heads": 32,
    "n_kv_heads": 8,
    "head_dim": 128,
    "hidden_dim": 14336,
}
TIMM = {
    "architecture": "vit_base_patch16_224",
    "num_features": 768,
    "pretrained_cfg": {"input_size": [3, 224, 224]},
}
OPEN_CLIP = {
    "model_cfg": {
        "embed_dim": 768,
        "vision_cfg": {"image_size": 224, "layers": 24, "width": 1024, "patch_size": 14},
        "text_cfg": {"context_length": 77, "width": 768, "heads": 12, "layers": 12},
    }
}
FLUX = {
    "_class_name": "FluxTransformer2DModel",
    "num_attention_heads": 24,
    "attention_head_dim": 128,
    "num_layers": 19,
    "num_single_layers": 38,
}
SD3 = {
    "_class_name": "SD3Transformer2DModel",
    "num_attention_heads": 24,
    "attention_head_dim": 64,
    "num_layers": 24,
    "sample_size": 128,
    "patch_size": 2,
    "qk_norm": "rms_norm",
    "dual_attention_layers": [*range(13)],
}
DIT = {
    "_class_name": "DiTTransformer2DModel",
    "num_attention_heads": 16,
    "attention_head_dim": 72,
    "num_layers": 28,
    "sample_size": 32,
    "patch_size": 2,
}


OLD_DIT = {
    **DIT,
    "_class_name": "Transformer2DModel",
    "attention_bias": True,
    "norm_type": "ada_norm_zero",
}


@pytest.mark.parametrize(
    ("config", "layers", "params", "kv_bytes"),
    [
        (META, 32, 32 * 2 * (4096 * 4096 + 4096 * 1024), 131072),
        (MISTRAL, 40, 40 * 2 * (5120 * 4096 + 5120 * 1024), 163840),
        ({**META, "n_kv_heads": None}, 32, 32 * 4 * 4096 * 4096, 524288),
        (TIMM, 12, 12 * 4 * 768 * 769, 0),
        (OPEN_CLIP, 12, 12 * 4 * 768 * 769, None),
    ],
    ids=["meta", "mistral", "llama 1", "timm", "open_clip"],
)
def test_a_file_of_others_that_describes_attention_is_read(
    config: dict[str, Any], layers: int, params: int, kv_bytes: int | None
) -> None:
    plan = layers_of(config, tokens=64)
    total = cost_of(plan).total
    assert (total.layers, total.params) == (layers, params)
    assert kv_bytes in (None, total.kv_bytes_per_token)
    assert plan.warnings[0].startswith("read as ")


def test_parts_of_open_clip_are_those_of_clip() -> None:
    (kind,) = layers_of(OPEN_CLIP, part="vision").kinds
    assert (kind.count, kind.spec.dim, kind.spec.heads, kind.spec.tokens) == (24, 1024, 16, 257)
    assert layers_of(OPEN_CLIP).kinds[0].spec.causal != "none"


@pytest.mark.parametrize(
    ("config", "params", "norms"),
    [
        (FLUX, 2_869_837_824, 19_456),
        (SD3, 573_682_176, 7_808),
        (DIT, 148_764_672, 0),
        (OLD_DIT, 148_764_672, 0),
    ],
    ids=["flux", "sd3", "dit", "dit of old"],
)
def test_a_transformer_of_diffusers_holds_what_diffusers_builds(
    config: dict[str, Any], params: int, norms: int
) -> None:
    """The numbers are sums over ``attn`` of the models that diffusers 0.35 builds on meta.

    Flux's have the 3072 x 3072 and the bias of each fused output projection added.
    """
    total = cost_of(layers_of(config)).total
    assert (total.params, total.norm_params, total.kv_bytes_per_token) == (params, norms, 0)


def test_image_and_text_attend_jointly_in_flux() -> None:
    plan = layers_of(FLUX, tokens=4096, kv_tokens=256)
    assert {kind.name: kind.spec.tokens for kind in plan.kinds} == {
        "joint_attention": 4352,
        "single_attention": 4352,
    }
    assert plan.at(1024).kinds[0].spec.tokens == 1280
    assert "512 tokens of the text" in "".join(layers_of(FLUX).warnings)
    with pytest.raises(UsageError, match="no phase decode"):
        layers_of(FLUX, phase="decode")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {"peft_type": "LORA", "base_model_name_or_path": "a/b"},
            'is an adapter of type "LORA" of "a/b"',
        ),
        ({"added_tokens": [], "pre_tokenizer": {}}, "is a tokenizer; give the config.json"),
        ({"tokenizer_class": "LlamaTokenizer"}, "is the settings of a tokenizer"),
        ({"eos_token_id": 2, "transformers_version": "4.40"}, "is the settings of generation"),
        ({"image_processor_type": "CLIPImageProcessor"}, "is the settings of an image processor"),
        ({"weight_map": {}}, "is an index of weights"),
        (
            {**OLD_DIT, "cross_attention_dim": 768},
            "cross_attention_dim: 768 is another block than DiT's",
        ),
        ({"_class_name": "FluxPipeline"}, "of a pipeline give transformer/config.json"),
        ({"_class_name": "AutoencoderKL"}, "AutoencoderKL. of diffusers is not a transformer"),
        ({**TIMM, "architecture": "resnet50"}, "architecture: .resnet50. of timm is not one"),
        ({**TIMM, "num_features": 512}, "num_features: 512 differs from timm"),
        ({**TIMM, "model_args": {"qk_norm": True}}, "model_args: .* differs from timm"),
        ({**META, "attention_chunk_size": 8192}, "attention_chunk_size: 8192 may change"),
        ({**MISTRAL, "q_lora_rank": 1536}, "q_lora_rank: 1536 may change"),
        ({**MISTRAL, "use_biases": True}, "use_biases: true may change"),
        (
            {"vision_cfg": {"timm_model_name": "x", "width": 8}, "text_cfg": {"width": 8}},
            "vision_cfg.timm_model_name: .x. is not of a plain transformer",
        ),
    ],
)
def test_any_other_file_is_told_apart(config: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        layers_of(config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"GGUF\x03\0\0\0", "is a GGUF file"),
        (b"PK\x03\x04rest", "is a file of PyTorch's weights"),
        (b"\x10\x02\0\0\0\0\0\0{}", "is a safetensors file"),
    ],
)
def test_weights_are_told_by_their_first_bytes(
    mhaprof: Any, tmp_path: Path, head: bytes, words: str
) -> None:
    path = tmp_path / "model"
    path.write_bytes(head + b"\0" * 64)
    ran = mhaprof("model", path)
    assert ran.code == 2
    assert words in ran.err
    assert "give the config.json" in ran.err


def test_a_folder_with_params_json_alone_is_read(mhaprof: Any, tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text(json.dumps(META))
    ran = mhaprof("model", tmp_path, "--format", "json")
    assert (ran.code, ran.rows[-1]["kv_bytes_per_token"]) == (0, 131072)


LLAMA_3 = ("model", "--preset", "llama-3-8b", "--tokens", 8, "--format", "json")
ELEMENTS = 32 * 8 * 2 * 128


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--cache-dtype", "bf16"), 2 * ELEMENTS),
        (("--cache-dtype", "fp8"), ELEMENTS),
        (("--cache-dtype", "int4"), ELEMENTS // 2),
        (("--cache-dtype", "int8", "--cache-scales", "fp16/head"), ELEMENTS + 32 * 8 * 2 * 2),
        (("--cache-dtype", "int4", "--cache-scales", "fp32/48"), ELEMENTS // 2 + 32 * 8 * 2 * 12),
    ],
)
def test_a_quantized_cache_has_its_bytes_and_its_scales(
    mhaprof: Any, flags: tuple[str, ...], expected: int
) -> None:
    total = mhaprof(*LLAMA_3, *flags).rows[-1]
    assert (total["kv_bytes_per_token"], total["kv_cache_bytes"]) == (expected, 8 * expected)


def test_a_latent_cache_has_a_scale_for_the_latent_and_one_for_the_rotated_key(
    mhaprof: Any,
) -> None:
    flags = ("--tokens", 8, "--cache-dtype", "fp8", "--cache-scales", "fp32/head")
    ran = mhaprof("model", "--preset", "deepseek-v3", *flags, "--format", "json")
    assert ran.rows[-1]["kv_bytes_per_token"] == 61 * (512 + 64 + 2 * 4)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--cache-scales", "fp16/head"), "bfloat16 is not quantized and takes no scales"),
        (("--cache-dtype", "int8", "--cache-scales", "head"), "is not DTYPE/head or DTYPE/N"),
        (("--cache-dtype", "int8", "--cache-scales", "fp16/0"), "is not DTYPE/head or DTYPE/N"),
        (("--cache-dtype", "int2"), "'int2' is not one of"),
    ],
)
def test_scales_that_cannot_be_are_refused(
    mhaprof: Any, flags: tuple[str, ...], words: str
) -> None:
    ran = mhaprof(*LLAMA_3, *flags)
    assert ran.code == 2
    assert words in ran.err


def test_a_what_if_without_quantization_has_no_scales(mhaprof: Any) -> None:
    scales = ("--cache-dtype", "int8", "--cache-scales", "fp16/head")
    ran = mhaprof(*LLAMA_3, *scales, "--what-if", "cache_dtype=bf16")
    assert [row["cache_scales"] for row in ran.rows if row["role"] == "total"] == [
        "fp16/head",
        None,
    ]
    assert ran.rows[-1]["kv_bytes_per_token"] == 2 * ELEMENTS
