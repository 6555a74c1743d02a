"""A model as its distinct kinds of attention layers: what ``layers_of`` returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from mhaprof import formulas
from mhaprof.errors import UsageError
from mhaprof.spec import AttentionSpec


@dataclass(frozen=True, kw_only=True)
class LayerKind:
    """Attention layers of a model that cost the same.

    ``name`` is the kind in the words of ``layer_types`` (``full_attention``), with what
    tells it apart.  ``spec`` is what one forward pass of one layer runs; ``stored`` is
    the spec whose parameters and cache the layer holds: they differ where keys and
    values were projected earlier (cross-attention in phase decode).  ``cached`` is false
    for layers that keep no keys and values (encoders).  ``norm_biases``: parameters of
    norms that the spec does not know; ``params_beside``: of projections that it does not
    (the text's in a block that attends to image and text jointly).  ``v_is_k``: keys are
    the values too, unprojected.  ``built``: how many layers have parameters of their own,
    if not each has.
    """

    name: str
    spec: AttentionSpec
    stored: AttentionSpec
    indices: tuple[int, ...]
    cached: bool
    norm_biases: int = 0
    params_beside: int = 0
    v_is_k: bool = False
    built: int | None = None

    @property
    def count(self) -> int:
        """Count the layers of this kind."""
        return len(self.indices)

    @property
    def params(self) -> formulas.Params:
        """Return the parameters that one layer holds."""
        return self._learned(self.stored)

    @property
    def run_params(self) -> formulas.Params:
        """Return the parameters that one forward pass reads."""
        return self._learned(self.spec)

    def _learned(self, spec: AttentionSpec) -> formulas.Params:
        held = formulas.params(spec)
        values = spec.kv_heads * spec.v_head_dim * (spec.dim + spec.qkv_bias)
        saved = values if self.v_is_k and spec.kv_proj else 0
        return held._replace(
            projections=held.projections - saved + self.params_beside,
            norms=held.norms + self.norm_biases,
        )

    @property
    def saved_macs(self) -> int:
        """Return the MACs of the projection that the layer lacks and its spec has."""
        return formulas.stage_macs(self.spec)["v_proj"] if self.v_is_k else 0

    @property
    def is_cross(self) -> bool:
        """Say whether keys and values come from another sequence."""
        return self.name.startswith("cross_attention")


@dataclass(frozen=True, kw_only=True)
class LayersApart:
    """What layers hold that is no softmax attention: stated, and not in any total.

    ``attends``: the layers are softmax attention too (an indexer beside it).  Elements are
    of one layer and one sequence; None: the file and the row do not say.  ``known`` is
    false where ``--partial`` had to leave the layers out.
    """

    name: str
    indices: tuple[int, ...]
    known: bool
    attends: bool
    params: int
    state_elements: int | None
    token_elements: int


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """All attention layers of one model at one number of tokens.

    ``warnings`` are sentences: what was assumed, what was left out.  ``rebuild`` makes
    the same plan for another number of tokens.
    """

    source: str
    model_type: str
    kinds: tuple[LayerKind, ...]
    apart: tuple[LayersApart, ...]
    warnings: tuple[str, ...]
    rebuild: Callable[[int], ModelPlan]

    @property
    def layers(self) -> int:
        """Count the attention layers, those left out not included."""
        return sum(kind.count for kind in self.kinds)

    @property
    def layers_missing(self) -> int:
        """Count the layers that are no softmax attention."""
        return sum(len(layers.indices) for layers in self.apart if not layers.attends)

    def at(self, tokens: int) -> ModelPlan:
        """Return the plan for another number of tokens (in decode: of cached tokens)."""
        return self.rebuild(tokens)

    def kinds_of(self, layer: int) -> tuple[LayerKind, ...]:
        """Return the kinds that layer ``layer`` (counted from 0) holds.

        A decoder layer may hold two: self-attention and cross-attention.  Raises
        UsageError when there is no such layer or it was left out.
        """
        found = tuple(kind for kind in self.kinds if layer in kind.indices)
        if found:
            return found
        for layers in self.apart:
            if layer in layers.indices and not layers.attends:
                raise UsageError(f"{self.source}: layer {layer} is {layers.name}: left out")
        last = max(max(kind.indices) for kind in self.kinds)
        raise UsageError(f"{self.source}: there is no layer {layer}; the last one is {last}")


def ranges(indices: Iterable[int]) -> str:
    """Write indices shortly: ``0-3, 5, 7``."""
    parts: list[list[int]] = []
    for index in sorted(indices):
        if parts and index == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], index]
        else:
            parts.append([index])
    return ", ".join("-".join(str(bound) for bound in part) for part in parts)


def distinguish(kinds: Sequence[LayerKind]) -> tuple[LayerKind, ...]:
    """Give kinds of the same name different names: by their layers."""
    names = [kind.name for kind in kinds]
    return tuple(
        kind
        if names.count(kind.name) == 1
        else replace(kind, name=f"{kind.name} (layers {ranges(kind.indices)})")
        for kind in kinds
    )
