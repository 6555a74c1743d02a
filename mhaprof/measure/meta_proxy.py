"""Size, dtype and stride order of elementwise results, asked of the real kernel once.

Elementwise operators need no rule each.  The real CPU kernel is run once per pattern
of dtypes, lengths (one or more) and stride orders, on proxies of two elements a
dimension; its dtype and stride order are remembered, the size is the broadcast size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

_PROXY_CACHE_LIMIT = 4096
_PROXY_MAX_DIM = 8
_proxy_cache: dict[Any, tuple[torch.dtype, tuple[int, ...] | None] | None] = {}


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
    return like_proxy(func, args, kwargs, size, by_value=False)


def like_proxy(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    size: Sequence[int],
    *,
    by_value: bool,
) -> Any:
    """Return a meta tensor of ``size`` with the dtype and stride order of the proxy's result.

    ``by_value`` says that numbers among the arguments (a dimension) matter as such, not
    only their types.
    """
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
    if isinstance(value, (list, tuple)):
        return tuple([_pattern(item, by_value) for item in value])
    if by_value or value is None or not isinstance(value, (bool, int, float, complex)):
        return type(value), value
    return type(value)


def _ranks(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the rank of each stride, 0 for the dimensions that are expanded."""
    known = sorted(set(tensor.stride()) | {0})
    return tuple(known.index(stride) for stride in tensor.stride())


def _proxy(value: Any) -> Any:
    """Return a real tensor of the same pattern, at most two elements a dimension."""
    if isinstance(value, (list, tuple)):
        return [_proxy(item) for item in value]
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
    state = torch.random.get_rng_state() if draws(func) else None
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


def draws(func: Any) -> bool:
    """Tell whether an operator takes random numbers."""
    return torch.Tag.nondeterministic_seeded in func.tags
