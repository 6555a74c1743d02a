"""The constants that ``forward`` makes: their size and dtype, before they are made."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

_aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant to be made; random ones may not keep values: counting draws no numbers."""

    size: list[int]
    dtype: torch.dtype
    keeps_values: bool = True


Plan = Callable[[tuple[Any, ...], dict[str, Any]], "Constant | None"]


def _float() -> torch.dtype:
    return torch.get_default_dtype()


def _sized(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Constant:
    return Constant(list(args[0]), kwargs.get("dtype") or _float())


def _random(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Constant:
    return Constant(list(args[0]), kwargs.get("dtype") or _float(), keeps_values=False)


def _randint(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Constant:
    return Constant(list(args[-1]), kwargs.get("dtype") or torch.int64, keeps_values=False)


def _full(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Constant | None:
    value = args[1]
    if isinstance(value, complex):
        return None
    of_value = {bool: torch.bool, int: torch.int64}.get(type(value))
    return Constant(list(args[0]), kwargs.get("dtype") or of_value or _float())


def _arange(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Constant | None:
    start, end, step = {1: (0, *args, 1), 2: (*args, 1), 3: args}.get(len(args), (0, 0, 0))
    numbers = (start, end, step)
    if step == 0 or any(not isinstance(number, (int, float)) for number in numbers):
        return None
    whole = all(isinstance(number, int) for number in numbers)
    length = -((start - end) // step) if whole else math.ceil((end - start) / step)
    dtype = kwargs.get("dtype") or (torch.int64 if whole else _float())
    return None if length < 0 else Constant([length], dtype)


def _eye(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Constant:
    return Constant([args[0], args[-1]], kwargs.get("dtype") or _float())


FACTORIES: dict[Any, Plan] = {
    _aten.ones.default: _sized,
    _aten.zeros.default: _sized,
    _aten.empty.memory_format: _sized,
    _aten.rand.default: _random,
    _aten.randn.default: _random,
    _aten.randint.default: _randint,
    _aten.randint.low: _randint,
    _aten.arange.default: _arange,
    _aten.arange.start: _arange,
    _aten.arange.start_step: _arange,
    _aten.eye.default: _eye,
    _aten.eye.m: _eye,
    _aten.full.default: _full,
}
"""Factory -> plan of the constant it makes."""
