"""Metrics that a machine cannot blur: counts and names exactly, measured bytes by a rule."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeGuard

from mhaprof.compare.policy import BytesRule, ExactRule, Metrics
from mhaprof.compare.rows import Row, names_of, picked
from mhaprof.compare.verdicts import Gate, Judgement, Verdict
from mhaprof.units import format_bytes, format_percent, format_ratio

EXACT_METRICS: dict[str, tuple[str, ...]] = {
    "macs": ("macs",),
    "macs_exact": ("macs_exact", "pairs_exact"),
    "params": ("params", "norm_params", "sink_params"),
    "softmax_ops": ("softmax_ops",),
    "kv_cache_bytes": ("kv_cache_bytes", "kv_bytes_per_token", "cache_dtype"),
    "predicted_peak_bytes": ("predicted_peak_bytes",),
    "resolved_backend": ("resolved_backend",),
    "uncounted_ops": ("uncounted_ops",),
}
"""The deterministic metrics: the column that names each, and columns judged with it.
The stages (``macs_*``) are judged with ``macs``."""

COUNTS = ("macs", "macs_exact", "params", "softmax_ops", "kv_cache_bytes", "predicted_peak_bytes")
"""The metrics that are numbers, by which a redefined point is compared with its old self."""

BASELINE_COLUMNS = tuple(column for columns in EXACT_METRICS.values() for column in columns)

_REASONS: dict[Verdict, str] = {"improved": "exact_decreased", "regressed": "exact_changed"}


def judge_equal(base: Row, new: Row, rules: Metrics) -> list[Judgement] | None:
    """Judge all metrics of two rows that ended ok, if they are equal in every part."""
    columns = _parts(names_of(base), names_of(new))
    values = picked(base, columns)
    if values != picked(new, columns):
        return None
    return [
        same(metric, value, getattr(rules, metric).gate)
        for metric, value in zip(EXACT_METRICS, values, strict=False)
        if value is not None or (metric == "uncounted_ops" and metric in base and metric in new)
    ]


@lru_cache(maxsize=64)
def _parts(base: tuple[str, ...], new: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns to compare: that of each metric first."""
    return (*EXACT_METRICS, *BASELINE_COLUMNS, *_stages_in(base), *_stages_in(new))


def judge_exact(
    metric: str, columns: Sequence[str], base: Row, new: Row, rule: ExactRule
) -> Judgement:
    """Compare a deterministic metric and its parts; name the parts that differ."""
    parts = [column for column in columns[1:] if column in base and column in new]
    if metric == "macs":
        parts += _stages(base, new)
    before, after = base.get(metric), new.get(metric)
    changed = [column for column in parts if (base.get(column) or 0) != (new.get(column) or 0)]
    if before == after and not changed:
        return same(metric, before, rule.gate)
    shrunk = (
        _is_count(before)
        and _is_count(after)
        and after <= before
        and not _grown(changed, base, new)
    )
    verdict: Verdict = "improved" if rule.change == "increase" and shrunk else "regressed"
    message = f"{metric} {_change(before, after)}"
    if changed:
        details = [_part_change(column, base.get(column), new.get(column)) for column in changed]
        message += f": {', '.join(details)}"
    ratio = _quotient(after, before) if _is_count(before) and _is_count(after) else None
    return Judgement(
        metric=metric,
        verdict=verdict,
        reason=_REASONS[verdict],
        message=message,
        gate=rule.gate,
        base=before,
        new=after,
        ratio=ratio,
    )


@lru_cache(maxsize=4096, typed=True)
def same(metric: str, value: Any, gate: Gate) -> Judgement:
    """Judge two equal values; those of many points are the same."""
    ratio = _quotient(value, value) if _is_count(value) else None
    return Judgement(
        metric, "unchanged", "exact_equal", f"{metric} {value}", gate, value, value, ratio
    )


def _quotient(new: int, base: int) -> float | None:
    """Return new / base, or None where no float holds it."""
    try:
        return new / base
    except (ZeroDivisionError, OverflowError):
        return None


def stages_of(*rows: Row) -> list[str]:
    """Return the columns of all stages that any of the rows has."""
    return list(dict.fromkeys(name for row in rows for name in _stages_in(names_of(row))))


@lru_cache(maxsize=64)
def _stages_in(columns: tuple[str, ...]) -> list[str]:
    return [name for name in columns if name.startswith("macs_") and name != "macs_exact"]


def _stages(base: Row, new: Row) -> list[str]:
    """Return the columns of all stages, where both sides have a breakdown."""
    return stages_of(base, new) if stages_of(base) and stages_of(new) else []


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _grown(columns: Sequence[str], base: Row, new: Row) -> bool:
    """Say whether a part became larger, or is no number that could become smaller."""
    pairs = [(base.get(name) or 0, new.get(name) or 0) for name in columns]
    return any(not (_is_count(a) and _is_count(b)) or b > a for a, b in pairs)


def _change(before: Any, after: Any) -> str:
    if _is_count(before) and _is_count(after):
        return f"{before} -> {after} ({after - before:+d})"
    return f"{_word(before)} -> {_word(after)}"


def _part_change(column: str, before: Any, after: Any) -> str:
    """Word how a part changed; a stage by its bare name."""
    name = column.removeprefix("macs_")
    if _is_count(before or 0) and _is_count(after or 0):
        return f"{name} {(after or 0) - (before or 0):+d}"
    return f"{name} {_word(before)} -> {_word(after)}"


def _word(value: Any) -> str:
    return "none" if value is None else str(value)


def judge_bytes(base: int, new: int, rule: BytesRule) -> Judgement:
    """Compare a measured peak: beyond the threshold and the floor, or not."""
    ratio = _quotient(new, base)
    limit = 1 + rule.threshold
    beyond = abs(new - base) >= rule.floor_bytes and (
        ratio is None or max(ratio, 1 / ratio if new else limit) >= limit
    )
    verdict: Verdict = "unchanged"
    if beyond:
        verdict = "regressed" if new > base else "improved"
    near = "within_threshold" if abs(new - base) >= rule.floor_bytes else "below_floor"
    shown = "" if ratio is None else f", ratio {format_ratio(ratio)}"
    return Judgement(
        metric="peak_bytes",
        verdict=verdict,
        reason="above_threshold" if beyond else near,
        message=f"peak_bytes {format_bytes(base)} -> {format_bytes(new)}{shown}, "
        f"threshold {format_percent(rule.threshold)}",
        gate=rule.gate,
        base=base,
        new=new,
        ratio=ratio,
        threshold=rule.threshold,
    )
