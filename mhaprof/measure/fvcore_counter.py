"""Count with fvcore: its FlopCountAnalysis, with exact handles for what attention does.

fvcore traces the module and asks one handle an operator.  All numbers here are MACs
(one multiply-add is one, what fvcore calls a FLOP), exact Python ints.  Each handle
takes the inputs and outputs of the operator as jit values.
"""

from __future__ import annotations

import logging
import math
import types
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from mhaprof.measure.einsum import einsum_macs
from mhaprof.measure.grouped import grouped_macs, triangular_macs
from mhaprof.measure.module_call import Running
from mhaprof.measure.silent_ops import is_silent
from mhaprof.measure.torch_private import (
    get_tracing_state,
    graph_for_fvcore,
    graph_of,
    untraced,
)

Handle = Callable[[list[Any], list[Any]], "Counter[str]"]

ELEMENTWISE = frozenset(
    {
        "batch_norm",
        "group_norm",
        "layer_norm",
        "instance_norm",
        "upsample_nearest2d",
        "upsample_bilinear2d",
        "adaptive_avg_pool2d",
        "grid_sampler",
        "fft",
    }
)
"""What is counted although it is no product (norms, resampling, Fourier transforms): kept apart."""


@dataclass(frozen=True, kw_only=True)
class FvcoreCount:
    """What fvcore says: MACs by operator and by module, elementwise work apart."""

    macs: int
    by_operator: dict[str, int]
    by_module: dict[str, int]
    elementwise: dict[str, int]
    uncounted_ops: dict[str, int]


class FvcoreMissing(Exception):
    """Say that fvcore is not installed, or breaks when it is imported."""


class _Recorded(TorchFunctionMode):
    """Pause the trace where nothing is to count: for sizes, and functions of silent operators.

    A recorded node takes as long as an operator on meta.  What is written in place is
    recorded, since it can change sizes, and so is what autograd follows: views of
    parameters, anything where gradients are on.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        state = get_tracing_state() if _is_quiet(func) else None
        if state is None or (func not in _QUESTIONS and _is_followed(args, kwargs)):
            return func(*args, **kwargs)
        with untraced(state):
            return func(*args, **kwargs)


def _is_followed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell whether the result may have a gradient, or goes into a tensor that exists."""
    if not args or "out" in kwargs or torch.is_grad_enabled():
        return True
    return isinstance(args[0], torch.Tensor) and args[0].requires_grad


_Tensor: Any = torch.Tensor
_QUESTIONS = {
    *(_Tensor.shape.__get__, _Tensor.ndim.__get__, _Tensor.size, _Tensor.numel, _Tensor.dim),
    *(_Tensor.stride, _Tensor.__len__),
}
_BUILT_IN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)


@lru_cache(maxsize=4096)
def _is_quiet(func: Any) -> bool:
    """Tell whether a function of torch asks for sizes or is one silent operator."""
    name = getattr(func, "__name__", "")
    own = isinstance(func, _BUILT_IN) or getattr(func, "__module__", None) == functional.__name__
    kind = f"aten::{name}"
    if not own or (name.endswith("_") and not name.endswith("__")):
        return func in _QUESTIONS
    counted = kind in HANDLES or name in ELEMENTWISE
    return func in _QUESTIONS or (is_silent(kind) and not counted)


def count_with_fvcore(
    module: nn.Module, run: Callable[[], Any], tensors: Sequence[torch.Tensor]
) -> FvcoreCount:
    """Count what ``run``, which calls ``module``, computes from meta tensors.

    Module names are fvcore's, the root is ``''``.

    Raises:
        FvcoreMissing: fvcore cannot be imported.
        Unsupported: torch or fvcore lacks something that the trace needs.
    """

    def graph(names: dict[int, str]) -> Any:
        with Running(names), _Recorded():
            return graph_of(run, tensors)

    analysis = _import_fvcore()(module, ()).set_op_handle(**HANDLES)
    analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    with graph_for_fvcore(graph):
        table = analysis.by_module_and_operator()
    by_module = {}
    for name, counts in table.items():
        by_module[name] = sum(int(n) for op, n in counts.items() if op not in ELEMENTWISE)
    total = table[""]
    return FvcoreCount(
        macs=by_module[""],
        by_operator={op: int(n) for op, n in total.items() if op not in ELEMENTWISE},
        by_module=by_module,
        elementwise={op: int(n) for op, n in total.items() if op in ELEMENTWISE},
        uncounted_ops={
            kind: calls for kind, calls in analysis.unsupported_ops().items() if not is_silent(kind)
        },
    )


def _import_fvcore() -> Any:
    """Import fvcore without the TorchScript warnings and log lines of its import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger = logging.getLogger("torch")
        disabled, logger.disabled = logger.disabled, True
        try:
            from fvcore.nn import FlopCountAnalysis
        except Exception as error:
            raise FvcoreMissing(f"{type(error).__name__}: {error}") from error
        finally:
            logger.disabled = disabled
    return FlopCountAnalysis


def _shape(value: Any) -> list[int]:
    """Return the sizes of a traced tensor.

    Raises:
        ValueError: the trace does not know them.
    """
    if not value.isCompleteTensor():
        raise ValueError(f"the trace has no shape for {value.debugName()}")
    sizes: list[int] = value.type().sizes()
    return sizes


def _integers(value: Any) -> list[int]:
    """Return a traced list of constants; empty where the trace has None."""
    return [item.toIValue() for item in value.node().inputs()]


def _handle(name: str, macs: Callable[[list[Any], list[Any]], int]) -> Handle:
    """Make a handle that reports under ``name``."""

    def handle(inputs: list[Any], outputs: list[Any]) -> Counter[str]:
        return Counter({name: macs(inputs, outputs)})

    return handle


def _product(operand: int) -> Callable[[list[Any], list[Any]], int]:
    """Count a product as elements of the result x contracted dim (last of ``operand``)."""

    def macs(inputs: list[Any], outputs: list[Any]) -> int:
        contracted = _shape(inputs[operand])
        return math.prod(_shape(outputs[0])) * (contracted[-1] if contracted else 1)

    return macs


def _addbmm(inputs: list[Any], outputs: list[Any]) -> int:
    return math.prod(_shape(inputs[1])) * _shape(inputs[2])[-1]


def _inner(inputs: list[Any], outputs: list[Any]) -> int:
    a, b = _shape(inputs[0]), _shape(inputs[1])
    return math.prod(_shape(outputs[0])) * a[-1] if a and b else 0


def _tensordot(inputs: list[Any], outputs: list[Any]) -> int:
    """Count as torch does: dims of length 1 on one side are summed before the product."""
    a, b = _shape(inputs[0]), _shape(inputs[1])
    dims = zip(_integers(inputs[2]), _integers(inputs[3]), strict=True)
    return math.prod(_shape(outputs[0])) * math.prod(min(a[i], b[j]) for i, j in dims)


def _attention(first: int, *, tokens_dim: int = -2) -> Callable[[list[Any], list[Any]], int]:
    """Count attention B·h·N·M·(k+v), h the QUERY heads; ``first`` is the query's position."""

    def macs(inputs: list[Any], outputs: list[Any]) -> int:
        query, key, value = (_shape(inputs[first + i]) for i in range(3))
        rows = math.prod(_shape(outputs[0])[:-1])
        return rows * key[tokens_dim] * (query[-1] + value[-1])

    return macs


def _grouped(inputs: list[Any], outputs: list[Any]) -> int:
    return grouped_macs(_shape(inputs[0]), _shape(inputs[1]))


def _solve_triangular(inputs: list[Any], outputs: list[Any]) -> int:
    return triangular_macs(_shape(inputs[0]), _shape(inputs[1]), left=inputs[3].toIValue())


def _stft(inputs: list[Any], outputs: list[Any]) -> int:
    """Count a real transform of ``n_fft`` points (half of a complex one) for each frame."""
    x, result = inputs[0], _shape(outputs[0])
    sizes, points = _shape(x), int(inputs[1].toIValue())
    frames = math.prod(sizes[:-1]) * result[len(sizes)]
    half = 1 if x.type().scalarType().startswith("Complex") else 0.5
    return round(half * 5 * frames * points * math.log2(points))


def _recurrent(inputs: list[Any], outputs: list[Any]) -> int:
    """Count every weight matrix once a token; lists hold the state (3-D) and the weights."""
    lists = [value.node().inputs() for value in inputs if value.node().kind() == _LIST]
    shapes = [_shape(item) for items in lists for item in items if item.isCompleteTensor()]
    matrices = sum(math.prod(shape) for shape in shapes if len(shape) == 2)
    return math.prod(_shape(inputs[0])[:-1]) * matrices


def _constants(value: Any) -> list[int]:
    """Return a traced int or list of constants; empty where the trace has None."""
    constant = value.toIValue()
    return [constant] if isinstance(constant, int) else list(constant or _integers(value))


def _fourier(name: str) -> Callable[[list[Any], list[Any]], int]:
    """Count 5·n·log2(n) a complex transform of n points, half of it a real one (as FFTW does)."""

    def operations(inputs: list[Any], outputs: list[Any]) -> int:
        x, full = _shape(inputs[0]), list(_shape(outputs[0]))
        sizes, dims = _constants(inputs[1]), _constants(inputs[2])
        dims = dims or list(range(len(x)))[-len(sizes) if sizes else 0 :]
        if name in ("rfft", "ihfft"):  # half of the last dimension is not kept
            full[dims[-1]] = sizes[-1] if sizes else x[dims[-1]]
        points = math.prod(full[dim] for dim in dims)
        per_point = 5 if name in ("fft", "ifft") else 2.5
        return round(per_point * math.prod(full) * math.log2(points)) if points else 0

    return operations


def _einsum(inputs: list[Any], outputs: list[Any]) -> int:
    sizes = [_shape(value) for value in inputs[1].node().inputs()]
    path = _integers(inputs[2]) if len(inputs) > 2 else []
    return einsum_macs(inputs[0].toIValue(), sizes, path=path)


def _convolution(inputs: list[Any], outputs: list[Any]) -> int:
    """Count batch x weight elements x places of the result (of the input if transposed)."""
    x, weight, result = _shape(inputs[0]), _shape(inputs[1]), _shape(outputs[0])
    transposed = bool(inputs[6].toIValue()) if len(inputs) > 7 else False
    return x[0] * math.prod(weight) * math.prod((x if transposed else result)[2:])


def _norm(weight: int) -> Callable[[list[Any], list[Any]], int]:
    """Count a norm as fvcore does: 5 an element with a learned weight, else 4."""

    def operations(inputs: list[Any], outputs: list[Any]) -> int:
        per_element = 5 if inputs[weight].isCompleteTensor() else 4
        return math.prod(_shape(inputs[0])) * per_element

    return operations


def _batch_norm(inputs: list[Any], outputs: list[Any]) -> int:
    """Count fvcore's 5 or 4 an element in training; 2 or 1 where statistics are fixed."""
    if inputs[5].toIValue():
        return _norm(1)(inputs, outputs)
    return math.prod(_shape(inputs[0])) * (2 if inputs[1].isCompleteTensor() else 1)


_LIST = "prim::ListConstruct"
_ATTENTION_OPS = (
    "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_attention_math",
)

_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")

HANDLES: dict[str, Handle] = {
    **{f"aten::{name}": _handle("sdpa", _attention(0)) for name in _ATTENTION_OPS},
    "aten::_efficient_attention_forward": _handle("sdpa", _attention(0, tokens_dim=-3)),
    "aten::linear": _handle("linear", _product(0)),
    "aten::matmul": _handle("matmul", _product(0)),
    "aten::linalg_matmul": _handle("matmul", _product(0)),
    "aten::mm": _handle("mm", _product(0)),
    "aten::_int_mm": _handle("mm", _product(0)),
    "aten::_scaled_mm": _handle("mm", _product(0)),
    "aten::bmm": _handle("bmm", _product(0)),
    "aten::mv": _handle("mv", _product(0)),
    "aten::dot": _handle("dot", _product(0)),
    "aten::vdot": _handle("dot", _product(0)),
    "aten::inner": _handle("inner", _inner),
    "aten::tensordot": _handle("tensordot", _tensordot),
    "aten::einsum": _handle("einsum", _einsum),
    **{f"aten::{name}": _handle(name, _recurrent) for name in _RECURRENT},
    "aten::_grouped_mm": _handle("grouped_mm", _grouped),
    "aten::_scaled_grouped_mm": _handle("grouped_mm", _grouped),
    "transformers::grouped_mm_fallback": _handle("grouped_mm", _grouped),
    "aten::linalg_solve_triangular": _handle("solve_triangular", _solve_triangular),
    "aten::stft": _handle("fft", _stft),
    "aten::_convolution": _handle("conv", _convolution),
    "aten::convolution": _handle("conv", _convolution),
    "aten::_convolution_mode": _handle("conv", _convolution),
    "aten::batch_norm": _handle("batch_norm", _batch_norm),
    "aten::group_norm": _handle("group_norm", _norm(2)),
    "aten::layer_norm": _handle("layer_norm", _norm(2)),
    "aten::instance_norm": _handle("instance_norm", _norm(1)),
}
for _name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"):
    for _dims in ("", "2", "n"):
        HANDLES[f"aten::fft_{_name}{_dims}"] = _handle("fft", _fourier(_name))
for _name in ("addmm", "baddbmm", "addmv"):
    HANDLES[f"aten::{_name}"] = HANDLES[f"aten::{_name}_"] = _handle(_name, _product(1))
HANDLES["aten::addbmm"] = HANDLES["aten::addbmm_"] = _handle("addbmm", _addbmm)
"""Operator kind -> handle, over fvcore's own."""
