"""Count the operations of any module: fvcore and torch side by side, on meta tensors.

One multiply-add is one MAC (what fvcore calls a FLOP); ``flops`` is twice that.
``count_module`` copies the module onto the meta device, where nothing is allocated or
computed, runs it once under each counter, and says where the two differ or where
an operator was left out.  The module that was given is only read.
"""

from __future__ import annotations

import os
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from mhaprof.errors import UsageError
from mhaprof.measure.counting_context import SeenOnCpu, counting, fused_attention
from mhaprof.measure.fvcore_counter import FvcoreCount, FvcoreMissing, count_with_fvcore
from mhaprof.measure.meta_copy import KEPT_VALUES, copy_call, differentiable, hooks_of_user
from mhaprof.measure.meta_mode import DataDependent, MetaMode
from mhaprof.measure.module_call import ModuleCall, tensors_in
from mhaprof.measure.restored import Surroundings, restored
from mhaprof.measure.torch_counter import TorchCount, count_with_torch
from mhaprof.records import Finding
from mhaprof.units import flops_of

COUNTERS = ("fvcore", "torch")
_MESSAGE_LIMIT = 240
_NO_VALUES = ("unallocated storage", "data-independent", "meta tensor", "Meta tensor")
"""What torch says when an operator needs values that a meta tensor does not have."""


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
    fresh: bool = False,
) -> ModuleFlops:
    """Count one call ``module(*inputs, **kwargs)``.

    ``inputs`` are real or meta tensors, of which shapes and dtypes are used (the values
    of small integer or boolean ones where nothing else runs, and a finding says so), or
    any other values.  ``counters`` chooses from ``fvcore`` and ``torch``.  ``backward`` adds
    the MACs of the backward pass of the sum of all outputs, as torch counts them, with
    gradients of floating inputs and of all parameters that require them; attention
    by ``scaled_dot_product_attention`` then counts as the fused kernels do it, which
    recompute the scores.  A ``fresh`` module was built on meta for this count alone,
    without hooks or state: it is not copied.

    Raises:
        UsageError: the module cannot be copied or run, or its control flow depends on
            the values of tensors.
    """
    unknown = sorted(set(counters) - set(COUNTERS))
    if unknown or not counters:
        raise UsageError(f"counters {', '.join(unknown) or 'are empty'}: choose from fvcore, torch")
    plan = _Plan(module, list(inputs), dict(kwargs or {}), fresh=fresh)
    with counting() as notes:
        attempts = plan.attempt(counters)
        if attempts.empty:
            raise _failed(module, plan.call, attempts)
        backward_count = plan.run(_backward, grad=True) if backward else None
    findings = [Finding(code=code, message=message) for code, message in notes.items()]
    if plan.reads_inputs:
        findings.append(
            Finding(
                code="input_values_read",
                message="forward reads the values of integer or boolean inputs: "
                "this number holds for those given",
            )
        )
    if plan.hooks and not plan.runs_hooks:
        findings.append(
            Finding(
                code="hooks_not_run",
                message="this number is without the forward hooks, which cannot run while "
                f"counting: {', '.join(plan.hooks)}",
                blocking=True,
            )
        )
    return _report(plan.call.module, attempts, backward=backward_count, findings=findings)


class _Plan:
    """How to run the module as often as there are counters, each time as it was given."""

    def __init__(
        self, module: nn.Module, args: list[Any], kwargs: dict[str, Any], *, fresh: bool
    ) -> None:
        self._given = (module, args, kwargs)
        self._fresh = fresh
        self._surroundings = None if fresh else Surroundings(module)
        self._kept = KEPT_VALUES
        self.hooks = [] if fresh else hooks_of_user(module)
        self.runs_hooks = bool(self.hooks)
        self.reads_inputs = False
        self.call: ModuleCall

    def attempt(self, counters: Collection[str]) -> _Attempts:
        """Run every counter; where none can, in another way.

        First without values of constants, then with those of inputs, then without hooks.
        Real constants beside meta tensors are refused by some checks of devices.
        """
        first = attempts = _Attempts.of(self, counters)
        if attempts.empty and not self._fresh:
            self._kept = 0
            attempts = _Attempts.of(self, counters)
        if attempts.empty and not self._fresh:
            self._kept, self.reads_inputs = KEPT_VALUES, True
            attempts = _Attempts.of(self, counters)
        if attempts.empty and self.hooks:
            self._kept, self.reads_inputs = KEPT_VALUES, False
            self.runs_hooks = False
            attempts = _Attempts.of(self, counters)
        return first if attempts.empty else attempts

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
                        hooks=self.runs_hooks,
                        kept=self._kept,
                        input_values=self.reads_inputs,
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
    fvcore_error: Exception | None = None
    torch_error: Exception | None = None

    @property
    def empty(self) -> bool:
        """Tell whether no counter could run the module."""
        return self.fvcore is None and self.torch is None

    @classmethod
    def of(cls, plan: _Plan, counters: Collection[str]) -> _Attempts:
        """Run the module once under each counter; a failure of one does not stop the other."""
        results: dict[str, Any] = {}
        for name, count in (("fvcore", _by_fvcore), ("torch", _by_torch)):
            if name in counters:
                try:
                    results[name] = plan.run(count)
                except UsageError:  # it cannot be copied
                    raise
                except Exception as error:  # noqa: BLE001  (any module can break a tracer)
                    results[f"{name}_error"] = error
        return cls(**results)


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
            f"the backward pass of {type(call.module).__name__} cannot be counted: {_line(error)}"
        ) from error


def _failed(module: nn.Module, call: ModuleCall, attempts: _Attempts) -> UsageError:
    """Say in one line why neither counter could run the module."""
    errors = [error for error in (attempts.torch_error, attempts.fvcore_error) if error]
    name = f"{type(module).__name__}.forward"
    for error in errors:
        if isinstance(error, DataDependent) or any(text in str(error) for text in _NO_VALUES):
            read = error if isinstance(error, DataDependent) else "by index or list"
            return UsageError(
                f"{name} reads values of a tensor ({read}{_place(error)}): what it computes "
                "depends on data, so its operations cannot be counted from shapes"
            )
    sizes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors_in((call.args, call.kwargs)))
    said = list(dict.fromkeys(f"{_line(error)}{_place(error)}" for error in errors))
    reasons = f"torch: {said[0]}; fvcore: {said[1]}" if len(said) > 1 else said[0]
    return UsageError(f"{name} cannot be run for counting on tensors of sizes {sizes}: {reasons}")


def _place(error: BaseException) -> str:
    """Return `` at file:line`` of the innermost frame outside torch and mhaprof."""
    frames = traceback.extract_tb(error.__traceback__)
    own = os.path.dirname(os.path.dirname(__file__))
    theirs = os.path.dirname(torch.__file__)
    for frame in reversed(frames):
        if not frame.filename.startswith((own, theirs, "<")) and "fvcore" not in frame.filename:
            return f" at {frame.filename}:{frame.lineno}"
    return ""


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
    return text if len(text) <= _MESSAGE_LIMIT else f"{text[:_MESSAGE_LIMIT]}..."


def _report(
    module: nn.Module,
    attempts: _Attempts,
    *,
    backward: TorchCount | None,
    findings: list[Finding],
) -> ModuleFlops:
    fvcore, traced = attempts.fvcore, attempts.torch
    chosen, complete = _choose(fvcore, traced)
    findings = [*findings, *_findings(attempts, chosen, complete)]
    if backward is not None and backward.uncounted_ops:
        findings.append(
            Finding(
                code="uncounted_ops",
                message=f"backward operators without a count: {_named(backward.uncounted_ops)}",
                blocking=True,
            )
        )
    return ModuleFlops(
        macs=chosen.macs,
        fvcore_macs=fvcore.macs if fvcore else None,
        torch_macs=traced.macs if traced else None,
        backward_macs=backward.macs if backward else None,
        by_operator=chosen.by_operator,
        by_module=_by_qualified_name(module, chosen),
        params=sum(parameter.numel() for parameter in module.parameters()),
        elementwise=fvcore.elementwise if fvcore else {},
        uncounted_ops={} if complete else chosen.uncounted_ops,
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


def _findings(
    attempts: _Attempts,
    chosen: FvcoreCount | TorchCount,
    complete: bool,
) -> Iterator[Finding]:
    if isinstance(attempts.fvcore_error, FvcoreMissing):
        yield Finding(
            code="fvcore_missing",
            message=f"fvcore cannot be imported ({attempts.fvcore_error}): torch counted alone; "
            "for both counters: pip install fvcore",
        )
    elif attempts.fvcore_error is not None:
        yield Finding(
            code="fvcore_cannot_trace",
            message=f"fvcore cannot trace this module ({_line(attempts.fvcore_error)}); "
            "torch counted alone",
        )
    if attempts.torch_error is not None:
        yield Finding(
            code="torch_cannot_count",
            message=f"torch's counter cannot run this module ({_line(attempts.torch_error)}); "
            "fvcore counted alone",
        )
    yield from _disagreement(attempts.fvcore, attempts.torch)
    if not complete:
        named = _named(chosen.uncounted_ops)
        yield Finding(
            code="uncounted_ops", message=f"operators without a count: {named}", blocking=True
        )


def _disagreement(fvcore: FvcoreCount | None, traced: TorchCount | None) -> Iterator[Finding]:
    """Say that the counters differ: blocking, unless one of them names what it left out."""
    if fvcore is None or traced is None or fvcore.macs == traced.macs:
        return
    numbers = f"fvcore {fvcore.macs}, torch {traced.macs} MACs"
    if bool(fvcore.uncounted_ops) == bool(traced.uncounted_ops):
        yield Finding(
            code="counters_disagree", message=f"counters disagree: {numbers}", blocking=True
        )
    elif fvcore.uncounted_ops:
        yield Finding(
            code="fvcore_incomplete",
            message=f"fvcore cannot count {_named(fvcore.uncounted_ops)} ({numbers}): "
            "torch's number is taken",
        )
    else:
        yield Finding(
            code="torch_incomplete",
            message=f"torch cannot count {_named(traced.uncounted_ops)} ({numbers}): "
            "fvcore's number is taken",
        )


def _named(operators: Mapping[str, int]) -> str:
    return ", ".join(f"{name} (x{calls})" for name, calls in operators.items())


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
