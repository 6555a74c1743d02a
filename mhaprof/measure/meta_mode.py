"""Run a module on meta tensors, where nothing is allocated or computed.

``MetaMode`` notes which operators run, answers the slow ones by ``meta_answers.py`` and
leaves the rest to torch.  It also lets constants that ``forward`` creates meet meta
tensors: small constants stay real (they may steer the control flow), everything else
becomes meta, so that an N x N mask never allocates.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mhaprof.measure.meta_answers import Rule, draws, rule_of
from mhaprof.measure.meta_copy import KEPT_VALUES
from mhaprof.measure.silent_ops import is_silent
from mhaprof.measure.torch_private import (
    DispatchMode,
    get_tracing_state,
    is_recording,
    packet_of,
    put_back,
    recorded,
    schema_of,
    untraced,
    version_of,
)

REAL_CONSTANT_LIMIT = 4096
"""Elements up to which a constant made in ``forward`` keeps its values."""

REAL_OPERAND_LIMIT = 2**20
"""Elements up to which an operator on real constants alone is computed for real."""

_aten = torch.ops.aten
_PRODUCTS = {_aten.mm, _aten.bmm, _aten.addmm, _aten.baddbmm, _aten.mv, _aten.addmv, _aten.dot}
_PRODUCTS |= {_aten.convolution, _aten._convolution}
_BY_VALUE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_SPOKEN = {"_local_scalar_dense": "item()", "index": "indexing by a mask", "_unique2": "unique()"}


class DataDependent(Exception):
    """Say that ``forward`` asked for the value of a tensor that has only a shape."""


class MetaMode(DispatchMode):
    """Answer operators on meta tensors and remember those that do real work.

    ``leaves`` counts the operators run that are not silent (``silent_ops.py``): whoever
    counts compares them with what it knows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.leaves: Counter[Any] = Counter()
        self._written: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}
        self._unknown: dict[int, torch.Tensor] = {}

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for tensor, values, version in self._written.values():
            put_back(tensor, values, version)
        self._written.clear()
        self._unknown.clear()

    def _remember(self, tensor: torch.Tensor) -> None:
        """Keep the values of a real tensor, which may be the caller's, before it is written."""
        if id(tensor) not in self._written:
            self._written[id(tensor)] = tensor, tensor.detach().clone(), version_of(tensor)

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
        tensors = list(_tensors((*args, *kwargs.values()) if kwargs else args))
        real = [tensor for tensor in tensors if not tensor.is_meta]
        is_meta = len(real) < len(tensors)
        if self._unknown and any(_memory(tensor) in self._unknown for tensor in real):
            is_meta = True
            if route.by_value is not None:
                raise DataDependent(route.by_value)
        if not is_meta:
            if not real:
                return _factory(func, args, kwargs)
            if not _too_large(func, real):
                if route.writes_first:
                    self._remember(args[0])
                return func(*args, **kwargs)
        elif "device" in kwargs:
            kwargs["device"] = torch.device("meta")
        if real:
            if route.writes_first and not args[0].is_meta:
                self._unknown[_memory(args[0])] = args[0]
                return args[0]
            args = _on_meta(func, args)
            kwargs = {name: _to_meta(value) for name, value in kwargs.items()}
        return route.run(func, args, kwargs)


@dataclass(frozen=True, slots=True)
class _Route:
    """What to do with an operator, found once.

    ``writes_first`` marks operators that write into their first argument: meta values
    cannot go into a real constant, so it is returned as it is, and its memory is
    unknown from then on: who asks for a value is refused.  ``by_value`` is the name of
    an operator whose result depends on values.
    """

    answer: Rule | None
    by_value: str | None
    noted: bool
    writes_first: bool
    multiplies: bool

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer the operator on meta tensors, or let torch's meta kernel do it.

        Raises:
            DataDependent: the result depends on values.
        """
        if self.multiplies:
            _check_dtypes(func, args)
        if self.answer is not None:
            result = self.answer(func, args, kwargs)
            if result is not NotImplemented:
                return result
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            if self.by_value is None:
                raise
            raise DataDependent(self.by_value) from error

    @classmethod
    def of(cls, func: Any) -> _Route:
        schema = schema_of(func)
        depends = not _BY_VALUE.isdisjoint(getattr(func, "tags", ()))
        name = kind_of(func).partition("::")[2]
        return cls(
            answer=rule_of(func),
            by_value=_SPOKEN.get(name, f"{name}()") if depends else None,
            noted=not is_silent(kind_of(func)),
            writes_first=bool(schema and schema.is_mutable and schema.name.endswith("_")),
            multiplies=packet_of(func) in _PRODUCTS,
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


def _factory(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make a constant: real when it is small and not random, else meta."""
    names = {argument.name for argument in schema_of(func).arguments}
    if "device" not in names:
        return func(*args, **kwargs)
    planned = func(*args, **{**kwargs, "device": torch.device("meta")})
    device = kwargs.get("device")
    if (device is not None and torch.device(device).type == "meta") or draws(func):
        return planned
    limit = REAL_CONSTANT_LIMIT
    if planned.dtype.is_floating_point:  # ones may be a mask, zeros are a state, a range is read
        limit = limit if func in _MASKS else 1 if "size" in names else KEPT_VALUES
    return func(*args, **kwargs) if planned.numel() <= limit else planned


_MASKS = {_aten.ones.default, _aten.full.default}
_INDEX = _aten.index.Tensor
_FILL = _aten.masked_fill.Tensor
_PACK = _aten._pack_padded_sequence.default


def _on_meta(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments as meta tensors, but for what the sizes of a result are read from."""
    if func is _PACK:
        return args
    if func is _FILL:  # torch takes no value of the CPU there
        return tuple([arg.to("meta") for arg in args])
    if func is _INDEX:
        args = args[0], [place for index in args[1] for place in _positions(index)]
    return tuple([_to_meta(arg) for arg in args])


def _positions(index: Any) -> Sequence[Any]:
    """Return the places that a real mask selects; how many they are is known."""
    mask = isinstance(index, torch.Tensor) and index.dtype is torch.bool and not index.is_meta
    return index.nonzero(as_tuple=True) if mask else (index,)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors among an operator's arguments."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _memory(tensor: torch.Tensor) -> int:
    """Return what views of one memory share."""
    return tensor.untyped_storage().data_ptr()


def _to_meta(value: Any) -> Any:
    """Return the meta twin of a real tensor; 0-dim ones mix with meta as they are."""
    if isinstance(value, torch.Tensor):
        return value if value.is_meta or value.dim() == 0 else value.to("meta")
    if isinstance(value, (list, tuple)):
        return type(value)([_to_meta(item) for item in value])
    return value


def _too_large(func: Any, real: list[torch.Tensor]) -> bool:
    """Tell whether computing ``func`` on these real tensors could cost memory or time."""
    rank = max(tensor.dim() for tensor in real)
    sizes = [(*[1] * (rank - tensor.dim()), *tensor.shape) for tensor in real]
    if math.prod(map(max, zip(*sizes, strict=True))) <= REAL_OPERAND_LIMIT:
        return False
    schema = schema_of(func)  # a view computes nothing
    aliases = [result.alias_info for result in schema.returns] if schema else []
    return not any(alias is not None and not alias.is_write for alias in aliases)
