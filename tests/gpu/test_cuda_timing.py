"""Timing on a CUDA device: events, flushes, graphs, memory, and triton as the peer.

Nothing here has a fake.  ``tests/gpu/run.sh`` runs it and writes what it measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from mhaprof import roofline, stats
from mhaprof.errors import Unavailable
from mhaprof.measure import devices, environment, nvidia, peak
from mhaprof.measure.latency import Subject, Timed, measure
from mhaprof.measure.sampling import StopRule, WarmUp, sample, warm_up
from mhaprof.records import Settings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

RULE = StopRule(min_time_s=0.3, max_time_s=3.0)
SHAPE = (4, 16, 4096, 128)


@pytest.fixture(scope="session")
def results() -> Iterator[dict[str, Any]]:
    """Collect what is measured; written as JSON where MHAPROF_GPU_RESULTS says."""
    found: dict[str, Any] = {}
    yield found
    file = os.environ.get("MHAPROF_GPU_RESULTS")
    if file:
        found["environment"] = environment.collect("cuda").model_dump()
        Path(file).write_text(json.dumps(found, indent=2) + "\n")


class Attention(nn.Module):
    """scaled_dot_product_attention of x with itself, split into heads before."""

    def forward(self, q: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q, q, q)


def drawn(
    shape: tuple[int, ...] = SHAPE, dtype: torch.dtype = torch.bfloat16
) -> Callable[[int], tuple[torch.Tensor, ...]]:
    def inputs(index: int) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator(device="cuda").manual_seed(index)
        return (torch.randn(shape, generator=generator, device="cuda", dtype=dtype),)

    return inputs


def subject(
    shape: tuple[int, ...] = SHAPE,
    dtype: torch.dtype = torch.bfloat16,
    module: Callable[..., torch.Tensor] | None = None,
) -> Subject:
    inputs = drawn(shape, dtype)
    (q,) = inputs(0)
    exact = q[-1:, :, -16:].double(), q[-1:].double()
    scores = exact[0] @ exact[1].transpose(-1, -2) * shape[-1] ** -0.5
    return Subject(
        module=module or Attention(),
        inputs=inputs,
        shape=shape,
        reference=scores.softmax(-1) @ exact[1],
        part=lambda result: result[-1:, :, -16:],
        tolerance=0.1 if dtype is torch.bfloat16 else 1e-2,
    )


def row(what: Subject | None = None, **changes: Any) -> Timed:
    settings = Settings(device="cuda", dtype="bfloat16").model_copy(update=changes)
    found = measure(what or subject(), settings=settings, rule=RULE)
    assert isinstance(found, Timed), found
    return found


def test_the_median_agrees_with_triton_within_2_percent(results: dict[str, Any]) -> None:
    testing = pytest.importorskip("triton.testing")
    (q,) = drawn()(0)

    def call() -> torch.Tensor:
        return scaled_dot_product_attention(q, q, q)

    timer, ratios = devices.make_timer("cuda", cache="cold"), []
    warm_up(timer, call, rule=WarmUp(min_time_s=0.3))
    for _ in range(5):
        ours = stats.median(sample(timer, call, rule=RULE).samples_s)
        theirs = testing.do_bench(call, return_mode="median") * 1e-3
        assert theirs > 200e-6, "the check is for kernels over 200 us"
        ratios.append(ours / theirs)
    results["triton_ratios"] = ratios
    assert abs(stats.median(ratios) - 1) <= 0.02


def test_a_cold_sample_is_no_faster_than_a_hot_one(results: dict[str, Any]) -> None:
    small = subject((1, 8, 2048, 64))
    cold = row(small, cache="cold").latency.summary.median
    hot = row(small, cache="hot").latency.summary.median
    results["cold_over_hot"] = cold / hot
    assert cold >= 0.98 * hot


def test_a_row_has_its_backend_timer_and_an_environment(results: dict[str, Any]) -> None:
    found = row()
    results["row"] = {
        **found.latency.model_dump(exclude={"samples_s", "enqueue_s"}),
        "median_s": found.latency.summary.median,
        "count": found.latency.summary.count,
        "findings": [finding.model_dump() for finding in found.findings],
    }
    assert found.latency.timer == "cuda-events"
    assert found.latency.resolved_backend in {"flash", "cudnn", "efficient"}
    assert found.latency.enqueue_s
    assert found.latency.first_call_s > 0


def test_a_tiny_call_is_launch_bound_and_its_graph_is_faster(results: dict[str, Any]) -> None:
    found = row(subject((1, 1, 64, 64))).latency
    assert "launch_bound" in found.flags
    assert found.graph_samples_s
    results["tiny_event_s"] = found.summary.median
    results["tiny_graph_s"] = stats.median(found.graph_samples_s)
    assert results["tiny_graph_s"] <= found.summary.median


def test_the_graph_timer_agrees_with_events_on_a_long_kernel(results: dict[str, Any]) -> None:
    events = row(timer="events").latency.summary.median
    graph = row(timer="graph").latency
    assert graph.timer == "cuda-graph"
    results["graph_over_events"] = graph.summary.median / events
    assert abs(results["graph_over_events"] - 1) <= 0.05


def test_the_wall_timer_waits_for_the_device() -> None:
    wall = row(timer="wall").latency
    assert wall.timer == "wall"
    assert wall.summary.median >= 0.95 * row().latency.summary.median


@pytest.mark.parametrize("mode", ["backward", "forward-backward"])
def test_gradients_take_longer_than_the_forward_pass(mode: str, results: dict[str, Any]) -> None:
    forward = row().latency.summary.median
    found = row(mode=mode).latency
    results[f"{mode}_over_forward"] = found.summary.median / forward
    assert found.summary.median > forward


def test_a_compiled_row_is_one_graph(results: dict[str, Any]) -> None:
    found = row(compile=True).latency
    results["compiled_first_call_s"] = found.first_call_s
    assert "compile_fallback" not in found.flags
    assert found.resolved_backend in {"flash", "cudnn", "efficient"}


def test_tf32_changes_the_error_of_a_float32_product() -> None:
    left = torch.randn(1024, 1024, device="cuda")
    exact = left.double() @ left.double()

    def error(allowed: bool) -> float:
        with devices.tf32(allowed):
            return float((left @ left - exact).abs().max())

    assert error(True) > 10 * error(False)


def test_the_measured_peak_is_the_allocators() -> None:
    def build() -> Callable[[], object]:
        x = torch.ones(64 * 2**20, device="cuda")
        return lambda: torch.sum(x * 2)

    found = peak.measured_peak(build, device="cuda")
    assert found is not None
    assert 512 * 2**20 <= found < 540 * 2**20


def test_the_device_has_peaks_or_none_and_the_rate_is_below_them(results: dict[str, Any]) -> None:
    name = devices.device_name("cuda")
    peaks = roofline.known_peaks(name)
    batch, heads, tokens, width = SHAPE
    flops = 4 * batch * heads * tokens * tokens * width
    rate = flops / row().latency.summary.median / 1e12
    results["tflops_per_s"] = rate
    results["peak"] = None if peaks is None else peaks.rate("bfloat16")
    if peaks is not None:
        assert rate < (peaks.rate("bfloat16") or float("inf"))


def test_nvml_finds_the_same_device(results: dict[str, Any]) -> None:
    pytest.importorskip("pynvml")
    state = nvidia.gpu_state("cuda")
    assert state is not None
    assert state.driver
    assert state.sm_clock_mhz
    results["other_processes"] = state.other_processes


def test_an_index_beyond_the_last_device_is_refused() -> None:
    with pytest.raises(Unavailable, match="the last is cuda:"):
        devices.resolve_device("cuda:99")


def test_five_processes_agree_within_3_percent(results: dict[str, Any]) -> None:
    """Repeatability of the gate's statistic: the median cold device time."""
    code = (
        "import importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('cuda_timing', {__file__!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "print(module.row().latency.summary.median)"
    )
    medians = []
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        medians.append(float(done.stdout.splitlines()[-1]))
    results["process_medians_s"] = medians
    assert (max(medians) - min(medians)) / stats.median(medians) <= 0.03


def test_a_point_that_cannot_fit_is_refused_in_seconds(results: dict[str, Any]) -> None:
    command = [sys.executable, "-m", "mhaprof", "latency", "--tokens", "131072", "--batch", "32"]
    command += ["--impl", "eager", "--device", "cuda"]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    results["refused_in_s"] = time.perf_counter() - started
    assert done.returncode == 4
    assert "predicted_oom" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
