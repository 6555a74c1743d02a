"""Which facts of an environment have to be the same in one result file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from mhaprof.errors import NotComparable
from mhaprof.records import Environment

COUNTING = "none"
"""The device of a run that only counts: its hardware does not matter."""

_COUNTING_SOFTWARE = ("mhaprof", "torch", "fvcore")

_UNIMPORTANT = (
    "platform",
    "memory_bytes",
    "allowed_threads",
    "device",
    "pandas",
    "pydantic",
    "numpy",
    "nvidia-ml-py",
    "ray",
    "transformers",
)
"""Facts that change no number: packages beside torch, which of equal devices it was."""

ALLOW_ALL = "all"

Facts = Mapping[str, str | int | float]


def facts(device: str, environment: Environment) -> Facts:
    """Return what identifies an environment: versions, and hardware where it is timed."""
    software = environment.software
    if device == COUNTING:
        return {name: software[name] for name in _COUNTING_SOFTWARE if name in software}
    found: dict[str, str | int | float] = dict(software)
    found |= {name: value for name, value in environment.hardware.items() if value is not None}
    return {name: value for name, value in found.items() if name not in _UNIMPORTANT}


def fingerprint(device: str, environment: Environment) -> str:
    """Return the hash of the facts and of the kind of device."""
    content = {"device": kind(device), "facts": facts(device, environment)}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def kind(device: str) -> str:
    """Return the kind of a device: ``cuda:1`` and ``cuda`` are one kind."""
    return device.partition(":")[0]


def require_same(
    device: str,
    environment: Environment,
    others: Iterable[tuple[str, Environment]],
    *,
    path: Path,
    allowed: Collection[str],
) -> None:
    """Refuse an environment that differs from all ``others`` of the same kind of device.

    ``allowed`` names facts that may differ (``torch``, ``cpu_model``; ``all``: any).
    Raises NotComparable, naming each difference with both values.
    """
    if ALLOW_ALL in allowed:
        return
    here = facts(device, environment)
    closest: list[str] | None = None
    for other_device, other in others:
        if kind(other_device) != kind(device):
            continue
        there = facts(other_device, other)
        differing = [
            name
            for name in sorted({*here, *there})
            if here.get(name) != there.get(name) and name not in allowed
        ]
        if not differing:
            return
        words = [f"{name}: {there.get(name)} there, {here.get(name)} here" for name in differing]
        if closest is None or len(words) < len(closest):
            closest = words
    if closest:
        raise NotComparable(
            f"{path} was measured in another environment ({'; '.join(closest)}); give another "
            "--out, or allow what may differ with --allow-env-mismatch NAME (or all)"
        )
