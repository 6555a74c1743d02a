"""The reference itself is right: eager against loops over plain Python numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mhaprof import attention
from mhaprof.attention.base import canonical_weights, make_inputs, output_shape
from mhaprof.spec import AttentionSpec
from mhaprof.verification import CASES

Vector = list[float]
EPSILON = 1e-6


def linear(x: Sequence[float], weight: list[Vector], bias: Vector | None) -> Vector:
    rows = [sum(w * value for w, value in zip(row, x, strict=True)) for row in weight]
    return rows if bias is None else [r + b for r, b in zip(rows, bias, strict=True)]


def rms_norm(x: Vector, weight: Vector) -> Vector:
    mean = sum(value * value for value in x) / len(x)
    return [value / math.sqrt(mean + EPSILON) * w for value, w in zip(x, weight, strict=True)]


def sees(spec: AttentionSpec, query: int, key: int) -> bool:
    position = query
    if spec.causal == "bottom-right":
        position += spec.kv_tokens - spec.tokens
    if spec.causal != "none":
        near = spec.window is None or position - key < spec.window
        near = near and (spec.chunk is None or key // spec.chunk == position // spec.chunk)
        return key <= position and near
    return spec.window is None or abs(position - key) < spec.window


def attend(
    spec: AttentionSpec, query: int, head: int, q: Vector, keys: list[Vector], values: list[Vector],
    sink: float | None,
) -> Vector:  # fmt: skip
    scores = {}
    for index, key in enumerate(keys):
        if not sees(spec, query, index):
            continue
        score = sum(a * b for a, b in zip(q, key, strict=True)) / math.sqrt(spec.head_dim)
        if spec.softcap is not None:
            score = spec.softcap * math.tanh(score / spec.softcap)
        scores[index] = math.exp(score)
    total = sum(scores.values()) + (0.0 if sink is None else math.exp(sink))
    width = len(values[0])
    return [
        sum(score / total * values[index][column] for index, score in scores.items())
        if scores
        else 0.0
        for column in range(width)
    ]


def cut(x: Vector, index: int, width: int) -> Vector:
    return x[index * width : (index + 1) * width]


def queries_of(spec: AttentionSpec, w: dict[str, Any], x: Vector) -> list[Vector]:
    if spec.q_lora_rank is not None:
        low = linear(x, w["w_q_down"], w.get("b_q_down"))
        if spec.qk_norm == "latent":
            low = rms_norm(low, w["q_norm"])
        flat = linear(low, w["w_q_up"], None)
    else:
        flat = linear(x, w["w_q"], w.get("b_q"))
    if spec.qk_norm == "full":
        flat = rms_norm(flat, w["q_norm"])
    heads = [cut(flat, head, spec.head_dim) for head in range(spec.heads)]
    return [rms_norm(head, w["q_norm"]) for head in heads] if spec.qk_norm == "per-head" else heads


def keys_values_of(
    spec: AttentionSpec, w: dict[str, Any], x: Vector
) -> tuple[list[Vector], list[Vector]]:
    """Return the keys and values of one token, one for each key/value head."""
    flat = linear(x, w["w_k"], w.get("b_k"))
    if spec.qk_norm == "full":
        flat = rms_norm(flat, w["k_norm"])
    keys = [cut(flat, head, spec.head_dim) for head in range(spec.kv_heads)]
    if spec.qk_norm == "per-head":
        keys = [rms_norm(key, w["k_norm"]) for key in keys]
    flat = linear(x, w["w_v"], w.get("b_v"))
    return keys, [cut(flat, head, spec.v_head_dim) for head in range(spec.kv_heads)]


def latent_of(spec: AttentionSpec, w: dict[str, Any], x: Vector) -> Vector:
    rank = spec.kv_lora_rank or 0
    latent = linear(x, w["w_kv_down"], w.get("b_kv_down"))
    if spec.qk_norm == "latent":
        latent = rms_norm(latent[:rank], w["kv_norm"]) + latent[rank:]
    return latent


def raised(
    spec: AttentionSpec, w: dict[str, Any], latent: Vector
) -> tuple[list[Vector], list[Vector]]:
    """Return the keys and values that a latent stands for, one for each head."""
    rank, nope = spec.kv_lora_rank or 0, spec.qk_nope_head_dim or 0
    flat = linear(latent[:rank], w["w_k_up"], None)
    keys = [cut(flat, head, nope) + latent[rank:] for head in range(spec.heads)]
    flat = linear(latent[:rank], w["w_v_up"], None)
    return keys, [cut(flat, head, spec.v_head_dim) for head in range(spec.heads)]


def memory_of(
    spec: AttentionSpec, w: dict[str, Any], inputs: list[Any], batch: int
) -> list[tuple[list[Vector], list[Vector]]]:
    """Return, for each key/value token, its keys and its values by head."""
    x, *rest = (tensor[batch] for tensor in inputs)
    if spec.is_latent:
        if spec.phase == "decode":
            latents = [*rest[0][:-1], latent_of(spec, w, x[0])]
        else:
            latents = [latent_of(spec, w, token) for token in (rest[0] if rest else x)]
        return [raised(spec, w, latent) for latent in latents]
    if spec.kv_proj and spec.phase == "prefill":
        return [keys_values_of(spec, w, token) for token in (rest[0] if rest else x)]
    stored = [
        ([head[token] for head in rest[0]], [head[token] for head in rest[1]])
        for token in range(spec.kv_tokens)
    ]
    if spec.phase == "decode" and spec.kv_proj:
        stored[-1] = keys_values_of(spec, w, x[0])
    return stored


def looped(spec: AttentionSpec, w: dict[str, Any], inputs: list[Any]) -> list[list[Vector]]:
    """Compute attention for one token, one head and one key at a time."""
    group = spec.heads // spec.kv_heads
    result = []
    for batch in range(spec.batch):
        memory = memory_of(spec, w, inputs, batch)
        rows = []
        for index, token in enumerate(inputs[0][batch]):
            joined: Vector = []
            gate = None
            if spec.output_gate != "none":
                gate = [
                    1 / (1 + math.exp(-value))
                    for value in linear(token, w["w_gate"], w.get("b_gate"))
                ]
            for head, q in enumerate(queries_of(spec, w, token)):
                keys = [entry[0][head // group] for entry in memory]
                values = [entry[1][head // group] for entry in memory]
                sink = w["sinks"][head] if spec.sinks else None
                out = attend(spec, index, head, q, keys, values, sink)
                if gate is not None:
                    per_head = spec.output_gate == "per-head"
                    factors = [gate[head]] * len(out) if per_head else cut(gate, head, len(out))
                    out = [value * factor for value, factor in zip(out, factors, strict=True)]
                joined += out
            rows.append(linear(joined, w["w_o"], w.get("b_o")) if spec.out_proj else joined)
        result.append(rows)
    return result


def assert_eager_equals_loops(spec: AttentionSpec) -> None:
    eager = attention.get("eager")
    weights = canonical_weights(spec, seed=3, dtype=torch.float64, device="cpu")
    inputs = make_inputs(spec, seed=4, dtype=torch.float64, device="cpu")
    plain = {name: value.tolist() for name, value in weights.items()}
    expected = torch.tensor(
        looped(spec, plain, [tensor.tolist() for tensor in inputs]), dtype=torch.float64
    )
    module = eager.build(spec).double()
    eager.load(module, spec, weights)
    with torch.no_grad():
        result = module(*inputs)
    assert tuple(result.shape) == output_shape(spec)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)


SMALL = {name: spec for name, spec in CASES.items() if name != "longer-than-a-block"}


@pytest.mark.parametrize("case", SMALL)
def test_eager_equals_a_loop_over_tokens_heads_and_keys(case: str) -> None:
    assert_eager_equals_loops(SMALL[case])


@st.composite
def specs(draw: st.DrawFn) -> AttentionSpec:
    kv_heads = draw(st.integers(1, 3))
    decode = draw(st.booleans())
    tokens = 1 if decode else draw(st.integers(1, 5))
    kv_tokens = draw(st.integers(1, 6))
    causal = draw(st.sampled_from(["none", "top-left", "bottom-right"]))
    window = draw(st.none() | st.integers(1, 6))
    if causal == "none" and tokens != kv_tokens:
        window = None
    chunk = draw(st.none() | st.integers(1, 6)) if window is None and causal != "none" else None
    return AttentionSpec(
        batch=draw(st.integers(1, 2)),
        tokens=tokens,
        kv_tokens=kv_tokens,
        dim=draw(st.integers(1, 5)),
        heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        head_dim=draw(st.integers(1, 4)),
        v_head_dim=draw(st.integers(1, 4)),
        out_proj=draw(st.booleans()),
        kv_proj=draw(st.booleans()),
        qkv_bias=draw(st.booleans()),
        k_bias=draw(st.booleans()),
        causal=causal,
        window=window,
        chunk=chunk,
        phase="decode" if decode else "prefill",
        qk_norm=draw(st.sampled_from(["none", "per-head", "full"])),
        output_gate=draw(st.sampled_from(["none", "per-head", "elementwise"])),
        sinks=draw(st.booleans()),
        softcap=draw(st.none() | st.floats(0.5, 4)),
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spec=specs())
def test_eager_equals_loops_on_any_small_spec(spec: AttentionSpec) -> None:
    assert_eager_equals_loops(spec)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spec=specs())
def test_every_plain_implementation_equals_eager_on_any_small_spec(spec: AttentionSpec) -> None:
    weights = canonical_weights(spec, dtype=torch.float64, device="cpu")

    def result_of(name: str) -> torch.Tensor | None:
        implementation = attention.get(name)
        if implementation.rejects(spec, device="cpu", dtype="float64") is not None:
            return None
        module = implementation.build(spec).double()
        implementation.load(module, spec, weights)
        with torch.no_grad():
            result: torch.Tensor = module(*make_inputs(spec, dtype=torch.float64, device="cpu"))
        return result

    expected = result_of("eager")
    assert expected is not None
    for name in attention.names():
        if name in ("eager", "flex"):
            continue
        result = result_of(name)
        if result is not None:
            torch.testing.assert_close(result, expected, rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("extras", [{}, {"sinks": True}, {"softcap": 2.0}, {"causal": "top-left"}])
def test_absorbed_latent_attention_equals_expanded(phase: str, extras: dict[str, Any]) -> None:
    fields: dict[str, Any] = {
        "batch": 2,
        "tokens": 1 if phase == "decode" else 4,
        "kv_tokens": 6,
        "dim": 8,
        "heads": 3,
        "phase": phase,
        "kv_lora_rank": 5,
        "q_lora_rank": 4,
        "qk_nope_head_dim": 3,
        "qk_rope_head_dim": 2,
        "v_head_dim": 7,
        "qk_norm": "latent",
        **extras,
    }
    results = []
    for form in ("expanded", "absorbed"):
        spec = AttentionSpec(**fields, latent_form=form)
        eager = attention.get("eager")
        module = eager.build(spec).double()
        eager.load(module, spec, canonical_weights(spec, dtype=torch.float64, device="cpu"))
        with torch.no_grad():
            results.append(module(*make_inputs(spec, dtype=torch.float64, device="cpu")))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-13)
