"""Canonical weights and inputs: seeded, well scaled, and left alone by a call."""

from __future__ import annotations

import pytest
import torch

from mhaprof import attention
from mhaprof.attention.base import canonical_weights, make_inputs, output_shape
from mhaprof.spec import AttentionSpec

SPEC = AttentionSpec(batch=2, tokens=16, dim=256, heads=4, qkv_bias=True, sinks=True)
DECODE = AttentionSpec(batch=2, phase="decode", kv_tokens=5, dim=24, heads=4, kv_heads=2)
LATENT = DECODE.replace(
    kv_heads=4,
    kv_lora_rank=7,
    qk_nope_head_dim=6,
    qk_rope_head_dim=2,
    head_dim=8,
    v_head_dim=5,
    latent_form="absorbed",
)


def test_the_same_seed_gives_the_same_weights_and_another_seed_does_not() -> None:
    first = canonical_weights(SPEC, seed=1, dtype=torch.float64, device="cpu")
    again = canonical_weights(SPEC, seed=1, dtype=torch.float64, device="cpu")
    other = canonical_weights(SPEC, seed=2, dtype=torch.float64, device="cpu")
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_weights_of_a_narrow_dtype_are_the_rounded_wide_ones() -> None:
    exact = canonical_weights(SPEC, dtype=torch.float64, device="cpu")
    half = canonical_weights(SPEC, dtype=torch.bfloat16, device="cpu")
    assert all(torch.equal(half[name], exact[name].bfloat16()) for name in exact)


def test_adding_a_bias_leaves_the_other_weights_alone() -> None:
    plain = canonical_weights(SPEC.replace(qkv_bias=False), dtype=torch.float64, device="cpu")
    biased = canonical_weights(SPEC, dtype=torch.float64, device="cpu")
    assert set(biased) - set(plain) == {"b_q", "b_k", "b_v"} - set(plain)
    assert all(torch.equal(plain[name], biased[name]) for name in plain)


def test_no_two_weights_are_alike() -> None:
    weights = canonical_weights(SPEC, dtype=torch.float64, device="cpu")
    assert not torch.equal(weights["w_q"], weights["w_k"])
    assert not torch.equal(weights["w_k"], weights["w_v"])


def test_weights_have_the_spread_of_one_over_the_root_of_their_inputs() -> None:
    weights = canonical_weights(SPEC, dtype=torch.float64, device="cpu")
    assert float(weights["w_q"].std()) == pytest.approx(256**-0.5, rel=0.02)


def test_inputs_are_standard_normal_and_seeded() -> None:
    (x,) = make_inputs(SPEC, seed=5, dtype=torch.float32, device="cpu")
    (again,) = make_inputs(SPEC, seed=5, dtype=torch.float32, device="cpu")
    assert torch.equal(x, again)
    assert float(x.mean()) == pytest.approx(0, abs=0.05)
    assert float(x.std()) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("spec", [SPEC, DECODE, LATENT, SPEC.replace(kv_tokens=3)])
def test_meta_tensors_have_the_shapes_of_real_ones(spec: AttentionSpec) -> None:
    for make in (make_inputs, lambda *a, **k: canonical_weights(*a, **k).values()):
        real = [t.shape for t in make(spec, dtype=torch.float32, device="cpu")]  # type: ignore[operator]
        meta = list(make(spec, dtype=torch.float32, device="meta"))  # type: ignore[operator]
        assert [tensor.shape for tensor in meta] == real
        assert all(tensor.is_meta for tensor in meta)


@pytest.mark.parametrize("name", ["eager", "eager-separate", "per-head", "sdpa"])
def test_decoding_overwrites_the_last_slot_of_the_callers_cache_alone(name: str) -> None:
    implementation = attention.get(name)
    weights = canonical_weights(DECODE, dtype=torch.float64, device="cpu")
    module = implementation.build(DECODE).double()
    implementation.load(module, DECODE, weights)
    x, k_cache, v_cache = make_inputs(DECODE, dtype=torch.float64, device="cpu")
    before = [x.clone(), k_cache.clone(), v_cache.clone()]
    with torch.no_grad():
        module(x, k_cache, v_cache)
    assert torch.equal(x, before[0])
    for cache, old, weight in ((k_cache, before[1], "w_k"), (v_cache, before[2], "w_v")):
        new = (x[:, 0] @ weights[weight].T).view(2, 2, 6)
        assert torch.equal(cache[:, :, :-1], old[:, :, :-1])
        torch.testing.assert_close(cache[:, :, -1], new)


def test_latent_decoding_overwrites_the_last_latent() -> None:
    eager = attention.get("eager")
    weights = canonical_weights(LATENT, dtype=torch.float64, device="cpu")
    module = eager.build(LATENT).double()
    eager.load(module, LATENT, weights)
    x, cache = make_inputs(LATENT, dtype=torch.float64, device="cpu")
    old = cache.clone()
    with torch.no_grad():
        module(x, cache)
    assert torch.equal(cache[:, :-1], old[:, :-1])
    torch.testing.assert_close(cache[:, -1], x[:, 0] @ weights["w_kv_down"].T)


def test_decoding_can_be_repeated_with_gradients() -> None:
    eager = attention.get("eager")
    module = eager.build(DECODE).double()
    eager.load(module, DECODE, canonical_weights(DECODE, dtype=torch.float64, device="cpu"))
    inputs = make_inputs(DECODE, dtype=torch.float64, device="cpu")
    for _ in range(2):
        result = module(*inputs)
        assert tuple(result.shape) == output_shape(DECODE)
        result.sum().backward()
