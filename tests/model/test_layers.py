"""From keys to layers: windows, chunks, sharing, cross-attention, nested files."""

from __future__ import annotations

from typing import Any

import pytest

from mhaprof import formulas
from mhaprof.errors import UsageError
from mhaprof.huggingface import layers_of
from mhaprof.huggingface.cost import cost_of

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
}
QWEN = LLAMA | {"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": True}
VIT = {
    "model_type": "vit",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "image_size": 224,
    "patch_size": 16,
}
WHISPER = {
    "model_type": "whisper",
    "d_model": 64,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "max_source_positions": 30,
}


def names_of(config: dict[str, Any], **options: Any) -> dict[str, tuple[int, ...]]:
    return {kind.name: kind.indices for kind in layers_of(config, tokens=32, **options).kinds}


def test_a_mistral_window_holds_in_every_layer_and_null_turns_it_off() -> None:
    mistral = LLAMA | {"model_type": "mistral", "sliding_window": 8}
    assert names_of(mistral) == {"sliding_attention": (0, 1, 2, 3)}
    assert names_of(mistral | {"sliding_window": None}) == {"full_attention": (0, 1, 2, 3)}


def test_max_window_layers_says_where_sliding_starts() -> None:
    assert names_of(QWEN | {"max_window_layers": 3}) == {
        "full_attention": (0, 1, 2),
        "sliding_attention": (3,),
    }
    assert names_of(QWEN | {"use_sliding_window": False}) == {"full_attention": (0, 1, 2, 3)}


def test_layer_types_win_over_older_keys() -> None:
    types = ["sliding_attention", "full_attention", "full_attention", "full_attention"]
    assert names_of(QWEN | {"layer_types": types})["sliding_attention"] == (0,)


def test_chunks_are_counted_pair_by_pair() -> None:
    llama4 = LLAMA | {"model_type": "llama4_text", "head_dim": 16, "attention_chunk_size": 10}
    chunked, full = layers_of(llama4, tokens=32).kinds
    assert (chunked.name, chunked.indices, full.indices) == ("chunked_attention", (0, 1, 2), (3,))
    visible = sum(i // 10 == j // 10 for i in range(32) for j in range(i + 1))
    assert formulas.exact_pairs(chunked.spec) == visible == 3 * 55 + 3
    assert names_of(llama4 | {"no_rope_layers": [1, 0, 1, 0]})["full_attention"] == (1, 3)


def test_a_layer_that_shares_keys_and_values_has_neither_projections_nor_cache() -> None:
    config = LLAMA | {
        "model_type": "gemma3n_text",
        "head_dim": 16,
        "num_hidden_layers": 10,
        "sliding_window": 8,
        "num_kv_shared_layers": 5,
    }
    cost = cost_of(layers_of(config, tokens=32))
    assert [kind.name for kind in cost.plan.kinds] == [
        "sliding_attention",
        "full_attention",
        "sliding_attention, shared kv",
        "full_attention, shared kv",
    ]
    own, shared = cost.kinds[0], cost.kinds[2]
    assert own.params - shared.params == 2 * 64 * 2 * 16
    assert (own.norm_params, shared.norm_params) == (32, 16)
    assert (own.kv_bytes_per_token, shared.kv_bytes_per_token) == (2 * 2 * 16 * 2, 0)
    assert cost.total.kv_bytes_per_token == 5 * 2 * 2 * 16 * 2


def test_heads_may_differ_from_layer_to_layer() -> None:
    config = LLAMA | {"num_key_value_heads": [1, 1, 4, 4]}
    kinds = layers_of(config, tokens=32).kinds
    assert [(kind.name, kind.spec.kv_heads) for kind in kinds] == [
        ("full_attention (layers 0-1)", 1),
        ("full_attention (layers 2-3)", 4),
    ]


def test_a_decoder_crosses_to_the_encoder_at_the_length_that_the_file_fixes() -> None:
    encoder, decoder, cross = layers_of(WHISPER, tokens=7).kinds
    assert (encoder.spec.tokens, encoder.spec.heads, encoder.spec.causal) == (30, 4, "none")
    assert (decoder.spec.tokens, decoder.spec.heads, decoder.spec.causal) == (7, 2, "top-left")
    assert (cross.spec.tokens, cross.spec.kv_tokens, cross.spec.causal) == (7, 30, "none")
    assert (cross.spec.qkv_bias, cross.spec.k_bias) == (True, False)


def test_in_decode_cross_attention_projects_no_keys_and_keeps_its_parameters() -> None:
    prefill = cost_of(layers_of(WHISPER, tokens=7))
    plan = layers_of(WHISPER, tokens=7, phase="decode")
    assert [kind.name for kind in plan.kinds] == ["full_attention", "cross_attention"]
    decode = cost_of(plan)
    assert decode.kinds[1].macs == 2 * 64 * 64 + 2 * 64 * 30
    assert decode.kinds[1].params == prefill.kinds[2].params
    assert decode.kinds[1].kv_cache_bytes == 30 * 2 * 64 * 2
    assert "encoder ran in prefill" in plan.warnings[0]


def test_an_encoder_keeps_no_cache_and_has_no_phase_decode() -> None:
    bert = LLAMA | {"model_type": "bert"}
    assert cost_of(layers_of(bert, tokens=32)).total.kv_bytes_per_token == 0
    with pytest.raises(UsageError, match="no phase decode"):
        layers_of(bert, phase="decode")


def test_a_bert_that_decodes_is_causal_and_may_cross() -> None:
    config = LLAMA | {"model_type": "bert", "is_decoder": True, "add_cross_attention": True}
    plan = layers_of(config, tokens=32, kv_tokens=5)
    assert [kind.name for kind in plan.kinds] == ["full_attention", "cross_attention"]
    assert plan.kinds[0].spec.causal == "top-left"
    assert plan.kinds[1].spec.kv_tokens == 5


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({}, 197),
        ({"model_type": "deit"}, 198),
        ({"model_type": "siglip_vision_model", "image_size": 384, "patch_size": 14}, 729),
        ({"model_type": "dinov2_with_registers", "num_register_tokens": 4}, 201),
        ({"model_type": "dinov3_vit", "num_register_tokens": 0}, 197),
        ({"image_size": [32, 64]}, 9),
    ],
)
def test_a_vision_encoder_makes_its_tokens_of_the_image(
    changes: dict[str, Any], tokens: int
) -> None:
    spec = layers_of(VIT | changes).kinds[0].spec
    assert (spec.tokens, spec.kv_tokens, spec.causal) == (tokens, tokens, "none")


def test_tokens_asked_for_win_over_the_image_and_the_plan_says_so() -> None:
    plan = layers_of(VIT, tokens=50)
    assert plan.kinds[0].spec.tokens == 50
    assert "makes 197" in plan.warnings[0]


def test_a_multimodal_file_counts_the_part_asked_for_and_names_the_other() -> None:
    config = {
        "model_type": "llava",
        "text_config": LLAMA,
        "vision_config": VIT | {"model_type": "clip_vision_model"},
    }
    text = layers_of(config, tokens=32)
    assert text.model_type == "llama"
    assert "vision_config is left out" in text.warnings[0]
    vision = layers_of(config, part="vision")
    assert (vision.model_type, vision.kinds[0].spec.tokens) == ("clip_vision_model", 197)


def test_a_nested_part_without_model_type_is_of_its_parents_family() -> None:
    inner = LLAMA | {"head_dim": 16, "sliding_window": 8}
    del inner["model_type"]
    plan = layers_of({"model_type": "gemma3", "text_config": inner}, tokens=32)
    assert plan.model_type == "gemma3_text"
    assert plan.kinds[0].spec.qk_norm == "per-head"


def test_an_encoder_and_a_decoder_in_one_file_are_both_counted() -> None:
    gpt2 = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2}
    config = {"model_type": "vision-encoder-decoder", "encoder": VIT, "decoder": gpt2}
    kinds = layers_of(config, tokens=32).kinds
    assert [(kind.name, kind.spec.kv_tokens) for kind in kinds] == [
        ("encoder full_attention", 197),
        ("full_attention", 32),
        ("cross_attention", 197),
    ]


def test_cross_attention_layers_replace_self_attention() -> None:
    config = LLAMA | {"model_type": "mllama_text_model", "cross_attention_layers": [1, 3]}
    plan = layers_of(config, tokens=32, kv_tokens=6404)
    assert {kind.name: kind.indices for kind in plan.kinds} == {
        "full_attention": (0, 2),
        "cross_attention": (1, 3),
    }
    assert plan.kinds[1].spec.qk_norm == "per-head"


def test_linear_layers_stand_apart_and_are_counted() -> None:
    config = LLAMA | {"model_type": "qwen3_next", "head_dim": 16, "num_hidden_layers": 8}
    plan = layers_of(config)
    assert plan.kinds[0].indices == (3, 7)
    assert plan.kinds[0].spec.output_gate == "elementwise"
    assert [(each.name, each.indices) for each in plan.apart] == [
        ("linear_attention", (0, 1, 2, 4, 5, 6))
    ]
    with pytest.raises(UsageError, match="left out"):
        plan.kinds_of(0)


def test_a_file_without_any_layer_left_is_refused_even_if_partial() -> None:
    with pytest.raises(UsageError, match="no layer is left"):
        layers_of(LLAMA | {"layer_types": ["retention"] * 4}, partial=True)
    with pytest.raises(UsageError, match="mamba: no layer is left"):
        layers_of(LLAMA | {"layer_types": ["mamba"] * 4})


def test_an_unknown_model_type_works_and_says_what_was_assumed() -> None:
    config = LLAMA | {"model_type": "brandnew"}
    del config["num_key_value_heads"]
    plan = layers_of(config, tokens=32)
    assert plan.kinds[0].spec.kv_heads == 4
    (warning,) = plan.warnings
    assert warning.startswith("model_type brandnew is not known; assumed: causal, kv_heads")
    latent = config | {
        "q_lora_rank": None,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 6,
        "qk_rope_head_dim": 2,
        "v_head_dim": 4,
    }
    assert layers_of(latent, tokens=32).kinds[0].spec.is_latent


@pytest.mark.parametrize(
    "key",
    [
        "multi_query_group_num",
        "block_configs",
        "index_topk",
        "num_attention_groups",
        "attn_type_list",
    ],
)
def test_an_unknown_family_with_a_key_of_its_own_is_refused_by_that_key(key: str) -> None:
    with pytest.raises(UsageError, match=key):
        layers_of(LLAMA | {"model_type": "brandnew", key: 2})
    with pytest.raises(UsageError, match=key):
        layers_of(LLAMA | {"model_type": "brandnew", "attention_types": [], key: 2})


def test_an_unknown_tower_of_images_has_no_causal_mask() -> None:
    tower = LLAMA | {"model_type": "brandnew_vision"}
    for config in (
        {"text_config": LLAMA, "vision_config": tower},
        {"thinker_config": {"text_config": LLAMA, "vision_config": tower}},
    ):
        plan = layers_of(config, tokens=32, part="vision")
        assert plan.kinds[0].spec.causal == "none"
        assert plan.model_type == "brandnew_vision"
        assert any("assumed: not causal" in warning for warning in plan.warnings)
        assert layers_of(config, tokens=32).kinds[0].spec.causal == "top-left"


def test_the_first_falcon_40b_says_its_kv_heads_without_a_flag() -> None:
    config = {"model_type": "RefinedWeb", "hidden_size": 64, "n_head": 8, "n_layer": 2}
    assert layers_of(config | {"n_head_kv": 4}).kinds[0].spec.kv_heads == 4
    assert layers_of(config).kinds[0].spec.kv_heads == 1
    ignored = config | {"n_head_kv": 4, "multi_query": True}
    assert layers_of(ignored).kinds[0].spec.kv_heads == 1


@pytest.mark.parametrize("model_type", ["granitemoehybrid", "minimax"])
def test_a_hybrid_that_does_not_say_which_layers_attend_is_refused(model_type: str) -> None:
    with pytest.raises(UsageError, match="layer_types: is missing"):
        layers_of(LLAMA | {"model_type": model_type})


def test_in_decode_kv_tokens_are_the_cache_of_a_model_without_cross_attention() -> None:
    plan = layers_of(LLAMA, kv_tokens=96, phase="decode")
    assert plan.kinds == layers_of(LLAMA, tokens=96, phase="decode").kinds
    assert plan.kinds[0].spec.kv_tokens == 96
    assert layers_of(LLAMA, tokens=1, kv_tokens=96, phase="decode").kinds == plan.kinds
    assert plan.at(7).kinds[0].spec.kv_tokens == 7
    assert not plan.warnings
    with pytest.raises(UsageError, match="tokens 50 and kv_tokens 96 are both of the cache"):
        layers_of(LLAMA, tokens=50, kv_tokens=96, phase="decode")
    crossing = layers_of(WHISPER, tokens=5, kv_tokens=96, phase="decode")
    assert [kind.spec.kv_tokens for kind in crossing.kinds] == [5, 96]


def test_kv_tokens_that_no_layer_reads_are_said_not_to_be_used() -> None:
    plan = layers_of(LLAMA, tokens=32, kv_tokens=96)
    assert plan.kinds[0].spec.kv_tokens == 32
    assert plan.warnings == ("kv_tokens 96 is not used: no layer reads another sequence",)


def test_a_window_that_counts_both_sides_reaches_half_of_it_to_each() -> None:
    config = LLAMA | {
        "model_type": "modernbert",
        "local_attention": 8,
        "global_attn_every_n_layers": 2,
    }
    full, sliding = layers_of(config, tokens=32).kinds
    assert (full.indices, sliding.indices) == ((0, 2), (1, 3))
    visible = sum(abs(i - j) <= 4 for i in range(32) for j in range(32))
    assert formulas.exact_pairs(sliding.spec) == visible
    assert formulas.exact_pairs(full.spec) == 32 * 32


def test_a_gemma_that_looks_both_ways_has_no_causal_mask_and_no_decode() -> None:
    config = LLAMA | {
        "model_type": "gemma3_text",
        "head_dim": 16,
        "sliding_window": 8,
        "use_bidirectional_attention": True,
    }
    spec = layers_of(config, tokens=32).kinds[0].spec
    assert (spec.causal, spec.window) == ("none", 5)
    with pytest.raises(UsageError, match="no phase decode"):
        layers_of(config, phase="decode")


def test_the_token_of_a_decode_step_sees_the_whole_cache() -> None:
    (kind,) = layers_of(LLAMA, tokens=96, phase="decode").kinds
    assert kind.spec.causal == "bottom-right"
    assert formulas.exact_pairs(kind.spec) == 96


def test_the_last_layer_of_a_lettered_pattern_attends_fully() -> None:
    exaone = LLAMA | {"model_type": "exaone4", "sliding_window": 8, "sliding_window_pattern": "LLG"}
    assert names_of(exaone | {"num_hidden_layers": 5}) == {
        "sliding_attention": (0, 1, 3),
        "full_attention": (2, 4),
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_attention_heads_per_layer", [4, 4, 2, 2]),
        ("hidden_size_per_head", 32),
        ("v_head_dim", 8),
        ("swa_head_dim", 8),
        ("bias", True),
        ("sparse_block_size", 64),
        ("kv_n_heads", 2),
        ("attn_config", {"kv_n_heads": 2}),
        ("is_encoder_decoder", True),
        ("index_topk", 64),
        ("full_attention_interval", 4),
        ("hybrid_override_pattern", "M*M*"),
        ("attention_sinks", True),
    ],
)
def test_a_key_that_an_unknown_family_might_read_is_refused_unless_it_is_ignored(
    key: str, value: Any
) -> None:
    config = LLAMA | {"model_type": "brandnew"}
    with pytest.raises(UsageError, match=f"{key}: .*--assume {key}=ignored goes on") as caught:
        layers_of(config | {key: value})
    assert caught.value.exit_code == 2
    plan = layers_of(config | {key: value}, ignored=[key])
    assert plan.kinds == layers_of(config).kinds
    assert f"{key} is ignored, as was asked" in plan.warnings
    assert layers_of(config | {key: None}).kinds == plan.kinds


@pytest.mark.parametrize(
    "key",
    ["attention_dropout", "moe_router_bias", "rope_scaling", "initializer_range", "mlp_bias"],
)
def test_a_key_that_does_not_change_the_attention_is_not_asked_about(key: str) -> None:
    config = LLAMA | {"model_type": "brandnew"}
    assert layers_of(config | {key: 1}).kinds == layers_of(config).kinds


def test_a_key_to_ignore_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="swa_head_dim: no such key to ignore"):
        layers_of(LLAMA, ignored=["swa_head_dim"])


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("types", [["retention", "full_attention"] * 2, ["retention"] * 4])
def test_partial_is_advised_exactly_where_it_works(types: list[str], phase: Any) -> None:
    config = LLAMA | {"model_type": "brandnew", "layer_types": types}
    with pytest.raises(UsageError, match="retention is not attention") as caught:
        layers_of(config, phase=phase)
    if "--partial" in str(caught.value):
        assert layers_of(config, phase=phase, partial=True).layers == 2
    else:
        with pytest.raises(UsageError, match="no layer is left"):
            layers_of(config, phase=phase, partial=True)


@pytest.mark.parametrize(
    ("more", "causal"),
    [
        ({}, "top-left"),
        ({"is_causal": False}, "none"),
        ({"is_decoder": False}, "none"),
        ({"is_decoder": False, "architectures": ["NewForCausalLM"]}, "top-left"),
        ({"architectures": ["NewForMaskedLM"]}, "none"),
        ({"architectures": ["NewEncoderModel"]}, "none"),
    ],
)
def test_an_encoder_that_says_so_is_not_causal_and_keeps_no_cache(
    more: dict[str, Any], causal: str
) -> None:
    plan = layers_of(LLAMA | {"model_type": "brandnew"} | more, tokens=32)
    assert plan.kinds[0].spec.causal == causal
    assert plan.kinds[0].cached == (causal != "none")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"4": {"head_dim": 8}}, '"4" is no layer below 4'),
        ({"x": {}}, "is no layer below 4"),
        ({"1": 8}, "is no layer below 4"),
        ([8], "is no layer below 4"),
        ({"1": {"skip": ["attention"]}}, "layer 1 skips"),
        ({"1": {"num_attention_groups": 1}}, "num_attention_groups of layer 1 is not known"),
        ({"1": {"num_key_value_heads": 3}}, "num_key_value_heads: 3 does not divide"),
        ({"1": {"head_dim": "wide"}}, 'head_dim: "wide" is not'),
    ],
)
def test_a_per_layer_config_that_cannot_be_meant_is_refused(given: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        layers_of(LLAMA | {"per_layer_config": given})


def test_a_shared_layer_has_its_parameters_once_and_is_applied_often() -> None:
    config = LLAMA | {"model_type": "albert", "num_hidden_layers": 12}
    one = cost_of(layers_of(config | {"num_hidden_layers": 1, "num_hidden_groups": 1}, tokens=8))
    many = cost_of(layers_of(config | {"num_hidden_groups": 1}, tokens=8))
    groups = cost_of(layers_of(config | {"num_hidden_groups": 3}, tokens=8))
    assert (many.total.params, many.total.macs) == (one.total.params, 12 * one.total.macs)
    assert (groups.total.params, groups.total.layers) == (3 * one.total.params, 12)


def test_key_value_heads_inside_an_object_are_not_guessed_where_the_class_has_one() -> None:
    sizes = {"d_model": 64, "n_heads": 4, "n_layers": 2}
    for more in ({}, {"attn_config": {}}, {"attn_config": {"clip_qkv": 8}}):
        with pytest.raises(UsageError, match=r"attn_config\.kv_n_heads: is missing"):
            layers_of({"model_type": "dbrx"} | sizes | more)
        assert layers_of({"model_type": "mpt"} | sizes | more).kinds[0].spec.kv_heads == 4
