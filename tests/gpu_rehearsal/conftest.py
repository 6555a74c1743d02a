"""Commands on a simulated CUDA device: in this process, or in fresh ones and their children."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mhaprof.stats import median

HERE = Path(__file__).parent
DEVICE = HERE / "device"
sys.path[:0] = [str(DEVICE), str(HERE)]

SLOW: dict[str, Any] = {
    "dram": 4.8e9,
    "l2_rate": 1e10,
    "l2": 50 * 2**10,
    "flops": dict(float64=3e10, float32=5e10, tf32=4e11, float16=7e11, bfloat16=7e11),
}
"""A card a thousand times slower: tiny calls take it long, and seconds are few of them."""

SMALL = ("--batch", 2, "--tokens", 32, "--dim", 64, "--heads", 2)


@pytest.fixture
def cuda() -> Iterator[Callable[..., Any]]:
    """Install the slow card, changed as told; return the simulation."""
    import simcuda

    from mhaprof.measure import devices, latency  # noqa: F401  (its clocks are patched)

    with ExitStack() as stack:
        stack.callback(devices._stream_of.cache_clear)

        def install(**changes: Any) -> Any:
            devices._stream_of.cache_clear()
            return stack.enter_context(simcuda.installed(simcuda.Card(**{**SLOW, **changes})))

        yield install


@pytest.fixture
def rows(mhaprof: Any) -> Callable[..., list[dict[str, Any]]]:
    """Run ``mhaprof latency --device cuda`` in this process; return its rows."""

    def run(*arguments: object, code: int = 0) -> list[dict[str, Any]]:
        ran = mhaprof("latency", "--device", "cuda", *SMALL, *arguments, "--format", "json")
        assert ran.code == code, ran.err
        return list(ran.rows)

    return run


@pytest.fixture
def on_cuda(fresh_mhaprof: Any) -> Callable[..., Any]:
    """Run a command line in a fresh process, in which and whose children there is the card."""

    def run(*arguments: object, **changes: Any) -> Any:
        return fresh_mhaprof(*arguments, env=environment(**changes))

    return run


def environment(**changes: Any) -> dict[str, str]:
    """Return the variables that give a process the slow card."""
    paths = [str(DEVICE), str(HERE), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "SIMCUDA": json.dumps({**SLOW, **changes}),
    }


def calls_after_flushes(kernels: Sequence[Any]) -> list[list[Any]]:
    """Split the kernels that ran at what flushes: the calls that were timed cold."""
    flushes = [place for place, kernel in enumerate(kernels) if kernel.bytes > 2**26]
    ends = [*flushes[1:], len(kernels)]
    return [list(kernels[start + 1 : end]) for start, end in zip(flushes, ends, strict=True)]


def truth_s(kernels: Sequence[Any]) -> float:
    """Return the device time of the median call: what the model knows to be true."""
    return median([sum(kernel.seconds for kernel in call) for call in calls_after_flushes(kernels)])
