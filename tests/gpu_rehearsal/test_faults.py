"""What breaks on a device costs its own point: rows stay, others go on, nothing is left behind."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import QUICK, timed_calls, truth_s

ATTENTION = "_scaled_dot_product_efficient_attention"


def outcomes(rows: list[dict[str, Any]]) -> list[tuple[str, str | None]]:
    return [(row["status"], row["reason"]) for row in rows]


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("oom", "out_of_memory"),
        ("driver_oom", "out_of_memory"),
        ("cublas", "out_of_memory"),
        ("cudnn", "no_execution_plan"),
        ("image", "no_kernel_image"),
    ],
)
def test_an_error_in_the_middle_has_its_code_and_the_next_point_goes_on(
    cuda: Any, rows: Any, kind: str, code: str
) -> None:
    sim = cuda(faults=[(kind, "bmm", 25)])
    names = ("--impl", "sdpa", "--impl", "eager", "--impl", "sdpa-efficient")
    found = rows(*names, "--samples", 6, code=4)
    assert outcomes(found) == [("ok", None), ("failed", code), ("ok", None)]
    assert (sim.allocated, sim.races) == (0, [])
    assert sim.waits[-1] == (0, 1), "the default stream waits for the side stream"


def test_a_lost_device_keeps_the_rows_before_and_names_the_others(cuda: Any, rows: Any) -> None:
    cuda(faults=[("assert", "bmm", 25)])
    names = ("--impl", "sdpa", "--impl", "eager", "--impl", "per-head", "--impl", "sdpa")
    found = rows(*names, "--samples", 6, code=4)
    lost = ("failed", "device_lost")
    assert outcomes(found) == [("ok", None), lost, lost, lost]
    assert found[0]["latency_median_s"] > 0


def test_a_peak_that_runs_out_of_memory_leaves_the_time(
    cuda: Any, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from mhaprof.measure import peak

    def refused(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 GiB.")

    cuda()
    monkeypatch.setattr(peak, "_multiply", refused)
    (row,) = rows("--impl", "sdpa", "--samples", 6)
    assert (row["status"], row["reason"], row["peak_bytes"]) == ("ok", "no_peak", None)
    assert "out of memory" in row["message"]
    assert row["latency_median_s"] > 0


@pytest.mark.parametrize("old_graphs", [True, False])
def test_after_a_failed_capture_graphs_and_memory_work_again(
    cuda: Any, rows: Any, old_graphs: bool
) -> None:
    import torch

    sim = cuda(real_speed=True, launch_s=40e-6, old_graphs=old_graphs, other_threads=True)
    names = ("--impl", "mods:Waits", "--impl", "mods:Plain")
    waits, plain = rows(*names, "--allow-import", "--no-memory", *QUICK)
    assert waits["flags"] == plain["flags"] == "launch_bound"
    assert waits["graph_median_s"] is None
    assert "(none: CUDA error: operation failed due to a previous error" in waits["message"]
    assert plain["graph_median_s"] == pytest.approx(truth_s(sim.kernels, graph=True), abs=6e-7)
    (graph,) = rows("--impl", "mods:Waits", "--allow-import", "--timer", "graph", *QUICK, code=4)
    assert graph["status"] == "failed"
    assert (sim.underway, sim.allocated, sim.races) == ([], 0, [])
    torch.cuda.empty_cache()


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("Plain", None),
        ("Joined", None),
        ("Legacy", "escaped_stream"),
        ("LegacyKernel", "escaped_stream"),
        ("Pool", "escaped_stream"),
    ],
)
@pytest.mark.parametrize("real_speed", [True, False])
def test_work_on_another_stream_fails_the_row(
    cuda: Any, rows: Any, name: str, code: str | None, real_speed: bool
) -> None:
    cuda(real_speed=real_speed)
    given = ("--impl", f"mods:{name}", "--allow-import", "--no-memory", "--samples", 6)
    (row,) = rows(*given, code=4 if code else 0)
    assert (row["status"], row["reason"]) == ("failed" if code else "ok", code)


def test_ctrl_c_launches_nothing_more_and_keeps_the_samples(cuda: Any, rows: Any) -> None:
    sim = cuda(real_speed=True, launch_s=40e-6, faults=[("interrupt", ATTENTION, 100)])
    names = ("--impl", "sdpa", "--impl", "eager")
    found = rows(*names, "--min-time", 0.05, code=130)
    assert outcomes(found) == [("ok", "interrupted"), ("skipped", "interrupted")]
    assert found[0]["samples"] > 20
    assert sim.counts[ATTENTION] == 100
    assert not any(kernel.replayed for kernel in sim.kernels)
    assert (sim.allocated, sim.underway) == (0, [])


def test_ctrl_c_in_the_graph_or_the_peak_of_a_row_keeps_its_time(cuda: Any, rows: Any) -> None:
    sim = cuda(real_speed=True, launch_s=40e-6)
    (whole,) = rows("--impl", "sdpa", "--max-time", 0.02, "--min-time", 0.001)
    launches = sim.counts[ATTENTION]
    for back in (0, 1, 2, 4):
        sim = cuda(
            real_speed=True, launch_s=40e-6, faults=[("interrupt", ATTENTION, launches - back)]
        )
        (row,) = rows("--impl", "sdpa", "--max-time", 0.02, "--min-time", 0.001, code=130)
        assert (row["status"], row["reason"]) == ("ok", "interrupted")
        assert row["samples"] == whole["samples"]
        assert (sim.allocated, sim.underway) == (0, [])


def test_an_error_while_timing_leaves_no_block_that_another_stream_uses(
    cuda: Any, rows: Any
) -> None:
    sim = cuda(faults=[("image", "bmm", 35), ("image", "bmm", 90)])
    found = rows("--impl", "eager", "--impl", "per-head", "--impl", "eager", code=4)
    assert [row["status"] for row in found] == ["failed", "failed", "ok"]
    assert (sim.races, sim.allocated) == ([], 0)
    assert found[-1]["latency_median_s"] == pytest.approx(
        sum(kernel.seconds for kernel in timed_calls(sim.kernels)[-1]), rel=0.02
    )
