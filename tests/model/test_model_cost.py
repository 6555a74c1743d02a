"""What the layers of a model cost together, where the core overtakes, and what-ifs."""

from __future__ import annotations

from typing import Any

import pytest

from mhaprof import formulas
from mhaprof.errors import UsageError
from mhaprof.huggingface import ModelPlan, layers_of
from mhaprof.huggingface.cost import cost_of
from mhaprof.huggingface.facts import read_facts
from mhaprof.huggingface.sources import read_preset
from mhaprof.huggingface.what_if import changed, parse_changes

SMALL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "num_hidden_layers": 4,
}
SLIDING = SMALL | {"model_type": "gemma2", "sliding_window": 18}
NARROW = SLIDING | {"sliding_window": 5}
CHUNKED = SMALL | {"model_type": "llama4_text", "attention_chunk_size": 20}
WIDE_CHUNKS = CHUNKED | {"attention_chunk_size": 90}
LATENT = {
    "model_type": "deepseek_v3",
    "hidden_size": 12,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "q_lora_rank": 5,
    "kv_lora_rank": 4,
    "qk_nope_head_dim": 3,
    "qk_rope_head_dim": 2,
    "v_head_dim": 4,
}


def preset_plan(name: str, **options: Any) -> ModelPlan:
    return layers_of(read_preset(name).values, source=name, **options)


def what_if(plan: ModelPlan, text: str) -> ModelPlan:
    return changed(plan, parse_changes(text)[0])


def test_the_model_is_the_sum_of_its_layers() -> None:
    cost = cost_of(preset_plan("gemma-3n-e4b", tokens=4096))
    for field in ("macs", "macs_exact", "params", "norm_params", "kv_cache_bytes", "moved_bytes"):
        total = sum(each.layers * getattr(each, field) for each in cost.kinds)
        assert getattr(cost.total, field) == total, field
    assert cost.total.layers == 35
    assert cost.total.share_core + cost.total.share_projections == pytest.approx(1)


def test_a_window_caps_the_cache_and_not_what_one_token_adds() -> None:
    total = cost_of(preset_plan("gpt-oss-120b", tokens=4096, batch=2)).total
    assert total.kv_bytes_per_token == 73728
    assert total.kv_cache_bytes_full == 2 * 4096 * 73728
    assert total.kv_cache_bytes == 2 * (4096 + 128) * 73728 // 2


def test_tokens_of_another_sequence_are_cached_and_not_added_by_each_token() -> None:
    cost = cost_of(preset_plan("t5-11b", tokens=64, kv_tokens=10))
    each = 2 * 128 * 128 * 2
    assert [kind.kv_bytes_per_token for kind in cost.kinds] == [0, each, each]
    assert cost.total.kv_bytes_per_token == 24 * each
    assert cost.total.kv_cache_bytes == 24 * each * (64 + 10)


def test_a_chunk_caps_the_cache() -> None:
    chunked = cost_of(layers_of(CHUNKED, tokens=64)).kinds[0]
    assert chunked.kv_cache_bytes_full == 64 * chunked.kv_bytes_per_token
    assert chunked.kv_cache_bytes == 20 * chunked.kv_bytes_per_token


def test_the_dtype_of_the_cache_scales_the_cache_alone() -> None:
    plan = preset_plan("llama-3-8b", tokens=4096, phase="decode")
    wide, narrow = cost_of(plan), cost_of(plan, cache_dtype="int8")
    assert narrow.total.kv_cache_bytes * 2 == wide.total.kv_cache_bytes
    assert narrow.total.params == wide.total.params
    saved = wide.total.moved_bytes - narrow.total.moved_bytes
    assert saved == (4096 + 1) * 131072 // 2


@pytest.mark.parametrize("name", ["llama-2-7b", "gpt2"])
def test_the_core_overtakes_at_twice_the_width_for_equal_heads(name: str) -> None:
    plan = preset_plan(name, tokens=16)
    assert cost_of(plan).total.tokens_core_overtakes == 2 * plan.kinds[0].spec.dim


def first_tokens(plan: ModelPlan, position: int | None, *, exact: bool) -> int | None:
    """Find by trying each number of tokens what ``cost_of`` finds by halving."""
    for tokens in range(1, 300):
        kinds = plan.at(tokens).kinds
        chosen = kinds if position is None else [kinds[position]]
        core = sum(kind.count * formulas.core_macs(kind.spec, exact=exact) for kind in chosen)
        whole = sum(kind.count * formulas.total_macs(kind.spec, exact=exact) for kind in chosen)
        if 2 * core >= whole:
            return tokens
    return None


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize(
    "config",
    [SMALL, SLIDING, NARROW, CHUNKED, WIDE_CHUNKS, LATENT],
    ids=["full", "sliding", "narrow", "chunked", "wide chunks", "latent"],
)
def test_the_core_overtakes_where_a_search_of_every_count_says(
    config: dict[str, Any], phase: Any
) -> None:
    plan = layers_of(config, tokens=8, phase=phase)
    cost = cost_of(plan)
    for position, each in enumerate(cost.kinds):
        assert each.tokens_core_overtakes == first_tokens(plan, position, exact=False)
        assert each.tokens_core_overtakes_exact == first_tokens(plan, position, exact=True)
    assert cost.total.tokens_core_overtakes == first_tokens(plan, None, exact=False)
    assert cost.total.tokens_core_overtakes_exact == first_tokens(plan, None, exact=True)


def test_a_narrow_window_never_overtakes_by_exact_pairs() -> None:
    kinds = cost_of(layers_of(NARROW, tokens=8)).kinds
    assert kinds[0].tokens_core_overtakes_exact is None
    assert kinds[1].tokens_core_overtakes_exact is not None


def test_an_encoder_of_fixed_length_has_no_tokens_to_overtake_at() -> None:
    encoder, *_ = cost_of(preset_plan("whisper-large-v3", tokens=64)).kinds
    assert encoder.tokens_core_overtakes is None


def test_fewer_kv_heads_shrink_cache_and_projections_and_leave_the_core() -> None:
    plan = preset_plan("llama-3-8b", tokens=512)
    before, after = cost_of(plan), cost_of(what_if(plan, "kv_heads=4"))
    assert after.total.kv_bytes_per_token * 2 == before.total.kv_bytes_per_token
    assert before.total.params - after.total.params == 32 * 2 * 4096 * 4 * 128
    assert after.total.core_macs == before.total.core_macs
    assert after.total.tokens_core_overtakes == (41943040 - 2 * 4096 * 512) // 8192


def test_a_what_if_of_the_window_reaches_every_causal_layer() -> None:
    plan = what_if(preset_plan("gemma-2-27b", tokens=8192), "window=1024")
    assert {kind.spec.window for kind in plan.kinds} == {1024}
    off = what_if(preset_plan("gemma-2-27b", tokens=8192), "window=none")
    assert cost_of(off).total.kv_cache_bytes == cost_of(off).total.kv_cache_bytes_full
    chunks = what_if(preset_plan("llama-4-scout", tokens=8192), "window=1024")
    assert {(kind.spec.window, kind.spec.chunk) for kind in chunks.kinds} == {(1024, None)}


def test_heads_that_were_equal_stay_equal() -> None:
    spec = what_if(preset_plan("gpt2"), "heads=6,head_dim=128").kinds[0].spec
    assert (spec.heads, spec.kv_heads, spec.head_dim, spec.v_head_dim) == (6, 6, 128, 128)


def test_a_what_if_of_tokens_keeps_the_phase() -> None:
    spec = what_if(preset_plan("llama-3-8b", phase="decode"), "tokens=99").kinds[0].spec
    assert (spec.tokens, spec.kv_tokens, spec.phase) == (1, 99, "decode")


def test_a_what_if_changes_latent_ranks() -> None:
    plan = what_if(preset_plan("deepseek-v3"), "kv_lora_rank=256,qk_rope_head_dim=32")
    assert plan.kinds[0].spec.head_dim == 160
    assert cost_of(plan).total.kv_bytes_per_token == 61 * (256 + 32) * 2


@pytest.mark.parametrize(
    ("preset", "text", "said"),
    [
        ("llama-3-8b", "kv_heads", "not of the form name=value"),
        ("llama-3-8b", "wheels=4", "--what-if wheels: not one of"),
        ("llama-3-8b", "kv_heads=many", "kv_heads takes a whole number"),
        ("llama-3-8b", "kv_heads=0", "kv_heads takes a whole number"),
        ("llama-3-8b", "kv_heads=none", "kv_heads takes a whole number"),
        ("llama-3-8b", "cache_dtype=int3", "not one of"),
        ("llama-3-8b", "kv_heads=5", "heads 32 is not a multiple of kv_heads 5"),
        ("llama-3-8b", "kv_lora_rank=64", "no layer of llama-3-8b has that"),
        ("deepseek-v3", "kv_heads=4", "no layer of deepseek-v3 has that"),
        ("bert-base", "window=64", "no layer of bert-base has that"),
    ],
)
def test_a_what_if_that_cannot_be_meant_is_refused(preset: str, text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        what_if(preset_plan(preset), text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_layers_that_share_keys_and_values_read_what_their_window_keeps_of_them() -> None:
    cost = cost_of(preset_plan("gemma-3n-e4b", phase="decode", tokens=32768))
    intensity = {
        kind.name: round(each.arithmetic_intensity, 3)
        for kind, each in zip(cost.plan.kinds, cost.kinds, strict=True)
    }
    assert intensity["sliding_attention, shared kv"] == 1.176
    assert intensity["full_attention, shared kv"] == 3.4
    assert round(cost.total.arithmetic_intensity, 2) == 2.28


def test_the_one_token_of_decode_sees_the_whole_cache() -> None:
    (kind,) = cost_of(preset_plan("llama-3-8b", phase="decode", tokens=8192)).kinds
    projections, core = 4096 * 128 * (2 * 32 + 2 * 8), 2 * 32 * 128 * 8192
    assert kind.macs_exact == kind.macs == projections + core == 109051904


def test_keys_that_are_the_values_too_are_projected_once() -> None:
    config = SMALL | {"model_type": "gemma4_text", "sliding_window": 5, "num_kv_shared_layers": 0}
    config |= {"layer_types": ["sliding_attention", "full_attention"] * 2, "global_head_dim": 8}
    apart = layers_of(config | {"attention_k_eq_v": False}, tokens=10)
    same = layers_of(config | {"attention_k_eq_v": True}, tokens=10)
    assert [kind.spec for kind in same.kinds] == [kind.spec for kind in apart.kinds]
    sliding, full = zip(cost_of(apart).kinds, cost_of(same).kinds, strict=True)
    assert sliding[0] == sliding[1]
    saved = 12 * 2 * 8
    assert full[0].params - full[1].params == saved
    assert full[0].macs - full[1].macs == full[0].macs_exact - full[1].macs_exact == 10 * saved
    assert full[0].moved_bytes - full[1].moved_bytes == 2 * saved
    assert full[0].kv_bytes_per_token == full[1].kv_bytes_per_token
    assert any("keys are the values too" in warning for warning in same.warnings)


def test_equal_layers_are_read_once_however_many_there_are(monkeypatch: Any) -> None:
    read: list[str] = []

    def counting(*arguments: Any) -> Any:
        read.append(arguments[2])
        return read_facts(*arguments)

    monkeypatch.setattr("mhaprof.huggingface.stack.read_facts", counting)
    plan = layers_of(NARROW | {"num_hidden_layers": 2000}, tokens=64)
    assert read == ["sliding_attention", "full_attention"]
    assert [kind.count for kind in plan.kinds] == [1000, 1000]
