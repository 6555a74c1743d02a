"""The things measured: one explicit table of implementations, loaded on demand.

Importing this package, listing it and asking what an implementation cannot express
import no torch; ``build``, and ``rejects`` for a real device, do.  A new
implementation is one file and one row of ``TABLE``.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from mhaprof.attention import rejections as cannot
from mhaprof.attention.base import Implementation, Rejection
from mhaprof.errors import UsageError
from mhaprof.records import AUTO_BACKEND

if TYPE_CHECKING:
    import torch
    from torch import nn

    from mhaprof.records import Mode
    from mhaprof.spec import AttentionSpec

__all__ = ["BuiltIn", "Implementation", "Rejection", "TABLE", "get", "names"]


class Builder(Protocol):
    """The part of an implementation that needs torch: what a row's ``target`` names."""

    def build(self, spec: AttentionSpec) -> nn.Module:
        """Return a module that has ``load_canonical(weights)``."""
        ...

    def unavailable(
        self, spec: AttentionSpec, *, device: str, dtype: str, mode: Mode
    ) -> Rejection | None:
        """Return why it cannot run on a real device, or None."""
        ...


@dataclass(frozen=True, kw_only=True)
class BuiltIn:
    """One row of the table: an ``Implementation`` whose torch code is loaded on demand.

    ``target`` is ``module:attribute`` below this package, a ``Builder``.  ``limits``
    lists what cannot be expressed, most telling first.  ``scores_on`` names device
    types on which even this fused implementation holds the whole score matrix.
    """

    name: str
    description: str
    target: str
    limits: tuple[cannot.Limit, ...] = ()
    version: int = 1
    fused: bool = False
    forward_only: bool = False
    scores_on: tuple[str, ...] = ()
    backend: str | None = None
    counter_note: str | None = None

    def rejects(
        self, spec: AttentionSpec, *, device: str, dtype: str, mode: Mode = "forward"
    ) -> Rejection | None:
        """Return why the spec cannot be expressed or run, or None."""
        for limit in self.limits:
            if limit.applies(spec):
                return limit.rejection(self.name, spec)
        if self.forward_only and mode != "forward":
            return Rejection(
                code="backward_unsupported", message=f"{self.name} computes no gradients"
            )
        if device == "meta":
            return None
        if device.startswith("mps") and dtype == "float64":
            return Rejection(code="dtype_unsupported", message="mps has no float64")
        return self._builder().unavailable(spec, device=device, dtype=dtype, mode=mode)

    def holds_scores(self, *, device: str) -> bool:
        """Say whether the whole score matrix is in memory at once on ``device``."""
        return not self.fused or device.partition(":")[0] in self.scores_on

    def build(self, spec: AttentionSpec) -> nn.Module:
        """Return a module on the current default device and dtype, weights arbitrary."""
        return self._builder().build(spec)

    def load(
        self, module: nn.Module, spec: AttentionSpec, weights: dict[str, torch.Tensor]
    ) -> None:
        """Copy canonical weights into a module that ``build`` returned."""
        module.load_canonical(weights)  # type: ignore[operator]

    def _builder(self) -> Builder:
        module, _, attribute = self.target.partition(":")
        loaded = importlib.import_module(f"{__name__}.{module}")
        return cast(Builder, getattr(loaded, attribute))


_SDPA_LIMITS = (cannot.SINKS, cannot.SOFTCAP)
_TORCH_MHA_LIMITS = (
    cannot.LATENT,
    cannot.GQA,
    cannot.HEAD_DIM,
    cannot.V_HEAD_DIM,
    cannot.NO_OUT_PROJ,
    cannot.NO_KV_PROJ,
    cannot.PARTIAL_BIAS,
    cannot.QK_NORM,
    cannot.OUTPUT_GATE,
    cannot.SINKS,
    cannot.SOFTCAP,
    cannot.DECODE,
)

TABLE: Mapping[str, BuiltIn] = {
    row.name: row
    for row in (
        BuiltIn(
            name="eager",
            description="split heads in plain torch, one fused projection: the reference",
            target="eager:EAGER",
        ),
        BuiltIn(
            name="eager-separate",
            description="split heads in plain torch, separate q, k, v and output linears",
            target="eager_separate:EAGER_SEPARATE",
            limits=(cannot.LATENT,),
        ),
        BuiltIn(
            name="per-head",
            description="independent heads and a concat: the paper's formula, literally",
            target="per_head:PER_HEAD",
            limits=(cannot.LATENT, cannot.QK_NORM_FULL),
        ),
        BuiltIn(
            name="sdpa",
            description="scaled_dot_product_attention, backend chosen by torch, GQA native",
            target="sdpa:AUTO",
            limits=_SDPA_LIMITS,
            fused=True,
            backend=AUTO_BACKEND,
        ),
        BuiltIn(
            name="sdpa-expand",
            description="scaled_dot_product_attention, keys and values expanded to every head",
            target="sdpa:EXPAND",
            limits=_SDPA_LIMITS,
            fused=True,
            backend=AUTO_BACKEND,
        ),
        BuiltIn(
            name="sdpa-math",
            description="scaled_dot_product_attention, math backend alone",
            target="sdpa:MATH",
            limits=_SDPA_LIMITS,
            backend="math",
        ),
        BuiltIn(
            name="sdpa-flash",
            description="scaled_dot_product_attention, flash backend alone",
            target="sdpa:FLASH",
            limits=_SDPA_LIMITS,
            fused=True,
            backend="flash",
        ),
        BuiltIn(
            name="sdpa-efficient",
            description="scaled_dot_product_attention, memory-efficient backend alone",
            target="sdpa:EFFICIENT",
            limits=_SDPA_LIMITS,
            fused=True,
            backend="efficient",
        ),
        BuiltIn(
            name="sdpa-cudnn",
            description="scaled_dot_product_attention, cuDNN backend alone",
            target="sdpa:CUDNN",
            limits=_SDPA_LIMITS,
            fused=True,
            backend="cudnn",
        ),
        BuiltIn(
            name="torch-mha",
            description="nn.MultiheadAttention, need_weights=False, fast path off",
            target="torch_mha:PLAIN",
            limits=_TORCH_MHA_LIMITS,
            fused=True,
            backend=AUTO_BACKEND,
        ),
        BuiltIn(
            name="torch-mha-weights",
            description="nn.MultiheadAttention, need_weights=True",
            target="torch_mha:WEIGHTS",
            limits=(*_TORCH_MHA_LIMITS, cannot.BLIND),
        ),
        BuiltIn(
            name="torch-mha-fastpath",
            description="nn.MultiheadAttention, inference fast path alone",
            target="torch_mha:FASTPATH",
            limits=(*_TORCH_MHA_LIMITS, cannot.NO_BIAS, cannot.CROSS, cannot.ODD_HEADS),
            forward_only=True,
        ),
        BuiltIn(
            name="flex",
            description="flex_attention, masks as mask_mods; on a CPU unfused unless compiled",
            target="flex:FLEX",
            limits=(cannot.SINKS, cannot.CHUNK),
            fused=True,
            scores_on=("cpu",),
            backend="flex",
            counter_note="tracers cannot follow flex_attention; counted by the closed form",
        ),
    )
}
"""Every implementation that comes with mhaprof, in the order of lists."""


def names() -> tuple[str, ...]:
    """Return the names of the implementations that come with mhaprof."""
    return tuple(TABLE)


def get(name: str, *, allow_import: bool = False) -> Implementation:
    """Return an implementation by its name, or by the user's ``package.module:attribute``.

    The user's code is imported only with ``allow_import``.  Raises UsageError for an
    unknown name (the nearest one is suggested) and for code that cannot be used.
    """
    if name in TABLE:
        return TABLE[name]
    if ":" in name:
        if not allow_import:
            raise UsageError(
                f"implementation {name!r} is code to import; allow it with --allow-import"
            )
        from mhaprof.attention.user import load_user

        return load_user(name)
    near = difflib.get_close_matches(name, TABLE, n=1)
    hint = f"did you mean {near[0]}?" if near else "one of " + ", ".join(TABLE)
    raise UsageError(f"implementation {name!r} is not known; {hint}")
