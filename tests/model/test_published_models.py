"""Public models' attention: each case stands for a trap that tools have fallen into."""

from __future__ import annotations

from typing import Any

import pytest

from mhaprof import formulas
from mhaprof.errors import UsageError
from mhaprof.huggingface import layers_of
from mhaprof.huggingface.cost import cost_of
from mhaprof.huggingface.plan import ModelPlan
from mhaprof.huggingface.sources import preset_names, preset_note, read_preset
from mhaprof.spec import AttentionSpec

CASES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "Llama-3-8B": (
        {
            "model_type": "llama",
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_hidden_layers": 32,
        },
        {"head_dim": 128, "params": 41943040, "kv_bytes_per_token": 131072},
    ),
    "Llama-3.1-405B": (
        {
            "model_type": "llama",
            "hidden_size": 16384,
            "num_attention_heads": 128,
            "num_key_value_heads": 8,
            "num_hidden_layers": 126,
        },
        {"params": 570425344, "kv_bytes_per_token": 516096},
    ),
    "Qwen2.5-7B: biases are fixed in the code, the window is off": (
        {
            "model_type": "qwen2",
            "hidden_size": 3584,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "num_hidden_layers": 28,
            "use_sliding_window": False,
            "sliding_window": 131072,
        },
        {"params": 29364736, "kv_bytes_per_token": 57344},
    ),
    "Qwen3-4B: heads x head_dim is not hidden_size": (
        {
            "model_type": "qwen3",
            "hidden_size": 2560,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "num_hidden_layers": 36,
        },
        {"params": 26214400, "kv_bytes_per_token": 147456},
    ),
    "Mixtral: head_dim is null": (
        {
            "model_type": "mixtral",
            "hidden_size": 6144,
            "num_attention_heads": 48,
            "num_key_value_heads": 8,
            "head_dim": None,
            "num_hidden_layers": 56,
        },
        {"head_dim": 128},
    ),
    "Gemma-2-27B: every second layer slides, 144 is the scale": (
        {
            "model_type": "gemma2",
            "hidden_size": 4608,
            "num_attention_heads": 32,
            "num_key_value_heads": 16,
            "head_dim": 128,
            "query_pre_attn_scalar": 144,
            "sliding_window": 4096,
            "num_hidden_layers": 46,
        },
        {"head_dim": 128, "params": 56623104, "kv_bytes_per_token": 376832},
    ),
    "Falcon-7B: num_kv_heads is ignored by the model": (
        {
            "model_type": "falcon",
            "hidden_size": 4544,
            "num_attention_heads": 71,
            "num_kv_heads": 71,
            "multi_query": True,
            "new_decoder_architecture": False,
            "num_hidden_layers": 32,
        },
        {"kv_heads": 1, "params": 41877504, "kv_bytes_per_token": 8192},
    ),
    "DeepSeek-V3: the cache is rank + rope": (
        {
            "model_type": "deepseek_v3",
            "hidden_size": 7168,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "num_hidden_layers": 61,
        },
        {"head_dim": 192, "v_head_dim": 128, "params": 187105280, "kv_bytes_per_token": 70272},
    ),
    "gpt-oss-120b: biases on all four, sinks beside": (
        {
            "model_type": "gpt_oss",
            "hidden_size": 2880,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "attention_bias": True,
            "sliding_window": 128,
            "num_hidden_layers": 36,
        },
        {"params": 26550080, "kv_bytes_per_token": 73728, "sink_params": 64},
    ),
    "T5-11B: d_kv x heads is not d_model": (
        {
            "model_type": "t5",
            "d_model": 1024,
            "num_heads": 128,
            "d_kv": 128,
            "num_layers": 24,
        },
        {"head_dim": 128, "params": 67108864},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_published_model_has_its_published_numbers(name: str) -> None:
    config, facts = CASES[name]
    cost = cost_of(layers_of(config, tokens=64))
    for kind, each in zip(cost.plan.kinds, cost.kinds, strict=True):
        for field in AttentionSpec.model_fields.keys() & facts.keys():
            assert getattr(kind.spec, field) == facts[field], field
        assert each.params == facts.get("params", each.params)
        assert each.sink_params == facts.get("sink_params", 0)
    expected = facts.get("kv_bytes_per_token", cost.total.kv_bytes_per_token)
    assert cost.total.kv_bytes_per_token == expected


SMALL_QWEN = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 4,
}


def test_unknown_layers_are_refused_naming_the_key_and_the_type() -> None:
    types = ["retention"] * 3 + ["full_attention"]
    with pytest.raises(UsageError, match=r"layer_types: retention") as caught:
        layers_of({"model_type": "qwen3_next", "layer_types": types} | SMALL_QWEN)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("model_type", ["gemma2", "gpt_oss"])
def test_every_second_layer_slides_from_the_first(model_type: str) -> None:
    config = {
        "model_type": model_type,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "sliding_window": 8,
        "num_hidden_layers": 5,
    }
    kinds = {kind.name: kind for kind in layers_of(config, tokens=32).kinds}
    assert kinds["sliding_attention"].indices == (0, 2, 4)
    assert kinds["sliding_attention"].spec.window == 8
    assert kinds["full_attention"].indices == (1, 3)
    assert kinds["full_attention"].spec.window is None


def preset_plan(name: str, **options: Any) -> ModelPlan:
    return layers_of(read_preset(name).values, source=name, **options)


def test_the_training_figure_of_maxtext_follows_from_the_preset() -> None:
    plan = preset_plan("llama-2-7b", batch=4, tokens=256)
    core = sum(kind.count * formulas.core_macs(kind.spec) for kind in plan.kinds)
    assert 3 * 2 * core == 412316860416


def test_the_core_in_the_figure_of_calflops_follows_from_the_preset() -> None:
    total = cost_of(preset_plan("llama-2-7b", tokens=128)).total
    assert total.core_macs == 4294967296
    assert total.macs - total.core_macs == 32 * 128 * 67108864


def test_the_figure_for_bert_large_holds_the_core_that_a_counter_left_out() -> None:
    """A documentation publishes 42.97 GMACs: the four projections of one layer alone."""
    cost = cost_of(preset_plan("bert-large", batch=80, tokens=128)).kinds[0]
    assert cost.macs == 45634027520
    assert cost.macs - cost.core_macs == 42949672960


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_every_preset_makes_a_plan_without_assumptions(name: str, phase: Any) -> None:
    encoders = ("bert-base", "bert-large", "vit-base-patch16-224")
    if phase == "decode" and name in encoders:
        with pytest.raises(UsageError, match="no phase decode"):
            preset_plan(name, phase=phase)
        return
    plan = preset_plan(name, phase=phase)
    assert plan.layers > 0
    assert not [note for note in plan.warnings if "assumed" in note]
    assert "Source:" in preset_note(name)


def test_there_are_about_twenty_presets() -> None:
    assert len(preset_names()) >= 20
    assert {"llama-3-8b", "deepseek-v3", "gpt-oss-120b"} <= set(preset_names())


def test_an_unknown_preset_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"llama-3-8b\?"):
        read_preset("lama-3-8b")
