"""Sizes and dtypes of the operators whose meta kernel in torch is slow.

torch's meta kernels are written in Python: the first ``mul`` imports torch._dynamo
(1 s), the first ``bmm`` sympy (0.3 s), and each takes 0.1 to 0.8 ms afterwards.  A rule
here answers in some microseconds, or returns
``NotImplemented``: then torch's kernel is asked, which also raises torch's own error for
operands that do not fit.  A property test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from mhaprof.measure.grouped import QUANTIZED_LINEAR
from mhaprof.measure.torch_private import empty_quantized, schema_of

Rule = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
_aten = torch.ops.aten


def is_pointwise(func: Any) -> bool:
    """Tell whether torch tags the operator pointwise (higher-order ones have no tags)."""
    return torch.Tag.pointwise in getattr(func, "tags", ())


def draws(func: Any) -> bool:
    """Tell whether an operator takes random numbers."""
    return torch.Tag.nondeterministic_seeded in func.tags


def _product(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer ``a @ b``, added to something of its size or its last dimensions."""
    *added, a, b = args
    rank = 3 if func in (_aten.bmm.default, _aten.baddbmm.default) else 2
    if not (a.dim() == b.dim() == rank and a.shape[:-2] == b.shape[:-2]):
        return NotImplemented
    size = (*a.shape[:-1], b.shape[-1])
    fits = all(x.dim() and x.shape == size[-x.dim() :] for x in added)
    if a.shape[-1] != b.shape[-2] or not fits or len({x.dtype for x in args}) > 1:
        return NotImplemented
    return a.new_empty(size)


def _grouped_mm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer products of groups in every dtype; torch's own meta kernel takes bfloat16 alone."""
    a, b = args[:2]
    offsets: Any = args[2] if len(args) > 2 else kwargs.get("offs")
    flat = [tensor.dim() == 2 for tensor in (a, b)]
    if a.dtype != b.dtype or (any(flat) and offsets is None) or a.shape[-1] != b.shape[-2]:
        return NotImplemented
    groups = offsets.shape if all(flat) else () if any(flat) else a.shape[:1]
    dtype = kwargs.get("out_dtype") or a.dtype
    return a.new_empty((*groups, a.shape[-2], b.shape[-1]), dtype=dtype)


def _quantized_linear(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer a product with weights that torch.ao packed, which has no meta kernel."""
    x, packed = args[:2]
    size = [*x.shape[:-1], packed.unpack()[0].shape[0]]
    if not x.is_quantized:
        return x.new_empty(size)
    return empty_quantized(size, x.dtype, scale=float(args[2]), zero_point=int(args[3]))


def _packed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Pack sequences whose lengths are real: their elements are meta, their number is known."""
    x, lengths, batch_first = args
    if lengths.is_meta:
        return NotImplemented
    _, batch_sizes = func(torch.ones(x.shape[:2], device="cpu"), lengths, batch_first)
    return x.new_empty((int(lengths.sum()), *x.shape[2:])), batch_sizes


def _dequantize(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return torch.empty(args[0].shape, dtype=torch.float32, device="meta")


def _convolution(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer ``_convolution``, which torch 2.10 cannot run on meta, as ``convolution``."""
    return _aten.convolution.default(*args[:9], **kwargs)


def _reduction(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer a reduction ``(self, dim, keepdim)`` over some or all dimensions."""
    kept, dims = args[0], args[1] if len(args) > 1 else kwargs.get("dim")
    dims = [dims] if isinstance(dims, int) else list(dims or range(kept.dim()))
    if not (kept.numel() and kept.dim() and kept.is_contiguous()):
        return NotImplemented
    for dim in dims:
        kept = kept.narrow(dim, 0, 1)
    keepdim = args[2] if len(args) > 2 else kwargs.get("keepdim", False)
    return _like(func, args, kwargs, kept if keepdim else kept.squeeze(tuple(dims)))


def _layer_norm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, normalized = args[0], args[1]
    outer = x.dim() - len(normalized)
    whole = list(x.shape[outer:]) == list(normalized) and x.dtype in (torch.float32, torch.float64)
    if not whole or not normalized:
        return NotImplemented
    size = (*x.shape[:outer], *(1 for _ in normalized))
    return x.new_empty(x.shape), x.new_empty(size), x.new_empty(size)


def _same_size(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _like(func, args, kwargs, args[0]) if args[0].is_contiguous() else NotImplemented


def _pointwise(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer where the layout is clear: that of the first operand, or of contiguous ones."""
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
    first = tensors[0]
    if "out" in kwargs or "memory_format" in kwargs or draws(func):
        return NotImplemented
    if any(x.dim() and x.shape != first.shape for x in tensors):
        size = torch.broadcast_tensors(*tensors)[0].shape  # type: ignore[no-untyped-call]
        first = first if first.shape == size else first.expand(size)
    if not first.is_contiguous() and 0 in first.stride():
        if not all(x.is_contiguous() for x in tensors):
            return NotImplemented
        first = first.new_empty(first.shape, device="meta")
    if schema_of(func).is_mutable and first is not args[0]:
        return NotImplemented
    if func in _MADE_CONTIGUOUS and not first.is_contiguous():
        return NotImplemented
    return _like(func, args, kwargs, first)


class _Kind(NamedTuple):
    """What of an argument decides the dtype of a result: a tensor's own and its rank."""

    dtype: torch.dtype
    rank: int


def _like(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], like: torch.Tensor) -> Any:
    """Return an empty tensor of the size and strides of ``like`` and the operator's dtype."""
    given = (*args, *kwargs.values())
    kinds = [_Kind(x.dtype, x.dim()) if isinstance(x, torch.Tensor) else x for x in given]
    kinds = [tuple(x) if type(x) is list else x for x in kinds]
    try:
        dtype = _dtype(func, tuple(kinds), tuple(map(type, given)), tuple(kwargs))
    except TypeError:  # an argument that cannot be remembered
        return NotImplemented
    if dtype is None:
        return NotImplemented
    if schema_of(func).is_mutable:
        return args[0]
    if like.is_contiguous():
        return torch.empty(like.shape, dtype=dtype, device="meta")
    stride = like.stride()
    order = sorted(range(len(stride)), key=lambda index: -stride[index])
    return torch.empty_permuted(like.shape, order, dtype=dtype, device="meta")


@lru_cache(maxsize=4096)
def _dtype(
    func: Any, given: tuple[Any, ...], types: tuple[type, ...], names: tuple[str, ...]
) -> torch.dtype | None:
    """Return what the real kernel answers to tensors of one element; None where it refuses.

    ``types`` tell 1, 1.0 and True apart.
    """
    real = [torch.ones((1,) * x[1], dtype=x[0]) if isinstance(x, _Kind) else x for x in given]
    place = len(real) - len(names)
    kwargs = dict(zip(names, real[place:], strict=True))
    if "device" in kwargs:
        kwargs["device"] = "cpu"
    try:
        result = func(*real[:place], **kwargs)
    except Exception:  # noqa: BLE001  (torch's own meta kernel then says what is wrong)
        return None
    return result.dtype if isinstance(result, torch.Tensor) else None


_PRODUCTS = (_aten.mm, _aten.bmm, _aten.addmm, _aten.baddbmm)
_SAME_SIZE = (
    _aten._softmax.default,
    _aten._safe_softmax.default,
    _aten.tril.default,
    _aten.triu.default,
    _aten.cumsum.default,
)
_REDUCTIONS = (
    _aten.sum.dim_IntList,
    _aten.mean.dim,
    _aten.amax.default,
    _aten.any.dim,
    _aten.all.dim,
)
_ANSWERS: dict[Any, Rule] = {
    **{packet.default: _product for packet in _PRODUCTS},
    **dict.fromkeys(_SAME_SIZE, _same_size),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **({_aten._grouped_mm.default: _grouped_mm} if hasattr(_aten, "_grouped_mm") else {}),
    _aten.native_layer_norm.default: _layer_norm,
    _aten.dequantize.self: _dequantize,
    _aten._pack_padded_sequence.default: _packed,
    _aten._convolution.default: _convolution,
}
for _name in QUANTIZED_LINEAR:
    if hasattr(torch.ops.quantized, _name):
        _ANSWERS[getattr(torch.ops.quantized, _name).default] = _quantized_linear


_MADE_CONTIGUOUS = (_aten.masked_fill.Scalar, _aten.masked_fill.Tensor)
_FAST = (_aten.clone.default, _aten._to_copy.default, _aten.copy_.default)
"""Pointwise operators whose kernel in torch is not Python."""


def rule_of(func: Any) -> Rule | None:
    """Return the rule of an operator, if it has one."""
    if func in _ANSWERS:
        return _ANSWERS[func]
    return _pointwise if is_pointwise(func) and func not in _FAST else None
