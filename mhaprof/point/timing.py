"""Time one point: make it, refuse what cannot fit, check it, time it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from mhaprof.point.options import MeasureOptions
from mhaprof.records import Failed, Memory, Point, Skipped
from mhaprof.spec import AttentionSpec
from mhaprof.units import DTYPE_BYTES

if TYPE_CHECKING:
    import torch

    from mhaprof.attention.base import Implementation
    from mhaprof.measure.latency import Subject, Timed
    from mhaprof.measure.numerics import CheckedPart
    from mhaprof.measure.sampling import ProgressCallback


def predict_memory(
    point: Point, implementation: Implementation, *, check_reference: bool = True
) -> Memory | Skipped:
    """Predict the peak of one call, or refuse a point that cannot fit.

    The skip's code is ``predicted_oom``; nothing is allocated.  What must fit includes
    the float64 reference; the prediction is that of the call alone, like the peak that
    is measured.
    """
    from mhaprof.measure import memory

    settings = point.settings
    device, dtype = settings.device or "cpu", settings.dtype or "float32"
    demand = memory.predict(
        point.spec,
        fused=not implementation.holds_scores(device=device),
        dtype_bytes=DTYPE_BYTES[dtype],
        mode=settings.mode,
        check_reference=check_reference,
    )
    available = memory.available_bytes(device)
    predicted = Memory(
        predicted_peak_bytes=demand.call_bytes, peak_bytes=None, available_bytes=available
    )
    refused = memory.refusal(demand, device=device, available=available)
    return predicted if refused is None else refused.model_copy(update={"memory": predicted})


def time_point(
    point: Point,
    implementation: Implementation,
    options: MeasureOptions,
    *,
    progress: ProgressCallback | None = None,
) -> Timed | Failed | Skipped:
    """Time one point whose settings name a device and a dtype."""
    from mhaprof.measure.latency import measure
    from mhaprof.measure.sampling import StopRule

    rule = StopRule(
        min_time_s=options.min_time_s,
        max_time_s=options.max_time_s,
        precision=options.precision,
        samples=options.samples,
    )
    return measure(
        make_subject(point, implementation, seed=options.seed),
        settings=point.settings,
        rule=rule,
        progress=progress,
    )


def peak_bytes(point: Point, implementation: Implementation, *, seed: int) -> int | None:
    """Measure the peak bytes of one call, weights and inputs included, as it is timed.

    None on an accelerator that keeps no such record.  On a CPU what the compiler leaves
    in memory counts, if ``compile`` is set.
    """
    import torch

    from mhaprof.attention.base import canonical_weights, make_inputs
    from mhaprof.measure import backend, calls, devices
    from mhaprof.measure.peak import measured_peak

    spec, settings = point.spec, point.settings
    device = settings.device or "cpu"
    dtype: torch.dtype = getattr(torch, settings.dtype or "float32")

    with ExitStack() as stack:
        stack.enter_context(devices.threads(settings.threads if device == "cpu" else None))
        stack.enter_context(devices.current(device))
        stack.enter_context(devices.tf32(settings.tf32))
        stack.enter_context(calls.gradients(settings.mode))
        stack.enter_context(backend.pinned(implementation.backend))

        def build() -> Callable[[], object]:
            weights = canonical_weights(spec, seed=seed, dtype=dtype, device=device)
            module = _built(implementation, spec, dtype, torch.device(device), weights)
            inputs = make_inputs(spec, seed=seed, dtype=dtype, device=device)
            if settings.compile:
                compiled = stack.enter_context(calls.compiled(module))
                return calls.mode_call(compiled.module, inputs, settings.mode)
            return calls.mode_call(module, inputs, settings.mode)

        return measured_peak(build, device=device, dtype=settings.dtype or "float32")


def make_subject(point: Point, implementation: Implementation, *, seed: int) -> Subject:
    """Build the module with canonical weights, its inputs, and the float64 reference.

    The reference sees the very values that the module sees: weights and inputs are
    drawn, cast to the point's dtype, and only then raised to float64.
    """
    import torch

    from mhaprof.attention.base import canonical_weights, make_inputs
    from mhaprof.measure import numerics
    from mhaprof.measure.latency import Subject

    spec, settings = point.spec, point.settings
    device = settings.device or "cpu"
    dtype: torch.dtype = getattr(torch, settings.dtype or "float32")
    weights = canonical_weights(spec, seed=seed, dtype=dtype, device=device)
    module = _built(implementation, spec, dtype, torch.device(device), weights)
    part = numerics.checked_part(spec)
    first = make_inputs(spec, seed=seed, dtype=dtype, device=device)
    reference = _reference(part, weights, first)

    def inputs(index: int) -> tuple[torch.Tensor, ...]:
        return make_inputs(spec, seed=seed + index, dtype=dtype, device=device)

    return Subject(
        module=module,
        inputs=inputs,
        shape=(spec.batch, spec.tokens, reference.shape[-1]),
        reference=reference,
        part=part.output,
        tolerance=numerics.tolerance(spec, dtype=settings.dtype or "float32", tf32=settings.tf32),
        values=numerics.row_values(spec),
        backend=implementation.backend,
    )


def _built(
    implementation: Implementation,
    spec: AttentionSpec,
    dtype: torch.dtype,
    device: torch.device,
    weights: dict[str, torch.Tensor],
) -> torch.nn.Module:
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            module = implementation.build(spec)
    finally:
        torch.set_default_dtype(before)
    implementation.load(module, spec, weights)
    return module.eval()


def _reference(
    part: CheckedPart, weights: Mapping[str, torch.Tensor], inputs: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Return the float64 eager result of the part; on the CPU where a device has none."""
    import torch

    from mhaprof import attention

    device = inputs[0].device
    if device.type == "mps":
        device = torch.device("cpu")
    eager = attention.get("eager")
    exact = {name: weight.to(device, torch.float64) for name, weight in weights.items()}
    module = _built(eager, part.spec, torch.float64, device, exact)
    with torch.no_grad():
        given = [tensor.to(device, torch.float64) for tensor in part.inputs(inputs)]
        result: torch.Tensor = module(*given)
    return result
