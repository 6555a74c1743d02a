"""Run a module on meta tensors, without torch's own meta kernels where it matters.

torch's meta kernels are written in Python: the first ``mul`` imports torch._dynamo
(1.5 s), the first ``bmm`` sympy (0.5 s), and each costs 0.1 to 0.3 ms afterwards.
``MetaMode`` answers the operators that attention is made of itself, by size, dtype
and stride order (``meta_answers.py``, ``meta_proxy.py``); whatever it does not know
goes to torch, correct but slower.

It also lets constants that ``forward`` creates meet meta tensors: small
constants stay real (they may steer the control flow), everything else becomes meta,
so that an N x N mask never allocates.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mhaprof.measure.meta_answers import ANSWERS, DataDependent, Rule
from mhaprof.measure.meta_copy import KEPT_VALUES
from mhaprof.measure.meta_proxy import broadcast, draws, is_pointwise, pointwise, twin
from mhaprof.measure.silent_ops import is_silent
from mhaprof.measure.torch_private import (
    get_tracing_state,
    is_recording,
    put_back,
    recorded,
    untraced,
)

REAL_CONSTANT_LIMIT = 4096
"""Elements up to which a constant made in ``forward`` keeps its values."""

REAL_OPERAND_LIMIT = 2**20
"""Elements up to which an operator on real constants alone is computed for real."""


_aten = torch.ops.aten
_PRODUCTS = {_aten.mm, _aten.bmm, _aten.addmm, _aten.baddbmm, _aten.mv, _aten.addmv, _aten.dot}
_PRODUCTS |= {_aten.convolution, _aten._convolution}
_NEEDS_VALUES = {
    _aten._local_scalar_dense.default: "item()",
    _aten.nonzero.default: "nonzero()",
    _aten.equal.default: "torch.equal()",
    _aten.masked_select.default: "masked_select()",
    _aten._unique2.default: "unique()",
    _aten.unique_consecutive.default: "unique_consecutive()",
}


class MetaMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answer operators on meta tensors and remember those that do real work.

    ``leaves`` counts the operators run that are not silent (``silent_ops.py``): whoever
    counts compares them with what it knows.  ``work`` is how many they are.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.leaves: Counter[Any] = Counter()
        self.work = 0
        self._written: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}
        self._unknown: dict[int, torch.Tensor] = {}

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for tensor, values, version in self._written.values():
            put_back(tensor, values, version)
        self._written.clear()
        self._unknown.clear()

    def _remember(self, tensor: torch.Tensor) -> None:
        """Keep the values of a real tensor, which may be the caller's, before it is written."""
        if id(tensor) not in self._written:
            self._written[id(tensor)] = tensor, tensor.detach().clone(), tensor._version

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from wrapping this class, which would import torch._dynamo at first use."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        state = get_tracing_state()
        if state is None:
            return self._dispatch(func, args, kwargs)
        if func is _aten.convolution.default and is_recording():
            # The tracer records ``_convolution``, not ``convolution``.
            with recorded(), self:
                return _aten._convolution.default(*args, False, False, False, False, **kwargs)
        with untraced(state):
            return self._dispatch(func, args, kwargs)

    def _dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        route = _ROUTES.get(func)
        if route is None:
            route = _ROUTES[func] = _Route.of(func)
        if route.noted:
            self.leaves[func] += 1
            self.work += 1
        is_meta, real = _kinds(args, kwargs)
        if self._unknown and real:
            is_meta = is_meta or any(_memory(tensor) in self._unknown for tensor in real)
        if not is_meta:
            if not real:
                return _factory(func, args, kwargs)
            if not _too_large(func, real):
                if route.writes_first:
                    self._remember(args[0])
                return func(*args, **kwargs)
        elif "device" in kwargs:
            kwargs["device"] = torch.device("meta")
        if func is _PACK and is_meta:
            return _packed(func, *args)
        if func is _INDEX and is_meta:
            args = args[0], [place for index in args[1] for place in _positions(index)]
        if real:
            if route.writes_first and not args[0].is_meta:
                self._unknown[_memory(args[0])] = args[0]
                return args[0]
            args = tuple([_to_meta(arg) for arg in args])
            kwargs = {name: _to_meta(value) for name, value in kwargs.items()}
        return route.run(func, args, kwargs)


@dataclass(frozen=True, slots=True)
class _Route:
    """What to do with an operator, found once.

    ``writes_first`` marks operators that write into their first argument: meta values
    cannot go into a real constant, so it is returned as it is, and its memory is
    unknown from then on: who asks for a value is refused.
    """

    answer: Rule | None
    noted: bool
    writes_first: bool
    multiplies: bool

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer the operator on meta tensors, or let torch's meta kernel do it."""
        if self.multiplies:
            _check_dtypes(func, args)
        if self.answer is not None:
            result = self.answer(func, args, kwargs)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs)

    @classmethod
    def of(cls, func: Any) -> _Route:
        answer = ANSWERS.get(func)
        if func in _NEEDS_VALUES:
            answer = _refuse
        elif answer is None and is_pointwise(func):
            answer = pointwise
        schema = getattr(func, "_schema", None)
        writes = schema is not None and schema.is_mutable and schema.name.endswith("_")
        return cls(
            answer=answer,
            noted=not is_silent(kind_of(func)),
            writes_first=writes,
            multiplies=getattr(func, "_overloadpacket", None) in _PRODUCTS,
        )


_ROUTES: dict[Any, _Route] = {}


def _check_dtypes(func: Any, args: tuple[Any, ...]) -> None:
    """Refuse operands that the real kernel refuses; torch's meta kernels take any.

    Raises:
        RuntimeError: two operands of a product differ in dtype, and no autocast casts them.
    """
    dtypes = {arg.dtype for arg in args if isinstance(arg, torch.Tensor)}
    if len(dtypes) > 1 and not any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        names = " and ".join(sorted(str(dtype) for dtype in dtypes))
        raise RuntimeError(f"operands of {kind_of(func)} must have one dtype, not {names}")


def kind_of(func: Any) -> str:
    """Return an operator's name as in a trace (``aten::mm``)."""
    return str(func.name()).partition(".")[0]


def _refuse(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise DataDependent(_NEEDS_VALUES[func])


def _factory(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make a constant: real when it is small and not random, else meta."""
    if "device" not in kwargs and "device" not in _arguments(func):
        return func(*args, **kwargs)
    planned = func(*args, **{**kwargs, "device": torch.device("meta")})
    device = kwargs.get("device")
    if (device is not None and torch.device(device).type == "meta") or draws(func):
        return planned
    limit = REAL_CONSTANT_LIMIT
    if planned.dtype.is_floating_point:  # ones may be a mask, zeros are a state, a range is read
        limit = limit if func in _MASKS else 1 if "size" in _arguments(func) else KEPT_VALUES
    return func(*args, **kwargs) if planned.numel() <= limit else planned


_MASKS = {_aten.ones.default, _aten.full.default}


_INDEX = _aten.index.Tensor


def _positions(index: Any) -> Sequence[Any]:
    """Return the places that a real mask selects; how many they are is known."""
    mask = isinstance(index, torch.Tensor) and index.dtype is torch.bool and not index.is_meta
    return index.nonzero(as_tuple=True) if mask else (index,)


_PACK = _aten._pack_padded_sequence.default


def _packed(func: Any, x: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> Any:
    """Pack sequences whose lengths are real: their elements are meta, their number is known."""
    if lengths.is_meta:
        raise DataDependent("lengths of sequences")
    ones = torch.ones(x.shape[:2], device="cpu")
    _, batch_sizes = func(ones, lengths, batch_first)
    return x.new_empty((int(lengths.sum()), *x.shape[2:])), batch_sizes


@lru_cache(maxsize=512)
def _arguments(func: Any) -> frozenset[str]:
    return frozenset(argument.name for argument in func._schema.arguments)


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


def _memory(tensor: torch.Tensor) -> int:
    """Return what views of one memory share."""
    return tensor.untyped_storage().data_ptr()


def _to_meta(value: Any) -> Any:
    """Return the meta twin of a real tensor; 0-dim ones mix with meta as they are."""
    if isinstance(value, torch.Tensor):
        return value if value.is_meta or value.dim() == 0 else twin(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_to_meta(item) for item in value])
    return value


def _too_large(func: Any, real: list[torch.Tensor]) -> bool:
    """Tell whether computing ``func`` on these real tensors could cost memory or time."""
    for tensor in real:
        if tensor.dim() and tensor.numel() > REAL_OPERAND_LIMIT:
            return not _is_view(func)
    if len(real) > 1 and real[0].dim() and is_pointwise(func):
        size = broadcast([tensor.shape for tensor in real])
        return size is not None and math.prod(size) > REAL_OPERAND_LIMIT
    return False


def _is_view(func: Any) -> bool:
    """Tell whether the result aliases an argument: nothing is computed."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return False
    return any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
