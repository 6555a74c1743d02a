"""Times on a simulated device are those that its model knows to be true."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import truth_s

IMPLEMENTATIONS = ("eager", "eager-separate", "per-head", "sdpa", "sdpa-efficient", "torch-mha")


@pytest.mark.parametrize("mode", ["forward", "backward", "forward-backward"])
def test_cold_events_recover_the_time_of_the_kernels(cuda: Any, rows: Any, mode: str) -> None:
    sim = cuda()
    for name in IMPLEMENTATIONS:
        start = len(sim.kernels)
        (row,) = rows("--impl", name, "--mode", mode, "--no-memory")
        assert row["latency_median_s"] == pytest.approx(truth_s(sim.kernels[start:]), rel=0.01), (
            name
        )
        assert (row["timer"], row["cache"], row["flags"]) == ("cuda-events", "cold", None)
    assert (sim.allocated, sim.races, sim.underway) == (0, [], [])
