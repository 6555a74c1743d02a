"""nn.MultiheadAttention, with need_weights and the inference fast path explicit.

Left alone, the module switches to a native kernel in eval mode without gradients,
which counters read as zero; here each row of the table is one of the three ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mhaprof.attention.base import Rejection, hidden_mask, hides_nothing, is_plain_causal
from mhaprof.attention.layers import Weights, fill
from mhaprof.records import Mode
from mhaprof.spec import AttentionSpec

FASTPATH_DEVICES = ("cpu", "cuda")
"""Device types whose native kernel nn.MultiheadAttention's fast path calls."""


class _BareMultiheadAttention(nn.MultiheadAttention):
    """nn.MultiheadAttention that leaves its weights uninitialised."""

    def _reset_parameters(self) -> None:
        """Do nothing: the weights come from outside."""


@contextmanager
def _fastpath(enabled: bool) -> Iterator[None]:
    """Switch torch's global fast path flag for a while."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(enabled)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class TorchMha(nn.Module):
    """nn.MultiheadAttention behind the inputs of ``base``."""

    hidden: Tensor | None

    def __init__(self, spec: AttentionSpec, *, need_weights: bool, fastpath: bool) -> None:
        super().__init__()
        self.need_weights, self.fastpath = need_weights, fastpath
        self.is_cross = spec.is_cross
        # The hint makes the module drop the mask, so it must be true to top-left.
        aligned = spec.causal == "top-left" or spec.tokens == spec.kv_tokens
        self.is_causal = not hides_nothing(spec) and is_plain_causal(spec) and aligned
        self.register_buffer("hidden", hidden_mask(spec), persistent=False)
        self.mha = _BareMultiheadAttention(
            spec.dim, spec.heads, bias=spec.qkv_bias, batch_first=True
        )

    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        """Return B x N x d; inputs as in ``base``.

        Raises RuntimeError where torch would leave the fast path without a word.
        """
        if self.fastpath and (self.training or torch.is_grad_enabled()):
            raise RuntimeError("the fast path of nn.MultiheadAttention needs eval and no_grad")
        context = rest[0] if self.is_cross else x
        with _fastpath(self.fastpath):
            result, _ = self.mha(
                x,
                context,
                context,
                need_weights=self.need_weights,
                attn_mask=self.hidden,
                is_causal=self.is_causal and not self.need_weights,
            )
        return result  # type: ignore[no-any-return]

    def load_canonical(self, weights: Weights) -> None:
        """Copy all canonical weights; in_proj holds q, k and v in that order."""
        fill(self.mha.in_proj_weight, weights["w_q"], weights["w_k"], weights["w_v"])
        fill(self.mha.out_proj.weight, weights["w_o"])
        if self.mha.in_proj_bias is not None:
            fill(self.mha.in_proj_bias, weights["b_q"], weights["b_k"], weights["b_v"])
            fill(self.mha.out_proj.bias, weights["b_o"])


@dataclass(frozen=True, kw_only=True)
class TorchMhaBuilder:
    """The builder behind ``torch-mha`` and its variants."""

    need_weights: bool = False
    fastpath: bool = False

    def build(self, spec: AttentionSpec) -> nn.Module:
        """Return the wrapped module; the fast path only works in eval mode."""
        module = TorchMha(spec, need_weights=self.need_weights, fastpath=self.fastpath)
        return module.eval() if self.fastpath else module

    def unavailable(
        self, spec: AttentionSpec, *, device: str, dtype: str, mode: Mode
    ) -> Rejection | None:
        """Return a rejection for the fast path where torch would leave it."""
        if self.fastpath and device.partition(":")[0] not in FASTPATH_DEVICES:
            return Rejection(
                code="backend_unavailable",
                message=f"the fast path exists on {' and '.join(FASTPATH_DEVICES)}, not {device}",
            )
        return None


PLAIN = TorchMhaBuilder()
WEIGHTS = TorchMhaBuilder(need_weights=True)
FASTPATH = TorchMhaBuilder(fastpath=True)
