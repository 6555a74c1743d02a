"""Count with torch's FlopCounterMode (2 per MAC), taught the products it does not know."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils import flop_counter
from torch.utils.flop_counter import FlopCounterMode

from mhaprof.measure.grouped import QUANTIZED_LINEAR, grouped_macs, triangular_macs
from mhaprof.measure.meta_mode import MetaMode, kind_of
from mhaprof.measure.torch_private import is_composite
from mhaprof.units import FLOPS_PER_MAC

_aten = torch.ops.aten
Sizes = Any
_RECOMPUTED = "recomputed"
_QUERIES = frozenset(
    {
        *("size", "stride", "storage_offset", "numel"),
        *("sym_size", "sym_stride", "sym_storage_offset", "sym_numel", "dim"),
        *("is_contiguous", "sym_is_contiguous", "is_strides_like_format"),
        "is_non_overlapping_and_dense",
    }
)
"""Questions about a tensor, which FlopCounterMode leaves to the tensor."""


@dataclass(frozen=True, kw_only=True)
class TorchCount:
    """What FlopCounterMode says, in MACs; module names are torch's (``Root.child``).

    ``recomputed`` is what ran with gradients on: in a backward pass, forwards once more.
    """

    macs: int
    recomputed: int = 0
    by_operator: dict[str, int]
    by_module: dict[str, int]
    uncounted_ops: dict[str, int]


def count_with_torch(run: Callable[[], Any]) -> TorchCount:
    """Count the operators that ``run`` dispatches on meta tensors.

    Raises:
        AssertionError: a formula returned an odd number of FLOPs.
    """
    mode = MetaMode()
    counter = _LeanFlopCounterMode(display=False, custom_mapping=_formulas())
    with mode, counter:
        run()
    table = counter.get_flop_counts()
    total = table.get("Global", {})
    return TorchCount(
        macs=_macs(sum(total.values())),
        recomputed=_macs(sum(table.get(_RECOMPUTED, {}).values())),
        by_operator=_by_operator(total),
        by_module={name: _macs(sum(counts.values())) for name, counts in table.items()},
        uncounted_ops=_uncounted(mode, counter.flop_registry),
    )


def _lean_mode() -> Any:
    """Return FlopCounterMode's own dispatch mode without two costs of it.

    torch wraps the method of every dispatch mode to hide it from the compiler, which
    imports torch._dynamo (1.5 s); and it tries to decompose every operator, each time.
    Operators known to be whole are run and counted here, by the same formulas.
    """
    stock: Any = flop_counter._FlopCounterMode
    unwrapped: Any = getattr(stock.__torch_dispatch__, "__wrapped__", None)
    if unwrapped is None:
        return stock

    class LeanDispatchMode(stock):  # type: ignore[misc]
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False

        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            if not _is_whole(func):
                return unwrapped(self, func, types, args, kwargs)
            kwargs = kwargs or {}
            result = func(*args, **kwargs)
            packet = func._overloadpacket
            if packet in self.counter.flop_registry:
                self.counter._count_flops(packet, result, args, kwargs)
            return result

    return LeanDispatchMode


@lru_cache(maxsize=4096)
def _is_whole(func: Any) -> bool:
    """Tell whether an operator reads or computes data and is made of no others."""
    overload: Any = torch._ops.OpOverload
    if not isinstance(func, overload):
        return False
    namespace, _, name = func._schema.name.partition("::")
    return namespace != "prim" and name not in _QUERIES and not is_composite(func)


class _ModuleTracker:
    """The modules that are running, by torch's names (``Root.child``), without hooks of autograd.

    torch's own tracker hooks into the gradients of what goes into a module, which
    fails on views of parameters that were made without gradients.
    """

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
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

    def _enter(self, module: Any, inputs: Any) -> None:
        if id(module) not in self._names:
            root = type(module).__name__
            for name, child in module.named_modules(remove_duplicate=False):
                self._names.setdefault(id(child), f"{root}.{name}" if name else root)
        self._running.append(self._names[id(module)])

    def _leave(self, module: Any, inputs: Any, output: Any) -> None:
        self._running.pop()

    @property
    def parents(self) -> set[str]:
        """Return what an operator that runs now counts for."""
        again = (_RECOMPUTED,) if torch.is_grad_enabled() else ()
        return {"Global", *self._running, *again}


class _LeanFlopCounterMode(FlopCounterMode):
    """FlopCounterMode that starts at once: same formulas, same counting."""

    _mode_class = _lean_mode()

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.mod_tracker: Any = _ModuleTracker()

    def __enter__(self) -> _LeanFlopCounterMode:
        self.flop_counts.clear()
        tracker: Any = self.mod_tracker
        tracker.__enter__()
        mode: Any = self._mode_class(self)
        mode.__enter__()
        self.mode = mode
        return self


def _by_operator(counts: dict[Any, int]) -> dict[str, int]:
    named: dict[str, int] = {}
    for packet, flops in counts.items():
        name = str(packet).rpartition(".")[2].rstrip("_")
        named[name] = named.get(name, 0) + _macs(flops)
    return named


def _macs(flops: int) -> int:
    macs, odd = divmod(flops, FLOPS_PER_MAC)
    assert not odd, f"FlopCounterMode counted {flops} FLOPs, not a multiple of two"
    return macs


def _uncounted(mode: MetaMode, known: Mapping[Any, Any]) -> dict[str, int]:
    """Return the operators that ran and that neither a formula nor the silent list covers."""
    found: dict[str, int] = {}
    for func, calls in mode.leaves.items():
        packet = getattr(func, "_overloadpacket", func)
        if packet not in known:
            kind = kind_of(func)
            found[kind] = found.get(kind, 0) + calls
    return found


def _product(first: int) -> Callable[..., int]:
    """Make a formula: FLOPs of a product whose left operand is argument ``first``."""

    def flops(*sizes: Sizes, out_shape: Sizes = None, **_: Any) -> int:
        return FLOPS_PER_MAC * int(math.prod(out_shape)) * int(sizes[first][-1])

    return flops


def _solve_triangular(a: Sizes, b: Sizes, *_: Any, left: bool = True, **__: Any) -> int:
    return FLOPS_PER_MAC * triangular_macs(a, b, left=left)


def _addbmm(_added: Sizes, a: Sizes, b: Sizes, *_: Any, **__: Any) -> int:
    return FLOPS_PER_MAC * int(math.prod(a)) * int(b[-1])


def _attention(query: Sizes, key: Sizes, value: Sizes, *_: Any, **__: Any) -> int:
    pairs = int(math.prod(query[:-1])) * int(key[-2])
    return FLOPS_PER_MAC * pairs * (int(query[-1]) + int(value[-1]))


def _grouped(a: Sizes, b: Sizes, *_: Any, **__: Any) -> int:
    return FLOPS_PER_MAC * grouped_macs(a, b)


def _grouped_backward(a: Sizes, b: Sizes, *_: Any, **__: Any) -> int:
    return 2 * FLOPS_PER_MAC * grouped_macs(a, b)


def _convolution_backward(gradient: Sizes, x: Sizes, weight: Sizes, *rest: Any, **_: Any) -> int:
    """Count each gradient, of input and of weight, as many as the forward.

    torch's own formula takes all channels together whatever ``groups`` is.
    """
    transposed, wanted = rest[4], rest[7]
    places = math.prod((x if transposed else gradient)[2:])
    forward = int(x[0]) * int(math.prod(weight)) * int(places)
    return FLOPS_PER_MAC * forward * (bool(wanted[0]) + bool(wanted[1]))


FORMULAS: dict[Any, Callable[..., int]] = {
    _aten.dot: _product(0),
    _aten.vdot: _product(0),
    _aten.mv: _product(0),
    _aten._int_mm: _product(0),
    _aten.addmv: _product(1),
    _aten.addmv_: _product(1),
    _aten.addmm_: _product(1),
    _aten.baddbmm_: _product(1),
    _aten._addmm_activation: _product(1),
    _aten.addbmm: _addbmm,
    _aten.addbmm_: _addbmm,
    _aten.linalg_solve_triangular: _solve_triangular,
    _aten.convolution_backward: _convolution_backward,
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    _aten._scaled_dot_product_fused_attention_overrideable: _attention,
}
"""Operator -> FLOPs (2 per MAC), for what FlopCounterMode leaves out or has wrong."""

_BY_NAME: dict[str, Callable[..., int]] = {
    **{f"quantized::{name}": _product(0) for name in QUANTIZED_LINEAR},
    "aten::_grouped_mm": _grouped,
    "aten::_scaled_grouped_mm": _grouped,
    "transformers::grouped_mm_fallback": _grouped,
    "transformers::grouped_mm_fallback_backward": _grouped_backward,
}
"""The same for operators that some versions of torch, or other packages, bring."""


def _formulas() -> dict[Any, Callable[..., int]]:
    """Return the formulas of the operators that exist by now."""
    found = dict(FORMULAS)
    for kind, formula in _BY_NAME.items():
        namespace, _, name = kind.partition("::")
        packet = getattr(getattr(torch.ops, namespace), name, None)
        if packet is not None:
            found[packet] = formula
    return found
