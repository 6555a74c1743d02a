"""Count with torch's FlopCounterMode (2 per MAC), taught the products it does not know."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mhaprof.measure.grouped import QUANTIZED_LINEAR, grouped_macs, triangular_macs
from mhaprof.measure.meta_mode import MetaMode, kind_of
from mhaprof.measure.module_call import Running, names_of
from mhaprof.measure.torch_private import DispatchMode, packet_of
from mhaprof.units import FLOPS_PER_MAC

_aten = torch.ops.aten
Sizes = Any
_RECOMPUTED = "recomputed"


@dataclass(frozen=True, kw_only=True)
class TorchCount:
    """What FlopCounterMode says, in MACs; a module holds what runs while it does.

    ``recomputed`` is what ran with gradients on: in a backward pass, forwards once more.
    """

    macs: int
    recomputed: int = 0
    by_operator: dict[str, int]
    by_module: dict[str, int]
    uncounted_ops: dict[str, int]


def count_with_torch(module: nn.Module, run: Callable[[], Any]) -> TorchCount:
    """Count the operators that ``run``, which calls ``module``, dispatches on meta tensors.

    Raises:
        AssertionError: a formula returned an odd number of FLOPs.
    """
    mode, modules = MetaMode(), Running(names_of(module))
    counter = FlopCounterMode(display=False, custom_mapping=_formulas())
    with mode, modules, _Counting(counter, modules):
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


class _Counting(DispatchMode):
    """What FlopCounterMode does, by its own formulas and in its own table, sooner.

    Entering FlopCounterMode imports torch._dynamo (1 s), it tries to take every operator
    apart each time, and it hooks into the gradients of what goes into a module, which
    fails on views of parameters.
    """

    def __init__(self, counter: FlopCounterMode, modules: Running) -> None:
        super().__init__()
        self._counter = counter
        self._modules = modules

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        packet = packet_of(func)
        formula = self._counter.flop_registry.get(packet)
        if formula is None and func not in _WHOLE:
            with self:
                result = (
                    func.decompose(*args, **kwargs)
                    if hasattr(func, "decompose")
                    else NotImplemented
                )
            if result is not NotImplemented:
                return result
            _WHOLE.add(func)
        result = func(*args, **kwargs)
        if formula is not None:
            flops = formula(*args, **kwargs, out_val=result)
            again = (_RECOMPUTED,) if torch.is_grad_enabled() else ()
            for name in (*self._modules.parents, *again):
                self._counter.flop_counts[name][packet] += flops
        return result


_WHOLE: set[Any] = set()
"""Operators that are made of no others."""


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
        if packet_of(func) not in known:
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
