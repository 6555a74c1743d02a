"""CUDA graphs, with a fake capture: on which stream, on which inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from mhaprof.measure import graphs


def drawn(index: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(index)
    return (torch.randn(2, 3, 4, generator=generator),)


def test_a_capture_warms_up_and_records_on_the_current_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []

    @contextlib.contextmanager
    def capturing(graph: str, *, stream: str) -> Iterator[None]:
        log.append(f"capture {graph} on {stream}")
        yield
        log.append("captured")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: "graph")
    monkeypatch.setattr(torch.cuda, "graph", capturing)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "side")
    found = graphs.capture([lambda: log.append("a"), lambda: log.append("b")])
    assert found == "graph"  # type: ignore[comparison-overlap]
    assert log == [*["a", "b"] * 3, "capture graph on side", "a", "b", "captured"]


def test_inputs_rotate_through_twice_the_l2_cache() -> None:
    first = drawn(0)
    size = first[0].numel() * 4
    sets = graphs.rotated(first, drawn, l2_bytes=size * 3)
    assert len(sets) == 6
    assert sets[0] is first
    assert torch.equal(sets[5][0], drawn(5)[0])
    assert len(graphs.rotated(first, drawn, l2_bytes=0)) == 2
    assert len(graphs.rotated(first, drawn, l2_bytes=10**9)) == 16


@pytest.mark.parametrize(("cache", "sets"), [("cold", 16), ("hot", 1)])
def test_a_hot_graph_calls_on_one_set_of_inputs(cache: str, sets: int) -> None:
    called = []
    calls = graphs.calls_on(
        lambda inputs: lambda: called.append(id(inputs[0])),
        drawn(0),
        drawn,
        cache=cache,  # type: ignore[arg-type]
        l2_bytes=10**9,
    )
    for call in calls:
        call()
    assert (len(called), len(set(called))) == (16, sets)
