"""Closed forms against brute force, published numbers and the laws they have to obey."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhaprof import formulas
from mhaprof.errors import SpecError
from mhaprof.spec import AttentionSpec

DEEPSEEK_V3 = {
    "dim": 7168,
    "heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


def masked_pairs(spec: AttentionSpec) -> int:
    """Build the mask, pair by pair, as its definition in words says."""
    offset = spec.kv_tokens - spec.tokens if spec.causal == "bottom-right" else 0
    seen = 0
    for i in range(spec.tokens):
        position = i + offset
        for j in range(spec.kv_tokens):
            visible = spec.causal == "none" or j <= position
            if spec.window is not None:
                visible = visible and abs(position - j) < spec.window
            if spec.chunk is not None:
                visible = visible and position // spec.chunk == j // spec.chunk
            seen += visible
    return seen


@pytest.mark.parametrize(
    ("fields", "pairs"),
    [
        ({"causal": "top-left"}, 524800),
        ({"causal": "bottom-right", "tokens": 4, "kv_tokens": 10, "dim": 8, "heads": 1}, 34),
        ({"causal": "top-left", "tokens": 2048, "window": 512}, 917760),
        ({"causal": "top-left", "tokens": 32768, "window": 1024}, 33030656),
        ({"causal": "top-left", "tokens": 131072}, 8590000128),
        ({"causal": "top-left", "tokens": 1, "kv_tokens": 1024}, 1),
        ({"causal": "bottom-right", "tokens": 1, "kv_tokens": 1024}, 1024),
        ({"causal": "bottom-right", "tokens": 10, "kv_tokens": 4, "dim": 8, "heads": 1}, 10),
    ],
)
def test_exact_pairs_are_the_published_ones(fields: dict[str, Any], pairs: int) -> None:
    assert formulas.exact_pairs(AttentionSpec(**fields)) == pairs


@given(
    tokens=st.integers(1, 12),
    kv_tokens=st.integers(1, 12),
    causal=st.sampled_from(["none", "top-left", "bottom-right"]),
    limit=st.sampled_from([None, "window", "chunk"]),
    width=st.integers(1, 14),
)
def test_exact_pairs_equal_a_mask_built_pair_by_pair(
    tokens: int, kv_tokens: int, causal: str, limit: str | None, width: int
) -> None:
    fields: dict[str, Any] = {"tokens": tokens, "kv_tokens": kv_tokens, "causal": causal}
    if limit is not None:
        fields[limit] = width
    try:
        spec = AttentionSpec(**fields)
    except SpecError:
        assert causal == "none"
        return
    assert formulas.exact_pairs(spec) == masked_pairs(spec)


@pytest.mark.parametrize(
    ("fields", "macs"),
    [
        ({"heads": 1, "out_proj": False}, 60129542144),
        ({"heads": 8}, 68719476736),
        ({"heads": 8, "out_proj": False}, 60129542144),
        ({"kv_heads": 2, "batch": 1}, 1744830464),
        ({"dim": 16, "heads": 2, "batch": 2, "tokens": 10, "kv_tokens": 20}, 43520),
        ({"dim": 448, "tokens": 300, "batch": 1, "heads": 4}, 321484800),
        ({"dim": 448, "tokens": 300, "batch": 1, "heads": 8}, 321484800),
        ({"dim": 512, "heads": 4, "tokens": 580, "batch": 1}, 952647680),
        (
            {"dim": 2560, "heads": 32, "kv_heads": 8, "head_dim": 128, "batch": 1},
            35433480192,
        ),
        ({"tokens": 1048576}, 36063981391052800),
        # BERT-Large, batch 80, 128 tokens: DeepSpeed's documentation says 42.97 GMACs,
        # which are the four projections alone.
        ({"dim": 1024, "heads": 16, "batch": 80, "tokens": 128}, 45634027520),
    ],
)
def test_dense_macs_are_the_published_ones(fields: dict[str, Any], macs: int) -> None:
    assert formulas.total_macs(AttentionSpec(**fields)) == macs


def test_the_number_of_the_deepspeed_documentation_is_the_projections_alone() -> None:
    spec = AttentionSpec(dim=1024, heads=16, batch=80, tokens=128)
    projections = formulas.total_macs(spec) - formulas.core_macs(spec)
    assert projections == 4 * 80 * 128 * 1024 * 1024 == 42949672960
    assert round(projections / 1e9, 2) == 42.95


def test_gqa_core_counts_query_heads() -> None:
    spec = AttentionSpec(kv_heads=2, batch=1)
    assert formulas.core_macs(spec) == 1073741824


def test_exact_core_flops_with_wider_values() -> None:
    spec = AttentionSpec(
        causal="bottom-right", tokens=4, kv_tokens=10, head_dim=8, v_head_dim=16, heads=1,
        dim=8, batch=1,
    )  # fmt: skip
    assert 2 * formulas.core_macs(spec, exact=True) == 1632


def test_softmax_adds_what_the_paper_neglects() -> None:
    eight, one = AttentionSpec(), AttentionSpec(heads=1)
    assert formulas.softmax_ops(eight) / (2 * formulas.total_macs(eight)) == pytest.approx(
        0.0059, abs=5e-5
    )
    assert formulas.softmax_ops(one) / (2 * formulas.total_macs(one)) == pytest.approx(
        0.0007, abs=5e-5
    )


def test_parameters_of_nn_multihead_attention() -> None:
    spec = AttentionSpec(dim=448, heads=4, qkv_bias=True, out_bias=True)
    assert formulas.params(spec).projections == 804608


def test_parameters_name_norms_and_sinks_apart() -> None:
    spec = AttentionSpec(qk_norm="per-head", sinks=True)
    counted = formulas.params(spec)
    assert (counted.projections, counted.norms, counted.sinks) == (4 * 512 * 512, 2 * 64, 8)


def test_latent_attention_of_deepseek_v3() -> None:
    spec = AttentionSpec(**DEEPSEEK_V3)
    assert formulas.params(spec).projections == 187105280
    assert 61 * formulas.kv_bytes_per_token(spec, dtype_bytes=2) == 70272


def test_absorbed_latent_attention_trades_projections_for_a_wider_core() -> None:
    decode = {**DEEPSEEK_V3, "phase": "decode", "kv_tokens": 4096, "batch": 1}
    expanded = formulas.stage_macs(AttentionSpec(**decode, latent_form="expanded"))
    absorbed = formulas.stage_macs(AttentionSpec(**decode, latent_form="absorbed"))
    assert expanded["scores"] == 128 * 4096 * 192
    assert absorbed["scores"] == 128 * 4096 * (512 + 64)
    assert expanded["k_proj"] == 4096 * 512 * 128 * 128
    assert (absorbed["k_proj"], absorbed["q_absorb"]) == (0, 128 * 128 * 512)
    assert sum(absorbed.values()) < sum(expanded.values())


def test_decode_projects_the_new_token_alone() -> None:
    stages = formulas.stage_macs(AttentionSpec(phase="decode", kv_tokens=1024, batch=1))
    assert stages == {
        "q_proj": 512 * 512,
        "k_proj": 512 * 512,
        "v_proj": 512 * 512,
        "scores": 8 * 1024 * 64,
        "context": 8 * 1024 * 64,
        "out_proj": 512 * 512,
    }


def test_window_saves_cache() -> None:
    spec = AttentionSpec(causal="top-left", window=256, batch=2)
    assert formulas.kv_bytes_per_token(spec, dtype_bytes=2) == 2 * 8 * 64 * 2
    assert formulas.kv_cache_bytes(spec, dtype_bytes=2) == 2 * 256 * 2048
    assert formulas.kv_cache_bytes(spec, dtype_bytes=2, windowed=False) == 2 * 1024 * 2048


def test_a_fused_windowed_decode_reads_the_window_alone() -> None:
    decode = AttentionSpec(
        phase="decode", kv_tokens=32768, causal="bottom-right", window=4096, batch=1
    )
    short = decode.replace(kv_tokens=4096)
    moved = {
        fused: formulas.moved_bytes(decode, dtype_bytes=2, fused=fused) for fused in (True, False)
    }
    assert moved[True] == formulas.moved_bytes(short, dtype_bytes=2, fused=True)
    scores = 4 * 8 * 32768 * 2
    assert moved[False] == moved[True] + (32768 - 4096) * 2048 + scores


specs = st.builds(
    lambda batch, tokens, heads, group, head_dim, v_head_dim, out_proj: AttentionSpec(
        batch=batch,
        tokens=tokens,
        dim=12,
        heads=heads * group,
        kv_heads=heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        out_proj=out_proj,
    ),
    batch=st.integers(1, 3),
    tokens=st.integers(1, 9),
    heads=st.integers(1, 4),
    group=st.integers(1, 3),
    head_dim=st.integers(1, 5),
    v_head_dim=st.integers(1, 5),
    out_proj=st.booleans(),
)


@given(specs)
def test_twice_the_batch_is_twice_everything_but_parameters(spec: AttentionSpec) -> None:
    twice = spec.replace(batch=2 * spec.batch)
    once = formulas.stage_macs(spec)
    assert formulas.stage_macs(twice) == {stage: 2 * macs for stage, macs in once.items()}
    assert formulas.params(twice) == formulas.params(spec)


@given(specs)
def test_twice_the_tokens_is_four_times_the_core_and_twice_the_rest(spec: AttentionSpec) -> None:
    twice = spec.replace(tokens=2 * spec.tokens, kv_tokens=2 * spec.kv_tokens)
    core, total = formulas.core_macs(spec), formulas.total_macs(spec)
    assert formulas.core_macs(twice) == 4 * core
    assert formulas.total_macs(twice) == 4 * core + 2 * (total - core)


@given(specs)
def test_removing_w_o_removes_exactly_that_stage(spec: AttentionSpec) -> None:
    with_it, without = spec.replace(out_proj=True), spec.replace(out_proj=False)
    removed = spec.batch * spec.tokens * spec.heads * spec.v_head_dim * spec.dim
    assert formulas.total_macs(with_it) - formulas.total_macs(without) == removed
    assert formulas.stage_macs(with_it)["out_proj"] == removed


@given(specs, st.integers(0, 5))
def test_a_window_of_all_tokens_is_plain_causal(spec: AttentionSpec, more: int) -> None:
    causal = spec.replace(causal="top-left")
    windowed = causal.replace(window=spec.tokens + more)
    assert formulas.exact_pairs(windowed) == formulas.exact_pairs(causal)


@given(specs)
def test_as_many_kv_heads_as_heads_is_mha(spec: AttentionSpec) -> None:
    fields = spec.model_dump(exclude={"kv_heads"})
    assert AttentionSpec(**fields) == spec.replace(kv_heads=spec.heads)


@given(specs)
def test_backward_is_twice_forward_and_fused_recomputes_the_scores(spec: AttentionSpec) -> None:
    forward = formulas.total_macs(spec)
    assert formulas.backward_macs(spec, fused=False) == 2 * forward
    scores = formulas.stage_macs(spec)["scores"]
    assert formulas.backward_macs(spec, fused=True) == 2 * forward + scores


def test_a_sink_is_one_more_score_for_each_query() -> None:
    spec = AttentionSpec(batch=2, tokens=10, dim=8, heads=4)
    with_sinks = spec.replace(sinks=True)
    assert formulas.softmax_ops(spec) == 3 * 2 * 4 * 10 * 10
    assert formulas.softmax_ops(with_sinks) == 3 * 2 * 4 * 10 * 11


def test_a_symmetric_window_hides_the_keys_on_both_sides() -> None:
    spec = AttentionSpec(tokens=5, dim=8, heads=1, window=2)
    assert formulas.exact_pairs(spec) == masked_pairs(spec) == 13


def test_cross_attention_moves_its_second_input_too() -> None:
    own = AttentionSpec(batch=2, tokens=10, dim=8, heads=2, kv_heads=1)
    cross = own.replace(kv_tokens=20)
    new_entries, second_input = 2 * (20 - 10) * 2 * 4, 2 * 20 * 8
    moved = [formulas.moved_bytes(spec, dtype_bytes=2, fused=True) for spec in (own, cross)]
    assert moved[1] - moved[0] == 2 * (new_entries + second_input)
