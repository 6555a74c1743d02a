"""One call of a module, whatever it takes and returns, and the modules that run in it."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.nn.parameter import is_lazy

from mhaprof.measure.meta_mode import MetaMode
from mhaprof.measure.torch_private import get_tracing_state


@dataclasses.dataclass(frozen=True)
class ModuleCall:
    """A module and what it is called with."""

    module: nn.Module
    args: list[Any]
    kwargs: dict[str, Any]

    def __call__(self) -> list[torch.Tensor]:
        """Return the tensors in the result; a generator is run to its end."""
        return list(tensors_in(self.module(*self.args, **self.kwargs)))

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors that are given or that the module holds, each once."""
        held = (*self.module.parameters(), *self.module.buffers())
        given = tensors_in((self.args, self.kwargs))
        return list({id(tensor): tensor for tensor in (*given, *held)}.values())

    def materialize(self) -> None:
        """Run once when lazy modules still have to learn their sizes."""
        if any(is_lazy(tensor) for tensor in self.tensors()):
            with MetaMode():
                self()


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value: lists, mappings and dataclasses are searched."""
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


def names_of(module: nn.Module) -> dict[int, str]:
    """Return ``id(submodule) -> name``, the first where there are several."""
    return {id(child): name for name, child in module.named_modules()}


class Running:
    """The named modules that are running, for a counter or for the scopes of a trace.

    ``parents`` are their names and ``Global``, as FlopCounterMode asks for them.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self.parents = {"Global"}
        self._names = names
        self._running: list[str] = []
        self._handles: list[Any] = []

    def __enter__(self) -> None:
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        name = self._names.get(id(module))
        if name is not None:
            self._running.append(name)
            self.parents = {"Global", *self._running}
            trace = get_tracing_state()
            if trace is not None:
                trace.push_scope(name)

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if id(module) in self._names and self._running:
            self._running.pop()
            self.parents = {"Global", *self._running}
            trace = get_tracing_state()
            if trace is not None:
                trace.pop_scope()
