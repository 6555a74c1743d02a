"""What a forward pass may change outside its copy, put back when it has been counted.

A constant that ``forward`` caches in a class, a global or an ``lru_cache`` would stay
behind as a meta tensor; so would whatever a closure writes into the original module.
"""

from __future__ import annotations

import copy
import functools
import operator
import random
import sys
import types
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from mhaprof.measure.torch_private import (
    get_tracing_state,
    preserved_keys,
    preserved_modes,
    set_tracing_state,
)

_Cached: Any = type(functools.lru_cache(lambda: None))
_OTHERS = frozenset(sys.stdlib_module_names) | {"torch", "numpy", "mhaprof", "fvcore", "sympy"}
_MISSING = object()
_CONTAINERS = (dict, list, set, OrderedDict, defaultdict)
_LARGEST = 10_000
"""Entries up to which a container is looked after: larger ones are data, not caches."""


@contextmanager
def torch_restored() -> Iterator[None]:
    """Put torch's state of this thread back: tracing, keys, modes, grad, dtype, random numbers."""
    grad, dtype, device = (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.get_default_device(),
    )
    tracing, numbers, python = get_tracing_state(), torch.get_rng_state(), random.getstate()
    numpy: Any = sys.modules.get("numpy.random")
    numpy_state = numpy.get_state() if numpy else None
    autocast = [
        (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        for kind in ("cpu", "cuda")
    ]
    try:
        with preserved_modes(), preserved_keys():
            yield
    finally:
        set_tracing_state(tracing)
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:
            torch.set_default_device(device)
        for kind, enabled, of_kind in autocast:
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, of_kind)
        torch.set_rng_state(numbers)
        random.setstate(python)
        if numpy:
            numpy.set_state(numpy_state)


class Surroundings:
    """The places outside a copy where ``forward`` can keep something, as they are now."""

    def __init__(self, module: nn.Module) -> None:
        self._containers: dict[int, tuple[Any, Any]] = {}
        self._classes: list[tuple[type, dict[str, Any]]] = []
        self._caches: dict[int, tuple[Any, Any]] = {}
        names: set[Any] = set()
        for child in module.modules():
            self._look_into(vars(child))
            names |= {cls.__module__ for cls in type(child).__mro__}
            for name, value in vars(child).items():
                hooks = list(value.values()) if name.endswith("_hooks") and value else []
                for code in (value, *hooks):
                    if callable(code):
                        names.add(getattr(code, "__module__", None))
                        for cell in getattr(code, "__closure__", None) or ():
                            self._look_at(_content(cell))
        self._look_around(names)

    def _look_around(self, names: set[Any]) -> None:
        """Look into modules of Python and, from there, into those whose names they use."""
        seen: set[Any] = set()
        while names:
            name = names.pop()
            module = sys.modules.get(name) if isinstance(name, str) else None
            if module is None or name in seen or name.partition(".")[0] in _OTHERS:
                continue
            seen.add(name)
            content = vars(module)
            self._look_into(content)
            for value in list(content.values()):
                if isinstance(value, types.ModuleType):
                    names.add(value.__name__)
                elif isinstance(value, (type, types.FunctionType, _Cached)):
                    names.add(value.__module__)
                if isinstance(value, type) and value.__module__ == name:
                    self._classes.append((value, dict(vars(value))))
                    self._look_into(vars(value))

    def _look_into(self, content: Mapping[str, Any]) -> None:
        self._look_at(content)
        for value in content.values():
            if type(value) in _LOOKED_AT:  # most are functions and classes
                self._look_at(value)

    def _look_at(self, value: Any) -> None:
        value = getattr(value, "__func__", value) if isinstance(value, _WRAPPERS) else value
        if type(value) in _CONTAINERS:
            if len(value) <= _LARGEST:
                self._containers.setdefault(id(value), (value, copy.copy(value)))
        elif isinstance(value, _Cached):
            self._caches[id(value)] = (value, value.cache_info())

    def restore(self) -> None:
        """Put every place back as it was."""
        for container, before in self._containers.values():
            if isinstance(container, dict):
                _restore(container, before, container.__setitem__, container.__delitem__)
            elif len(container) != len(before) or not all(map(operator.is_, container, before)):
                container.clear()
                (container.extend if isinstance(container, list) else container.update)(before)
        for cls, attributes in self._classes:
            _restore(vars(cls), attributes, partial(setattr, cls), partial(delattr, cls))
        for cache, info in self._caches.values():
            if cache.cache_info().misses != info.misses:
                cache.cache_clear()


_WRAPPERS = (staticmethod, classmethod, types.MethodType)
_LOOKED_AT = frozenset((*_CONTAINERS, *_WRAPPERS, _Cached))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _restore(now: Any, before: dict[Any, Any], put: Any, remove: Any) -> None:
    """Put entries back one by one; code that was imported meanwhile stays."""
    same = map(operator.is_, now.values(), before.values())
    if now.keys() == before.keys() and all(same):
        return  # as fast as it can be said of the thousands that nobody touched
    for key in [key for key in now if key not in before]:
        if not isinstance(now[key], (types.ModuleType, types.FunctionType, type)):
            remove(key)
    for key, value in before.items():
        if now.get(key, _MISSING) is not value:
            put(key, value)


@contextmanager
def restored(surroundings: Surroundings | None) -> Iterator[None]:
    """Run one count; put torch and the surroundings back whatever happens."""
    with ExitStack() as stack:
        if surroundings is not None:
            stack.callback(surroundings.restore)
        stack.enter_context(torch_restored())
        yield
