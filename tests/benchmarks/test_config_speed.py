"""Planning a grid is cheap beside making its specs one by one, and takes little memory."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from mhaprof.config import parse_config
from mhaprof.spec import AttentionSpec

pytestmark = pytest.mark.benchmark

GRID = "version: 1\nsweep: {dim: [512, 1024], batch: {range: [1, 50]}, tokens: {range: [8, %d, 8]}}"


def test_planning_a_point_takes_less_time_than_one_validated_spec() -> None:
    ratios = []
    for _ in range(3):
        started = time.perf_counter()
        entries = list(parse_config(GRID % 1600, file="f").entries)
        planned = (time.perf_counter() - started) / len(entries)
        started = time.perf_counter()
        for entry in entries[::10]:
            assert entry.spec is not None
            AttentionSpec(dim=entry.spec.dim, batch=entry.spec.batch, tokens=entry.spec.tokens)
        ratios.append(planned / ((time.perf_counter() - started) / len(entries[::10])))
    assert min(ratios) < 1.0


def test_a_planned_point_takes_less_than_1500_bytes() -> None:
    tracemalloc.start()
    entries = list(parse_config(GRID % 800, file="f").entries)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held / len(entries) < 1500
