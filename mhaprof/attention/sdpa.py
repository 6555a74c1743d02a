"""F.scaled_dot_product_attention: backend chosen by torch, or exactly one pinned.

torch's ``is_causal`` aligns at the top left.  A mask aligned at the bottom right is
torch's ``CausalBias`` for those kernels of CUDA that know it, and a boolean mask
elsewhere; where the mask hides nothing (decode) there is none.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from mhaprof.attention.base import (
    Rejection,
    has_blind_queries,
    hides_nothing,
    is_plain_causal,
    visible_mask,
)
from mhaprof.attention.latent import LatentAttention
from mhaprof.attention.layers import FusedHeads, core_kv_heads, core_widths
from mhaprof.records import Mode
from mhaprof.spec import AttentionSpec

PINNABLE_DEVICES = ("cpu", "cuda", "xpu")
"""Device types on which ``sdpa_kernel`` decides which kernel runs."""

LOWER_RIGHT_BACKENDS = (None, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
"""Those that torch passes a ``CausalBias`` on to (None: it chooses among them).

For the others it makes the whole mask of it, anew on each call.
"""

ENABLED: Mapping[SDPBackend, Callable[[], bool]] = {
    SDPBackend.MATH: torch.backends.cuda.math_sdp_enabled,
    SDPBackend.FLASH_ATTENTION: torch.backends.cuda.flash_sdp_enabled,
    SDPBackend.EFFICIENT_ATTENTION: torch.backends.cuda.mem_efficient_sdp_enabled,
    SDPBackend.CUDNN_ATTENTION: torch.backends.cuda.cudnn_sdp_enabled,
}
"""What says whether torch may choose a backend, on all devices."""

PROBE_TOKENS = 64
"""Most tokens of the tiny call that finds out whether a backend can run."""


class SdpaCore(nn.Module):
    """scaled_dot_product_attention with the spec's mask and scale.

    ``backend`` pins exactly one; ``expand`` repeats K and V to every query head
    instead of ``enable_gqa``.
    """

    mask: Tensor | None
    lower_right: Tensor | None

    def __init__(self, spec: AttentionSpec, *, backend: SDPBackend | None, expand: bool) -> None:
        super().__init__()
        self.backend = backend
        group = spec.heads // core_kv_heads(spec)
        self.repeats = group if expand else 1
        self.options = {"enable_gqa": True} if group > 1 and not expand else {}
        self.scale = spec.head_dim**-0.5
        same = spec.tokens == spec.kv_tokens
        aligned = spec.causal == "top-left" or same
        masked = not hides_nothing(spec)
        self.is_causal = masked and is_plain_causal(spec) and aligned
        lower_right = (
            masked
            and is_plain_causal(spec)
            and not aligned
            and not has_blind_queries(spec)
            and backend in LOWER_RIGHT_BACKENDS
            and _device_type() == "cuda"
        )
        self.lower_right = causal_lower_right(spec) if lower_right else None
        needed = masked and not self.is_causal and not lower_right
        self.register_buffer("mask", visible_mask(spec) if needed else None, persistent=False)
        self.blind_rows = has_blind_queries(spec)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Map q (B x h x N x k), k (B x g x M x k), v (B x g x M x v) to B x h x N x v."""
        if self.repeats > 1:
            keys = keys.repeat_interleave(self.repeats, dim=1)
            values = values.repeat_interleave(self.repeats, dim=1)
        if self.backend is None or (not torch.compiler.is_compiling() and is_pinned(self.backend)):
            return self._attend(queries, keys, values)
        with sdpa_kernel(self.backend):
            return self._attend(queries, keys, values)

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=self.mask if self.lower_right is None else self.lower_right,
            is_causal=self.is_causal,
            scale=self.scale,
            **self.options,
        )


def is_pinned(backend: SDPBackend) -> bool:
    """Say whether torch may choose this backend alone, as inside of ``sdpa_kernel``."""
    return all(enabled() == (other is backend) for other, enabled in ENABLED.items())


def causal_lower_right(spec: AttentionSpec) -> Tensor:
    """Return torch's own, without the 2 x N x M numbers that its constructor allocates."""
    # Imports torch's compiler, which takes seconds.
    from torch.nn.attention.bias import CausalBias, CausalVariant

    bias = torch.empty(0).as_subclass(CausalBias)
    CausalBias.__init__(bias, CausalVariant.LOWER_RIGHT, spec.tokens, spec.kv_tokens)
    return bias


def _device_type() -> str:
    """Return the type of torch's default device."""
    return torch.empty(0).device.type


@dataclass(frozen=True, kw_only=True)
class Sdpa:
    """The builder behind ``sdpa`` and its variants; ``backend`` None lets torch choose."""

    backend: SDPBackend | None = None
    expand: bool = False

    def build(self, spec: AttentionSpec) -> nn.Module:
        """Return split heads, or latent attention, around scaled_dot_product_attention."""
        core = SdpaCore(spec, backend=self.backend, expand=self.expand)
        return LatentAttention(spec, core) if spec.is_latent else FusedHeads(spec, core)

    def unavailable(
        self, spec: AttentionSpec, *, device: str, dtype: str, mode: Mode
    ) -> Rejection | None:
        """Return torch's reason why the pinned backend cannot run, found by a tiny call."""
        if self.backend is None:
            return None
        kind = device.partition(":")[0]
        if kind not in PINNABLE_DEVICES:
            return Rejection(
                code="backend_unavailable",
                message=f"torch pins SDPA backends on {', '.join(PINNABLE_DEVICES)}, not on {kind}",
            )
        reason = _probe(_probe_spec(spec), self, device, dtype, mode != "forward")
        if reason is None:
            return None
        label = self.backend.name.lower().replace("_", " ")
        return Rejection(
            code="backend_unavailable",
            message=f"torch's {label} backend cannot run this on {device} in {dtype}: {reason}",
        )


def _probe_spec(spec: AttentionSpec) -> AttentionSpec:
    """Return a spec that asks the same of a backend, small: its widths, masks and phase."""
    tokens, kv_tokens = min(spec.tokens, PROBE_TOKENS), min(spec.kv_tokens, PROBE_TOKENS)
    if tokens == kv_tokens and spec.tokens != spec.kv_tokens:
        if spec.tokens < spec.kv_tokens:
            tokens //= 2
        else:
            kv_tokens //= 2
    # A window or chunk that cuts nothing must not start to, nor one that cuts stop.
    window = chunk = None
    if not is_plain_causal(spec) and not hides_nothing(spec):
        half = max(1, kv_tokens // 2)
        window = None if spec.window is None else min(spec.window, half)
        chunk = None if spec.chunk is None else min(spec.chunk, half)
    return spec.replace(
        batch=1, tokens=tokens, kv_tokens=kv_tokens, window=window, chunk=chunk, dim=1
    )


@lru_cache(maxsize=1024)
def _probe(
    spec: AttentionSpec, builder: Sdpa, device: str, dtype: str, backward: bool
) -> str | None:
    """Return why the core of ``spec`` cannot run, in torch's words, or None if it can."""
    kv_heads = core_kv_heads(spec)
    key_width, value_width = core_widths(spec)
    shapes = (
        (1, spec.heads, spec.tokens, key_width),
        (1, kv_heads, spec.kv_tokens, key_width),
        (1, kv_heads, spec.kv_tokens, value_width),
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with torch.device(device), torch.set_grad_enabled(backward):
                core = SdpaCore(spec, backend=builder.backend, expand=builder.expand)
                tensors = [
                    torch.ones(shape, dtype=getattr(torch, dtype), requires_grad=backward)
                    for shape in shapes
                ]
                result = core(*tensors)
                if backward:
                    result.sum().backward()
        except torch.OutOfMemoryError:
            raise
        # An AssertionError is how a torch built without the device says so.
        except (RuntimeError, AssertionError) as error:
            return _words(error, [str(warning.message) for warning in caught])
    return None


def _words(error: Exception, messages: list[str]) -> str:
    """Join torch's warnings, which hold the reasons, to one line; else its exception."""
    reasons = [_first_sentence(message) for message in messages]
    # Warnings about the backends that were not asked for say only that they are off.
    told = [
        reason
        for reason in dict.fromkeys(reasons)
        if "disabled" not in reason and "not used because" not in reason
    ]
    return "; ".join(told) if told else _first_sentence(str(error))


def _first_sentence(text: str) -> str:
    """Return the first sentence of torch's text without the source file it appends."""
    line = text.strip().split("\n")[0].partition(" (Triggered internally")[0]
    return line.partition(". ")[0].rstrip(".")


AUTO = Sdpa()
EXPAND = Sdpa(expand=True)
MATH = Sdpa(backend=SDPBackend.MATH)
FLASH = Sdpa(backend=SDPBackend.FLASH_ATTENTION)
EFFICIENT = Sdpa(backend=SDPBackend.EFFICIENT_ATTENTION)
CUDNN = Sdpa(backend=SDPBackend.CUDNN_ATTENTION)
