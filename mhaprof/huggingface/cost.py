"""What each kind of layer, and the model, costs: MACs, parameters, cache, intensity.

Every number is exact and follows from ``formulas``; the model's are sums over its layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from mhaprof import formulas
from mhaprof.huggingface.plan import LayerKind, ModelPlan
from mhaprof.spec import AttentionSpec
from mhaprof.units import DTYPE_BYTES, CacheFormat, flops_of

COMPUTE_DTYPE = "bfloat16"
"""The dtype of weights and activations in bytes moved; the cache has its own."""

MAX_TOKENS = 2**50
"""Where the search for the tokens at which the core overtakes ends."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one layer, or all layers of a model, cost at the plan's tokens.

    ``macs`` are dense, ``macs_exact`` over the pairs that the mask lets through; the
    core is scores and context, projections are the rest.  ``params`` are projections
    with their biases; norms on q and k, and sinks, are apart.  ``kv_bytes_per_token``
    is what one more token adds to the cache (for cross-attention: one more token of the
    other sequence; not in the model's sum).  ``kv_cache_bytes`` keeps what windows and
    chunks need, ``kv_cache_bytes_full`` every token.  ``built`` layers have parameters
    of their own.  ``tokens_core_overtakes`` is the
    fewest tokens at which the core is as much as the projections, ``_exact`` by exact
    pairs; None if that is never so.
    """

    layers: int
    built: int
    macs: int
    macs_exact: int
    core_macs: int
    core_macs_exact: int
    params: int
    norm_params: int
    sink_params: int
    kv_bytes_per_token: int
    kv_cache_bytes: int
    kv_cache_bytes_full: int
    moved_bytes: int
    tokens_core_overtakes: int | None
    tokens_core_overtakes_exact: int | None

    @property
    def flops(self) -> int:
        """FLOPs at two per MAC, dense."""
        return flops_of(self.macs)

    @property
    def share_core(self) -> float:
        """The part of the dense MACs that is scores and context."""
        return self.core_macs / self.macs

    @property
    def share_projections(self) -> float:
        """The part of the dense MACs that is projections."""
        return (self.macs - self.core_macs) / self.macs

    @property
    def arithmetic_intensity(self) -> float:
        """FLOPs (2 per MAC, exact pairs) per byte that a fused attention has to move."""
        return flops_of(self.macs_exact) / self.moved_bytes


@dataclass(frozen=True, kw_only=True)
class ModelCost:
    """The cost of each kind (of one layer), in the plan's order, and of the whole model."""

    plan: ModelPlan
    cache_dtype: str
    cache_scales: str | None
    kinds: tuple[Cost, ...]
    total: Cost


def cost_of(
    plan: ModelPlan, *, cache_dtype: str = "bfloat16", cache_scales: str | None = None
) -> ModelCost:
    """Return what the plan's layers cost.

    ``cache_dtype`` and ``cache_scales`` (``fp16/head``: see ``units.CacheFormat``) are of
    the KV cache alone.  Raises ValueError for words that are neither.
    """
    cache = CacheFormat.of(cache_dtype, cache_scales)
    kinds = tuple(
        _whole(_kind_cost(plan, position, dtype_bytes=_width(kind.stored, cache)))
        for position, kind in enumerate(plan.kinds)
    )
    return ModelCost(
        plan=plan,
        cache_dtype=cache.dtype,
        cache_scales=cache_scales,
        kinds=kinds,
        total=_total(plan, kinds),
    )


def _width(spec: AttentionSpec, cache: CacheFormat) -> int:
    """Return the bytes of one cached element of a layer, its scales shared out.

    What has scales is a key and a value of each head; of latent attention, the latent and
    the rotated key.  A fraction where an element or its part of a scale is no whole byte:
    ``formulas`` multiply it by elements of whole tokens, which are whole bytes.
    """
    if spec.kv_lora_rank is not None and spec.qk_rope_head_dim is not None:
        vectors = [spec.kv_lora_rank, spec.qk_rope_head_dim]
    else:
        vectors = [spec.head_dim, spec.v_head_dim] * spec.kv_heads
    return cast(int, cache.element_bytes(vectors))


def _whole(cost: Cost) -> Cost:
    """Return the cost with its bytes as ints: a fraction of an element's was whole in sum."""
    names = ("kv_bytes_per_token", "kv_cache_bytes", "kv_cache_bytes_full", "moved_bytes")
    return replace(cost, **{name: math.ceil(getattr(cost, name)) for name in names})


def _kind_cost(plan: ModelPlan, position: int, *, dtype_bytes: int) -> Cost:
    """Return the cost of one layer of a kind."""
    kind = plan.kinds[position]
    params = kind.params
    saved = kind.saved_macs
    cached = kind.cached

    def overtakes(exact: bool) -> int | None:
        def balance(tokens: int) -> int:
            return _balance(plan.at(tokens).kinds[position], exact)

        return _first_tokens(balance, plan)

    return Cost(
        layers=kind.count,
        macs=formulas.total_macs(kind.spec) - saved,
        macs_exact=formulas.total_macs(kind.spec, exact=True) - saved,
        core_macs=formulas.core_macs(kind.spec),
        core_macs_exact=formulas.core_macs(kind.spec, exact=True),
        built=kind.count if kind.built is None else kind.built,
        params=params.projections,
        norm_params=params.norms,
        sink_params=params.sinks,
        kv_bytes_per_token=cached * _bytes_per_token(kind, dtype_bytes),
        kv_cache_bytes=cached * formulas.kv_cache_bytes(kind.stored, dtype_bytes=dtype_bytes),
        kv_cache_bytes_full=cached
        * formulas.kv_cache_bytes(kind.stored, dtype_bytes=dtype_bytes, windowed=False),
        moved_bytes=formulas.moved_bytes(
            kind.spec,
            dtype_bytes=DTYPE_BYTES[COMPUTE_DTYPE],
            cache_dtype_bytes=dtype_bytes,
            fused=True,
            learned=kind.run_params,
        ),
        tokens_core_overtakes=overtakes(False),
        tokens_core_overtakes_exact=overtakes(True),
    )


def _bytes_per_token(kind: LayerKind, dtype_bytes: int) -> int:
    return formulas.kv_bytes_per_token(kind.stored, dtype_bytes=dtype_bytes)


def _total(plan: ModelPlan, costs: Sequence[Cost]) -> Cost:
    """Sum the layers; tokens of cross-attention's other sequence are not the text's."""

    def total(value: Callable[[Cost], int]) -> int:
        return sum(cost.layers * value(cost) for cost in costs)

    def overtakes(exact: bool) -> int | None:
        def balance(tokens: int) -> int:
            kinds = plan.at(tokens).kinds
            return sum(kind.count * _balance(kind, exact) for kind in kinds)

        return _first_tokens(balance, plan)

    return Cost(
        layers=plan.layers,
        macs=total(lambda cost: cost.macs),
        macs_exact=total(lambda cost: cost.macs_exact),
        core_macs=total(lambda cost: cost.core_macs),
        core_macs_exact=total(lambda cost: cost.core_macs_exact),
        built=sum(cost.built for cost in costs),
        params=sum(cost.built * cost.params for cost in costs),
        norm_params=sum(cost.built * cost.norm_params for cost in costs),
        sink_params=sum(cost.built * cost.sink_params for cost in costs),
        kv_bytes_per_token=sum(
            cost.layers * cost.kv_bytes_per_token
            for kind, cost in zip(plan.kinds, costs, strict=True)
            if not kind.is_cross
        ),
        kv_cache_bytes=total(lambda cost: cost.kv_cache_bytes),
        kv_cache_bytes_full=total(lambda cost: cost.kv_cache_bytes_full),
        moved_bytes=total(lambda cost: cost.moved_bytes),
        tokens_core_overtakes=overtakes(False),
        tokens_core_overtakes_exact=overtakes(True),
    )


def _balance(kind: LayerKind, exact: bool) -> int:
    """Return the MACs of the core minus those of the projections."""
    core = formulas.core_macs(kind.spec, exact=exact)
    return 2 * core + kind.saved_macs - formulas.total_macs(kind.spec, exact=exact)


def _first_tokens(balance: Callable[[int], int], plan: ModelPlan) -> int | None:
    """Return the fewest tokens at which the balance is not negative; None if it always is.

    None also where the tokens of the text change nothing (an encoder of fixed length).
    The core's share grows with the tokens, so that doubling and halving find the place;
    with chunks it is highest at the first chunk's end, which is tried first.
    """
    if balance(1) == balance(2):
        return None
    ends = [kind.spec.chunk for kind in plan.kinds if kind.spec.chunk is not None]
    high = next((end for end in ends if balance(end) >= 0), 1)
    while balance(high) < 0:
        high *= 2
        if high > MAX_TOKENS:
            return None
    low = 0 if high in ends else high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if balance(middle) >= 0 else (middle, high)
    return high
