"""One call of a module, as something that takes tensors and returns tensors.

Tracers accept nothing else; real modules take keywords, numbers, lists and objects and
return dataclasses.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from mhaprof.measure.meta_mode import MetaMode


@dataclasses.dataclass(frozen=True)
class _Slot:
    """The place of tensor number ``index`` in the arguments."""

    index: int


class ModuleCall(nn.Module):
    """Call ``module`` with given arguments, their tensors replaced by those passed in.

    ``tensors`` are the distinct tensors of the arguments, in order; a tensor that was
    given twice (self-attention's query and key) stays one.
    """

    CHILD = "counted"
    """The name under which the module is a child: the prefix of all traced names."""

    tensors: tuple[torch.Tensor, ...]

    def __init__(self, module: nn.Module, args: list[Any], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.training = module.training
        self.counted = module
        self.made: dict[int, torch.Tensor] = {}
        arguments = (args, kwargs)
        found: dict[int, torch.Tensor] = {}
        self._template = _with_slots(arguments, found)
        # A tracer needs at least one tensor to start from.
        self.tensors = tuple(found.values()) or (torch.empty(0, device="meta"),)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return every tensor found in the result, or the first input when there is none.

        A generator is run to its end.  Tensors in ``made`` are returned as well.
        """
        args, kwargs = _filled(self._template, tensors)
        result = self.counted(*args, **kwargs)
        outputs = {id(tensor): tensor for tensor in tensors_in(result)}
        return tuple({**outputs, **self.made}.values()) or tensors[:1]

    def materialize(self) -> None:
        """Run once when lazy modules still have to learn their sizes."""
        tensors = (*self.parameters(), *self.buffers())
        if any(is_lazy(tensor) for tensor in tensors):
            with MetaMode():
                self(*self.tensors)


def _with_slots(value: Any, found: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        found.setdefault(id(value), value)
        return _Slot(list(found).index(id(value)))
    if type(value) in (list, tuple):
        return type(value)([_with_slots(item, found) for item in value])
    if type(value) is dict:
        return {key: _with_slots(item, found) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make([_with_slots(item, found) for item in value])
    return value


def _filled(value: Any, tensors: tuple[torch.Tensor, ...]) -> Any:
    if isinstance(value, _Slot):
        return tensors[value.index]
    if type(value) in (list, tuple):
        return type(value)([_filled(item, tensors) for item in value])
    if type(value) is dict:
        return {key: _filled(item, tensors) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make([_filled(item, tensors) for item in value])
    return value


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a result: lists, mappings and dataclasses are searched."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple, types.GeneratorType)):
        for item in value:
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for entry in dataclasses.fields(value):
            yield from tensors_in(getattr(value, entry.name))
