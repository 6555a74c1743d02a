"""Write the timer's agreement with the simulated device into results/timing.md.

python tests/gpu_rehearsal/table.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conftest import SLOW, truth_s

from mhaprof.measure import latency
from mhaprof.measure.sampling import WarmUp
from mhaprof.point import MeasureOptions, measure_point
from mhaprof.records import Measured, Point, Settings
from mhaprof.spec import AttentionSpec

FILE = Path(__file__).parents[2] / "results" / "timing.md"
HEADING = "## A simulation: the timer against what a model of a GPU knows to be true"

INTRODUCTION = """
No GPU took part. The device is `tests/gpu_rehearsal/device/simcuda.py`: virtual time, kernels
whose length its model knows, launches of 5 us. "Model knows" is the sum of the kernels of the
median call. All lines but the last two are of a card a thousand times slower than an H200; those
have its speed, and a slow host. Made again by `python tests/gpu_rehearsal/table.py`.

| implementation | mode | timer | cache | timer says | model knows | ratio | flags |
| :--- | :--- | :--- | :--- | ---: | ---: | ---: | :--- |
"""

SPEC = AttentionSpec(batch=2, tokens=32, dim=64, heads=2)


def rows() -> list[str]:
    """Measure every line of the table."""
    found = []
    for name in ("eager", "per-head", "sdpa"):
        for mode in ("forward", "backward", "forward-backward"):
            found.append(line(SLOW, name, mode, "events", "cold"))
    for name in ("eager", "sdpa"):
        found.append(line(SLOW, name, "forward", "events", "hot"))
        for cache in ("cold", "hot"):
            found.append(line(SLOW, name, "forward", "graph", cache))
    for cache in ("cold", "hot"):
        found.append(line({"launch_s": 40e-6}, "eager", "forward", "events", cache))
    return found


def line(card: dict[str, Any], name: str, mode: Any, timer: Any, cache: Any) -> str:
    """Measure one point on a fresh device; a launch-bound one by its graph, too."""
    import simcuda

    from mhaprof.measure import devices

    settings = Settings(device="cuda", dtype="float32", mode=mode, timer=timer, cache=cache)
    point = Point(name="p", spec=SPEC, implementation=name, settings=settings)
    devices._stream_of.cache_clear()
    with simcuda.installed(simcuda.Card(**card)) as sim:
        options = MeasureOptions(samples=20)
        outcome = measure_point(point, what={"latency"}, options=options).outcome
        assert isinstance(outcome, Measured), outcome
        assert outcome.latency is not None
        graph = timer == "graph" or bool(outcome.latency.graph_samples_s)
        each = 16 if graph and cache == "hot" else 1
        truth = truth_s(sim.kernels, graph=graph) / each
    said = outcome.latency.summary.median
    words = " ".join(outcome.latency.flags)
    if samples := outcome.latency.graph_samples_s:
        said, timer = sorted(samples)[len(samples) // 2], "its graph"
    cells = [name, mode, timer, cache, f"{said * 1e6:.2f} us", f"{truth * 1e6:.2f} us"]
    return "| " + " | ".join([*cells, f"{said / truth:.3f}", words]) + " |"


def section() -> str:
    """Return the whole section."""
    before = latency.ACCELERATOR_WARM_UP
    latency.ACCELERATOR_WARM_UP = WarmUp(min_time_s=0.001, max_time_s=0.01)
    try:
        return HEADING + "\n" + INTRODUCTION + "\n".join(rows()) + "\n"
    finally:
        latency.ACCELERATOR_WARM_UP = before


if __name__ == "__main__":
    text = FILE.read_text().partition(HEADING)[0].rstrip("\n")
    FILE.write_text(f"{text}\n\n{section()}")
