"""What one timed call does: forward, backward or both, compiled or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mhaprof.measure.timers import Call
from mhaprof.records import Mode

if TYPE_CHECKING:
    import torch

    Module = Callable[..., torch.Tensor]

GRADIENT_SEED = 1
"""Seed of the gradient that flows into the result."""


def mode_call(module: Module, inputs: Sequence[torch.Tensor], mode: Mode) -> Call:
    """Return the call to time.

    ``forward`` runs without gradients.  ``backward`` runs the forward once, now, and
    times the gradients of all inputs and parameters against an N(0, 1) gradient of
    the result; nothing is accumulated.  ``forward-backward`` times both.
    """
    import torch

    if mode == "forward":
        return lambda: module(*inputs)
    tensors = [*_parameters(module), *inputs]
    wanted = [tensor.requires_grad_() for tensor in tensors if tensor.is_floating_point()]
    result = module(*inputs)
    generator = torch.Generator(device=result.device).manual_seed(GRADIENT_SEED)
    upstream = torch.randn(
        result.shape, generator=generator, dtype=result.dtype, device=result.device
    )

    def gradients_of(output: torch.Tensor, *, again: bool) -> object:
        return torch.autograd.grad(output, wanted, upstream, retain_graph=again, allow_unused=True)

    if mode == "backward":
        return lambda: gradients_of(result, again=True)
    # The first result and its graph are not kept: they would count in the peak.
    return lambda: gradients_of(module(*inputs), again=False)


def _parameters(module: Module) -> list[torch.Tensor]:
    parameters = getattr(module, "parameters", None)
    return [] if parameters is None else list(parameters())


@contextmanager
def gradients(mode: Mode) -> Iterator[None]:
    """Run the body with gradients recorded or not, as ``mode`` needs, then restore.

    What is compiled, also by a module that compiles itself, donates no buffers to its
    backward pass, so that it can run more than once.
    """
    import torch

    from mhaprof.measure.torch_private import keeping_buffers

    kept = nullcontext() if mode == "forward" else keeping_buffers()
    with torch.set_grad_enabled(mode != "forward"), kept:
        yield


def finite(results: object) -> bool:
    """Say whether every tensor in a call's results is finite (None: unused, is)."""
    import torch

    if isinstance(results, torch.Tensor):
        return bool(results.isfinite().all())
    if isinstance(results, tuple):
        return all(finite(result) for result in results)
    return True


@dataclass(kw_only=True)
class Compiled:
    """A compiled module, and whether torch.compile kept its promise.

    ``steady`` marks the end of the first calls: what is compiled after it is a
    recompilation while timing.
    """

    module: Module
    _graphs: int = field(default=0, init=False)

    def steady(self) -> None:
        """Note that everything should be compiled by now."""
        self._graphs = _compiled_frames()

    def fallback(self) -> str | None:
        """Return why the times are not those of one compiled graph, or None."""
        breaks = _counters()["graph_break"]
        if breaks:
            reason = str(next(iter(breaks))).splitlines()[0]
            return f"torch.compile left its graph {sum(breaks.values())} time(s): {reason}"
        again = _compiled_frames() - self._graphs
        if again:
            return f"torch.compile compiled {again} more time(s) while timing"
        return None if self._graphs else "torch.compile compiled nothing"


@contextmanager
def compiled(module: Module, *, backend: str = "inductor") -> Iterator[Compiled]:
    """Compile ``module`` for exactly its shapes, starting from an empty compiler.

    The compiler is emptied again at the end.
    """
    import torch

    torch.compiler.reset()
    _counters().clear()
    try:
        yield Compiled(module=torch.compile(module, dynamic=False, backend=backend))
    finally:
        torch.compiler.reset()


def _counters() -> Any:
    from mhaprof.measure.torch_private import compiler_counters

    return compiler_counters()


def _compiled_frames() -> int:
    return int(_counters()["stats"]["unique_graphs"])
