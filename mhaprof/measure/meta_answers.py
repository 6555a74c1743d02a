"""Size, dtype and stride rules of the operators that attention is made of.

Each rule answers one operator on meta tensors with what torch's own meta kernel gives
(a property test compares them), or returns ``NotImplemented``: then torch's kernel is
asked, which also raises torch's own error for operands that do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mhaprof.measure.meta_proxy import broadcast, like_proxy, meta_tensor

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


def _in_place(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer an operator that fills its first argument and returns it."""
    target = args[0]
    sizes = [a.shape for a in args if isinstance(a, torch.Tensor)]
    if broadcast(sizes) != list(target.shape):
        return NotImplemented
    return target


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


def _added(product: Any, added: torch.Tensor, kwargs: dict[str, Any]) -> Any:
    if product is NotImplemented or not kwargs.keys() <= {"alpha", "beta"}:
        return NotImplemented
    if broadcast([added.shape, product.shape]) != list(product.shape):
        return NotImplemented
    return product


def _mv(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    a, b = args
    if not _fits(a, b) or a.dim() != 2 or b.dim() != 1 or a.shape[1] != b.shape[0]:
        return NotImplemented
    return meta_tensor((a.shape[0],), a.dtype)


def _dot(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    a, b = args
    if not _fits(a, b) or a.dim() != 1 or a.shape != b.shape:
        return NotImplemented
    return meta_tensor((), a.dtype)


# Reductions, norms, joining.


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


_IMAGE_RANKS = (4, 5)


def _is_plain(tensor: Any) -> bool:
    """Say whether a tensor is contiguous, in the strides of dimensions of size one too."""
    if not tensor.is_contiguous():
        return False
    expected = 1
    for length, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != expected:
            return False
        expected *= length
    return True


def _cat(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensors = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    first = tensors[0]
    rank = first.dim()
    if rank == 0 or not -rank <= dim < rank or not _fits(*tensors):
        return NotImplemented
    dim %= rank
    if any(tensor.dim() != rank for tensor in tensors):
        return NotImplemented
    size = list(first.shape)
    for tensor in tensors[1:]:
        if any(tensor.shape[i] != size[i] for i in range(rank) if i != dim):
            return NotImplemented
        size[dim] += tensor.shape[dim]
    if all(map(_is_plain, tensors)):
        return meta_tensor(size, first.dtype)
    if rank in _IMAGE_RANKS and 1 in size:
        # Torch guesses whether channels come last, by the strides of dimensions of size one.
        return NotImplemented
    return like_proxy(func, args, kwargs, size, by_value=True)


def _stack(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensors = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    size = list(tensors[0].shape)
    if not _fits(*tensors) or any(list(tensor.shape) != size for tensor in tensors):
        return NotImplemented
    if any(not tensor.is_contiguous() for tensor in tensors):
        return NotImplemented
    size.insert(dim % (len(size) + 1), len(tensors))
    return meta_tensor(size, tensors[0].dtype)


def _embedding(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    weight, indices = args[:2]
    if weight.dim() != 2 or indices.dtype not in (torch.int64, torch.int32):
        return NotImplemented
    return meta_tensor((*indices.shape, weight.shape[1]), weight.dtype)


def _convolution(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer ``convolution`` and ``_convolution`` of batched, contiguous operands."""
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = args[:9]
    rank = x.dim() - 2
    if kwargs or rank < 1 or weight.dim() != x.dim() or not _fits(x, weight):
        return NotImplemented
    if not (x.is_contiguous() and weight.is_contiguous()):
        return NotImplemented
    inside = weight.shape[0] if transposed else weight.shape[1] * groups
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    if x.shape[1] != inside or (bias is not None and list(bias.shape) != [channels]):
        return NotImplemented
    places = [
        _places(x.shape[2 + i], weight.shape[2 + i], transposed, values)
        for i, values in enumerate(
            zip(*(_each(v, rank) for v in (stride, padding, dilation, output_padding)), strict=True)
        )
    ]
    if min(places) < 1:
        return NotImplemented
    return meta_tensor((x.shape[0], channels, *places), x.dtype)


def _each(values: Sequence[int], rank: int) -> Sequence[int]:
    return list(values) * rank if len(values) == 1 else values


def _places(length: int, kernel: int, transposed: bool, values: Sequence[int]) -> int:
    stride, padding, dilation, output_padding = values
    reach = dilation * (kernel - 1)
    if transposed:
        return (length - 1) * stride - 2 * padding + reach + output_padding + 1
    return (length + 2 * padding - reach - 1) // stride + 1


def _pad(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer padding by a constant; pairs of lengths start at the last dimension."""
    x, padding = args[:2]
    if not x.is_contiguous() or len(padding) % 2 or len(padding) > 2 * x.dim():
        return NotImplemented
    size = list(x.shape)
    for index in range(len(padding) // 2):
        size[-1 - index] += padding[2 * index] + padding[2 * index + 1]
    return meta_tensor(size, x.dtype) if min(size, default=1) > 0 else NotImplemented


def _new(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs.get("layout") not in (None, torch.strided):
        return NotImplemented
    return meta_tensor(args[1], kwargs.get("dtype") or args[0].dtype)


def _repeat(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, repeats = args
    if len(repeats) < x.dim():
        return NotImplemented
    size = [1] * (len(repeats) - x.dim()) + list(x.shape)
    return meta_tensor([a * b for a, b in zip(size, repeats, strict=True)], x.dtype)


def _index(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Refuse selection by a mask: how much it selects depends on values."""
    for index in args[1]:
        if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8):
            raise DataDependent("indexing by a mask")
    return NotImplemented


# What the backward pass needs.


def _softmax_backward(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    gradient, result = args[:2]
    if gradient.shape != result.shape or args[3] != gradient.dtype:
        return NotImplemented
    return meta_tensor(gradient.shape, gradient.dtype)


def _fused_attention(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer (result B x h x N x v, logsumexp, seed, offset); the result lies as B x N x h x v."""
    query, key, value = args[:3]
    if any(t.dim() != 4 for t in (query, key, value)) or key.shape[2] != value.shape[2]:
        return NotImplemented
    batch, heads, tokens, _ = query.shape
    result = meta_tensor((batch, tokens, heads, value.shape[3]), query.dtype).transpose(1, 2)
    seeds = (meta_tensor((), torch.int64) for _ in range(2))
    return result, meta_tensor((batch, heads, tokens), torch.float32), *seeds


def _fused_attention_backward(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer the gradients of query, key and value, and none of a bias."""
    if args[4] is not None:
        return NotImplemented
    return *(meta_tensor(tensor.shape, tensor.dtype) for tensor in args[1:4]), None


_SAME_SIZE = (
    _aten._softmax.default,
    _aten._log_softmax.default,
    _aten._safe_softmax.default,
    _aten._to_copy.default,
    _aten.tril.default,
    _aten.triu.default,
    _aten.cumsum.default,
    _aten.flip.default,
    _aten.roll.default,
    _aten.bernoulli.default,
    _aten.empty_like.default,
    _aten.zeros_like.default,
    _aten.ones_like.default,
    _aten.full_like.default,
    _aten.rand_like.default,
    _aten.randn_like.default,
)
_IN_PLACE = (
    _aten.copy_.default,
    _aten.fill_.Scalar,
    _aten.fill_.Tensor,
    _aten.zero_.default,
    _aten.masked_fill_.Scalar,
    _aten.masked_fill_.Tensor,
    _aten.bernoulli_.float,
    _aten.uniform_.default,
    _aten.normal_.default,
)
_REDUCTIONS = (
    _aten.sum.default,
    _aten.sum.dim_IntList,
    _aten.mean.default,
    _aten.mean.dim,
    _aten.amax.default,
    _aten.amin.default,
    _aten.argmax.default,
    _aten.any.default,
    _aten.any.dim,
    _aten.all.default,
    _aten.all.dim,
    _aten.logsumexp.default,
)

ANSWERS: dict[Any, Rule] = {
    **dict.fromkeys(_SAME_SIZE, _same_size),
    **dict.fromkeys(_IN_PLACE, _in_place),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    _aten.mm.default: _mm,
    _aten.bmm.default: _bmm,
    _aten.addmm.default: _addmm,
    _aten.baddbmm.default: _baddbmm,
    _aten.mv.default: _mv,
    _aten.dot.default: _dot,
    _aten.native_layer_norm.default: _layer_norm,
    _aten.cat.default: _cat,
    _aten.stack.default: _stack,
    _aten.embedding.default: _embedding,
    _aten.new_empty.default: _new,
    _aten.new_zeros.default: _new,
    _aten.new_ones.default: _new,
    _aten.new_full.default: _new,
    _aten.repeat.default: _repeat,
    _aten.constant_pad_nd.default: _pad,
    _aten.convolution.default: _convolution,
    _aten._convolution.default: _convolution,
    _aten._softmax_backward_data.default: _softmax_backward,
    _aten._scaled_dot_product_efficient_attention.default: _fused_attention,
    _aten._scaled_dot_product_efficient_attention_backward.default: _fused_attention_backward,
    _aten.index.Tensor: _index,
}
"""Operator -> rule, beside the elementwise operators, which torch tags."""
