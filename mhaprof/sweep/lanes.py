"""Which workers a sweep needs: one per device that is timed, or one per core to count."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence

from mhaprof.runners.base import COUNTING
from mhaprof.runners.process import Lane

POINTS_PER_WORKER = 50
"""Counting so many points takes about as long as starting one more worker."""

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def lanes_for(
    devices: Iterable[str],
    *,
    pool: Sequence[str] = (),
    points: int = 1,
    cores: int = 1,
    environment: Mapping[str, str] | None = None,
) -> list[Lane]:
    """Return the lanes for tasks that ask for ``devices``.

    ``pool`` lists the CUDA devices over which tasks for ``cuda`` are spread.  Each
    CUDA device with an index gets a worker that sees it alone.  Counting alone
    (device ``none``) gets up to ``cores`` lanes, else it goes along with the first
    device.  ``environment`` is this process's, for CUDA_VISIBLE_DEVICES.
    """
    asked = list(dict.fromkeys(devices))
    timed = [device for device in asked if device != COUNTING]
    if not timed:
        workers = max(1, min(cores, math.ceil(points / POINTS_PER_WORKER)))
        return [
            Lane(name=f"core {number}", serves=(COUNTING,), environment=_ONE_THREAD)
            for number in range(workers)
        ]
    lanes = _cuda_lanes(timed, pool, os.environ if environment is None else environment)
    lanes += [
        Lane(name=device, serves=(device,)) for device in timed if not device.startswith("cuda")
    ]
    if COUNTING in asked:
        first = lanes[0]
        lanes[0] = Lane(
            name=first.name,
            serves=(*first.serves, COUNTING),
            local_device=first.local_device,
            environment=first.environment,
        )
    return lanes


def _cuda_lanes(
    timed: Sequence[str], pool: Sequence[str], environment: Mapping[str, str]
) -> list[Lane]:
    """Return one lane per CUDA device; bare ``cuda`` is the pool, or the first device."""
    indexed = [device for device in timed if device.startswith("cuda:")]
    spread: Sequence[str] = ()
    if "cuda" in timed:
        if not pool and not indexed:
            return [Lane(name="cuda", serves=("cuda",))]
        spread = pool or ("cuda:0",)
    return [
        Lane(
            name=device,
            serves=(device, "cuda") if device in spread else (device,),
            local_device="cuda",
            environment={"CUDA_VISIBLE_DEVICES": _visible(device, environment)},
        )
        for device in dict.fromkeys([*spread, *indexed])
    ]


def _visible(device: str, environment: Mapping[str, str]) -> str:
    """Return what makes this device the only one: its place in what is visible now."""
    index = int(device.partition(":")[2])
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return str(index)
    names = [name.strip() for name in visible.split(",") if name.strip()]
    # Beyond the end: none is visible, and the point's row says that it is not there.
    return names[index] if index < len(names) else "-1"
