"""The rules of a gate: thresholds and floors per metric and point, what blocks, what warns.

A policy file is YAML (``configs/gates/``); what it leaves out comes from the preset
that it ``extends``.  The presets are data here, so that an installed mhaprof has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from mhaprof.compare.verdicts import Gate
from mhaprof.errors import UsageError

POLICY_VERSION: Literal[1] = 1

Clock = Literal["device", "cpu", "quiet_wall", "shared_wall"]
Floor = Literal["events", "device", "host"]
Fraction = Annotated[float, Field(gt=0, lt=10)]
Seconds = Annotated[float, Field(ge=0)]


class Rules(BaseModel):
    """Be the base of all parts of a policy: frozen, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ExactRule(Rules):
    """A deterministic metric: compared exactly; ``increase`` lets it become smaller."""

    gate: Gate
    change: Literal["any", "increase"] = "any"


class Thresholds(Rules):
    """Fractions of slowdown that are allowed, by what the clock can vouch for.

    ``device``: timers on a GPU.  ``cpu``: CPU time, and wall time that equals it (one
    thread, or several fresh processes, and nobody else on the machine).
    ``quiet_wall``: wall time of several threads in one process.  ``shared_wall``:
    wall time of rows marked contended.
    """

    device: Fraction
    cpu: Fraction
    quiet_wall: Fraction
    shared_wall: Fraction


class Floors(Rules):
    """Differences in seconds below which a timer cannot vouch, by the timer."""

    events: Seconds
    device: Seconds
    host: Seconds


class LatencyRule(Rules):
    """A time: compared by processes where there are several, by intervals else."""

    gate: Gate
    threshold: Thresholds | Fraction
    floor_s: Floors | Seconds

    def threshold_for(self, clock: Clock) -> float:
        """Return the allowed slowdown, as a fraction, under a clock."""
        if isinstance(self.threshold, Thresholds):
            return float(getattr(self.threshold, clock))
        return self.threshold

    def floor_for(self, floor: Floor) -> float:
        """Return the smallest difference in seconds that counts with a timer."""
        if isinstance(self.floor_s, Floors):
            return float(getattr(self.floor_s, floor))
        return self.floor_s


class BytesRule(Rules):
    """Measured bytes: a fraction and a floor, since allocators round."""

    gate: Gate
    threshold: Fraction
    floor_bytes: Annotated[int, Field(ge=0)]


class Metrics(Rules):
    """One rule per metric."""

    macs: ExactRule
    macs_exact: ExactRule
    params: ExactRule
    softmax_ops: ExactRule
    kv_cache_bytes: ExactRule
    predicted_peak_bytes: ExactRule
    resolved_backend: ExactRule
    uncounted_ops: ExactRule
    latency: LatencyRule
    peak_bytes: BytesRule


class Statuses(Rules):
    """What blocks when a point ends otherwise than it did, or is not there.

    A new point has nothing to compare with: it is inconclusive, and fails only a
    strict gate.
    """

    point_vanished: Gate
    definition_changed: Gate
    newly_failing: Gate
    newly_skipped: Gate
    still_failing: Gate
    new_point: Gate


class PointRules(Rules):
    """Other rules for the points whose name and implementation match (shell patterns)."""

    name: str = "*"
    implementation: str = "*"
    metrics: dict[str, dict[str, Any]]

    def matches(self, name: str, implementation: str) -> bool:
        """Say whether these rules are for a point; ``*``, ``?`` and ``[...]`` as in a shell."""
        return fnmatchcase(name, self.name) and fnmatchcase(implementation, self.implementation)


class Policy(Rules):
    """All rules of a gate, complete.

    ``alpha`` is the family-wise level of the rank test.  ``strict`` makes an
    inconclusive point fail.  Of ``points``, later entries win.
    """

    version: Literal[1] = POLICY_VERSION
    extends: Literal["default", "strict", "permissive"] = "default"
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    strict: bool = False
    metrics: Metrics
    status: Statuses
    points: tuple[PointRules, ...] = ()

    def unused_rules(self, points: Iterable[tuple[str, str]]) -> list[PointRules]:
        """Return the point rules that match none of these (name, implementation) pairs."""
        known = list(points)
        return [rule for rule in self.points if not any(rule.matches(*point) for point in known)]

    def rules_for(self, name: str, implementation: str) -> Metrics:
        """Return the rules of one point: the general ones, overlaid by each match."""
        overlays = [rule.metrics for rule in self.points if rule.matches(name, implementation)]
        if not overlays:
            return self.metrics
        merged: Any = self.metrics.model_dump()
        for overlay in overlays:
            merged = overlaid(merged, overlay)
        return Metrics.model_validate(merged)


_EXACT = ("macs", "macs_exact", "params", "softmax_ops", "kv_cache_bytes")
_DEFAULT: dict[str, Any] = {
    "version": POLICY_VERSION,
    "extends": "default",
    "alpha": 0.05,
    "strict": False,
    "metrics": {
        **{name: {"gate": "block", "change": "any"} for name in _EXACT},
        "predicted_peak_bytes": {"gate": "block", "change": "any"},
        "resolved_backend": {"gate": "block", "change": "any"},
        "uncounted_ops": {"gate": "block", "change": "any"},
        "latency": {
            "gate": "block",
            "threshold": {"device": 0.05, "cpu": 0.05, "quiet_wall": 0.10, "shared_wall": 0.25},
            "floor_s": {"events": 10e-6, "device": 2e-6, "host": 30e-6},
        },
        "peak_bytes": {"gate": "block", "threshold": 0.05, "floor_bytes": 1048576},
    },
    "status": {
        "point_vanished": "block",
        "definition_changed": "block",
        "newly_failing": "block",
        "newly_skipped": "block",
        "still_failing": "block",
        "new_point": "block",
    },
    "points": [],
}

_STRICT: dict[str, Any] = {
    "extends": "strict",
    "strict": True,
    "metrics": {
        "latency": {
            "threshold": {"device": 0.03, "cpu": 0.05, "quiet_wall": 0.05, "shared_wall": 0.10}
        },
        "peak_bytes": {"threshold": 0.02},
    },
}

_PERMISSIVE: dict[str, Any] = {
    "extends": "permissive",
    "metrics": {
        **{name: {"change": "increase"} for name in (*_EXACT, "predicted_peak_bytes")},
        "resolved_backend": {"gate": "warn"},
        "latency": {
            "gate": "warn",
            "threshold": {"device": 0.10, "cpu": 0.10, "quiet_wall": 0.25, "shared_wall": 0.50},
        },
        "peak_bytes": {"gate": "warn", "threshold": 0.10},
    },
    "status": {"still_failing": "warn", "new_point": "warn"},
}


_BY_CLOCK: Mapping[str, Iterable[str]] = {
    "threshold": Thresholds.model_fields,
    "floor_s": Floors.model_fields,
}


def overlaid(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with the values of ``overlay``; mappings are merged key by key.

    A threshold or a floor that was one number is that number where the overlay is silent.
    """
    merged = dict(base)
    for key, value in overlay.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = overlaid(old, value)
        elif isinstance(value, Mapping) and isinstance(old, float | int) and key in _BY_CLOCK:
            merged[key] = overlaid(dict.fromkeys(_BY_CLOCK[key], old), value)
        else:
            merged[key] = value
    return merged


PRESETS: dict[str, dict[str, Any]] = {
    "default": _DEFAULT,
    "strict": overlaid(_DEFAULT, _STRICT),
    "permissive": overlaid(_DEFAULT, _PERMISSIVE),
}
"""The built-in policies, as the YAML files of the same name hold them."""


def preset(name: str) -> Policy:
    """Return a built-in policy; raises UsageError for a name that is none."""
    if name not in PRESETS:
        known = ", ".join(PRESETS)
        raise UsageError(f"--policy {name!r} is no preset and no file; the presets are {known}")
    return Policy.model_validate(PRESETS[name])
