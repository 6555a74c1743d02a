"""Count the operations of any module: fvcore and torch side by side, on meta tensors.

One multiply-add is one MAC (what fvcore calls a FLOP); ``flops`` is twice that.
``count_module`` copies the module onto the meta device, where nothing is allocated or
computed, runs it once under each counter, and says where the two differ or where
an operator was left out.  The module that was given is only read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from mhaprof.errors import UsageError
from mhaprof.measure.counting_context import SeenOnCpu, counting, fused_attention
from mhaprof.measure.findings import (
    disagreement,
    left_out,
    recomputed,
    shared_modules,
    silent_counters,
)
from mhaprof.measure.fvcore_counter import FvcoreCount, count_with_fvcore
from mhaprof.measure.meta_copy import KEPT_VALUES, copy_call, differentiable, hooks_of_user
from mhaprof.measure.meta_mode import MetaMode
from mhaprof.measure.module_call import ModuleCall, tensors_in
from mhaprof.measure.refusals import NESTED, reason, refusal, wants_values
from mhaprof.measure.restored import Surroundings, restored
from mhaprof.measure.torch_counter import TorchCount, count_with_torch
from mhaprof.records import Finding
from mhaprof.units import flops_of

COUNTERS = ("fvcore", "torch")


@dataclass(frozen=True, kw_only=True)
class ModuleFlops:
    """What one call of a module computes: exact integers, MACs unless a name says otherwise.

    ``macs`` is the number the counters agree on; where they do not, the number of the
    counter that left nothing out, and a finding.  ``by_operator`` and ``by_module``
    (qualified names, ``''`` is the root, each with its submodules) sum to it.
    ``elementwise`` is what fvcore counts for norms and resampling, never part of ``macs``.
    ``uncounted_ops`` names operators of the matmul class, or unknown ones, without a
    number, and how often they ran.  ``params`` counts tied weights once.
    """

    macs: int
    fvcore_macs: int | None
    torch_macs: int | None
    backward_macs: int | None = None
    by_operator: dict[str, int]
    by_module: dict[str, int]
    params: int
    elementwise: dict[str, int] = field(default_factory=dict)
    uncounted_ops: dict[str, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    @property
    def flops(self) -> int:
        """Return FLOPs at two per MAC."""
        return flops_of(self.macs)


def count_module(
    module: nn.Module,
    inputs: Sequence[Any],
    *,
    kwargs: Mapping[str, Any] | None = None,
    counters: Collection[str] = COUNTERS,
    backward: bool = False,
    allow_uncounted: Collection[str] = (),
    fresh: bool = False,
) -> ModuleFlops:
    """Count one call ``module(*inputs, **kwargs)``.

    ``inputs`` are real or meta tensors, of which shapes and dtypes are used (the values
    of small integer or boolean ones where nothing else runs, and a finding says so), or
    any other values.  ``counters`` chooses from ``fvcore`` and ``torch``.  ``backward`` adds
    the MACs of the backward pass of the sum of all outputs, as torch counts them, with
    gradients of floating inputs and of all parameters that require them; attention
    by ``scaled_dot_product_attention`` then counts as the fused kernels do it, which
    recompute the scores.  Operators in ``allow_uncounted`` (``mine::op`` or ``op``) may
    stay without a count: a finding says so and does not block.  A ``fresh`` module was built
    on meta for this count alone, without hooks or state: it is not copied.

    Raises:
        UsageError: the module cannot be copied or run, or its control flow depends on
            the values of tensors.
    """
    unknown = sorted(set(counters) - set(COUNTERS))
    if unknown or not counters:
        raise UsageError(f"counters {', '.join(unknown) or 'are empty'}: choose from fvcore, torch")
    if any(tensor.is_nested for tensor in tensors_in((inputs, dict(kwargs or {})))):
        raise UsageError(f"an input of {type(module).__name__} is nested: {NESTED}")
    plan = _Plan(module, list(inputs), dict(kwargs or {}), fresh=fresh)
    with counting() as notes:
        attempts = plan.attempt(counters)
        if not attempts.ran:
            raise refusal(
                module, list(tensors_in((plan.call.args, plan.call.kwargs))), attempts.errors
            )
        backward_count = plan.run(_backward, grad=True) if backward else None
    findings = [Finding(code=code, message=message) for code, message in notes.items()]
    if plan.way.inputs:
        findings.append(
            Finding(
                code="input_values_read",
                message="forward reads the values of integer or boolean inputs: "
                "this number holds for those given",
            )
        )
    if plan.hooks and not plan.way.hooks:
        findings.append(
            Finding(
                code="hooks_not_run",
                message="this number is without the forward hooks, which cannot run while "
                f"counting: {', '.join(plan.hooks)}",
                blocking=True,
            )
        )
    return _report(
        plan.call.module, attempts, backward_count, findings=findings, allowed=allow_uncounted
    )


@dataclass(frozen=True, kw_only=True)
class _Way:
    """How a copy is made: elements of constants kept, values of inputs, hooks of the user."""

    kept: int = KEPT_VALUES
    inputs: bool = False
    hooks: bool = True


class _Plan:
    """How to run the module as often as there are counters, each time as it was given."""

    def __init__(
        self, module: nn.Module, args: list[Any], kwargs: dict[str, Any], *, fresh: bool
    ) -> None:
        self._given = (module, args, kwargs)
        self._fresh = fresh
        self._surroundings = None if fresh else Surroundings(module)
        self.hooks = [] if fresh else hooks_of_user(module)
        self.way = _Way()
        self.call: ModuleCall

    def attempt(self, counters: Collection[str]) -> _Attempts:
        """Run every counter; where one wants values, or none can run, in another way.

        First without values of constants, then with those of inputs, then without hooks.
        Real constants beside meta tensors are refused by some checks of devices.  The
        way in which most counters can run is taken.
        """
        best = _Attempts.of(self, counters)
        chosen = self.way
        for way in () if self._fresh else (_Way(kept=0), _Way(inputs=True), _Way(hooks=False)):
            if best.ran and not (way.inputs and best.want_values):
                continue
            if way.hooks or self.hooks:
                self.way = way
                attempts = _Attempts.of(self, counters)
                if attempts.ran > best.ran:
                    best, chosen = attempts, way
        self.way = chosen
        return best

    def run(self, count: Callable[[ModuleCall], Any], *, grad: bool = False) -> Any:
        """Count one call of a new copy, and put back what it changed outside.

        With ``grad`` its floating inputs have gradients.  ``call`` is then the copy that
        ran, with the sizes that lazy modules learned.
        """
        with restored(self._surroundings):
            if self._fresh:
                module, args, kwargs = self._given
                args = [differentiable(x) if grad else x for x in args]
                self.call = ModuleCall(module, args, kwargs)
            else:
                self.call = ModuleCall(
                    *copy_call(
                        *self._given,
                        hooks=self.way.hooks,
                        kept=self.way.kept,
                        input_values=self.way.inputs,
                        grad=grad,
                    )
                )
                with torch.no_grad():
                    self.call.materialize()
            seen = nullcontext() if self._fresh else SeenOnCpu()
            with torch.set_grad_enabled(grad), seen:
                return count(self.call)


def _by_fvcore(call: ModuleCall) -> FvcoreCount:
    with MetaMode():
        return count_with_fvcore(call.module, call, call.tensors())


def _by_torch(call: ModuleCall) -> TorchCount:
    return count_with_torch(call.module, call)


@dataclass(frozen=True, kw_only=True)
class _Attempts:
    """What each counter said, or why it could not."""

    fvcore: FvcoreCount | None = None
    torch: TorchCount | None = None
    errors: dict[str, Exception] = field(default_factory=dict)

    @property
    def ran(self) -> int:
        """Return how many counters could run the module."""
        return (self.fvcore is not None) + (self.torch is not None)

    @property
    def want_values(self) -> bool:
        """Tell whether a counter failed for want of the values of a tensor."""
        return any(map(wants_values, self.errors.values()))

    @classmethod
    def of(cls, plan: _Plan, counters: Collection[str]) -> _Attempts:
        """Run the module once under each counter; a failure of one does not stop the other."""
        results: dict[str, Any] = {}
        errors: dict[str, Exception] = {}
        for name, count in (("torch", _by_torch), ("fvcore", _by_fvcore)):
            if name in counters:
                try:
                    results[name] = plan.run(count)
                except UsageError:  # it cannot be copied
                    raise
                except Exception as error:  # noqa: BLE001  (any module can break a tracer)
                    errors[name] = error
        return cls(**results, errors=errors)


def _backward(call: ModuleCall) -> TorchCount:
    """Count the backward pass of all floating outputs.

    Raises:
        UsageError: autograd cannot go back through the module on meta tensors.
    """
    try:
        with MetaMode(), fused_attention():
            outputs = [output for output in call() if output.requires_grad]
            gradients = [torch.empty_like(output) for output in outputs]
        return count_with_torch(
            call.module,
            lambda: torch.autograd.backward(outputs, gradients) if outputs else None,
        )
    except Exception as error:
        raise UsageError(
            f"the backward pass of {type(call.module).__name__} cannot be counted: {reason(error)}"
        ) from error


def _report(
    module: nn.Module,
    attempts: _Attempts,
    backward: TorchCount | None,
    *,
    findings: list[Finding],
    allowed: Collection[str],
) -> ModuleFlops:
    fvcore, traced = attempts.fvcore, attempts.torch
    chosen, complete = _choose(fvcore, traced)
    uncounted = {} if complete else chosen.uncounted_ops
    by_module = _by_qualified_name(module, chosen)
    findings += silent_counters(attempts.errors)
    findings += disagreement(fvcore, traced, allowed)
    findings += left_out("the MACs", uncounted, allowed)
    findings += shared_modules(module, by_module)
    if backward is not None:
        findings += left_out("the backward MACs", backward.uncounted_ops, allowed)
        findings += recomputed(backward)
        uncounted = {**uncounted, **backward.uncounted_ops}
    return ModuleFlops(
        macs=chosen.macs,
        fvcore_macs=fvcore.macs if fvcore else None,
        torch_macs=traced.macs if traced else None,
        backward_macs=backward.macs if backward else None,
        by_operator=chosen.by_operator,
        by_module=by_module,
        params=sum(parameter.numel() for parameter in module.parameters()),
        elementwise=fvcore.elementwise if fvcore else {},
        uncounted_ops=uncounted,
        findings=tuple(findings),
    )


def _choose(
    fvcore: FvcoreCount | None, traced: TorchCount | None
) -> tuple[FvcoreCount | TorchCount, bool]:
    """Return the count to report, and whether some counter of that number left nothing out.

    torch sees what operators are made of, fvcore only their names: either may know
    an operator that the other does not.
    """
    if fvcore is None or traced is None:
        chosen = fvcore or traced
        assert chosen is not None
        return chosen, not chosen.uncounted_ops
    if fvcore.macs == traced.macs:
        return fvcore, not (fvcore.uncounted_ops and traced.uncounted_ops)
    if fvcore.uncounted_ops and (not traced.uncounted_ops or traced.macs > fvcore.macs):
        return traced, not traced.uncounted_ops
    return fvcore, not fvcore.uncounted_ops


def _by_qualified_name(module: nn.Module, chosen: FvcoreCount | TorchCount) -> dict[str, int]:
    """Key counts by the module's own names.

    The root is the total, with what its hooks compute; a module never entered
    (a container) is the sum of its children.
    """
    found = {**chosen.by_module, "": chosen.macs}
    names = [name for name, _ in module.named_modules()]
    children: Counter[str] = Counter()
    for name in reversed(names):
        macs = found.setdefault(name, children[name])
        children[name.rpartition(".")[0]] += macs
    return {name: found[name] for name in names}
