"""Commands on a simulated CUDA device: in this process, or in fresh ones and their children."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
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
    "dram": 2.4e9,
    "l2_rate": 1e11,
    "l2": 2**20,
    "hertz": 2e6,
    "flops": {
        "float64": 3e9,
        "float32": 5e10,
        "tf32": 4e11,
        "float16": 7e11,
        "bfloat16": 7e11,
    },
}
"""A card a thousand times slower: tiny calls take it long, and seconds are few of them."""

QUICK = ("--min-time", 0.001, "--max-time", 0.02)
"""What bounds the calls that a card of real speed makes."""

SMALL = ("--batch", 2, "--tokens", 32, "--dim", 64, "--heads", 2)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Install the slow card, changed as told, or one of real speed; return the simulation."""
    import simcuda

    from mhaprof.measure import devices, latency
    from mhaprof.measure.sampling import WarmUp

    with ExitStack() as stack:
        stack.callback(devices._stream_of.cache_clear)

        def install(*, real_speed: bool = False, **changes: Any) -> Any:
            devices._stream_of.cache_clear()
            quick = WarmUp(min_time_s=0.001, max_time_s=0.01)
            monkeypatch.setattr(latency, "ACCELERATOR_WARM_UP", quick)
            card = simcuda.Card(**({} if real_speed else SLOW) | changes)
            return stack.enter_context(simcuda.installed(card))

        yield install


@pytest.fixture
def rows(mhaprof: Any) -> Callable[..., list[dict[str, Any]]]:
    """Run ``mhaprof latency`` on the device in this process; return its rows."""

    def run(
        *arguments: object, code: int = 0, shape: Sequence[object] = SMALL
    ) -> list[dict[str, Any]]:
        given = [] if "--device" in arguments else ["--device", "cuda"]
        ran = mhaprof("latency", *given, *shape, *arguments, "--format", "json")
        assert ran.code == code, ran.err
        assert "Traceback" not in ran.err
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


def timed_calls(kernels: Sequence[Any], *, graph: bool = False) -> list[list[Any]]:
    """Split the kernels at what goes ahead of each call that is timed: a flush or a spin.

    Calls of the same kernels alone, replayed or not: of what is not timed there are few.
    """
    ahead = [k for k, kernel in enumerate(kernels) if kernel.bytes > 2**26 or kernel.name == "spin"]
    ends = [*ahead[1:], len(kernels)]
    calls = [list(kernels[start + 1 : end]) for start, end in zip(ahead, ends, strict=True)]
    calls = [call for call in calls if call and call[0].replayed == graph]
    kinds = Counter(tuple(kernel.name for kernel in call) for call in calls)
    usual = kinds.most_common(1)[0][0]
    return [call for call in calls if tuple(kernel.name for kernel in call) == usual]


def truth_s(kernels: Sequence[Any], *, graph: bool = False) -> float:
    """Return the device time of the median call: what the model knows to be true."""
    calls = timed_calls(kernels, graph=graph)
    return median([sum(kernel.seconds for kernel in call) for call in calls])
