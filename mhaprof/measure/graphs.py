"""CUDA graphs of a call: captured on a side stream."""

from __future__ import annotations

from mhaprof.measure.timers import Call, Graph

WARM_UPS = 3
"""Calls on the stream before a capture, as torch's notes on CUDA graphs ask."""

HOT_CALLS = 16
"""Calls that one hot graph holds, so that starting it weighs little.

A cold one holds one: what goes ahead of its replay is the flush, which covers the start.
"""


def capture(call: Call, count: int) -> Graph:
    """Capture ``count`` calls, one after another, into one CUDA graph of the current stream.

    That stream must be a side stream (``devices.side_stream``), and the forward of a
    backward pass must have run on it.  Torch's own choice would be one stream for all
    devices, which it leaves current when a capture fails.  What other threads do fails
    none.  Raises RuntimeError for what cannot be captured.
    """
    import torch

    from mhaprof.measure.torch_private import end_failed_capture

    for _ in range(WARM_UPS):
        call()
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    stream = torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            for _ in range(count):
                call()
    except BaseException:
        # Up to 2.12 torch's allocator would believe it under way for good: later captures
        # fail, then cached memory cannot be freed.  Later ones refuse this.
        end_failed_capture(pool)
        raise
    return graph
