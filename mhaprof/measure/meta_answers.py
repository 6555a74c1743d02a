"""Size, dtype and stride rules of the operators that attention is made of.

Each rule answers one operator on meta tensors with what torch's own meta kernel gives
(a property test compares them), or returns ``NotImplemented``: then torch's kernel is
asked, which also raises torch's own error for operands that do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mhaprof.measure.grouped import QUANTIZED_LINEAR
from mhaprof.measure.meta_proxy import broadcast, like_proxy, meta_tensor, pointwise

Rule = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class DataDependent(Exception):
    """Say that ``forward`` asked for the value of a tensor that has only a shape."""


_aten = torch.ops.aten


def _same_size(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer an operator whose result has the size of its first argument."""
    if kwargs.get("layout") not in (None, torch.strided):
        return NotImplemented
    kept = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory", "layout")}
    return like_proxy(func, args, kept, args[0].shape, by_value=True)


# Products.  Their results are contiguous.


def _fits(*tensors: torch.Tensor) -> bool:
    dtype = tensors[0].dtype
    return all(tensor.dtype == dtype for tensor in tensors)


def _mm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    a, b = args
    if kwargs or not _fits(a, b) or a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        return NotImplemented
    return meta_tensor((a.shape[0], b.shape[1]), a.dtype)


def _bmm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    a, b = args[0].shape, args[1].shape
    if kwargs or not _fits(args[0], args[1]) or len(args) > 2 or len(a) != 3 or len(b) != 3:
        return NotImplemented
    if a[0] != b[0] or a[2] != b[1]:
        return NotImplemented
    return meta_tensor((a[0], a[1], b[2]), args[0].dtype)


def _addmm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    added, a, b = args
    product = _mm(func, (a, b), {}) if _fits(added, a, b) else NotImplemented
    return _added(product, added, kwargs)


def _baddbmm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    added, a, b = args
    product = _bmm(func, (a, b), {}) if _fits(added, a, b) else NotImplemented
    return _added(product, added, kwargs)


def _grouped_mm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer products of groups in every dtype; torch's own meta kernel takes bfloat16 alone."""
    a, b = args[:2]
    offsets: Any = args[2] if len(args) > 2 else kwargs.get("offs")
    flat = [tensor.dim() == 2 for tensor in (a, b)]
    if not _fits(a, b) or (any(flat) and offsets is None) or a.shape[-1] != b.shape[-2]:
        return NotImplemented
    groups = offsets.shape if all(flat) else () if any(flat) else a.shape[:1]
    dtype = kwargs.get("out_dtype") or a.dtype
    return meta_tensor((*groups, a.shape[-2], b.shape[-1]), dtype)


def _quantized_linear(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer a product with weights that torch.ao packed, which has no meta kernel."""
    x, packed = args[:2]
    size = [*x.shape[:-1], packed.unpack()[0].shape[0]]
    if not x.is_quantized:
        return meta_tensor(size, x.dtype)
    scale, zero = args[2:4]
    return torch._empty_affine_quantized(
        size, scale=float(scale), zero_point=int(zero), dtype=x.dtype, device="meta"
    )


def _dequantize(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return meta_tensor(args[0].shape, torch.float32)


def _added(product: Any, added: torch.Tensor, kwargs: dict[str, Any]) -> Any:
    if product is NotImplemented or not kwargs.keys() <= {"alpha", "beta"}:
        return NotImplemented
    if broadcast([added.shape, product.shape]) != list(product.shape):
        return NotImplemented
    return product


# Reductions and norms.


def _reduced(size: Sequence[int], dims: Sequence[int], keepdim: bool) -> list[int]:
    gone = {dim % max(len(size), 1) for dim in dims} or set(range(len(size)))
    if keepdim:
        return [1 if index in gone else length for index, length in enumerate(size)]
    return [length for index, length in enumerate(size) if index not in gone]


def _reduction(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer a reduction ``(self, dim, keepdim)`` over some or all dimensions."""
    dims = args[1] if len(args) > 1 else kwargs.get("dim")
    if isinstance(dims, bool):  # var.default and its kin: (self, unbiased)
        return NotImplemented
    dims = [] if dims is None else [dims] if isinstance(dims, int) else list(dims)
    rank = args[0].dim()
    if any(not -rank <= dim < rank for dim in dims):
        return NotImplemented
    keepdim = args[2] if len(args) > 2 else kwargs.get("keepdim", False)
    return like_proxy(
        func, args, kwargs, _reduced(args[0].shape, dims, bool(keepdim)), by_value=True
    )


def _layer_norm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, normalized = args[0], list(args[1])
    outer = x.dim() - len(normalized)
    if (
        not normalized
        or list(x.shape[outer:]) != normalized
        or x.dtype not in (torch.float32, torch.float64)
    ):
        return NotImplemented
    statistics = [*x.shape[:outer], *([1] * len(normalized))]
    return meta_tensor(x.shape, x.dtype), *(meta_tensor(statistics, x.dtype) for _ in "ms")


def _index(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Refuse selection by a mask: how much it selects depends on values."""
    for index in args[1]:
        if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8):
            raise DataDependent("indexing by a mask")
    return NotImplemented


_SAME_SIZE = (
    _aten._softmax.default,
    _aten._safe_softmax.default,
    _aten._to_copy.default,
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

ANSWERS: dict[Any, Rule] = {
    **dict.fromkeys(_SAME_SIZE, _same_size),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    _aten.mm.default: _mm,
    _aten.bmm.default: _bmm,
    _aten.addmm.default: _addmm,
    _aten.baddbmm.default: _baddbmm,
    **({_aten._grouped_mm.default: _grouped_mm} if hasattr(_aten, "_grouped_mm") else {}),
    _aten.native_layer_norm.default: _layer_norm,
    _aten.index.Tensor: _index,
    _aten.masked_fill.Tensor: pointwise,
    _aten.dequantize.self: _dequantize,
}
for _name in QUANTIZED_LINEAR:
    if hasattr(torch.ops.quantized, _name):
        ANSWERS[getattr(torch.ops.quantized, _name).default] = _quantized_linear
"""Operator -> rule, beside the elementwise operators, which torch tags."""
