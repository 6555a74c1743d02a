"""Count one point: fvcore, torch and the closed form side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mhaprof import formulas, module_source
from mhaprof.errors import UsageError
from mhaprof.point.boundary import guarded
from mhaprof.point.options import MeasureOptions
from mhaprof.records import (
    Counts,
    Finding,
    Measured,
    Mode,
    ModuleCounts,
    ModulePoint,
    Point,
    Result,
    Skipped,
)
from mhaprof.spec import AttentionSpec
from mhaprof.units import DTYPE_BYTES, flops_of

if TYPE_CHECKING:
    from torch import nn

    from mhaprof.attention.base import Implementation
    from mhaprof.measure.flops import ModuleFlops


TOO_LARGE = "Storage size calculation overflowed"
"""How torch refuses a tensor of more bytes than a signed 64-bit integer counts."""


def count_point(point: Point, **options: Any) -> Result:
    """Count one point on meta tensors, with fields of ``MeasureOptions``."""
    return guarded(point, lambda: count(point, MeasureOptions(**options)))


def count(point: Point, options: MeasureOptions) -> Measured | Skipped:
    """Count one point as ``count_point`` does; what breaks is raised."""
    spec, counters, backward = point.spec, options.counters, options.backward
    tracers = [name for name in ("fvcore", "torch") if name in counters]
    traced: ModuleFlops | None = None
    fused = point.implementation != "eager"
    findings: list[Finding] = []
    if tracers or point.implementation != "eager":
        from mhaprof import attention

        implementation = attention.get(point.implementation, allow_import=options.allow_import)
        fused = implementation.fused
        mode: Mode = "forward-backward" if backward else "forward"
        rejection = implementation.rejects(spec, device="meta", dtype="float32", mode=mode)
        if rejection is not None:
            return Skipped(code=rejection.code, message=rejection.message)
        if implementation.counter_note is not None:
            tracers = []
            findings.append(Finding(code="closed_form_only", message=implementation.counter_note))
        if tracers:
            traced = trace(implementation, spec, options)
    counts, found = _joined(
        spec,
        traced,
        closed_form="closed-form" in counters or not tracers,
        backward=backward,
        fused=fused,
        cache_dtype=options.cache_dtype,
    )
    return Measured.trusted(
        status="ok",
        counts=counts,
        module=None,
        latency=None,
        memory=None,
        roof=None,
        findings=findings + found,
    )


def count_own(point: ModulePoint, options: MeasureOptions) -> Measured:
    """Import, build and count a module of the user.

    Raises UsageError when it cannot be imported, built or run, or no counter can see it.
    """
    try:
        module = module_source.build(point)
        found = trace_module(module, module_source.meta_inputs(point.inputs), options)
    except SystemExit as stop:
        message = f"module {point.implementation} ended the program by sys.exit({stop.code!r})"
        raise UsageError(message) from stop
    back = found.backward_macs
    counts = ModuleCounts(
        fvcore_flops=found.fvcore_macs,
        torch_macs=found.torch_macs,
        macs=found.macs,
        params=found.params,
        uncounted_ops=found.uncounted_ops,
        flops_backward=None if back is None else flops_of(back),
        flops_forward_backward=None if back is None else flops_of(back + found.macs),
        by_operator=found.by_operator,
        by_module=found.by_module,
        elementwise=found.elementwise,
    )
    return Measured(module=counts, findings=list(found.findings))


def trace_module(
    module: nn.Module,
    inputs: Sequence[Any],
    options: MeasureOptions,
    *,
    kwargs: Mapping[str, Any] | None = None,
    fresh: bool = False,
) -> ModuleFlops:
    """Count a module with fvcore and/or torch.  Raises UsageError where neither is asked for."""
    from mhaprof.measure.flops import count_module

    tracers = [name for name in options.counters if name != "closed-form"]
    if not tracers:
        raise UsageError("a module has no closed form; give the counter fvcore or torch")
    return count_module(
        module,
        inputs,
        kwargs=kwargs,
        counters=tracers,
        backward=options.backward,
        allow_uncounted=options.allow_uncounted,
        fresh=fresh,
    )


def trace(
    implementation: Implementation, spec: AttentionSpec, options: MeasureOptions
) -> ModuleFlops:
    """Count an implementation's module on meta tensors with fvcore and/or torch."""
    import torch

    from mhaprof.attention import TABLE
    from mhaprof.attention.base import make_inputs

    try:
        with torch.device("meta"):
            module = implementation.build(spec)
        inputs = make_inputs(spec, seed=0, dtype=torch.float32, device="meta")
        # What the user brought may hold hooks, or tensors that are not on meta.
        fresh = implementation.name in TABLE
        return trace_module(module, inputs, options, fresh=fresh)
    except (RuntimeError, UsageError) as error:
        if TOO_LARGE not in str(error):
            raise
        raise UsageError(
            "tensors of these sizes have more than 2^63 bytes, which torch cannot describe even "
            "without memory; give --counter closed-form"
        ) from error


def _joined(
    spec: AttentionSpec,
    traced: ModuleFlops | None,
    *,
    closed_form: bool,
    backward: bool,
    fused: bool,
    cache_dtype: str,
) -> tuple[Counts, list[Finding]]:
    """Put the counters side by side; every disagreement is a finding."""
    stages = formulas.stage_macs(spec)
    total = sum(stages.values())
    learned = formulas.params(spec)
    fvcore = traced.fvcore_macs if traced else None
    torch = traced.torch_macs if traced else None
    closed = total if closed_form else None
    macs = torch if fvcore is None else fvcore
    macs = total if macs is None else macs
    findings = _compared(traced, closed=closed, learned=learned) if traced else []
    both_passes = None
    if backward:
        expected = formulas.backward_macs(spec, fused=fused)
        counted = traced.backward_macs if traced else None
        findings += _disagreements({"torch": counted, "closed form": expected}, "backward macs")
        both_passes = (expected if counted is None else counted) + macs
    dtype_bytes = DTYPE_BYTES[cache_dtype]
    moved = formulas.moved_bytes(spec, dtype_bytes=dtype_bytes, fused=fused, learned=learned)
    exact = formulas.total_macs(spec, exact=True) if spec.is_masked else total
    counts = Counts.trusted(
        fvcore_flops=fvcore,
        torch_macs=torch,
        closed_form_macs=closed,
        macs=macs,
        macs_exact=exact,
        pairs_exact=formulas.exact_pairs(spec),
        by_stage=stages,
        params=learned.projections,
        norm_params=learned.norms,
        sink_params=learned.sinks,
        softmax_ops=formulas.softmax_ops(spec),
        uncounted_ops=traced.uncounted_ops if traced else {},
        flops_backward=None if both_passes is None else flops_of(both_passes - macs),
        flops_forward_backward=None if both_passes is None else flops_of(both_passes),
        cache_dtype=cache_dtype,
        kv_bytes_per_token=formulas.kv_bytes_per_token(spec, dtype_bytes=dtype_bytes),
        kv_cache_bytes=formulas.kv_cache_bytes(spec, dtype_bytes=dtype_bytes),
        arithmetic_intensity=flops_of(exact if fused else total) / moved,
    )
    return counts, findings


def _compared(
    traced: ModuleFlops, *, closed: int | None, learned: formulas.Params
) -> list[Finding]:
    """Return what the tracers found, and where they differ from the closed form."""
    numbers = {"fvcore": traced.fvcore_macs, "torch": traced.torch_macs, "closed form": closed}
    built = learned.projections + learned.norms + learned.sinks
    return [
        *_disagreements(numbers, "macs"),
        *(finding for finding in traced.findings if finding.code != "counters_disagree"),
        *_disagreements({"module": traced.params, "closed form": built}, "params"),
    ]


def _disagreements(numbers: dict[str, int | None], what: str) -> list[Finding]:
    """Return a blocking finding when the numbers that exist are not all equal."""
    given = {name: number for name, number in numbers.items() if number is not None}
    if len(set(given.values())) <= 1:
        return []
    listed = ", ".join(f"{name} {number}" for name, number in given.items())
    return [
        Finding(
            code="counters_disagree",
            message=f"counters disagree on {what}: {listed}",
            blocking=True,
        )
    ]
