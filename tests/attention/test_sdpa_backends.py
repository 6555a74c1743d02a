"""A pinned backend is the one that runs, or the reason why not is told."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import CausalBias
from torch.profiler import ProfilerActivity, profile

from mhaprof import attention
from mhaprof.attention import sdpa
from mhaprof.attention.base import canonical_weights, make_inputs, visible_mask
from mhaprof.spec import AttentionSpec

SPEC = AttentionSpec(batch=1, tokens=8, dim=32, heads=4)


def operators(name: str, spec: AttentionSpec) -> set[str]:
    """Return the names of the operators that the implementation ran."""
    implementation = attention.get(name)
    module = implementation.build(spec)
    implementation.load(module, spec, canonical_weights(spec, dtype=torch.float32, device="cpu"))
    inputs = make_inputs(spec, dtype=torch.float32, device="cpu")
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU]) as recorded:
        module(*inputs)
    return {event.key for event in recorded.key_averages()}


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("sdpa-math", "aten::_scaled_dot_product_attention_math"),
        ("sdpa-flash", "aten::_scaled_dot_product_flash_attention_for_cpu"),
    ],
)
@pytest.mark.parametrize("fields", [{}, {"kv_heads": 2}, {"causal": "top-left"}, {"window": 3}])
def test_the_pinned_backend_runs(name: str, operator: str, fields: dict[str, object]) -> None:
    spec = SPEC.replace(**fields)
    ran = {key for key in operators(name, spec) if key.startswith("aten::_scaled_dot_product")}
    assert operator in ran
    assert all("math" in key for key in ran) == (name == "sdpa-math")


@pytest.mark.parametrize("name", ["sdpa-efficient", "sdpa-cudnn"])
def test_a_backend_that_a_cpu_lacks_is_refused_in_torchs_words(name: str) -> None:
    rejection = attention.get(name).rejects(SPEC, device="cpu", dtype="float32")
    assert rejection is not None
    assert rejection.code == "backend_unavailable"
    assert "cpu in float32: No viable backend" in rejection.message
    assert attention.get(name).rejects(SPEC, device="meta", dtype="float32") is None


def test_a_shape_that_a_kernel_refuses_is_refused_with_its_reason() -> None:
    spec = SPEC.replace(v_head_dim=16)
    rejection = attention.get("sdpa-flash").rejects(spec, device="cpu", dtype="float32")
    assert rejection is not None
    assert "same last dimension" in rejection.message
    assert attention.get("sdpa-math").rejects(spec, device="cpu", dtype="float32") is None


def test_backends_are_not_pinned_where_torch_cannot() -> None:
    rejection = attention.get("sdpa-flash").rejects(SPEC, device="mps", dtype="float32")
    assert rejection is not None
    assert rejection.code == "backend_unavailable"


def test_sdpa_attends_natively_to_grouped_heads_and_expand_copies_them() -> None:
    spec = SPEC.replace(kv_heads=2)
    assert "aten::repeat_interleave" not in operators("sdpa", spec)
    assert "aten::repeat_interleave" in operators("sdpa-expand", spec)


def test_the_state_of_torchs_backends_is_left_alone() -> None:
    before = torch.backends.cuda.flash_sdp_enabled(), torch.backends.mha.get_fastpath_enabled()
    for name in ("sdpa-math", "torch-mha", "torch-mha-fastpath"):
        operators(name, SPEC.replace(qkv_bias=True, k_bias=True, out_bias=True))
    after = torch.backends.cuda.flash_sdp_enabled(), torch.backends.mha.get_fastpath_enabled()
    assert after == before


def test_the_tiny_call_asks_for_the_mask_of_the_real_one() -> None:
    from mhaprof.attention.base import hides_nothing, is_plain_causal
    from mhaprof.attention.sdpa import _probe_spec

    for fields in (
        {"causal": "top-left", "window": 2000},
        {"causal": "top-left", "window": 100},
        {"causal": "bottom-right", "kv_tokens": 2000},
        {"causal": "bottom-right", "tokens": 2000},
        {"window": 1000},
        {"phase": "decode", "kv_tokens": 4096, "causal": "bottom-right"},
    ):
        spec = AttentionSpec(**{"tokens": 1 if "phase" in fields else 1024, **fields})
        probe = _probe_spec(spec)
        assert max(probe.tokens, probe.kv_tokens) <= 64
        assert hides_nothing(probe) == hides_nothing(spec)
        assert is_plain_causal(probe) == is_plain_causal(spec)
        order = (spec.tokens > spec.kv_tokens) - (spec.tokens < spec.kv_tokens)
        assert (probe.tokens > probe.kv_tokens) - (probe.tokens < probe.kv_tokens) == order


def test_a_device_that_torch_was_not_built_for_is_a_reason_too() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    rejection = attention.get("sdpa-flash").rejects(SPEC, device="cuda", dtype="float16")
    assert rejection is not None
    assert rejection.code == "backend_unavailable"


BOTTOM_RIGHT = AttentionSpec(batch=1, tokens=3, kv_tokens=8, dim=16, heads=2, causal="bottom-right")


@pytest.mark.parametrize(
    ("backend", "passed_on"),
    [
        (None, True),
        (SDPBackend.FLASH_ATTENTION, True),
        (SDPBackend.EFFICIENT_ATTENTION, True),
        (SDPBackend.CUDNN_ATTENTION, False),
        (SDPBackend.MATH, False),
    ],
)
def test_a_mask_at_the_bottom_right_is_made_once_where_no_kernel_knows_it(
    backend: SDPBackend | None, passed_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdpa, "_device_type", lambda: "cuda")
    core = sdpa.SdpaCore(BOTTOM_RIGHT, backend=backend, expand=False)
    assert isinstance(core.lower_right, CausalBias) == passed_on
    assert core.lower_right is None or core.lower_right.numel() == 0
    assert (core.mask is None) == passed_on
    if not passed_on:
        assert core.mask is not None
        assert torch.equal(core.mask, visible_mask(BOTTOM_RIGHT))  # type: ignore[arg-type]


def test_the_causal_bias_is_right_and_made_before_the_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = sdpa.SdpaCore(BOTTOM_RIGHT, backend=None, expand=False)
    monkeypatch.setattr(sdpa, "_device_type", lambda: "cuda")
    core = sdpa.SdpaCore(BOTTOM_RIGHT, backend=None, expand=False)
    monkeypatch.setattr(CausalBias, "__init__", lambda *_: pytest.fail("made in a call"))
    queries, keys = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 8, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.allclose(core(queries, keys, keys), plain(queries, keys, keys), atol=1e-6)


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_a_backend_that_is_pinned_already_is_not_pinned_again(
    backend: SDPBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins: list[SDPBackend] = []

    def pin(backend: SDPBackend) -> AbstractContextManager[object]:
        pins.append(backend)
        return sdpa_kernel(backend)

    monkeypatch.setattr(sdpa, "sdpa_kernel", pin)
    core = sdpa.SdpaCore(SPEC, backend=backend, expand=False)
    q = torch.randn(1, 4, 8, 8)
    with sdpa_kernel(backend):
        core(q, q, q)
        assert pins == []
    for others in (SDPBackend.EFFICIENT_ATTENTION, [backend, SDPBackend.CUDNN_ATTENTION]):
        with sdpa_kernel(others):  # type: ignore[arg-type]
            core(q, q, q)
    core(q, q, q)
    assert pins == [backend] * 3
