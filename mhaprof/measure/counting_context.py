"""What has to hold while a module is counted, and is put back afterwards.

No warnings; no fused fast path of nn.MultiheadAttention, which no counter sees;
nothing compiled; flex_attention replaced by the dense attention of the same shapes,
since neither tracer can follow the original.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from mhaprof.measure.torch_private import dense_flex, replaced, without_reading_masks

FLEX_CODE = "closed_form_only"
_FLEX_MESSAGE = (
    "no counter can follow flex_attention; it is counted as dense attention of the same "
    "shapes, B*h*N*M*(k+v): blocks that its mask skips are included, score_mod is not"
)


@contextmanager
def counting() -> Iterator[dict[str, str]]:
    """Prepare torch for counting; yield the notes (code -> message) taken meanwhile."""
    notes: dict[str, str] = {}

    def dense(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        notes[FLEX_CODE] = _FLEX_MESSAGE
        if key.size(0) != query.size(0):
            key, value = (x.expand(query.size(0), -1, -1, -1) for x in (key, value))
        grouped = bool(query.size(1) != key.size(1))
        result = functional.scaled_dot_product_attention(query, key, value, enable_gqa=grouped)
        row = query.new_empty(query.shape[:-1], dtype=torch.float32)
        return result, row, row

    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    collects = gc.isenabled()
    gc.disable()  # it would look through all of a large model's objects, again and again
    eager = torch.compiler.set_stance if "torch._dynamo" in sys.modules else nullcontext
    try:
        with warnings.catch_warnings(), without_reading_masks(), dense_flex(dense):
            warnings.simplefilter("ignore")
            with eager("force_eager"):
                yield notes
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        if collects:
            gc.enable()


def _type_name(tensor: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Answer ``tensor.type()`` as a tensor of the CPU does; with a dtype it converts."""
    if dtype is None:
        return torch.empty(0, dtype=tensor.dtype, device="cpu").type()
    return tensor.type(dtype, *args, **kwargs)


_SAME_DEVICE = frozenset({"stft", "istft", "lstm", "gru", "rnn_tanh", "rnn_relu"})
"""Functions that refuse constants of the CPU beside meta tensors, before they dispatch."""


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    """Return the meta twin of numbers; integers (the sizes of a packed batch) stay."""
    number = tensor.is_floating_point() or tensor.is_complex()
    return tensor.to("meta") if number and not tensor.is_meta else tensor


_FACES: dict[Any, Callable[..., Any]] = {
    torch.Tensor.device.__get__: lambda _: torch.device("cpu"),
    torch.Tensor.is_meta.__get__: lambda _: False,  # type: ignore[attr-defined]
    torch.Tensor.is_cpu.__get__: lambda _: True,  # type: ignore[attr-defined]
    torch.Tensor.get_device: lambda _: -1,
    torch.Tensor.type: _type_name,
}


class SeenOnCpu(TorchFunctionMode):
    """Let meta tensors say that they are on the CPU, since modules branch on the device."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        face = _FACES.get(func)
        if face is not None and args[0].is_meta:
            return face(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in _SAME_DEVICE:
            args, kwargs = _mapped(torch.Tensor, _on_meta, (args, kwargs or {}))
        elif name in ("scatter", "scatter_"):  # the tracer knows no truth values there
            args, kwargs = _mapped(bool, int, (args, kwargs or {}))
        return func(*args, **kwargs) if kwargs else func(*args)


def _mapped(kind: type, convert: Callable[[Any], Any], value: Any) -> Any:
    """Convert what is of ``kind`` in lists, tuples and dicts."""
    if isinstance(value, kind):
        return convert(value)
    if isinstance(value, dict):
        return {key: _mapped(kind, convert, item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)([_mapped(kind, convert, item) for item in value])
    return value


_STOCK_ATTENTION = functional.scaled_dot_product_attention


@contextmanager
def fused_attention() -> Iterator[None]:
    """Let scaled_dot_product_attention be the fused operator, however it is reached.

    torch's own functions call it under their module's name, below the function mode.
    """

    def attention(*args: Any, **kwargs: Any) -> Any:
        return (_fused if _fused_allowed() else _STOCK_ATTENTION)(*args, **kwargs)

    with _FusedAttention(), replaced(functional, {"scaled_dot_product_attention": attention}):
        yield


class _FusedAttention(TorchFunctionMode):
    """Send scaled_dot_product_attention to the fused operator, whose backward recomputes.

    On meta tensors torch takes the unfused path.  Masks and dropout multiply nothing
    of the matmul class and are left out.  Where the caller allows only the math
    backend, nothing is changed.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _STOCK_ATTENTION and _fused_allowed():
            return _fused(*args, **kwargs)
        return func(*args, **kwargs)


def _fused_allowed() -> bool:
    backends: Any = torch.backends.cuda
    return bool(
        backends.flash_sdp_enabled()
        or backends.mem_efficient_sdp_enabled()
        or backends.cudnn_sdp_enabled()
    )


def _fused(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    rank = query.dim()
    q, k, v = (_four_dimensional(tensor) for tensor in (query, key, value))
    batch = max(q.size(0), k.size(0), v.size(0))
    q, k, v = (tensor.expand(batch, *tensor.shape[1:]) for tensor in (q, k, v))
    groups = q.size(1) // k.size(1)
    k, v = (tensor.repeat_interleave(groups, dim=1) for tensor in (k, v))
    fused = torch.ops.aten._scaled_dot_product_efficient_attention
    result: torch.Tensor = fused(q, k, v, None, True)[0]
    return result.reshape(*query.shape[: rank - 1], value.size(-1))


def _four_dimensional(tensor: torch.Tensor) -> torch.Tensor:
    """View (..., heads, tokens, width) as one batch dimension before heads."""
    while tensor.dim() < 4:
        tensor = tensor.unsqueeze(0)
    return tensor.flatten(0, -4) if tensor.dim() > 4 else tensor
