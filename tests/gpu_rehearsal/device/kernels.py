"""The operators that CUDA has for attention, computed by the CPU's own.

``scaled_dot_product_attention`` on simulated tensors chooses as torch does on CUDA: flash for
half precision without a mask, else the memory-efficient kernel, else math; a backend that is
pinned and cannot take the problem is refused in torch's words.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

ATEN = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)


def _efficient(q, k, v, bias, compute, dropout=0.0, causal=False, *, scale=None):  # type: ignore[no-untyped-def]
    out, lse = ATEN._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, dropout, causal, attn_mask=bias, scale=scale
    )
    return out, lse, torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)


def _efficient_backward(  # type: ignore[no-untyped-def]
    grad, q, k, v, bias, out, lse, seed, offset, dropout, wanted, causal=False, *, scale=None
):
    backward = ATEN._scaled_dot_product_flash_attention_for_cpu_backward
    grads = backward(grad, q, k, v, out, lse, dropout, causal, attn_mask=bias, scale=scale)
    return (*grads, None)


def _flash(q, k, v, dropout=0.0, causal=False, debug=False, *, scale=None):  # type: ignore[no-untyped-def]
    out, lse = ATEN._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, dropout, causal, scale=scale
    )
    empty = [torch.zeros((), dtype=torch.int64) for _ in range(4)]
    return (
        out,
        lse,
        *empty[:2],
        q.shape[-2],
        k.shape[-2],
        *empty[2:],
        torch.zeros((), dtype=q.dtype),
    )


def _flash_backward(  # type: ignore[no-untyped-def]
    grad,
    q,
    k,
    v,
    out,
    lse,
    cum_q,
    cum_k,
    max_q,
    max_k,
    dropout,
    causal,
    seed,
    offset,
    *,
    scale=None,
):
    backward = ATEN._scaled_dot_product_flash_attention_for_cpu_backward
    return backward(grad, q, k, v, out, lse, dropout, causal, scale=scale)


def LIBRARY_OF_ATTENTION() -> torch.library.Library:  # noqa: N802
    """Register the operators for CPU tensors; destroying the library takes them back."""
    library = torch.library.Library("aten", "IMPL")
    for name, function in (
        ("efficient_attention", _efficient),
        ("efficient_attention_backward", _efficient_backward),
        ("flash_attention", _flash),
        ("flash_attention_backward", _flash_backward),
    ):
        with warnings.catch_warnings(action="ignore"):  # registered before, and destroyed
            library.impl(f"_scaled_dot_product_{name}", function, "CPU")
    return library


def attend(func: Any, args: Any, kwargs: Any, *, tf32: bool) -> torch.Tensor:
    """Compute ``scaled_dot_product_attention`` by the operator that CUDA would choose."""
    q, k, v = args[:3]
    mask, causal = kwargs.get("attn_mask"), kwargs.get("is_causal", False)
    if mask is not None and type(mask) is not torch.Tensor:
        mask = mask._materialize(q.device)
    enabled = torch.backends.cuda
    plain = not kwargs.get("enable_gqa") and q.shape[-1] == v.shape[-1]
    scale = kwargs.get("scale")
    if enabled.flash_sdp_enabled() and plain and mask is None and q.dtype in HALVES:
        return ATEN._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=scale)[0]
    if enabled.mem_efficient_sdp_enabled() and plain and q.dtype != torch.float64:
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(~mask, -torch.inf)
        result = ATEN._scaled_dot_product_efficient_attention(
            q, k, v, mask, torch.is_grad_enabled(), 0.0, causal, scale=scale
        )
        return result[0]
    if enabled.math_sdp_enabled():
        with sdpa_kernel(SDPBackend.MATH):
            return func(q, k, v, **{**kwargs, "attn_mask": mask})
    warnings.warn("Simulated kernels need half precision (flash) or one width.", stacklevel=2)
    raise RuntimeError("No available kernel. Aborting execution.")
