"""Is this install right: every implementation against the float64 eager reference.

The checks are those that a reader can follow: results and gradients on a set of small
shapes, the worked example of "Self-attention and multi-head attention explained", and
its order experiment.  Whether the counters agree is asked through a callable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from mhaprof import attention
from mhaprof.spec import AttentionSpec
from mhaprof.verification.cases import CASES, ORDER_TOKENS, worked_example
from mhaprof.verification.judges import (
    Bench,
    CheckName,
    Verdict,
    check_example,
    check_forward,
    check_gradients,
    check_order,
)
from mhaprof.verification.problems import Problem

__all__ = ["CASES", "CheckName", "Counters", "Verdict", "verdicts", "verify"]

Counters = Callable[[str, AttentionSpec], str | None]
"""Given an implementation's name and a spec: None if all counters agree, else how not."""


def verify(
    *,
    implementations: Sequence[str] | None = None,
    cases: Mapping[str, AttentionSpec] = CASES,
    device: str = "cpu",
    dtype: str = "float64",
    counters: Counters | None = None,
    allow_import: bool = False,
) -> list[Verdict]:
    """Return a verdict for every check of every implementation on every case.

    ``implementations`` defaults to all that come with mhaprof.  What an implementation
    cannot do is skipped with its reason.  ``counters`` adds the counters' agreement.
    """
    return list(
        verdicts(
            implementations=implementations,
            cases=cases,
            device=device,
            dtype=dtype,
            counters=counters,
            allow_import=allow_import,
        )
    )


def verdicts(
    *,
    implementations: Sequence[str] | None = None,
    cases: Mapping[str, AttentionSpec] = CASES,
    device: str = "cpu",
    dtype: str = "float64",
    counters: Counters | None = None,
    allow_import: bool = False,
) -> Iterator[Verdict]:
    """Yield the verdicts of ``verify`` one by one, as they are reached."""
    problems: dict[AttentionSpec, Problem] = {}
    for name in implementations or attention.names():
        implementation = attention.get(name, allow_import=allow_import)
        bench = Bench(
            name=name,
            implementation=implementation,
            device=device,
            dtype=dtype,
            problems=problems,
        )
        example = worked_example()[0]
        order = AttentionSpec(batch=1, tokens=len(ORDER_TOKENS), dim=2, heads=1)
        yield _guarded(bench, "worked-example", "article", example, check_example)
        yield _guarded(bench, "order", "article", order, check_order)
        for case, spec in cases.items():
            yield _guarded(bench, "forward", case, spec, check_forward)
            yield _guarded(bench, "gradients", case, spec, check_gradients)
            if counters is not None:
                yield _check_counters(bench, case, spec, counters)


Judge = Callable[[Bench, str, AttentionSpec], Verdict]


def _guarded(
    bench: Bench, name: CheckName, case: str, spec: AttentionSpec, judge: Judge
) -> Verdict:
    """Return the judge's verdict; a rejection is a skip, an exception a failure."""
    rejection = bench.implementation.rejects(
        spec,
        device=bench.device,
        dtype=bench.dtype,
        mode="forward-backward" if name == "gradients" else "forward",
    )
    if rejection is not None:
        return Verdict(
            check=name,
            implementation=bench.name,
            case=case,
            status="skipped",
            message=f"{rejection.code}: {rejection.message}",
        )
    try:
        return judge(bench, case, spec)
    except (RuntimeError, ValueError, TypeError, AttributeError, KeyError) as error:
        lines = str(error).strip().splitlines() or ["no message"]
        return Verdict(
            check=name,
            implementation=bench.name,
            case=case,
            status="failed",
            message=f"{type(error).__name__}: {lines[0]}",
        )


def _check_counters(bench: Bench, case: str, spec: AttentionSpec, counters: Counters) -> Verdict:
    """Ask whether the counters agree, where the spec can be expressed."""
    rejection = bench.implementation.rejects(spec, device="meta", dtype=bench.dtype)
    if rejection is not None:
        status, message = "skipped", f"{rejection.code}: {rejection.message}"
    else:
        disagreement = counters(bench.name, spec)
        status, message = ("ok", "") if disagreement is None else ("failed", disagreement)
    return Verdict(
        check="counters",
        implementation=bench.name,
        case=case,
        status=status,  # type: ignore[arg-type]
        message=message,
    )
