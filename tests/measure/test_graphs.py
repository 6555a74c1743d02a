"""CUDA graphs, with a fake capture: on which stream, how many calls.

Real captures, and those that fail, are rehearsed in ``tests/gpu_rehearsal``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from mhaprof.measure import graphs


def test_a_capture_warms_up_and_records_on_the_current_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []

    @contextlib.contextmanager
    def capturing(graph: str, *, pool: str, stream: str, capture_error_mode: str) -> Iterator[None]:
        log.append(f"capture {graph} in {pool} on {stream}, {capture_error_mode}")
        yield
        log.append("captured")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: "graph")
    monkeypatch.setattr(torch.cuda, "graph", capturing)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "side")
    found = graphs.capture(lambda: log.append("a"), 2)
    assert found == "graph"  # type: ignore[comparison-overlap]
    captured = ["capture graph in pool on side, thread_local", "a", "a", "captured"]
    assert log == ["a"] * 3 + captured
