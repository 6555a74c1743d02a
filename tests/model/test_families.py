"""Each row of the table of families against the family's own module in transformers.

The module is built on meta from the same raw config.json that ``layers_of`` reads.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from mhaprof import formulas
from mhaprof.huggingface import layers_of
from mhaprof.huggingface.families import FAMILIES, SEQ2SEQ
from mhaprof.huggingface.plan import LayerKind

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

COMMON = {"vocab_size": 512, "intermediate_size": 128, "max_position_embeddings": 64}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def llama(**extra: Any) -> dict[str, Any]:
    return {
        "hidden_size": 96,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "num_hidden_layers": 12,
        **COMMON,
        **TOKENS,
        **extra,
    }


def encoder(**extra: Any) -> dict[str, Any]:
    return {
        "hidden_size": 96,
        "num_attention_heads": 6,
        "num_hidden_layers": 12,
        **COMMON,
        **extra,
    }


def image(**extra: Any) -> dict[str, Any]:
    return encoder(image_size=32, patch_size=8, **extra)


def latent(**extra: Any) -> dict[str, Any]:
    ranks = {
        "q_lora_rank": 40,
        "kv_lora_rank": 28,
        "qk_nope_head_dim": 20,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
    }
    return llama(num_key_value_heads=6, num_hidden_layers=2, **ranks) | extra


GPT = {"n_embd": 96, "n_head": 6, "n_layer": 4, "n_positions": 64, "vocab_size": 512}
BART = {
    "d_model": 96,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 8,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "vocab_size": 512,
}
T5 = {
    "d_model": 96,
    "d_kv": 24,
    "num_heads": 6,
    "d_ff": 128,
    "num_layers": 2,
    "num_decoder_layers": 4,
    "vocab_size": 512,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One family: a raw config, and the class of its attention block.

    ``also`` names modules that the class does not hold (BERT's output projection);
    ``layer`` picks the layer that is built, ``sizes`` builds from sizes, not a config.
    """

    model_type: str
    block: str
    raw: dict[str, Any]
    also: str | None = None
    layer: int = 0
    sizes: str | None = None


def case(model_type: str, block: str, raw: dict[str, Any], **more: Any) -> Case:
    return Case(model_type=model_type, block=block, raw={"model_type": model_type, **raw}, **more)


CASES = (
    case("llama", "llama:Llama", llama()),
    case("llama", "llama:Llama", llama(head_dim=24, attention_bias=True)),
    case("granite", "granite:Granite", llama()),
    case("granitemoe", "granitemoe:GraniteMoe", llama(attention_bias=True)),
    case("granitemoeshared", "granitemoeshared:GraniteMoeShared", llama()),
    case(
        "granitemoehybrid",
        "granitemoehybrid:GraniteMoeHybrid",
        llama(layer_types=["attention"] * 12, mamba_n_heads=8),
    ),
    case("olmo", "olmo:Olmo", llama()),
    case("nemotron", "nemotron:Nemotron", llama(head_dim=24, attention_bias=True)),
    case("arcee", "arcee:Arcee", llama()),
    case("mistral", "mistral:Mistral", llama(head_dim=24, sliding_window=16)),
    case("ministral", "ministral:Ministral", llama(head_dim=24, sliding_window=16)),
    case("ministral3", "ministral3:Ministral3", llama(head_dim=24, sliding_window=None)),
    case("mixtral", "mixtral:Mixtral", llama(head_dim=None, sliding_window=None)),
    case("minimax", "minimax:MiniMax", llama(layer_types=["full_attention"] * 12)),
    case("qwen2", "qwen2:Qwen2", llama(use_sliding_window=False, sliding_window=16)),
    case(
        "qwen2",
        "qwen2:Qwen2",
        llama(use_sliding_window=True, sliding_window=16, max_window_layers=5),
    ),
    case("qwen2_vl_text", "qwen2_vl:Qwen2VL", llama(use_sliding_window=False)),
    case("qwen2_5_vl_text", "qwen2_5_vl:Qwen2_5_VL", llama(use_sliding_window=False)),
    case("qwen2_moe", "qwen2_moe:Qwen2Moe", llama(use_sliding_window=False)),
    case("qwen2_moe", "qwen2_moe:Qwen2Moe", llama(qkv_bias=False, use_sliding_window=False)),
    case("qwen3", "qwen3:Qwen3", llama(head_dim=24)),
    case(
        "qwen3",
        "qwen3:Qwen3",
        llama(head_dim=24, use_sliding_window=True, sliding_window=16, max_window_layers=3),
    ),
    case("qwen3_moe", "qwen3_moe:Qwen3Moe", llama(head_dim=24)),
    case("qwen3_vl_text", "qwen3_vl:Qwen3VLText", llama(head_dim=24)),
    case("qwen3_vl_moe_text", "qwen3_vl_moe:Qwen3VLMoeText", llama(head_dim=24)),
    case("qwen3_next", "qwen3_next:Qwen3Next", llama(head_dim=32), layer=3),
    case("qwen3_5_text", "qwen3_5:Qwen3_5", llama(head_dim=32, attention_bias=True), layer=3),
    case("qwen3_5_moe_text", "qwen3_5_moe:Qwen3_5Moe", llama(head_dim=32), layer=3),
    case("gemma", "gemma:Gemma", llama(head_dim=24)),
    case("gemma2", "gemma2:Gemma2", llama(head_dim=24, sliding_window=16)),
    case("vaultgemma", "vaultgemma:VaultGemma", llama(head_dim=24, sliding_window=16)),
    case("gemma3_text", "gemma3:Gemma3", llama(head_dim=24, sliding_window=16)),
    case(
        "gemma3_text",
        "gemma3:Gemma3",
        llama(head_dim=24, sliding_window=16, sliding_window_pattern=4),
    ),
    case(
        "gemma3n_text",
        "gemma3n:Gemma3nText",
        llama(head_dim=24, sliding_window=16, num_kv_shared_layers=4),
    ),
    case(
        "gemma3n_text",
        "gemma3n:Gemma3nText",
        llama(head_dim=24, sliding_window=16, num_kv_shared_layers=4),
        layer=11,
    ),
    case("phi3", "phi3:Phi3", llama(sliding_window=16)),
    case("phi", "phi:Phi", llama(qk_layernorm=False)),
    case("phi", "phi:Phi", llama(qk_layernorm=True)),
    case("phimoe", "phimoe:Phimoe", llama(attention_bias=True, sliding_window=16)),
    case("falcon", "falcon:Falcon", encoder(multi_query=True, num_kv_heads=6)),
    case("falcon", "falcon:Falcon", encoder(multi_query=False, alibi=True, bias=True)),
    case("falcon", "falcon:Falcon", encoder(new_decoder_architecture=True, num_kv_heads=2)),
    case("gpt_bigcode", "gpt_bigcode:GPTBigCode", {**GPT, "multi_query": True}),
    case("gpt_bigcode", "gpt_bigcode:GPTBigCode", {**GPT, "multi_query": False}),
    case("gpt2", "gpt2:GPT2", GPT),
    case("gptj", "gptj:GPTJ", {**GPT, "rotary_dim": 8}),
    case("codegen", "codegen:CodeGen", {**GPT, "rotary_dim": 8}),
    case(
        "gpt_neo",
        "gpt_neo:GPTNeoSelf",
        {
            "hidden_size": 96,
            "num_heads": 6,
            "num_layers": 4,
            "attention_types": [[["global", "local"], 2]],
            "window_size": 16,
            "max_position_embeddings": 64,
            "vocab_size": 512,
        },
    ),
    case("gpt_neox", "gpt_neox:GPTNeoX", encoder()),
    case("gpt_neox", "gpt_neox:GPTNeoX", encoder(attention_bias=False)),
    case("bloom", "bloom:Bloom", {"hidden_size": 96, "n_head": 6, "n_layer": 4}),
    case("opt", "opt:OPT", encoder(ffn_dim=128)),
    case("opt", "opt:OPT", encoder(ffn_dim=128, enable_bias=False)),
    case("mpt", "mpt:Mpt", {"d_model": 96, "n_heads": 6, "n_layers": 4, "vocab_size": 512}),
    case("stablelm", "stablelm:StableLm", llama(use_qkv_bias=True)),
    case("stablelm", "stablelm:StableLm", llama(qk_layernorm=True)),
    case("persimmon", "persimmon:Persimmon", encoder()),
    case("persimmon", "persimmon:Persimmon", encoder(qk_layernorm=False)),
    case("olmo2", "olmo2:Olmo2", llama()),
    case("olmoe", "olmoe:Olmoe", llama()),
    case("olmo3", "olmo3:Olmo3", llama(sliding_window=16)),
    case("cohere", "cohere:Cohere", llama(use_qk_norm=True)),
    case("cohere", "cohere:Cohere", llama(use_qk_norm=False)),
    case("cohere2", "cohere2:Cohere2", llama(sliding_window=16)),
    case("cohere2", "cohere2:Cohere2", llama(sliding_window=16, sliding_window_pattern=3)),
    case("starcoder2", "starcoder2:Starcoder2", llama(sliding_window=16)),
    case("starcoder2", "starcoder2:Starcoder2", llama(use_bias=False, sliding_window=None)),
    case("ernie4_5", "ernie4_5:Ernie4_5", llama(head_dim=24, use_bias=True)),
    case("ernie4_5_moe", "ernie4_5_moe:Ernie4_5_Moe", llama()),
    case("glm", "glm:Glm", llama(head_dim=24)),
    case("glm4", "glm4:Glm4", llama(head_dim=24)),
    case("glm4_moe", "glm4_moe:Glm4Moe", llama(head_dim=24, attention_bias=True, use_qk_norm=True)),
    case("seed_oss", "seed_oss:SeedOss", llama(head_dim=24)),
    case("seed_oss", "seed_oss:SeedOss", llama(head_dim=24, attention_out_bias=True)),
    case("gpt_oss", "gpt_oss:GptOss", llama(head_dim=24, sliding_window=16)),
    case("exaone4", "exaone4:Exaone4", llama(sliding_window=16, sliding_window_pattern=4)),
    case("hunyuan_v1_dense", "hunyuan_v1_dense:HunYuanDenseV1", llama(head_dim=24)),
    case("hunyuan_v1_moe", "hunyuan_v1_moe:HunYuanMoEV1", llama(head_dim=24)),
    case("apertus", "apertus:Apertus", llama()),
    case("minimax_m2", "minimax_m2:MiniMaxM2", llama(head_dim=24)),
    case("smollm3", "smollm3:SmolLM3", llama()),
    case("smollm3", "smollm3:SmolLM3", llama(use_sliding_window=True, sliding_window=16)),
    case("llama4_text", "llama4:Llama4Text", llama(head_dim=24, attention_chunk_size=16)),
    case("jamba", "jamba:Jamba", llama(attn_layer_period=4, attn_layer_offset=1), layer=1),
    case("mllama_text_model", "mllama:MllamaTextSelf", llama(cross_attention_layers=[3, 8])),
    case(
        "mllama_text_model",
        "mllama:MllamaTextCross",
        llama(cross_attention_layers=[3, 8]),
        layer=3,
    ),
    case("deepseek_v2", "deepseek_v2:DeepseekV2", latent()),
    case("deepseek_v2", "deepseek_v2:DeepseekV2", latent(q_lora_rank=None)),
    case("deepseek_v3", "deepseek_v3:DeepseekV3", latent()),
    case("deepseek_v3", "deepseek_v3:DeepseekV3", latent(attention_bias=True)),
    case("glm4_moe_lite", "glm4_moe_lite:Glm4MoeLite", latent()),
    case("mistral4", "mistral4:Mistral4", latent()),
    case("bert", "bert:BertSelf", encoder(), also="bert:BertSelfOutput"),
    case("roberta", "roberta:RobertaSelf", encoder(), also="roberta:RobertaSelfOutput"),
    case(
        "xlm-roberta",
        "xlm_roberta:XLMRobertaSelf",
        encoder(),
        also="xlm_roberta:XLMRobertaSelfOutput",
    ),
    case("camembert", "camembert:CamembertSelf", encoder(), also="camembert:CamembertSelfOutput"),
    case("electra", "electra:ElectraSelf", encoder(), also="electra:ElectraSelfOutput"),
    case("mpnet", "mpnet:MPNetSelf", encoder()),
    case(
        "distilbert",
        "distilbert:DistilBertSelf",
        {"dim": 96, "n_heads": 6, "n_layers": 2, "hidden_dim": 128, "vocab_size": 512},
    ),
    case("wav2vec2", "wav2vec2:Wav2Vec2", encoder(), sizes="num_attention_heads"),
    case("hubert", "hubert:Hubert", encoder(), sizes="num_attention_heads"),
    case("modernbert", "modernbert:ModernBert", encoder(local_attention=16)),
    case("eurobert", "eurobert:EuroBert", llama()),
    case("vit", "vit:ViT", image()),
    case("vit", "vit:ViT", image(qkv_bias=False)),
    case("vit_mae", "vit_mae:ViTMAE", image()),
    case("vit_msn", "vit_msn:ViTMSN", image()),
    case("dinov2", "dinov2:Dinov2", image()),
    case("deit", "deit:DeiT", image()),
    case(
        "dinov2_with_registers",
        "dinov2_with_registers:Dinov2WithRegisters",
        image(num_register_tokens=4),
    ),
    case("dinov3_vit", "dinov3_vit:DINOv3ViT", image(num_register_tokens=4)),
    case("beit", "beit:Beit", image()),
    case("clip_vision_model", "clip:CLIP", image()),
    case("clip_text_model", "clip:CLIP", encoder()),
    case("blip_vision_model", "blip:Blip", image()),
    case("llama4_vision_model", "llama4:Llama4Vision", image()),
    case("siglip_vision_model", "siglip:Siglip", image()),
    case("siglip_text_model", "siglip:Siglip", encoder()),
    case("idefics3_vision", "idefics3:Idefics3Vision", image()),
    case("smolvlm_vision", "smolvlm:SmolVLMVision", image()),
    case("pixtral", "pixtral:Pixtral", image()),
    case("internvl_vision", "internvl:InternVLVision", image(attention_bias=True)),
    case("internvl_vision", "internvl:InternVLVision", image(use_qk_norm=True)),
    case("t5", "t5:T5", T5),
    case("mt5", "mt5:MT5", T5),
    case("umt5", "umt5:UMT5", T5),
    case("bart", "bart:Bart", BART, sizes="encoder_attention_heads"),
    case("mbart", "mbart:MBart", BART, sizes="encoder_attention_heads"),
    case("plbart", "plbart:PLBart", BART, sizes="encoder_attention_heads"),
    case("pegasus", "pegasus:Pegasus", BART, sizes="encoder_attention_heads"),
    case("marian", "marian:Marian", BART, sizes="encoder_attention_heads"),
    case("m2m_100", "m2m_100:M2M100", BART, sizes="encoder_attention_heads"),
    case("blenderbot", "blenderbot:Blenderbot", BART, sizes="encoder_attention_heads"),
    case(
        "blenderbot-small",
        "blenderbot_small:BlenderbotSmall",
        BART,
        sizes="encoder_attention_heads",
    ),
    case(
        "whisper",
        "whisper:Whisper",
        {**BART, "max_source_positions": 20},
        sizes="encoder_attention_heads",
    ),
)

ALIASES = {
    "RefinedWeb": "falcon",
    "RefinedWebModel": "falcon",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "llama4": "llama4_text",
    "mllama": "mllama_text_model",
    "kimi_k2": "deepseek_v3",
    "kimi_k25": "deepseek_v3",
    "idefics3": "idefics3_vision",
    "smolvlm": "smolvlm_vision",
}


def ids(one: Case) -> str:
    known = {**llama(), **encoder(), **GPT, **BART, **T5, "model_type": one.model_type}
    extra = [f"{key}={value}" for key, value in one.raw.items() if known.get(key) != value]
    return " ".join([one.model_type, *extra, f"layer {one.layer}"])[:90]


@pytest.fixture(scope="module")
def config_of() -> Iterator[Any]:
    """Make the family's own config object, once for each case."""
    made: dict[int, Any] = {}

    def make(one: Case) -> Any:
        if id(one) not in made:
            raw = {key: value for key, value in one.raw.items() if key != "model_type"}
            config = transformers.AutoConfig.for_model(one.model_type, **raw)
            config._attn_implementation = "eager"
            made[id(one)] = config
        return made[id(one)]

    yield make


def plan_kinds(one: Case) -> tuple[LayerKind, ...]:
    return layers_of(one.raw, tokens=24, kv_tokens=20, partial=True).kinds_of(one.layer)


def build(one: Case, config: Any) -> list[Any]:
    """Return the block on meta, in eval mode, and what belongs to it beside."""
    cls = _class(one.block + "Attention")
    heads = getattr(config, one.sizes) if one.sizes else None
    values = {
        "config": config,
        "layer_idx": one.layer,
        "layer_id": one.layer,
        "attention_type": "global",
        "embed_dim": config.hidden_size,
        "num_heads": heads,
    }
    wanted = inspect.signature(cls).parameters
    given = {name: value for name, value in values.items() if name in wanted}
    with torch.device("meta"):
        blocks = [cls(**given)]
        if one.also is not None:
            blocks.append(_class(one.also)(config))
    return [block.eval() for block in blocks]


def _class(path: str) -> Any:
    package, name = path.split(":")
    module = importlib.import_module(f"transformers.models.{package}.modeling_{package}")
    return getattr(module, name)


def counted(blocks: list[Any]) -> tuple[int, int, int]:
    """Count projections, norms of q and k, and sinks of built modules."""
    projections = norms = sinks = 0
    for block in blocks:
        for name, parameter in block.named_parameters():
            size = parameter.numel()
            if "relative_attention_bias" in name or name.startswith("LayerNorm"):
                continue
            if "sinks" in name:
                sinks += size
            elif "norm" in name.lower():
                norms += size
            else:
                projections += size
    return projections, norms, sinks


@pytest.mark.parametrize("one", CASES, ids=ids)
def test_parameters_are_those_of_the_module_that_transformers_builds(
    one: Case, config_of: Any
) -> None:
    expected = counted(build(one, config_of(one)))
    for kind in plan_kinds(one):
        got = formulas.params(kind.stored)
        assert (got.projections, got.norms + kind.norm_biases, got.sinks) == expected, kind.name


@pytest.mark.parametrize("one", CASES, ids=ids)
def test_layers_alternate_as_the_config_class_of_transformers_says(
    one: Case, config_of: Any
) -> None:
    if one.model_type in SEQ2SEQ or "cross_attention_layers" in one.raw:
        expected = []
    else:
        expected = types_of(config_of(one))
    plan = layers_of(one.raw, tokens=24, kv_tokens=20, partial=True)
    got = {index: kind.name.split(",")[0] for kind in plan.kinds for index in kind.indices} | {
        index: layers.name for layers in plan.missing for index in layers.indices
    }
    assert [WORDS.get(got[index], got[index]) for index in range(len(expected))] == expected


WORDS = {
    "mamba": "linear_attention",
    "attention": "full_attention",
    "global": "full_attention",
    "local": "sliding_attention",
}


def types_of(config: Any) -> list[str]:
    """Return each layer's type as the config class of transformers understands the file."""
    types = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    if types is None:
        slides = getattr(config, "sliding_window", None)
        types = ["sliding_attention" if slides else "full_attention"] * config.num_hidden_layers
    return [WORDS.get(word, word) for word in types]


BATCH, LENGTH = 2, 10


def call(one: Case, block: Any, config: Any) -> Any:
    """Run the block's forward on meta with what its family expects beside x."""
    x = torch.empty((BATCH, LENGTH, config.hidden_size), device="meta")
    wanted = inspect.signature(block.forward).parameters
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    factor = (getattr(config, "rope_parameters", None) or {}).get("partial_rotary_factor", 1.0)
    rotated = int(getattr(config, "qk_rope_head_dim", None) or width * factor)
    shape = (LENGTH, rotated) if one.model_type == "pixtral" else (BATCH, LENGTH, rotated)
    cos_sin = tuple(torch.empty(shape, device="meta") for _ in range(2))
    mask = torch.empty((BATCH, 1, LENGTH, LENGTH), device="meta")
    values = {
        "position_embeddings": cos_sin,
        "attention_mask": mask if one.model_type in ("falcon", "bloom") else None,
        "position_ids": torch.empty((BATCH, LENGTH), dtype=torch.long, device="meta"),
        "alibi": None,
    }
    return block(x, **{name: value for name, value in values.items() if name in wanted})


UNTRACED = {
    "bloom": "needs alibi and the residual beside its input",
    "codegen": "rotates inside, by position ids",
    "deepseek_v2": "rotates by complex numbers",
    "dinov3_vit": "rotates patches alone",
    "gemma3n_text": "a sharing layer needs the states of another",
    "gpt_oss": "rotates by half-width cosines",
    "gptj": "rotates inside, by position ids",
    "llama4_text": "rotates by complex numbers",
    "llama4_vision_model": "rotates by complex numbers",
    "mllama_text_model": "needs the states of the image",
    "mpt": "needs the position bias",
    "whisper": "masks by its own rule",
}


def traced(one: Case) -> bool:
    return one.model_type not in UNTRACED and one.raw.get("alibi") is not True


@pytest.mark.parametrize("one", [one for one in CASES if traced(one)], ids=ids)
def test_macs_are_those_that_torch_counts_in_the_module(one: Case, config_of: Any) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    block, *beside = build(one, config_of(one))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        call(one, block, config_of(one))
    out_proj = sum(module.dense.weight.numel() for module in beside)
    kind = layers_of(one.raw, tokens=LENGTH, batch=BATCH, partial=True).kinds_of(one.layer)[0]
    spec = kind.spec.replace(tokens=LENGTH, kv_tokens=LENGTH)
    expected = formulas.total_macs(spec) - BATCH * LENGTH * out_proj
    assert counter.get_total_flops() == 2 * expected


def test_every_family_of_the_table_has_a_case() -> None:
    covered = {one.model_type for one in CASES} | set(ALIASES)
    assert set(FAMILIES) | set(SEQ2SEQ) == covered


def test_an_alias_is_read_as_the_family_it_stands_for() -> None:
    for name, real in ALIASES.items():
        assert FAMILIES[name] is FAMILIES[real], name
