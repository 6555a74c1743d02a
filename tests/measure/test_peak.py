"""Measured peak on a CPU, and predictions that it confirms."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from mhaprof.measure import devices, peak
from mhaprof.measure.memory import predict
from mhaprof.measure.peak import ResidentSampler, measured_peak
from mhaprof.measure.timers import Call
from mhaprof.spec import AttentionSpec

MIB = 2**20


def doubling() -> Call:
    x = torch.ones(8 * MIB)

    def call() -> object:
        return (x * 2).sum()

    return call


def test_the_peak_holds_inputs_and_temporaries() -> None:
    found = measured_peak(doubling, device="cpu")
    assert found is not None
    assert 0.95 * 64 * MIB < found < 1.2 * 64 * MIB


def test_garbage_of_an_earlier_point_is_not_subtracted() -> None:
    gc.collect()
    garbage: list[object] = [torch.ones(16 * MIB)]
    garbage.append(garbage)
    del garbage

    def build() -> Call:
        gc.collect()
        return doubling()

    found = measured_peak(build, device="cpu")
    assert found is not None
    assert found > 0.95 * 64 * MIB


def test_without_a_kernels_record_a_thread_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "reset_resident_peak", lambda: False)
    found = measured_peak(doubling, device="cpu")
    assert found is not None
    assert 0.5 * 64 * MIB < found < 1.2 * 64 * MIB


def test_the_watching_thread_ends_with_the_body() -> None:
    with ResidentSampler() as sampler:
        held = torch.ones(8 * MIB)
    assert not sampler._thread.is_alive()
    assert sampler.peak_bytes > held.numel()


def test_the_workspace_of_products_is_there_before_the_peak_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []
    held = iter([100, 700])

    def allocated(device: str) -> int:
        log.append("read")
        return next(held)

    monkeypatch.setattr(peak, "_multiply", lambda device, dtype: log.append(f"multiply {dtype}"))
    monkeypatch.setattr(torch.cuda, "memory_allocated", allocated)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", allocated)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: log.append("reset"))
    monkeypatch.setattr(devices, "synchronize", lambda device: log.append("wait"))

    def build() -> Call:
        log.append("build")
        return lambda: log.append("call")

    assert measured_peak(build, device="cuda", dtype="bfloat16") == 600
    assert log == [
        "multiply bfloat16", "read", "build", "call", "wait", "reset", "call", "wait", "read",
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_the_product_that_makes_the_workspace_runs_without_gradients_around(dtype: Any) -> None:
    with torch.no_grad():
        peak._multiply("cpu", dtype)


def test_other_accelerators_have_no_peak() -> None:
    assert measured_peak(doubling, device="mps") is None


def eager(spec: AttentionSpec) -> Call:
    def split(t: torch.Tensor, heads: int) -> torch.Tensor:
        return t.unflatten(-1, (heads, -1)).transpose(1, 2)

    x = torch.randn(spec.batch, spec.tokens, spec.dim)
    w_qkv = torch.randn(3 * spec.dim, spec.dim)
    w_o = torch.randn(spec.dim, spec.dim)

    def call() -> object:
        q, k, v = (split(part, spec.heads) for part in (x @ w_qkv.T).chunk(3, dim=-1))
        weights = (q * spec.head_dim**-0.5 @ k.transpose(-1, -2)).softmax(dim=-1)
        return (weights @ v).transpose(1, 2).flatten(2) @ w_o.T

    return call


@pytest.mark.parametrize(
    "spec",
    [
        AttentionSpec(batch=2, tokens=768, dim=256, heads=8),
        AttentionSpec(batch=8, tokens=512, dim=512, heads=1),
    ],
)
def test_a_prediction_bounds_the_measured_peak_within_a_half(spec: AttentionSpec) -> None:
    predicted = predict(spec, fused=False, dtype_bytes=4, check_reference=False).peak_bytes
    with torch.no_grad():
        found = min(measured_peak(lambda: eager(spec), device="cpu") or 0 for _ in range(2))
    assert found / 1.05 <= predicted <= found * 1.5


def test_the_peak_is_the_same_whatever_the_heap_went_through() -> None:
    spec = AttentionSpec(batch=8, tokens=512, dim=512, heads=1)
    with torch.no_grad():
        measured_peak(lambda: eager(spec), device="cpu")
        before = measured_peak(lambda: eager(spec), device="cpu")
        kept = [torch.ones(2**18 * size) for size in (1, 9, 2, 17, 3, 8)]
        del kept[::2]
        after = measured_peak(lambda: eager(spec), device="cpu")
    assert after == pytest.approx(before, abs=MIB)
