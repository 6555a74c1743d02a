"""Copy a module, or its inputs, onto the meta device: nothing allocated, original untouched.

The copy is a ``copy.deepcopy`` whose memo already knows the meta twin of every
parameter and buffer, so tied weights stay tied and no weight is ever read.  Compiled
submodules are replaced by what they compile.  Hooks that torch.nn itself installs
(weight_norm, lazy modules) belong to the arithmetic and are kept; the user's are left
out, so that counting has no side effect.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from mhaprof.errors import UsageError

_HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
_FORWARD_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_CONTAINER_DEPTH = 3


@dataclass(frozen=True, kw_only=True)
class MetaCopy:
    """A module on the meta device, and the user's forward hooks it was freed of."""

    module: nn.Module
    skipped_hooks: tuple[str, ...]


def copy_to_meta(module: nn.Module) -> MetaCopy:
    """Copy ``module`` onto the meta device; the original is only read.

    Raises:
        UsageError: the module holds something that cannot be copied (a lock, a stream).
    """
    memo: dict[int, Any] = {}
    kept: list[tuple[OrderedDict[int, Any], OrderedDict[int, Any]]] = []
    skipped: list[str] = []
    originals: list[Any] = []
    for name, child in module.named_modules():
        target = _uncompiled(child)
        if target is not child:
            originals.append((child, target))
        _remember_tensors(child, memo)
        skipped += _remember_hooks(name, child, memo, kept)
    try:
        with _TensorsToMeta():
            for compiled, target in originals:
                memo[id(compiled)] = copy.deepcopy(target, memo)
            copied = copy.deepcopy(module, memo)
            for original, fresh in kept:
                for key, hook in original.items():
                    if _is_torch_hook(hook):
                        fresh[key] = copy.deepcopy(hook, memo)
    except Exception as error:
        raise UsageError(
            f"{type(module).__name__} cannot be copied to the meta device for counting "
            f"({type(error).__name__}: {_first_line(error)}); give a module that "
            "copy.deepcopy accepts"
        ) from error
    return MetaCopy(module=copied, skipped_hooks=tuple(skipped))


def inputs_to_meta(value: Any) -> Any:
    """Return a copy of arguments in which every tensor is its meta twin.

    Objects of the user's own (caches, block masks) are copied with the tensors inside.

    Raises:
        UsageError: an argument cannot be copied.
    """
    memo: dict[int, Any] = {}
    try:
        with _TensorsToMeta():
            return _converted(value, memo)
    except Exception as error:
        raise UsageError(
            f"an input cannot be copied to the meta device for counting "
            f"({type(error).__name__}: {_first_line(error)})"
        ) from error


def _converted(value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, torch.Tensor):
        if id(value) not in memo:
            memo[id(value)] = _meta_twin(value)
        return memo[id(value)]
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device)):
        return value
    if type(value) in (list, tuple):
        return type(value)(_converted(item, memo) for item in value)
    if type(value) is dict:
        return {key: _converted(item, memo) for key, item in value.items()}
    return copy.deepcopy(value, memo)


def _uncompiled(module: nn.Module) -> nn.Module:
    """Return what a torch.compile'd module compiles, or the module itself."""
    while type(module).__name__ == "OptimizedModule" and "_orig_mod" in module._modules:
        original = module._modules["_orig_mod"]
        if original is None:
            break
        module = original
    return module


def _remember_tensors(module: nn.Module, memo: dict[int, Any]) -> None:
    """Enter the meta twins of the module's own tensors into a deepcopy memo."""
    for owned in (module._parameters, module._buffers):
        for tensor in owned.values():
            if tensor is not None and id(tensor) not in memo:
                memo[id(tensor)] = _meta_twin(tensor)
    for name, value in module.__dict__.items():
        if not name.startswith("_") or isinstance(value, torch.Tensor):
            _remember_nested(value, memo, _CONTAINER_DEPTH)


def _remember_nested(value: Any, memo: dict[int, Any], depth: int) -> None:
    if isinstance(value, torch.Tensor):
        if id(value) not in memo:
            memo[id(value)] = _meta_twin(value)
    elif depth and type(value) in (list, tuple, dict):
        for item in value.values() if type(value) is dict else value:
            _remember_nested(item, memo, depth - 1)


def _remember_hooks(
    name: str,
    module: nn.Module,
    memo: dict[int, Any],
    kept: list[tuple[OrderedDict[int, Any], OrderedDict[int, Any]]],
) -> list[str]:
    """Give each hook table an empty twin; return the user's forward hooks, by name."""
    skipped = []
    for table_name in _HOOKS:
        table = module.__dict__.get(table_name)
        if not table:
            continue
        fresh: OrderedDict[int, Any] = OrderedDict()
        memo[id(table)] = fresh
        kept.append((table, fresh))
        if table_name in _FORWARD_HOOKS:
            users = [hook for hook in table.values() if not _is_torch_hook(hook)]
            skipped += [f"{_hook_name(hook)} on {name or 'the module'}" for hook in users]
    return skipped


def _is_torch_hook(hook: Any) -> bool:
    """Tell whether torch.nn installed the hook; a bound method counts by its function."""
    function = getattr(hook, "__func__", hook)
    module = getattr(function, "__module__", None) or type(function).__module__
    return str(module).startswith("torch.nn.")


def _hook_name(hook: Callable[..., Any]) -> str:
    return str(getattr(hook, "__qualname__", type(hook).__name__))


def _meta_twin(tensor: torch.Tensor) -> torch.Tensor:
    """Return a meta tensor like ``tensor``: size, strides, dtype, parameter or not."""
    if is_lazy(tensor):
        lazy: Any = type(tensor)
        twin: torch.Tensor = lazy(tensor.requires_grad, "meta", tensor.data.dtype)
        return twin
    if tensor.layout is not torch.strided or _is_wrapper(tensor):
        return tensor.detach().to("meta")
    result = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(result, requires_grad=tensor.requires_grad)
    return result


def _is_wrapper(tensor: torch.Tensor) -> bool:
    """Tell whether a subclass stores something else than its own elements (NJT, DTensor)."""
    return hasattr(type(tensor), "__tensor_flatten__")


class _TensorsToMeta(TorchFunctionMode):
    """Let ``copy.deepcopy`` meet tensors nobody announced: each becomes its meta twin."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.__deepcopy__:
            tensor, memo = args
            if id(tensor) not in memo:
                memo[id(tensor)] = _meta_twin(tensor)
            return memo[id(tensor)]
        if func is torch.Tensor.clone and args[0].layout is torch.strided:
            return _meta_twin(args[0])
        return func(*args, **(kwargs or {}))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else "no message"
