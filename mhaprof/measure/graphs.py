"""CUDA graphs of a call: captured on a side stream, on inputs as cold as the row says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mhaprof.measure.timers import Call, Graph
from mhaprof.records import Cache

if TYPE_CHECKING:
    import torch

    Inputs = tuple[torch.Tensor, ...]

WARM_UPS = 3
"""Calls on the stream before a capture, as torch's notes on CUDA graphs ask."""

MOST_CALLS = 16
"""Most calls that one graph holds, so that starting it weighs little."""


def capture(calls: Sequence[Call]) -> Graph:
    """Capture ``calls``, one after another, into one CUDA graph of the current stream.

    That stream must be a side stream (``devices.side_stream``), and the forward of a
    backward pass must have run on it.  Torch's own choice would be one stream for all
    devices, which it leaves current when a capture fails.  Raises RuntimeError for what
    cannot be captured.
    """
    import torch

    for _ in range(WARM_UPS):
        for call in calls:
            call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for call in calls:
            call()
    return graph


def replay_of(graph: Graph, calls: Sequence[Call]) -> Call:
    """Return the replay of a graph; what ``calls`` read lives as long as it does."""

    def replay() -> Sequence[Call]:
        graph.replay()
        return calls

    return replay


def calls_on(
    call_of: Callable[[Inputs], Call],
    first: Inputs,
    more: Callable[[int], Inputs],
    *,
    cache: Cache,
    l2_bytes: int,
) -> list[Call]:
    """Return the calls of one graph: on rotating inputs, or if ``hot`` all on ``first``.

    Rotating (``more(k)`` makes the k-th set) evicts inputs alone: the weights are the
    same in all calls, so that from the second on they may be found in the cache.
    """
    if cache == "hot":
        return [call_of(first)] * MOST_CALLS
    return [call_of(inputs) for inputs in rotated(first, more, l2_bytes=l2_bytes)]


def rotated(first: Inputs, more: Callable[[int], Inputs], *, l2_bytes: int) -> list[Inputs]:
    """Return sets of inputs that together fill twice the L2 cache: 2 to 16 of them."""
    size = max(1, sum(tensor.numel() * tensor.element_size() for tensor in first))
    count = max(2, min(MOST_CALLS, -(-2 * l2_bytes // size)))
    return [first, *(more(index) for index in range(1, count))]
