"""The parts of a composite file: which is counted, from which keys, and what is left out."""

from __future__ import annotations

from typing import Any

import pytest

from mhaprof import formulas
from mhaprof.errors import UsageError
from mhaprof.huggingface import ModelPlan, layers_of

TEXT: dict[str, Any] = {
    "hidden_size": 1536,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "num_hidden_layers": 28,
}
QWEN2_VL = {
    **TEXT,
    "model_type": "qwen2_vl",
    "vision_config": {
        "depth": 32,
        "embed_dim": 1280,
        "num_heads": 16,
        "hidden_size": 1536,
        "patch_size": 14,
    },
}
KIMI = {
    "model_type": "kimi_k25",
    "text_config": {"model_type": "llama", **TEXT},
    "vision_config": {
        "vt_hidden_size": 1152,
        "vt_num_attention_heads": 16,
        "vt_num_hidden_layers": 27,
    },
}
GLM_4V = {
    "model_type": "glm4v",
    "text_config": {"model_type": "llama", **TEXT},
    "vision_config": {
        "model_type": "glm4v_vision",
        "hidden_size": 1536,
        "num_heads": 12,
        "depth": 24,
        "attention_bias": False,
        "image_size": 336,
        "patch_size": 14,
    },
}
MLLAMA = {
    "model_type": "mllama",
    "text_config": {"model_type": "llama", **TEXT},
    "vision_config": {
        "model_type": "mllama_vision_model",
        "hidden_size": 1280,
        "attention_heads": 16,
        "num_hidden_layers": 32,
        "num_global_layers": 8,
    },
}
VOXTRAL = {
    "model_type": "voxtral",
    "text_config": {"model_type": "llama", **TEXT},
    "audio_config": {
        "model_type": "voxtral_encoder",
        "hidden_size": 1280,
        "num_attention_heads": 20,
        "num_hidden_layers": 32,
        "max_source_positions": 1500,
    },
}


def sizes(plan: ModelPlan) -> tuple[int, int, int, int]:
    (kind,) = plan.kinds
    assert kind.spec.causal == "none"
    assert not kind.cached
    return kind.count, kind.spec.dim, kind.spec.heads, formulas.params(kind.stored).projections


@pytest.mark.parametrize(
    ("config", "part", "expected"),
    [
        (QWEN2_VL, "vision", (32, 1280, 16, 4 * 1280 * 1281)),
        (KIMI, "vision", (27, 1152, 16, 4 * 1152 * 1153)),
        (GLM_4V, "vision", (24, 1536, 12, 4 * 1536 * 1536)),
        (MLLAMA, "vision", (40, 1280, 16, 4 * 1280 * 1280)),
        (VOXTRAL, "audio", (32, 1280, 20, 4 * 1280 * 1280 + 3 * 1280)),
    ],
    ids=["qwen2-vl", "kimi-k2.5", "glm-4v", "mllama", "voxtral"],
)
def test_a_tower_is_read_from_the_keys_of_its_family(
    config: dict[str, Any], part: Any, expected: tuple[int, ...]
) -> None:
    assert sizes(layers_of(config, part=part, tokens=64)) == expected


def test_a_sound_makes_the_tokens_that_the_file_fixes() -> None:
    assert layers_of(VOXTRAL, part="audio").kinds[0].spec.tokens == 1500


def test_a_tower_without_an_image_size_says_that_its_tokens_are_assumed() -> None:
    plan = layers_of(QWEN2_VL, part="vision")
    assert any("1024 tokens: the file does not fix" in warning for warning in plan.warnings)


@pytest.mark.parametrize(
    ("config", "part", "words"),
    [
        (QWEN2_VL, "text", "the text alone is counted; vision_config is left out"),
        (QWEN2_VL, "vision", "vision_config alone is counted; the text is left out"),
        (VOXTRAL, "text", "audio_config is left out, as is what joins them: --part audio"),
        (
            {**VOXTRAL, "vision_config": {"model_type": "vit"}, "qformer_config": {"num_heads": 2}},
            "text",
            "audio_config, vision_config and qformer_config are left out, as is what joins them: "
            "--part vision or audio counts one",
        ),
    ],
    ids=["qwen2-vl text", "qwen2-vl vision", "voxtral", "four models"],
)
def test_what_is_left_out_is_said(config: dict[str, Any], part: Any, words: str) -> None:
    assert words in "\n".join(layers_of(config, part=part, tokens=8).warnings)


def test_a_part_that_a_file_lacks_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(UsageError, match=r"audio_config: is missing; this file has text .*vision"):
        layers_of(GLM_4V, part="audio")
    wrapped = {"thinker_config": GLM_4V}
    with pytest.raises(UsageError, match="audio_config: is missing"):
        layers_of(wrapped, part="audio")


def test_a_file_without_text_is_counted_for_the_part_it_has() -> None:
    detector = {"model_type": "vitpose", "backbone_config": {"model_type": "vit", **TOWER}}
    plan = layers_of(detector)
    assert sizes(plan)[:3] == (2, 64, 4)
    assert "this file has no text; backbone_config is counted" in plan.warnings[0]
    assert "left out" in "".join(plan.warnings)


TOWER = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "image_size": 32,
    "patch_size": 8,
}


def test_sizes_that_a_tower_omits_are_its_class_s_and_named() -> None:
    config = {**GLM_4V, "vision_config": {"model_type": "glm4v_vision", "depth": 2}}
    plan = layers_of(config, part="vision")
    assert sizes(plan)[:3] == (2, 1536, 12)
    assert "hidden_size 1536, num_heads 12, image_size 336" in "".join(plan.warnings)


def test_a_key_that_may_change_a_tower_is_refused_by_name() -> None:
    changed = {**GLM_4V["vision_config"], "qk_norm": True}  # type: ignore[dict-item]
    with pytest.raises(UsageError, match=r"vision_config\.qk_norm: true may change"):
        layers_of({**GLM_4V, "vision_config": changed}, part="vision")


def test_windows_of_a_tower_are_counted_as_all_tokens_and_named() -> None:
    config = {
        "model_type": "qwen2_5_vl",
        "text_config": {"model_type": "qwen2_5_vl_text", **TEXT},
        "vision_config": {
            "model_type": "qwen2_5_vl",
            "hidden_size": 1280,
            "num_heads": 16,
            "depth": 32,
            "window_size": 112,
            "fullatt_block_indexes": [7, 15, 23, 31],
        },
    }
    plan = layers_of(config, part="vision")
    assert sizes(plan)[:3] == (32, 1280, 16)
    assert any("window_size" in warning for warning in plan.warnings)


def test_a_family_that_no_row_says_right_is_refused_by_its_name() -> None:
    with pytest.raises(UsageError, match="model_type: diffllama is not counted: its attention"):
        layers_of({"model_type": "diffllama", **TEXT})
