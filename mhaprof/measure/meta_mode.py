"""Run a module on meta tensors, without torch's own meta kernels where it matters.

torch's meta kernels are written in Python: the first ``mul`` imports torch._dynamo
(1.5 s), the first ``bmm`` sympy (0.5 s), and each costs 0.1 to 0.3 ms afterwards.
``MetaMode`` answers the operators that attention is made of itself, by shape, dtype
and stride order (``meta_answers.py``); whatever it does not know goes to torch,
correct but slower.

It also lets constants that ``forward`` creates meet meta tensors: small integer
constants stay real (they may steer the control flow), everything else becomes meta,
so that an N x N mask never allocates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mhaprof.measure.meta_answers import (
    ANSWERS,
    FACTORIES,
    broadcast,
    is_pointwise,
    meta_tensor,
    pointwise,
    twin,
)

REAL_CONSTANT_LIMIT = 4096
"""Elements up to which an integer constant made in ``forward`` keeps its values."""

REAL_OPERAND_LIMIT = 65536
"""Elements up to which an operator on real constants alone is computed for real."""


class DataDependent(Exception):
    """Say that ``forward`` asked for the value of a tensor that has only a shape."""


_aten = torch.ops.aten
_NEEDS_VALUES = {
    _aten._local_scalar_dense.default: "item()",
    _aten.nonzero.default: "nonzero()",
    _aten.equal.default: "torch.equal()",
    _aten.masked_select.default: "masked_select()",
    _aten._unique2.default: "unique()",
    _aten.unique_consecutive.default: "unique_consecutive()",
}


class MetaMode(TorchDispatchMode):
    """Answer operators on meta tensors and remember those that were left to torch.

    ``leaves`` counts the operators (overload packets) not answered here: whoever
    counts compares them with what it knows.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.leaves: Counter[Any] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        is_meta, real = _kinds(args, kwargs)
        if not is_meta and not real:
            return self._factory(func, args, kwargs)
        if not is_meta and not _too_large(func, real):
            return self._on_real(func, args, kwargs)
        if real:
            replaced = _unwritable(func, args)
            if replaced is not None:
                return replaced
            args = tuple(_to_meta(arg) for arg in args)
            kwargs = {name: _to_meta(value) for name, value in kwargs.items()}
        if func in _NEEDS_VALUES:
            raise DataDependent(_NEEDS_VALUES[func])
        answer = ANSWERS.get(func)
        if answer is None and is_pointwise(func):
            answer = pointwise
        if answer is not None:
            result = answer(func, args, kwargs)
            if result is not NotImplemented:
                if answer is not pointwise:
                    self._note(func)
                return result
        self._note(func)
        return func(*args, **kwargs)

    def _note(self, func: Any) -> None:
        self.leaves[getattr(func, "_overloadpacket", func)] += 1

    def _factory(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a constant: real when it is small and integer, else meta."""
        plan = FACTORIES.get(func)
        planned = None if plan is None else plan(args, kwargs)
        if planned is None:
            return func(*args, **kwargs)
        size, dtype, keeps_values = planned
        device = kwargs.get("device")
        on_meta = device is not None and torch.device(device).type == "meta"
        elements = _product(size)
        small = elements <= (1 if dtype.is_floating_point else REAL_CONSTANT_LIMIT)
        if keeps_values and small and not on_meta:
            return func(*args, **kwargs)
        return meta_tensor(size, dtype)

    def _on_real(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute on small real constants, unless they are sent to the meta device."""
        return func(*args, **kwargs)


def _kinds(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[bool, list[torch.Tensor]]:
    """Return whether any tensor is meta, and the tensors that are not."""
    found_meta = False
    real: list[torch.Tensor] = []
    for arg in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(arg, torch.Tensor):
            if arg.is_meta:
                found_meta = True
            else:
                real.append(arg)
        elif isinstance(arg, (list, tuple)):
            for item in arg:
                if isinstance(item, torch.Tensor):
                    if item.is_meta:
                        found_meta = True
                    else:
                        real.append(item)
    return found_meta, real


def _to_meta(value: Any) -> Any:
    """Return the meta twin of a real tensor; 0-dim ones mix with meta as they are."""
    if isinstance(value, torch.Tensor):
        return value if value.is_meta or value.dim() == 0 else twin(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_to_meta(item) for item in value])
    return value


def _too_large(func: Any, real: list[torch.Tensor]) -> bool:
    """Tell whether computing ``func`` on these real tensors could cost memory or time."""
    if any(tensor.numel() > REAL_OPERAND_LIMIT for tensor in real):
        return not _is_view(func)
    if len(real) > 1 and is_pointwise(func):
        size = broadcast([tensor.shape for tensor in real])
        return size is not None and _product(size) > REAL_OPERAND_LIMIT
    return False


def _is_view(func: Any) -> bool:
    """Tell whether the result aliases an argument: nothing is computed."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return False
    return any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def _unwritable(func: Any, args: tuple[Any, ...]) -> Any:
    """Return the target when meta values would be written into a real constant.

    Its shape is what counts; its values are then no longer those of the module.
    """
    if not args or not isinstance(args[0], torch.Tensor) or args[0].is_meta:
        return None
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.is_mutable or not schema.name.endswith("_"):
        return None
    return args[0]


def _product(size: Sequence[int]) -> int:
    product = 1
    for length in size:
        product *= length
    return product
