"""The Python API: counting and timing, the same code that the command line runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from pydantic import ValidationError

from mhaprof.errors import MhaprofError, Unavailable, UsageError
from mhaprof.point import COUNTERS, DEFAULT_CACHE_DTYPE, MeasureOptions, count_point, measure_point
from mhaprof.point.counting import trace_module
from mhaprof.records import (
    Counts,
    Dtype,
    Failed,
    Latency,
    Measured,
    Point,
    Result,
    Settings,
    Skipped,
)
from mhaprof.spec import AttentionSpec
from mhaprof.units import DTYPE_BYTES

if TYPE_CHECKING:
    from torch import nn

    from mhaprof.measure.flops import ModuleFlops


@overload
def count_flops(
    subject: AttentionSpec,
    *,
    implementation: str = ...,
    counters: Collection[str] = ...,
    backward: bool = ...,
    cache_dtype: str = ...,
    allow_uncounted: Collection[str] = ...,
) -> Counts: ...


@overload
def count_flops(
    subject: nn.Module,
    inputs: Sequence[Any],
    *,
    kwargs: Mapping[str, Any] | None = ...,
    counters: Collection[str] = ...,
    backward: bool = ...,
    allow_uncounted: Collection[str] = ...,
) -> ModuleFlops: ...


def count_flops(
    subject: AttentionSpec | nn.Module,
    inputs: Sequence[Any] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    implementation: str = "eager",
    counters: Collection[str] = COUNTERS,
    backward: bool = False,
    cache_dtype: str = DEFAULT_CACHE_DTYPE,
    allow_uncounted: Collection[str] = (),
) -> Counts | ModuleFlops:
    """Count the operations of an attention spec, or of any module on given inputs.

    ``subject`` is an ``AttentionSpec`` (counted as ``implementation``; returns
    ``records.Counts``) or an ``nn.Module`` called as ``module(*inputs, **kwargs)`` with
    real or meta tensors (returns ``measure.flops.ModuleFlops``; a single tensor may be
    given bare).  Both have ``macs`` (1 per multiply-add, as fvcore counts), ``flops``
    (twice that), ``params`` and ``uncounted_ops``.  Nothing is computed or allocated,
    and the module comes back as it went in.  Operators in ``allow_uncounted`` may stay
    without a count; a finding says so.

    Raises:
        Unavailable: the implementation cannot express the spec.
        UsageError: the module cannot be run on the inputs, or arguments do not fit.
        MhaprofError: the counters disagree or left an operator of a spec uncounted.
    """
    allowed = (allow_uncounted,) if isinstance(allow_uncounted, str) else tuple(allow_uncounted)
    options = MeasureOptions(
        counters=_checked_counters(counters),
        backward=backward,
        cache_dtype=cache_dtype,
        allow_import=True,
        allow_uncounted=allowed,
    )
    if not isinstance(subject, AttentionSpec):
        if implementation != "eager" or cache_dtype != DEFAULT_CACHE_DTYPE:
            raise UsageError("implementation and cache_dtype are of a spec; a module has none")
        return _count_module(subject, inputs, kwargs, options)
    if cache_dtype not in DTYPE_BYTES:
        raise UsageError(f"cache_dtype {cache_dtype!r} is not one of {', '.join(DTYPE_BYTES)}")
    if inputs is not None or kwargs is not None:
        raise UsageError("an AttentionSpec makes its own inputs; give none")
    point = Point(name="point", spec=subject, implementation=implementation)
    result = count_point(point, **dict(options))
    measured = _measured(result)
    blocking = [finding.message for finding in measured.findings if finding.blocking]
    if blocking:
        raise MhaprofError("; ".join(blocking))
    assert measured.counts is not None
    return measured.counts


def _checked_counters(given: Collection[str]) -> tuple[str, ...]:
    """Return the names of counters; a single one may be given bare.  Raises UsageError."""
    names = (given,) if isinstance(given, str) else tuple(given)
    for name in names:
        if name not in COUNTERS:
            raise UsageError(f"counter {name!r} is not one of {', '.join(COUNTERS)}")
    if not names:
        raise UsageError(f"counters are empty; give one of {', '.join(COUNTERS)}")
    return names


def _count_module(
    module: nn.Module,
    inputs: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    options: MeasureOptions,
) -> ModuleFlops:
    import torch

    if not isinstance(module, torch.nn.Module):
        raise UsageError(
            f"count_flops takes an AttentionSpec or an nn.Module, not {type(module).__name__}"
        )
    given = (inputs,) if isinstance(inputs, torch.Tensor) else inputs or ()
    return trace_module(module, given, options, kwargs=kwargs)


def measure_latency(
    spec: AttentionSpec,
    *,
    implementation: str = "sdpa",
    device: str = "auto",
    dtype: Dtype = "float32",
    options: MeasureOptions | None = None,
    **settings: Any,
) -> Latency:
    """Time one forward pass (or ``mode``) of an implementation, checked first.

    ``settings`` are further fields of ``records.Settings`` (threads, timer, cache,
    mode, compile, tf32).  Returns ``records.Latency``: raw samples in seconds, and
    ``summary`` with the median, its 95 % interval and quantiles.

    Raises:
        UsageError: a setting that there is not, or a value that it does not take.
        Unavailable: no such device, the implementation cannot run there, or the point
            is predicted not to fit in memory (``code`` says which).
        MhaprofError: the result is wrong, or the measurement broke.
    """
    from mhaprof.measure.devices import resolve_device

    try:
        chosen = Settings(device=resolve_device(device), dtype=dtype, **settings)
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise UsageError(f"settings that do not fit: {'; '.join(faults)}") from None
    point = Point(name="point", spec=spec, implementation=implementation, settings=chosen)
    given = (options or MeasureOptions()).model_copy(update={"allow_import": True})
    measured = _measured(measure_point(point, what={"latency"}, options=given))
    assert measured.latency is not None
    return measured.latency


def _measured(result: Result) -> Measured:
    """Return what was measured, or raise why it was not."""
    outcome = result.outcome
    if isinstance(outcome, Skipped):
        raise Unavailable(outcome.message, code=outcome.code)
    if isinstance(outcome, Failed):
        raise MhaprofError(f"{outcome.code}: {outcome.message}")
    return outcome
