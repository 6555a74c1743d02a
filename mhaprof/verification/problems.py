"""What a check asks and what is right: weights, inputs, and the reference's answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from mhaprof import attention
from mhaprof.attention.base import Implementation, canonical_weights, make_inputs
from mhaprof.spec import AttentionSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One spec with seeded weights and inputs; the reference answers it once, in float64.

    ``device`` and ``dtype`` are those of the implementation that is judged: its weights
    and inputs are rounded to the dtype, and the reference takes the rounded ones.
    """

    spec: AttentionSpec
    device: str
    dtype: str

    @property
    def torch_dtype(self) -> torch.dtype:
        """Return torch's object for the dtype."""
        import torch

        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """Return the canonical weights, rounded to the dtype."""
        return canonical_weights(self.spec, seed=0, dtype=self.torch_dtype, device=self.device)

    @cached_property
    def _inputs(self) -> tuple[Tensor, ...]:
        return make_inputs(self.spec, seed=1, dtype=self.torch_dtype, device=self.device)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Return seeded inputs, a copy that may be written to."""
        return tuple(tensor.clone() for tensor in self._inputs)

    @property
    def _exact_weights(self) -> dict[str, Tensor]:
        return {name: value.double().cpu() for name, value in self.weights.items()}

    @property
    def _exact_inputs(self) -> list[Tensor]:
        return [tensor.double().cpu() for tensor in self.inputs]

    def _reference(self) -> nn.Module:
        """Return the eager module in float64 on the CPU with the same weights."""
        eager = attention.get("eager")
        return loaded(eager, self.spec, self._exact_weights, device="cpu", dtype="float64")

    @cached_property
    def result(self) -> Tensor:
        """Return the reference's result."""
        import torch

        with torch.no_grad():
            result: Tensor = self._reference()(*self._exact_inputs)
        return result

    @cached_property
    def gradients(self) -> list[Tensor]:
        """Return the reference's ``gradients_of``."""
        return gradients_of(
            attention.get("eager"),
            self._reference(),
            self.spec,
            self._exact_weights,
            self._exact_inputs,
        )


def loaded(
    implementation: Implementation,
    spec: AttentionSpec,
    weights: Mapping[str, Tensor],
    *,
    device: str,
    dtype: str,
) -> nn.Module:
    """Return an implementation's module with these canonical weights."""
    import torch

    with torch.device(device):
        module = implementation.build(spec)
    module = module.to(dtype=getattr(torch, dtype))
    implementation.load(module, spec, dict(weights))
    return module


def gradients_of(
    implementation: Implementation,
    module: nn.Module,
    spec: AttentionSpec,
    weights: Mapping[str, Tensor],
    inputs: Sequence[Tensor],
) -> list[Tensor]:
    """Return the gradient of each input and the directional derivative of each weight.

    The loss is the result weighted by fixed random numbers.  The module's weights are
    overwritten.
    """
    import torch

    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    result = module(*leaves)
    parameters = list(module.parameters())
    loss = (result * _fixed(result, seed=2)).sum()
    gradients = torch.autograd.grad(loss, [*leaves, *parameters], materialize_grads=True)
    found = list(gradients[: len(leaves)])
    for index, name in enumerate(weights):
        direction = {other: torch.zeros_like(value) for other, value in weights.items()}
        values = _fixed(weights[name], seed=3 + index)
        direction[name] = values / values.norm()
        implementation.load(module, spec, direction)
        products = [
            (parameter.detach() * gradient).sum()
            for parameter, gradient in zip(parameters, gradients[len(leaves) :], strict=True)
        ]
        found.append(torch.stack(products).sum())
    return found


def _fixed(like: Tensor, *, seed: int) -> Tensor:
    """Return numbers from N(0, 1), the same for the same shape and seed everywhere."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(like.shape, generator=generator, dtype=torch.float64, device="cpu")
    return values.to(device=like.device, dtype=like.dtype)
