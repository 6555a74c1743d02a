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
from mhaprof.measure import calibrate, devices, environment, nvidia, peak
from mhaprof.measure.latency import Subject, Timed, measure
from mhaprof.measure.sampling import StopRule, WarmUp, sample, warm_up
from mhaprof.point import MeasureOptions, measure_point
from mhaprof.records import Measured, Point, Settings
from mhaprof.spec import AttentionSpec

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
    shape: tuple[int, ...] = SHAPE, dtype: torch.dtype = torch.bfloat16, device: str = "cuda"
) -> Callable[[int], tuple[torch.Tensor, ...]]:
    def inputs(index: int) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator(device=device).manual_seed(index)
        return (torch.randn(shape, generator=generator, device=device, dtype=dtype),)

    return inputs


def subject(
    shape: tuple[int, ...] = SHAPE,
    dtype: torch.dtype = torch.bfloat16,
    module: Callable[..., torch.Tensor] | None = None,
    device: str = "cuda",
) -> Subject:
    inputs = drawn(shape, dtype, device)
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


def test_many_tiny_kernels_are_launch_bound_and_their_graph_is_faster(
    results: dict[str, Any],
) -> None:
    class Many(Attention):
        def forward(self, q: torch.Tensor) -> torch.Tensor:
            for _ in range(100):
                q = q * 1.0
            return super().forward(q)

    tiny = (1, 1, 64, 64)
    found = row(subject(tiny, module=Many())).latency
    assert "launch_bound" in found.flags
    assert found.graph_samples_s
    results["many_event_s"] = found.summary.median
    results["many_graph_s"] = stats.median(found.graph_samples_s)
    assert results["many_graph_s"] <= found.summary.median
    alone = row(subject(tiny)).latency
    results["tiny_event_s"] = alone.summary.median
    assert "launch_bound" not in alone.flags, "the flush covers the launch of one kernel"


def test_the_graph_timer_agrees_with_events_on_a_long_kernel(results: dict[str, Any]) -> None:
    events = row(timer="events").latency.summary.median
    graph = row(timer="graph").latency
    assert graph.timer == "cuda-graph"
    results["graph_over_events"] = graph.summary.median / events
    assert abs(results["graph_over_events"] - 1) <= 0.05


@pytest.mark.parametrize("mode", ["backward", "forward-backward"])
def test_a_graph_of_gradients_agrees_with_events(mode: str, results: dict[str, Any]) -> None:
    events = row(mode=mode).latency.summary.median
    graph = row(mode=mode, timer="graph").latency
    assert graph.timer == "cuda-graph"
    results[f"{mode}_graph_over_events"] = graph.summary.median / events
    assert abs(results[f"{mode}_graph_over_events"] - 1) <= 0.1


def test_a_hot_graph_is_no_slower_than_a_cold_one(results: dict[str, Any]) -> None:
    small = subject((1, 8, 2048, 64))
    hot = row(small, timer="graph", cache="hot").latency
    cold = row(small, timer="graph", cache="cold").latency
    assert (hot.cache, cold.cache) == ("hot", "cold")
    results["cold_over_hot_graph"] = cold.summary.median / hot.summary.median
    assert hot.summary.median <= 1.05 * cold.summary.median


def test_a_call_that_cannot_be_captured_leaves_the_stream_and_the_next_graph_alone() -> None:
    class Waits(Attention):
        def forward(self, q: torch.Tensor) -> torch.Tensor:
            torch.cuda.synchronize()
            return super().forward(q)

    before = torch.cuda.current_stream()
    tiny = (1, 1, 64, 64)
    with pytest.raises(RuntimeError, match="captur"):
        row(subject(tiny, module=Waits()), timer="graph")
    assert torch.cuda.current_stream() == before
    assert row(subject(tiny), timer="graph").latency.timer == "cuda-graph"
    torch.cuda.empty_cache()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU: there is no cuda:1")
def test_a_second_device_has_its_own_stream_events_and_graph() -> None:
    for device in ("cuda", "cuda:1"):
        found = row(subject(device=device), device=device).latency
        graph = row(subject(device=device), device=device, timer="graph", mode="backward").latency
        assert found.device == graph.device == device
        assert found.summary.median > 200e-6, "the events are of another device"
    assert torch.cuda.current_device() == 0


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU: there is no cuda:1")
def test_a_second_device_is_calibrated_by_its_own_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "DTYPES", ("bfloat16",))
    first, second = (calibrate.calibrate(device) for device in ("cuda:0", "cuda:1"))
    assert 0.5 < second.tflops["bfloat16"] / first.tflops["bfloat16"] < 2


def test_the_wall_timer_waits_for_the_device() -> None:
    wall = row(timer="wall").latency
    assert wall.timer == "wall"
    assert wall.summary.median >= 0.95 * row().latency.summary.median


def test_a_row_keeps_the_clocks_of_the_gpu_under_load(results: dict[str, Any]) -> None:
    pytest.importorskip("pynvml")
    found = row().latency
    assert found.gpu_before is not None
    assert found.gpu_after is not None
    for state in (found.gpu_before, found.gpu_after):
        assert isinstance(state["sm_clock_mhz"], int)
        assert isinstance(state["sm_clock_max_mhz"], int)
        assert state["sm_clock_mhz"] > state["sm_clock_max_mhz"] / 2, "the clocks of an idle GPU"
    results["gpu_after"] = found.gpu_after


def test_neither_this_process_nor_the_parent_of_replicates_is_a_neighbour(
    results: dict[str, Any],
) -> None:
    pytest.importorskip("pynvml")
    alone = row().latency.gpu_after
    assert alone is not None
    assert alone["other_processes"] == 0, "the check needs a GPU of its own"
    command = [sys.executable, "-m", "mhaprof", "latency", "--impl", "sdpa", "--device", "cuda"]
    command += ["--batch", "1", "--replicates", "2", "--max-time", "1", "--min-time", "0.1"]
    done = subprocess.run(
        [*command, "--format", "json"], capture_output=True, text=True, check=True
    )
    (found,) = json.loads(done.stdout)["rows"]
    results["message_of_replicates"] = found["message"]
    # This process is on the GPU, too; the one that starts the replicates must not be.
    assert "2 other process" not in (found["message"] or "")


@pytest.mark.parametrize(("mode", "compiled"), [("backward", False), ("forward", True)])
def test_a_flex_row_names_its_backend_and_runs_its_backward_more_than_once(
    mode: str, compiled: bool
) -> None:
    spec = AttentionSpec(batch=1, tokens=256, dim=64, heads=4)
    settings = Settings(device="cuda", dtype="bfloat16", mode=mode, compile=compiled)  # type: ignore[arg-type]
    point = Point(name="p", spec=spec, implementation="flex", settings=settings)
    options = MeasureOptions(max_time_s=0.5, min_time_s=0.1)
    found = measure_point(point, what={"latency", "memory"}, options=options).outcome
    assert isinstance(found, Measured), found
    assert found.latency is not None
    assert found.latency.resolved_backend == "flex"
    assert found.memory is not None
    assert found.memory.peak_bytes


@pytest.mark.parametrize(
    ("name", "compiled"), [("sdpa", False), ("sdpa", True), ("sdpa-efficient", False)]
)
def test_a_mask_at_the_bottom_right_runs_on_a_named_backend(name: str, compiled: bool) -> None:
    spec = AttentionSpec(
        batch=1, tokens=256, kv_tokens=512, dim=128, heads=2, causal="bottom-right"
    )
    settings = Settings(device="cuda", dtype="float32", compile=compiled)
    point = Point(name="p", spec=spec, implementation=name, settings=settings)
    options = MeasureOptions(max_time_s=0.5, min_time_s=0.1)
    found = measure_point(point, what={"latency"}, options=options).outcome
    assert isinstance(found, Measured), found
    assert found.latency is not None
    assert found.latency.resolved_backend == "efficient"


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


def test_the_measured_peak_does_not_depend_on_what_ran_before() -> None:
    def build() -> Callable[[], object]:
        square = torch.ones(1024, 1024, device="cuda")
        return lambda: square @ square

    found = [peak.measured_peak(build, device="cuda") for _ in range(2)]
    assert found == [2 * 4 * 2**20] * 2


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
