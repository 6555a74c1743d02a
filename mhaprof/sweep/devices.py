"""Devices as a sweep names them, found without importing torch where that can be."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mhaprof.errors import Unavailable, UsageError

ACCELERATOR_FILES = ("nvidiactl", "nvidia0", "kfd", "dri", "dxg", "nvmap", "nvhost-gpu")
"""Below /dev: without any of these (NVIDIA, AMD, Intel, WSL, Tegra) there is a CPU alone."""

ALL = "all"

DEV = Path("/dev")


def named_device(name: str) -> str:
    """Return the device to plan for: ``auto`` and ``gpu`` resolved, anything else as it was given.

    A device that is given and not there becomes a skip of its points, not an error:
    other devices of the sweep may be there.  The driver stays without torch, which
    the workers import, unless ``auto`` has something to choose from.
    """
    if name not in ("auto", "gpu"):
        return name
    if not may_have_accelerator():
        return "cpu" if name == "auto" else "cuda"
    from mhaprof.measure.devices import resolve_device

    return resolve_device(name)


def may_have_accelerator(*, dev: Path = DEV, platform: str = sys.platform) -> bool:
    """Say whether torch could find an accelerator here; never wrongly no."""
    if platform != "linux":
        return True
    return any((dev / name).exists() for name in ACCELERATOR_FILES)


def pool_of(text: str) -> list[str]:
    """Read ``--devices``: ``cuda:0,cuda:1`` or ``all`` (every CUDA device).

    Raises UsageError for other devices, Unavailable for ``all`` where there is none.
    """
    if text != ALL:
        names = list(dict.fromkeys(part.strip() for part in text.split(",")))
        for name in names:
            if not re.fullmatch(r"cuda:[0-9]{1,4}", name):
                raise UsageError(
                    f"--devices {name!r} is not all or a list of cuda:N; "
                    "a single device of another kind goes into --device"
                )
        return names
    import torch

    count = torch.cuda.device_count()
    if count == 0:
        raise Unavailable(
            "--devices all: torch finds no CUDA device; give --device cpu", code="no_cuda"
        )
    return [f"cuda:{index}" for index in range(count)]
