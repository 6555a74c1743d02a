"""Shape, dtype and stride rules of the operators that attention is made of.

Each rule answers one operator on meta tensors with the size, dtype and stride order
that torch's own kernel gives (a property test compares them), or returns
``NotImplemented``: then torch's meta kernel is asked, which also raises torch's own
error for operands that do not fit.

Elementwise operators have no rule each.  The real CPU kernel is run once per pattern
of dtypes, lengths (one or more) and stride orders, on a proxy of two elements a
dimension, and its dtype and stride order are remembered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

Rule = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
Plan = Callable[[tuple[Any, ...], dict[str, Any]], "tuple[list[int], torch.dtype, bool] | None"]


class DataDependent(Exception):
    """Say that ``forward`` asked for the value of a tensor that has only a shape."""


_aten = torch.ops.aten
_PROXY_CACHE_LIMIT = 4096
_PROXY_MAX_DIM = 8
_proxy_cache: dict[Any, "tuple[torch.dtype, tuple[int, ...] | None] | None"] = {}


def meta_tensor(size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a contiguous meta tensor."""
    return torch.empty(size, dtype=dtype, device="meta")


def twin(tensor: torch.Tensor) -> torch.Tensor:
    """Return a meta tensor of the same size, strides and dtype."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


def broadcast(sizes: Sequence[Sequence[int]]) -> list[int] | None:
    """Return the common size, or None when the sizes do not broadcast."""
    first = sizes[0]
    if all(size == first for size in sizes):
        return list(first)
    rank = max(len(size) for size in sizes)
    result = [1] * rank
    for size in sizes:
        offset = rank - len(size)
        for index, length in enumerate(size):
            if length == 1:
                continue
            known = result[offset + index]
            if known == 1:
                result[offset + index] = length
            elif known != length:
                return None
    return result


@lru_cache(maxsize=2048)
def is_pointwise(func: Any) -> bool:
    """Tell whether torch tags the operator pointwise (higher-order ones have no tags)."""
    return torch.Tag.pointwise in getattr(func, "tags", ())


def _fits_in(func: Any, args: tuple[Any, ...], size: Sequence[int]) -> bool:
    return not func._schema.is_mutable or list(args[0].shape) == list(size)


def pointwise(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer an elementwise operator: broadcast size, dtype and order of the proxy."""
    if "out" in kwargs:
        return NotImplemented
    sizes = [a.shape for a in args if isinstance(a, torch.Tensor)]
    sizes += [a.shape for a in kwargs.values() if isinstance(a, torch.Tensor)]
    size = broadcast(sizes) if sizes else None
    if size is None or not _fits_in(func, args, size):
        return NotImplemented
    return _like_proxy(func, args, kwargs, size, by_value=False)


def _same_size(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer an operator whose result has the size of its first argument."""
    if kwargs.get("layout") not in (None, torch.strided):
        return NotImplemented
    kept = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory", "layout")}
    return _like_proxy(func, args, kept, args[0].shape, by_value=True)


def _in_place(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer an operator that fills its first argument and returns it."""
    target = args[0]
    sizes = [a.shape for a in args if isinstance(a, torch.Tensor)]
    if broadcast(sizes) != list(target.shape):
        return NotImplemented
    return target


def _like_proxy(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    size: Sequence[int],
    *,
    by_value: bool,
) -> Any:
    key = (
        func,
        tuple(_pattern(arg, by_value) for arg in args),
        tuple((name, _pattern(value, True)) for name, value in kwargs.items()),
    )
    try:
        found = _proxy_cache[key]
    except KeyError:
        if len(_proxy_cache) >= _PROXY_CACHE_LIMIT:
            _proxy_cache.clear()
        found = _proxy_cache[key] = _ask_proxy(func, args, kwargs)
    except TypeError:  # an unhashable argument
        return NotImplemented
    if found is None:
        return NotImplemented
    if func._schema.is_mutable:
        return args[0]
    dtype, order = found
    if order is None:
        return meta_tensor(size, dtype)
    if len(order) != len(size):
        return NotImplemented
    return strided_tensor(size, dtype, order)


def strided_tensor(size: Sequence[int], dtype: torch.dtype, order: Sequence[int]) -> torch.Tensor:
    """Return a dense meta tensor whose dimensions lie in memory in ``order``, outermost first."""
    strides = [0] * len(size)
    step = 1
    for index in reversed(order):
        strides[index] = step
        step *= max(size[index], 1)
    return torch.empty_strided(size, strides, dtype=dtype, device="meta")


def _pattern(value: Any, by_value: bool) -> Any:
    """Return what of an argument can change the dtype or the stride order of a result."""
    if isinstance(value, torch.Tensor):
        lengths = tuple([length if length < 2 else 2 for length in value.shape])
        if value.is_contiguous():
            return value.dtype, lengths
        return value.dtype, lengths, _ranks(value)
    if by_value or value is None or not isinstance(value, (bool, int, float, complex)):
        return (type(value), tuple(value)) if isinstance(value, list) else (type(value), value)
    return type(value)


def _ranks(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the rank of each stride, 0 for the dimensions that are expanded."""
    known = sorted(set(tensor.stride()) | {0})
    return tuple(known.index(stride) for stride in tensor.stride())


def _proxy(value: Any) -> Any:
    """Return a real tensor of the same pattern, at most two elements a dimension."""
    if not isinstance(value, torch.Tensor):
        return value
    lengths = [min(length, 2) for length in value.shape]
    if value.is_contiguous():
        return torch.ones(lengths, dtype=value.dtype, device="cpu")
    ranks = _ranks(value)
    order = sorted(range(len(ranks)), key=lambda index: -ranks[index])
    stored = [1 if ranks[index] == 0 else lengths[index] for index in order]
    base = torch.ones(stored, dtype=value.dtype, device="cpu")
    inverse = [order.index(index) for index in range(len(order))]
    return base.permute(inverse).expand(lengths)


def _ask_proxy(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.dtype, tuple[int, ...] | None] | None:
    """Run the real kernel on proxies; None when it refuses or returns no single tensor."""
    if any(isinstance(arg, torch.Tensor) and arg.dim() > _PROXY_MAX_DIM for arg in args):
        return None
    state = torch.random.get_rng_state() if _draws(func) else None
    try:
        result = func(*[_proxy(arg) for arg in args], **{k: _proxy(v) for k, v in kwargs.items()})
    except Exception:  # noqa: BLE001  (torch's own meta kernel then says what is wrong)
        return None
    finally:
        if state is not None:
            torch.random.set_rng_state(state)
    if not isinstance(result, torch.Tensor):
        return None
    if result.is_contiguous():
        return result.dtype, None
    strides = result.stride()
    return result.dtype, tuple(sorted(range(result.dim()), key=lambda i: -strides[i]))


def _draws(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


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
    return _like_proxy(
        func, args, kwargs, _reduced(args[0].shape, dims, bool(keepdim)), by_value=True
    )


def _layer_norm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, normalized = args[0], list(args[1])
    outer = x.dim() - len(normalized)
    if list(x.shape[outer:]) != normalized or x.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    statistics = [*x.shape[:outer], *([1] * len(normalized))]
    return meta_tensor(x.shape, x.dtype), *(meta_tensor(statistics, x.dtype) for _ in "ms")


def _cat(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensors = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    first = tensors[0]
    rank = first.dim()
    if rank == 0 or not -rank <= dim < rank or not _fits(*tensors):
        return NotImplemented
    dim %= rank
    if any(not tensor.is_contiguous() or tensor.dim() != rank for tensor in tensors):
        return NotImplemented
    size = list(first.shape)
    for tensor in tensors[1:]:
        if any(tensor.shape[i] != size[i] for i in range(rank) if i != dim):
            return NotImplemented
        size[dim] += tensor.shape[dim]
    return meta_tensor(size, first.dtype)


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
    _aten.convolution.default: _convolution,
    _aten._convolution.default: _convolution,
    _aten._softmax_backward_data.default: _softmax_backward,
    _aten._scaled_dot_product_efficient_attention.default: _fused_attention,
    _aten._scaled_dot_product_efficient_attention_backward.default: _fused_attention_backward,
    _aten.index.Tensor: _index,
}
"""Operator -> rule, beside the elementwise operators, which torch tags."""


# Factories: size, dtype, and whether the values may be kept (random ones may not).


def _float() -> torch.dtype:
    return torch.get_default_dtype()


def _sized(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return list(args[0]), kwargs.get("dtype") or _float(), True


def _random(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return list(args[0]), kwargs.get("dtype") or _float(), False


def _full(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = args[1]
    inferred = (
        torch.bool if isinstance(value, bool) else torch.int64 if isinstance(value, int) else None
    )
    if isinstance(value, complex):
        return None
    return list(args[0]), kwargs.get("dtype") or inferred or _float(), True


def _arange(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    start, end, step = {1: (0, *args, 1), 2: (*args, 1), 3: args}.get(len(args), (0, 0, 0))
    numbers = (start, end, step)
    if step == 0 or any(not isinstance(n, (int, float)) for n in numbers):
        return None
    whole = all(isinstance(n, int) for n in numbers)
    length = -((start - end) // step) if whole else math.ceil((end - start) / step)
    dtype = kwargs.get("dtype") or (torch.int64 if whole else _float())
    return None if length < 0 else ([length], dtype, True)


def _eye(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return [args[0], args[-1]], kwargs.get("dtype") or _float(), True


def _randint(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return list(args[-1]), kwargs.get("dtype") or torch.int64, False


FACTORIES: dict[Any, Plan] = {
    **dict.fromkeys((_aten.ones.default, _aten.zeros.default, _aten.empty.memory_format), _sized),
    **dict.fromkeys((_aten.rand.default, _aten.randn.default), _random),
    **dict.fromkeys((_aten.randint.default, _aten.randint.low), _randint),
    **dict.fromkeys((_aten.arange.default, _aten.arange.start, _aten.arange.start_step), _arange),
    **dict.fromkeys((_aten.eye.default, _aten.eye.m), _eye),
    _aten.full.default: _full,
}
"""Factory -> plan of the constant it makes."""
