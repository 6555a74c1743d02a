"""What one call does in each mode, and what torch.compile did to it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mhaprof.measure.calls import compiled, finite, gradients, mode_call


class Counting(nn.Module):
    """A linear layer that counts its forward calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.linear(x)


@pytest.mark.parametrize(
    ("mode", "forwards"), [("forward", 3), ("backward", 1), ("forward-backward", 4)]
)
def test_each_mode_runs_what_it_names(mode: str, forwards: int) -> None:
    module, x = Counting(), torch.randn(2, 4)
    with gradients(mode):  # type: ignore[arg-type]
        call = mode_call(module, (x,), mode)  # type: ignore[arg-type]
        results = [call() for _ in range(3)]
    assert module.calls == forwards
    if mode == "forward":
        assert not results[0].requires_grad  # type: ignore[attr-defined]
    else:
        assert [gradient.shape for gradient in results[0]] == [(4, 4), (4,), (2, 4)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("mode", ["backward", "forward-backward"])
def test_gradients_do_not_accumulate_from_call_to_call(mode: str) -> None:
    module, x = Counting(), torch.randn(2, 4)
    call = mode_call(module, (x,), mode)  # type: ignore[arg-type]
    first, second = call(), call()
    assert all(map(torch.equal, first, second))  # type: ignore[call-overload]
    assert module.linear.weight.grad is None


def test_the_gradient_mode_is_restored() -> None:
    with gradients("forward"):
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_one_nan_among_gradients_is_not_finite() -> None:
    assert finite((torch.ones(2), None))
    assert not finite((torch.ones(2), torch.tensor([1.0, float("nan")])))


def test_one_graph_of_one_shape_is_no_fallback() -> None:
    with compiled(Counting().linear, backend="aot_eager") as result:
        result.module(torch.randn(2, 4))
        result.steady()
        result.module(torch.randn(2, 4))
        assert result.fallback() is None


def test_compiling_again_while_timing_is_a_fallback() -> None:
    with compiled(Counting().linear, backend="aot_eager") as result:
        result.module(torch.randn(2, 4))
        result.steady()
        result.module(torch.randn(3, 4))
        assert result.fallback() == "torch.compile compiled 1 more time(s) while timing"


def test_a_broken_graph_is_a_fallback() -> None:
    class Breaks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._dynamo.graph_break()
            return x + 1

    with compiled(Breaks(), backend="aot_eager") as result:
        result.module(torch.randn(2, 4))
        result.steady()
        assert "left its graph" in (result.fallback() or "")


def test_points_do_not_share_a_compiler() -> None:
    for size in (2, 3):
        with compiled(Counting().linear, backend="aot_eager") as result:
            result.module(torch.randn(size, 4))
            result.steady()
            assert result.fallback() is None


def test_a_compiled_backward_pass_runs_more_than_once() -> None:
    module, x = nn.Linear(4, 4), torch.randn(2, 4)
    with gradients("backward"), compiled(module, backend="aot_eager") as result:
        call = mode_call(result.module, (x,), "backward")
        first, second = call(), call()
    assert all(map(torch.equal, first, second))  # type: ignore[call-overload]


def test_a_module_that_compiles_itself_runs_its_backward_more_than_once() -> None:
    torch._dynamo.reset()
    module = torch.compile(lambda x: (x.exp() @ x).sin(), backend="aot_eager", dynamic=False)
    with gradients("backward"):
        assert not torch._functorch.config.donated_buffer
        call = mode_call(module, (torch.randn(4, 4),), "backward")
        first, second = call(), call()
    assert all(map(torch.equal, first, second))  # type: ignore[call-overload]
    assert torch._functorch.config.donated_buffer
    with gradients("forward"):
        assert torch._functorch.config.donated_buffer
    torch._dynamo.reset()
