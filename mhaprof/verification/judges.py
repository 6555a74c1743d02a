"""One function for each check: an implementation on a case, and the verdict on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mhaprof.attention.base import Implementation
from mhaprof.measure.numerics import check, tolerance
from mhaprof.spec import AttentionSpec
from mhaprof.verification.cases import ORDER_TOKENS, worked_example
from mhaprof.verification.problems import Problem, gradients_of, loaded

if TYPE_CHECKING:
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
    """One implementation on a device, and how it is built, fed and judged there.

    ``problems`` keeps what was asked, so that the reference answers once for all
    implementations.
    """

    name: str
    implementation: Implementation
    device: str
    dtype: str
    problems: dict[AttentionSpec, Problem]

    def problem(self, spec: AttentionSpec) -> Problem:
        """Return weights, inputs and right answers for a spec."""
        if spec not in self.problems:
            self.problems[spec] = Problem(spec=spec, device=self.device, dtype=self.dtype)
        return self.problems[spec]

    def module(self, spec: AttentionSpec, weights: Mapping[str, Tensor]) -> nn.Module:
        """Return the implementation's module with these canonical weights."""
        return loaded(self.implementation, spec, weights, device=self.device, dtype=self.dtype)

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


def check_forward(bench: Bench, case: str, spec: AttentionSpec) -> Verdict:
    """Compare the result with the reference; the inputs must come back as they were."""
    import torch

    problem = bench.problem(spec)
    inputs, before = problem.inputs, problem.inputs
    with torch.no_grad():
        result = bench.module(spec, problem.weights)(*inputs)
    verdict = check(result, problem.result, tolerance=tolerance(spec, dtype=bench.dtype))
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


def check_gradients(bench: Bench, case: str, spec: AttentionSpec) -> Verdict:
    """Compare the gradients of inputs and weights with the reference's.

    Of each canonical weight, the derivative along one random direction: loading is
    linear, so the direction can be loaded into any layout and multiplied there.
    """
    problem = bench.problem(spec)
    weights, expected = problem.weights, problem.gradients
    module = bench.module(spec, weights)
    found = gradients_of(bench.implementation, module, spec, weights, problem.inputs)
    scale = max(float(gradient.abs().max()) for gradient in expected)
    differences = [
        float((mine.double().cpu() - theirs).abs().max())
        for mine, theirs in zip(found, expected, strict=True)
    ]
    # A NaN compares false with everything: it must not get lost in max().
    error = math.inf if any(map(math.isnan, differences)) else max(differences) / scale
    limit = GRADIENT_FACTOR * tolerance(spec, dtype=bench.dtype)
    return bench.verdict("gradients", case, error, limit, f"largest error {error:.3g}")


def check_example(bench: Bench, case: str, spec: AttentionSpec) -> Verdict:
    """Compare the worked example's result with what the article derives by hand."""
    import torch

    _, weights, x, expected = worked_example()
    dtype = bench.problem(spec).torch_dtype
    placed = {name: value.to(bench.device, dtype) for name, value in weights.items()}
    with torch.no_grad():
        result = bench.module(spec, placed)(x.to(bench.device, dtype))
    verdict = check(result, expected, tolerance=tolerance(spec, dtype=bench.dtype))
    return bench.verdict(
        "worked-example", case, verdict.max_error, verdict.tolerance, verdict.message
    )


def check_order(bench: Bench, case: str, spec: AttentionSpec) -> Verdict:
    """Swap two tokens: the first one's result stays, theirs swap (nothing knows positions)."""
    import torch

    problem = bench.problem(spec)
    module = bench.module(spec, problem.weights)
    tokens = torch.tensor([ORDER_TOKENS], dtype=problem.torch_dtype, device=bench.device)
    swap = [0, 2, 1]
    with torch.no_grad():
        result, swapped = module(tokens), module(tokens[:, swap])
    limit = tolerance(spec, dtype=bench.dtype)
    verdict = check(swapped[:, swap], result.double().cpu(), tolerance=limit)
    return bench.verdict("order", case, verdict.max_error, limit, verdict.message)
