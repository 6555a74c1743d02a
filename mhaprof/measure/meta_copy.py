"""Copy a call of a module onto the meta device: nothing allocated, originals untouched.

A ``copy.deepcopy`` of module and arguments together, in which every tensor becomes
its meta twin: tied weights stay tied, a cache held by both stays one, no weight is
read.  Small constants of the module keep their values, since ``forward`` may read
them.  Compiled submodules are replaced by what they compile.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode

from mhaprof.errors import UsageError
from mhaprof.measure.torch_private import FORWARD_HOOKS, HOOKS

KEPT_VALUES = 64
"""Elements up to which a constant of the module (no parameter) keeps its values."""

INPUT_VALUES = 4096
"""Elements up to which an integer or boolean input may keep its values."""


def copy_call(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    hooks: bool,
    kept: int,
    input_values: bool,
    grad: bool = False,
) -> tuple[nn.Module, list[Any], dict[str, Any]]:
    """Copy module and arguments onto the meta device; the originals are only read.

    Hooks that torch.nn itself installs (weight_norm, lazy modules) belong to the
    arithmetic and are kept; forward hooks of the user only where ``hooks``.  Constants
    of up to ``kept`` elements keep their values, and with ``input_values`` small inputs
    of integers or booleans too (masks, token ids); with ``grad`` floating inputs have
    gradients.

    Raises:
        UsageError: something cannot be copied (a lock, a stream).
    """
    memo: dict[int, Any] = {}
    unwanted = []
    for child in module.modules():
        for tensor in (*child.parameters(recurse=False), *child.buffers(recurse=False)):
            memo.setdefault(id(tensor), _twin(tensor, kept))
        for name in HOOKS:
            for key, hook in (child.__dict__.get(name) or {}).items():
                if not (_is_torch_hook(hook) or (hooks and name in FORWARD_HOOKS)):
                    memo[id(hook)] = hook  # as it is, and thrown away below
                    unwanted.append((child, name, key))
    what = f"{type(module).__name__} cannot"
    try:
        with _TensorsToMeta(kept):
            for child in module.modules():
                target = _uncompiled(child)
                if target is not child:
                    memo[id(child)] = copy.deepcopy(target, memo)
            copied = copy.deepcopy(module, memo)
            for child, name, key in unwanted:
                getattr(memo[id(child)], name).pop(key, None)
        what = "an input cannot"
        for packed in (*args, *kwargs.values()):
            if isinstance(packed, PackedSequence):
                memo[id(packed.batch_sizes)] = packed.batch_sizes
        with _TensorsToMeta(INPUT_VALUES if input_values else 0, floats=False, grad=grad):
            return copied, copy.deepcopy(list(args), memo), copy.deepcopy(dict(kwargs), memo)
    except Exception as error:
        lines = str(error).strip().splitlines() or ["no message"]
        raise UsageError(
            f"{what} be copied to the meta device for counting "
            f"({type(error).__name__}: {lines[0][:200]}); give what copy.deepcopy accepts"
        ) from error


def hooks_of_user(module: nn.Module) -> list[str]:
    """Name the forward hooks that torch.nn did not install, and their modules."""
    return [
        f"{_hook_name(hook)} on {name or 'the module'}"
        for name, child in module.named_modules()
        for table in FORWARD_HOOKS
        for hook in (child.__dict__.get(table) or {}).values()
        if not _is_torch_hook(hook)
    ]


def _uncompiled(module: nn.Module) -> nn.Module:
    """Return what a torch.compile'd module compiles, or the module itself."""
    while type(module).__name__ == "OptimizedModule":
        (module,) = module.children()
    return module


def _is_torch_hook(hook: Any) -> bool:
    """Tell whether torch.nn installed the hook; a bound method counts by its function."""
    function = getattr(hook, "__func__", hook)
    module = getattr(function, "__module__", None) or type(function).__module__
    return str(module).startswith("torch.nn.")


def _hook_name(hook: Callable[..., Any]) -> str:
    return str(getattr(hook, "__qualname__", type(hook).__name__))


def _twin(tensor: torch.Tensor, kept_values: int) -> torch.Tensor:
    """Return a meta tensor like ``tensor``, or a small constant with its values."""
    if is_lazy(tensor):
        lazy: Any = type(tensor)
        twin: torch.Tensor = lazy(tensor.requires_grad, "meta", tensor.data.dtype)
        return twin
    if tensor.layout is not torch.strided or hasattr(type(tensor), "__tensor_flatten__"):
        # A subclass that stores something else than its own elements (NJT, DTensor).
        return tensor.detach().to("meta")
    constant = not (tensor.requires_grad or isinstance(tensor, nn.Parameter))
    if constant and tensor.device.type == "cpu" and tensor.numel() <= kept_values:
        return tensor.clone()
    result = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(result, requires_grad=tensor.requires_grad)
    return result.requires_grad_() if tensor.requires_grad and tensor.is_leaf else result


def differentiable(value: Any) -> Any:
    """Return a tensor with a gradient where it can have one; no leaf: it may be written into."""
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return value
    with torch.enable_grad():
        return value.detach().requires_grad_().clone()


class _TensorsToMeta(TorchFunctionMode):
    """Let ``copy.deepcopy`` meet tensors nobody announced: each becomes its twin."""

    def __init__(self, kept_values: int, *, floats: bool = True, grad: bool = False) -> None:
        super().__init__()
        self._kept_values = kept_values
        self._floats = floats
        self._grad = grad

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.__deepcopy__:
            tensor, memo = args
            if id(tensor) not in memo:
                real = self._floats or not (tensor.is_floating_point() or tensor.is_complex())
                twin = _twin(tensor, self._kept_values if real else 0)
                memo[id(tensor)] = differentiable(twin) if self._grad else twin
            return memo[id(tensor)]
        if func is torch.Tensor.clone and args[0].layout is torch.strided:
            return _twin(args[0], 0)
        return func(*args, **(kwargs or {}))
