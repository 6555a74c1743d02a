"""Baseline and candidate -> a verdict with a reason code per metric of each point."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from mhaprof.compare import family
from mhaprof.compare.exact import (
    COUNTS,
    EXACT_METRICS,
    judge_bytes,
    judge_equal,
    judge_exact,
)
from mhaprof.compare.labels import label_of
from mhaprof.compare.policy import ExactRule, Metrics, Policy
from mhaprof.compare.rows import (
    CONDITIONS,
    Pair,
    Row,
    RunRows,
    differences,
    has_time,
    pair_rows,
    picked,
    require_measured,
    role_of,
)
from mhaprof.compare.status import judge_status
from mhaprof.compare.times import METRIC as LATENCY
from mhaprof.compare.times import TimePair, judge_times, time_pair
from mhaprof.compare.verdicts import (
    Comparison,
    Coverage,
    Difference,
    Gate,
    Judgement,
    PointVerdict,
)
from mhaprof.errors import NotComparable, UsageError


def compare(
    base: RunRows, new: RunRows, policy: Policy, *, allow_env_mismatch: Collection[str] = ()
) -> Comparison:
    """Compare two runs point by point under a policy.

    Raises NotComparable when the baseline has no measured point, or when measured numbers were
    taken under other conditions that ``allow_env_mismatch`` does not name; UsageError
    when it names no condition.
    """
    require_conditions(allow_env_mismatch)
    require_measured(base)
    plans = [
        _Plan(pair=pair, rules=policy.rules_for(*map(str, picked(pair.row, _NAMED[:2]))))
        for pair in pair_rows(base.rows, new.rows)
    ]
    allowed = _check_conditions(
        [plan.pair for plan in plans if plan.is_measured],
        base,
        new,
        allowed=allow_env_mismatch,
    )
    times = _judge_all_times(plans, alpha=policy.alpha, paired=base.paired and new.paired)
    points = [_point(plan, policy, latency) for plan, latency in zip(plans, times, strict=True)]
    points.sort(key=lambda point: point.worst.weight())
    return Comparison(points=points, allowed=allowed, strict=policy.strict)


def require_conditions(names: Collection[str]) -> None:
    """Raise UsageError for a name that is no condition."""
    unknown = sorted(set(names) - set(CONDITIONS))
    if unknown:
        raise UsageError(
            f"--allow-env-mismatch {unknown[0]!r} is not one of {', '.join(CONDITIONS)}"
        )


class _Plan(NamedTuple):
    """One pair with the rules for it."""

    pair: Pair
    rules: Metrics

    @property
    def is_measured(self) -> bool:
        """Say whether a number that depends on the machine will be judged."""
        base, new = self.pair.base, self.pair.new
        if base is None or new is None:
            return False
        timed = self.rules.latency.gate != "ignore" and has_time(base) and has_time(new)
        peaks = (base.get("peak_bytes"), new.get("peak_bytes"))
        return timed or (self.rules.peak_bytes.gate != "ignore" and None not in peaks)

    def time_pair(self, *, paired: bool) -> TimePair | None:
        """Return the times to judge, if both sides have them and the policy cares."""
        pair, rule = self.pair, self.rules.latency
        if pair.base is None or pair.new is None or rule.gate == "ignore":
            return None
        if not _both_ok(pair.base, pair.new):
            return None
        return time_pair(pair.base, pair.new, rule, paired=paired)


def _both_ok(base: Row, new: Row) -> bool:
    return base.get("status") == "ok" and new.get("status") == "ok"


def _check_conditions(
    pairs: Sequence[Pair], base: RunRows, new: RunRows, *, allowed: Collection[str]
) -> list[Difference]:
    """Refuse other conditions, naming each difference; return those that are allowed."""
    found = differences(pairs, base.environment, new.environment)
    refused = [difference for difference in found if difference.key not in allowed]
    if refused:
        keys = list(dict.fromkeys(difference.key for difference in refused))
        lines = [
            f"{new.source} was not measured as {base.source} was:",
            *(f"  {difference}" for difference in refused),
            "measure both alike, or accept it by name: "
            + " ".join(f"--allow-env-mismatch {key}" for key in keys),
        ]
        raise NotComparable("\n".join(lines))
    return found


def _judge_all_times(
    plans: Sequence[_Plan], *, alpha: float, paired: bool
) -> list[Judgement | None]:
    """Judge the times of all points together: p-values are adjusted for their number."""
    pairs = [plan.time_pair(paired=paired) for plan in plans]
    tested = [pair for pair in pairs if pair is not None and pair.can_prove(alpha)]
    found = iter(family.evidence(tested, alpha=alpha))
    judged: list[Judgement | None] = []
    for pair in pairs:
        if pair is None:
            judged.append(None)
        else:
            evidence = next(found) if pair.can_prove(alpha) else None
            judged.append(judge_times(pair, evidence, alpha=alpha))
    return judged


_NAMED = ("name", "implementation", "device", "dtype")


def _point(plan: _Plan, policy: Policy, latency: Judgement | None) -> PointVerdict:
    """Collect the judgements of one point: how it ended, then each metric."""
    pair = plan.pair
    metrics: list[Judgement] = []
    if pair.base is not None and pair.new is not None:
        metrics = _metrics(pair.base, pair.new, plan.rules, latency, moved=bool(pair.redefined))
    costs = [each for each in metrics if each.metric in COUNTS] if pair.redefined else []
    kept_costs = [each for each in costs if each.gate != "ignore"]
    judgements = [judge_status(pair, policy.status, kept_costs)]
    judgements += [each for each in metrics if each not in costs] if costs else metrics
    kept = [judgement for judgement in judgements if judgement.gate != "ignore"]
    row = pair.row
    if any(each.verdict != "unchanged" or each.ratio not in (None, 1.0) for each in kept):
        kept.sort(key=Judgement.weight)  # of unchanged ones all weigh the same
    name, implementation, device, dtype = picked(row, _NAMED)
    return PointVerdict(
        name=str(name),
        implementation=str(implementation),
        role=role_of(row),
        label=label_of(row),
        judgements=kept or [_IGNORED],
        device=None if device is None else str(device),
        dtype=None if dtype is None else str(dtype),
        coverage=_coverage(pair, kept),
    )


def _coverage(pair: Pair, kept: Sequence[Judgement]) -> Coverage:
    """Say whether a measured number or name of the point was compared, else why not."""
    if pair.base is None:
        return "new"
    if pair.new is None:
        return "not compared"
    if not _both_ok(pair.base, pair.new):
        skipped = "skipped" in (pair.base.get("status"), pair.new.get("status"))
        return "skipped" if skipped else "not compared"
    no_number = ("status", "uncounted_ops")
    seen = (each.metric not in no_number and each.reason != "metric_missing" for each in kept)
    redefined = any(each.reason == "definition_changed" for each in kept)
    return "compared" if redefined or any(seen) else "not compared"


_IGNORED = Judgement(
    metric="status",
    verdict="unchanged",
    reason="exact_equal",
    message="the policy ignores how this point ended",
)


def _metrics(
    base: Row, new: Row, rules: Metrics, latency: Judgement | None, *, moved: bool
) -> list[Judgement]:
    """Judge all metrics that the baseline has; of a ``moved`` definition fewer is better."""
    both_ok = _both_ok(base, new)
    equal = judge_equal(base, new, rules) if both_ok and not moved else None
    judgements = [] if equal is None else equal
    for metric, columns in EXACT_METRICS.items() if equal is None else ():
        rule: ExactRule = getattr(rules, metric)
        if moved and metric in COUNTS:
            rule = rule.model_copy(update={"change": "increase"})
        if metric == "uncounted_ops":
            comparable = metric in base and metric in new and both_ok
        else:
            comparable = base.get(metric) is not None and new.get(metric) is not None
        if comparable:
            judgements.append(judge_exact(metric, columns, base, new, rule))
        elif both_ok and base.get(metric) is not None:
            judgements.append(_missing(metric, base[metric], rule.gate))
    if latency is not None:
        judgements.append(latency)
    elif both_ok and has_time(base):
        judgements.append(_missing(LATENCY, base.get("latency_median_s"), rules.latency.gate))
    if base.get("peak_bytes") is not None:
        if new.get("peak_bytes") is not None:
            judgements.append(judge_bytes(base["peak_bytes"], new["peak_bytes"], rules.peak_bytes))
        elif both_ok:
            judgements.append(_missing("peak_bytes", base["peak_bytes"], rules.peak_bytes.gate))
    return judgements


def _missing(metric: str, base: Any, gate: Gate) -> Judgement:
    return Judgement(
        metric=metric,
        verdict="inconclusive",
        reason="metric_missing",
        message=f"{metric} is in the baseline and not in the candidate",
        gate=gate,
        base=base,
    )
