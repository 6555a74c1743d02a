"""Times on a simulated device are those that its model knows to be true."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import QUICK, timed_calls, truth_s

from mhaprof.stats import median

IMPLEMENTATIONS = ("eager", "eager-separate", "per-head", "sdpa", "sdpa-efficient", "torch-mha")
SDPA = ("mm", "_scaled_dot_product_efficient_attention")
MODES = ("forward", "backward", "forward-backward")


@pytest.mark.parametrize("mode", MODES)
def test_cold_events_recover_the_time_of_the_kernels(cuda: Any, rows: Any, mode: str) -> None:
    sim = cuda()
    for name in IMPLEMENTATIONS:
        start = len(sim.kernels)
        (row,) = rows("--impl", name, "--mode", mode, "--no-memory")
        truth = truth_s(sim.kernels[start:])
        assert row["latency_median_s"] == pytest.approx(truth, rel=0.01), name
        assert (row["timer"], row["cache"], row["flags"]) == ("cuda-events", "cold", None)
        assert name[:4] != "sdpa" or row["resolved_backend"] == "efficient"
    assert (sim.allocated, sim.races, sim.underway) == (0, [], [])


@pytest.mark.parametrize("timer", ["events", "graph"])
def test_cold_and_hot_differ_by_the_traffic_of_what_is_read(
    cuda: Any, rows: Any, timer: str
) -> None:
    sim = cuda(flops={"float32": 1e15})
    found, truths, traffic = {}, {}, {}
    for cache in ("cold", "hot"):
        start = len(sim.kernels)
        (row,) = rows(
            *("--impl", "sdpa", "--timer", timer, "--cache", cache),
            *("--samples", 6, "--no-memory"),
        )
        graph = timer == "graph"
        calls = timed_calls(sim.kernels[start:], graph=graph)
        each = 16 if (timer, cache) == ("graph", "hot") else 1
        found[cache] = row["latency_median_s"]
        truths[cache] = truth_s(sim.kernels[start:], graph=graph) / each
        traffic[cache] = median([sum(kernel.dram for kernel in call) for call in calls]) / each
        assert row["cache"] == cache
    assert found == pytest.approx(truths, rel=0.01, abs=6e-7)
    weights_and_input = 4 * (4 * 64 * 64 + 2 * 32 * 64)
    assert traffic == {"cold": weights_and_input, "hot": 0}
    assert found["cold"] - found["hot"] > 0.8 * weights_and_input / 2.4e9


def test_the_flush_reads_twice_the_l2_of_the_device_before_each_call(cuda: Any, rows: Any) -> None:
    sim = cuda(l2=160 * 2**20)
    rows("--impl", "sdpa", "--samples", 6, "--no-memory")
    flushes = [kernel for kernel in sim.kernels if kernel.name == "sum" and kernel.bytes > 2**20]
    assert len(flushes) >= 6
    assert min(kernel.bytes for kernel in flushes) >= 2 * 160 * 2**20
    assert sim.allocated == 0


@pytest.mark.parametrize("cache", ["cold", "hot"])
@pytest.mark.parametrize("launch_s", [1e-6, 5e-6, 14e-6, 21e-6, 40e-6])
def test_launch_bound_is_a_call_whose_kernels_wait_for_the_host(
    cuda: Any, rows: Any, cache: str, launch_s: float
) -> None:
    sim = cuda(real_speed=True, launch_s=launch_s)
    for name in ("eager", "sdpa"):
        start = len(sim.kernels)
        (row,) = rows("--impl", name, "--cache", cache, "--no-memory", *QUICK)
        calls = timed_calls(sim.kernels[start:])
        truth = truth_s(sim.kernels[start:])
        waited = row["flags"] == "launch_bound"
        assert row["bound"] == ("launch" if waited else "memory")
        if waited:
            assert row["latency_median_s"] > 1.05 * truth
            assert row["graph_median_s"] == pytest.approx(truth, rel=0.01, abs=6e-7)
            assert row["enqueue_median_s"] == pytest.approx(launch_s * len(calls[0]), rel=0.05)
        else:
            assert truth <= row["latency_median_s"] <= 1.12 * truth + 6e-7
            assert (row["graph_median_s"], row["enqueue_median_s"]) == (None, None)
    assert launch_s == 21e-6 or waited == (launch_s == 40e-6)
    assert (sim.allocated, sim.races, sim.underway) == (0, [], [])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cache", ["cold", "hot"])
def test_a_graph_recovers_the_time_of_its_kernels(
    cuda: Any, rows: Any, mode: str, cache: str
) -> None:
    sim = cuda()
    for name in ("eager", "sdpa"):
        start = len(sim.kernels)
        (row,) = rows(
            *("--impl", name, "--timer", "graph", "--cache", cache, "--mode", mode),
            *("--samples", 10, "--no-memory"),
        )
        truth = truth_s(sim.kernels[start:], graph=True) / (1 if cache == "cold" else 16)
        assert row["latency_median_s"] == pytest.approx(truth, rel=0.01)
        assert (row["timer"], row["cache"]) == ("cuda-graph", cache)
    assert (sim.allocated, sim.races, sim.underway) == (0, [], [])


@pytest.mark.parametrize("cache", ["cold", "hot"])
def test_a_wall_timer_holds_the_call_and_no_flush(cuda: Any, rows: Any, cache: str) -> None:
    sim = cuda()
    (row,) = rows("--impl", "sdpa", "--timer", "wall", "--cache", cache, "--samples", 30)
    calls = [kernel for kernel in sim.kernels if kernel.name in SDPA][:-12]
    truth = sum(kernel.seconds for kernel in calls[-3:])
    launch_and_wait = 15e-6
    assert truth <= row["latency_median_s"] <= truth + launch_and_wait


@pytest.mark.parametrize("mode", MODES)
def test_the_first_call_is_all_of_its_work_and_nothing_before(
    cuda: Any, rows: Any, mode: str
) -> None:
    sim = cuda(flops={"float32": 1e8, "float64": 1e8})
    (row,) = rows("--impl", "sdpa", "--mode", mode, "--no-memory", "--samples", 6)
    call = sum(kernel.seconds for kernel in timed_calls(sim.kernels)[-1])
    (forward,) = rows("--impl", "sdpa", "--no-memory", "--samples", 6)
    alone = forward["latency_median_s"]
    expected = {
        "forward": alone,
        # The forward that is checked, and what is timed.
        "backward": alone + call,
        "forward-backward": alone + call,
    }
    assert row["first_call_s"] == pytest.approx(expected[mode], rel=0.02)


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_tf32_is_what_was_asked_for(
    cuda: Any, rows: Any, monkeypatch: pytest.MonkeyPatch, asked: bool, newer: bool
) -> None:
    import torch

    sim, matmul = cuda(), torch.backends.cuda.matmul
    before = matmul.fp32_precision
    if newer:  # whose use makes reading the older setting an error
        matmul.fp32_precision = before = "tf32"
    try:
        (row,) = rows("--impl", "sdpa", "--samples", 6, *(["--tf32"] if asked else []))
        kept = matmul.fp32_precision
    finally:
        matmul.fp32_precision = "ieee"
    ran = {kernel.precision for call in timed_calls(sim.kernels) for kernel in call}
    assert ran == ({"tf32"} if asked else {"float32", "tf32x3"})
    assert row["tf32"] is asked
    assert kept == before or (kept, before) == ("ieee", "none")


def test_a_second_device_is_the_one_that_works_waits_and_tells_its_state(
    cuda: Any, rows: Any, tmp_path: Any
) -> None:
    sim = cuda(count=2)
    samples = tmp_path / "samples.json"
    for timer in ("events", "graph", "wall"):
        start = len(sim.kernels)
        (row,) = rows(
            *("--device", "cuda:1", "--impl", "sdpa", "--timer", timer, "--samples", 40),
            *("--samples-out", samples),
        )
        assert row["device"] == "cuda:1"
        assert {kernel.device for kernel in sim.kernels[start:]} == {1}
        truth = truth_s(sim.kernels[start:], graph=timer == "graph")
        assert row["latency_median_s"] == pytest.approx(truth, rel=0.01, abs=15e-6)
        (raw,) = json.loads(samples.read_text())["rows"]
        if timer != "wall":
            assert raw["gpu_before"]["sm_clock_mhz"] == raw["gpu_after"]["sm_clock_mhz"] == 1755
    assert sim.races == []


def test_another_current_device_is_followed(cuda: Any) -> None:
    import torch

    from mhaprof import AttentionSpec, measure_latency
    from mhaprof.point import MeasureOptions

    sim = cuda(count=2)
    spec = AttentionSpec(batch=1, tokens=32, dim=64, heads=2)
    for index in (0, 1, 0):
        torch.cuda.set_device(index)
        start = len(sim.kernels)
        options = MeasureOptions(samples=6)
        measured = measure_latency(spec, device="cuda", options=options)
        assert {kernel.device for kernel in sim.kernels[start:]} == {index}
        truth = truth_s(sim.kernels[start:])
        assert measured.summary.median == pytest.approx(truth, abs=6e-7)


@pytest.mark.parametrize(
    ("reasons", "flags"), [(0x4, "power_limited"), (0x44, "power_limited throttled"), (0x1, None)]
)
def test_the_state_of_a_gpu_is_read_while_it_samples(
    cuda: Any, rows: Any, tmp_path: Any, reasons: int, flags: str | None
) -> None:
    cuda(busy_reasons=reasons)
    samples = tmp_path / "samples.json"
    (row,) = rows("--impl", "sdpa", "--samples", 100, "--samples-out", samples, "--no-memory")
    assert row["flags"] == flags
    (raw,) = json.loads(samples.read_text())["rows"]
    before, after = raw["gpu_before"], raw["gpu_after"]
    assert before["sm_clock_mhz"] == after["sm_clock_mhz"] == 1755
    assert before["temperature_c"] < after["temperature_c"]
    assert before["other_processes"] == 0


def test_the_measured_peak_is_what_the_allocator_gave(cuda: Any, rows: Any) -> None:
    sim = cuda()
    (row,) = rows("--impl", "eager", "--samples", 6)
    assert row["peak_bytes"] == pytest.approx(row["predicted_peak_bytes"], rel=0.35)
    assert row["peak_bytes"] % 512 == 0
    assert sim.allocated == 0


def test_half_precision_runs_on_flash_and_a_kernel_that_is_not_there_says_so(
    cuda: Any, rows: Any
) -> None:
    sim = cuda(flops={"bfloat16": 1e10, "float64": 1e12, "float32": 1e12})
    names = (
        "--impl",
        "sdpa",
        "--impl",
        "sdpa-flash",
        "--impl",
        "sdpa-math",
        "--impl",
        "sdpa-cudnn",
    )
    found = rows(*names, "--dtype", "bfloat16", "--samples", 6, "--no-memory")
    backends = [row["resolved_backend"] for row in found]
    assert backends == ["flash", "flash", "math", None]
    assert (found[-1]["status"], found[-1]["reason"]) == ("skipped", "backend_unavailable")
    assert found[0]["latency_median_s"] == pytest.approx(found[1]["latency_median_s"])
    assert (sim.allocated, sim.races) == (0, [])


def test_the_environment_is_that_of_the_device(cuda: Any, mhaprof: Any) -> None:
    cuda(memory=10**9)
    ran = mhaprof("env", "--device", "cuda", "--format", "json")
    assert ran.code == 0
    told = {row["name"]: row["value"] for row in ran.rows}
    assert told["device_name"] == "NVIDIA H200"
    assert told["device_memory_bytes"] == told["device_available_bytes"] == 10**9
    assert (told["l2_bytes"], told["driver"]) == (2**20, "580.00")


@pytest.mark.slow
def test_implementations_are_verified_on_the_device(cuda: Any, mhaprof: Any) -> None:
    sim = cuda()
    ran = mhaprof("verify", "--impl", "sdpa", "--device", "cuda", "--format", "json")
    assert ran.code == 0, ran.err
    assert {row["status"] for row in ran.rows} <= {"ok", "skipped"}
    assert len(sim.kernels) > 100
    assert sim.allocated == 0
