"""One function for each check: an implementation on a case, and the verdict on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mhaprof import attention
from mhaprof.attention.base import Implementation, canonical_weights, make_inputs
from mhaprof.measure.numerics import check, tolerance
from mhaprof.spec import AttentionSpec
from mhaprof.verification.cases import ORDER_TOKENS, worked_example

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

CheckName = Literal["forward", "gradients", "worked-example", "order", "counters"]

GRADIENT_FACTOR = 4
"""A gradient is a longer chain of products than the result: so much more tolerance."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer to one check; errors are relative, and None where nothing was compared."""

    check: CheckName
    implementation: str
    case: str
    status: Literal["ok", "failed", "skipped"]
    max_error: float | None = None
    tolerance: float | None = None
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """One implementation on a device, and how it is built, fed and judged there."""

    name: str
    implementation: Implementation
    device: str
    dtype: str

    @property
    def torch_dtype(self) -> torch.dtype:
        """Return torch's object for the dtype."""
        import torch

        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def module(self, spec: AttentionSpec, weights: dict[str, Tensor]) -> nn.Module:
        """Return the implementation's module with these canonical weights."""
        return _loaded(self.implementation, spec, weights, device=self.device, dtype=self.dtype)

    def weights(self, spec: AttentionSpec) -> dict[str, Tensor]:
        """Return the canonical weights of ``spec``, rounded to the dtype."""
        return canonical_weights(spec, seed=0, dtype=self.torch_dtype, device=self.device)

    def inputs(self, spec: AttentionSpec) -> tuple[Tensor, ...]:
        """Return seeded inputs of ``spec``."""
        return make_inputs(spec, seed=1, dtype=self.torch_dtype, device=self.device)

    def verdict(
        self, name: CheckName, case: str, error: float, limit: float, message: str = ""
    ) -> Verdict:
        """Return ok when the error is within the limit (NaN is not)."""
        ok = error <= limit
        return Verdict(
            check=name,
            implementation=self.name,
            case=case,
            status="ok" if ok else "failed",
            max_error=error,
            tolerance=limit,
            message=message if not ok else "",
        )


def _loaded(
    implementation: Implementation,
    spec: AttentionSpec,
    weights: Mapping[str, Tensor],
    *,
    device: str,
    dtype: str,
) -> nn.Module:
    import torch

    with torch.device(device):
        module = implementation.build(spec)
    module = module.to(dtype=getattr(torch, dtype))
    implementation.load(module, spec, dict(weights))
    return module


def check_forward(bench: Bench, case: str, spec: AttentionSpec) -> Verdict:
    """Compare the result with the reference; the inputs must come back as they were."""
    import torch

    weights, inputs = bench.weights(spec), bench.inputs(spec)
    before = [tensor.clone() for tensor in inputs]
    with torch.no_grad():
        result = bench.module(spec, weights)(*inputs)
        expected = _reference(spec, weights)(*(tensor.double().cpu() for tensor in before))
    verdict = check(result, expected, tolerance=tolerance(spec, dtype=bench.dtype))
    message = verdict.message
    if not all(map(torch.equal, _untouched(spec, inputs), _untouched(spec, before))):
        return bench.verdict("forward", case, math.inf, verdict.tolerance, "changed its inputs")
    return bench.verdict("forward", case, verdict.max_error, verdict.tolerance, message)


def _untouched(spec: AttentionSpec, inputs: Iterable[Tensor]) -> list[Tensor]:
    """Return the parts of the inputs that no call may write to: not a cache's last slot."""
    x, *rest = inputs
    if spec.phase == "decode" and spec.kv_proj:
        return [x, *(cache[..., :-1, :] for cache in rest)]
    return [x, *rest]


def _reference(spec: AttentionSpec, weights: Mapping[str, Tensor]) -> nn.Module:
    """Return the eager module in float64 on the CPU with the same weights."""
    exact = {name: value.double().cpu() for name, value in weights.items()}
    return _loaded(attention.get("eager"), spec, exact, device="cpu", dtype="float64")


def check_gradients(bench: Bench, case: str, spec: AttentionSpec) -> Verdict:
    """Compare the gradients of inputs and weights with the reference's.

    Of each canonical weight, the derivative along one random direction: loading is
    linear, so the direction can be loaded into any layout and multiplied there.
    """
    weights, inputs = bench.weights(spec), bench.inputs(spec)
    exact = {name: value.double().cpu() for name, value in weights.items()}
    expected = _gradients(
        attention.get("eager"),
        _reference(spec, weights),
        spec,
        exact,
        [tensor.double().cpu() for tensor in inputs],
    )
    module = bench.module(spec, weights)
    found = _gradients(bench.implementation, module, spec, weights, inputs)
    scale = max(float(gradient.abs().max()) for gradient in expected)
    differences = [
        float((mine.double().cpu() - theirs).abs().max())
        for mine, theirs in zip(found, expected, strict=True)
    ]
    # A NaN compares false with everything: it must not get lost in max().
    error = math.inf if any(map(math.isnan, differences)) else max(differences) / scale
    limit = GRADIENT_FACTOR * tolerance(spec, dtype=bench.dtype)
    return bench.verdict("gradients", case, error, limit, f"largest error {error:.3g}")


def _gradients(
    implementation: Implementation,
    module: nn.Module,
    spec: AttentionSpec,
    weights: Mapping[str, Tensor],
    inputs: Sequence[Tensor],
) -> list[Tensor]:
    """Return the gradient of each input and the directional derivative of each weight.

    The loss is the result weighted by fixed random numbers.
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


def check_example(bench: Bench, case: str, spec: AttentionSpec) -> Verdict:
    """Compare the worked example's result with what the article derives by hand."""
    import torch

    _, weights, x, expected = worked_example()
    placed = {name: value.to(bench.device, bench.torch_dtype) for name, value in weights.items()}
    with torch.no_grad():
        result = bench.module(spec, placed)(x.to(bench.device, bench.torch_dtype))
    verdict = check(result, expected, tolerance=tolerance(spec, dtype=bench.dtype))
    return bench.verdict(
        "worked-example", case, verdict.max_error, verdict.tolerance, verdict.message
    )


def check_order(bench: Bench, case: str, spec: AttentionSpec) -> Verdict:
    """Swap two tokens: the first one's result stays, theirs swap (nothing knows positions)."""
    import torch

    module = bench.module(spec, bench.weights(spec))
    tokens = torch.tensor([ORDER_TOKENS], dtype=bench.torch_dtype, device=bench.device)
    swap = [0, 2, 1]
    with torch.no_grad():
        result, swapped = module(tokens), module(tokens[:, swap])
    limit = tolerance(spec, dtype=bench.dtype)
    verdict = check(swapped[:, swap], result.double().cpu(), tolerance=limit)
    return bench.verdict("order", case, verdict.max_error, limit, verdict.message)
