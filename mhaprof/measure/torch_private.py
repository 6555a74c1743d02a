"""Every private name of torch that counting stands on, and what happens without it.

Seen in torch 2.6, 2.8 and 2.13 (on the first two fvcore cannot trace convolutions on meta
tensors: torch counts those alone, and a finding says so).  Each is looked up once; where
one is missing, counting goes on with torch's own meta kernels or leaves that state to
torch, as said beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

_C: Any = torch._C

get_tracing_state: Any = getattr(_C, "_get_tracing_state", lambda: None)
set_tracing_state: Any = getattr(_C, "_set_tracing_state", lambda state: None)
"""The trace that is being recorded.  Without: no run is paused; fvcore fails and says so."""

_TRACER: Any = _C._dispatch_key_parse("Tracer") if hasattr(_C, "_dispatch_key_parse") else None
_is_included: Any = getattr(_C, "_dispatch_tls_is_dispatch_key_included", None)
_is_excluded: Any = getattr(_C, "_dispatch_tls_is_dispatch_key_excluded", None)
_include: Any = getattr(_C, "_dispatch_tls_set_dispatch_key_included", None)
_exclude: Any = getattr(_C, "_dispatch_tls_set_dispatch_key_excluded", None)


def is_recording() -> bool:
    """Tell whether the operator that is dispatched has not been recorded yet."""
    return bool(_is_included(_TRACER))


class untraced:  # noqa: N801  (a context manager; a generator would cost twice the time)
    """Pause the trace: inside it ``tensor.shape`` holds numbers, and nothing is recorded.

    The tracer's dispatch key comes back as it was: ``.data`` dispatches with the key
    neither included nor excluded, operators of a composite one with it excluded.
    """

    __slots__ = ("_excluded", "_included", "_state")

    def __init__(self, state: Any) -> None:
        self._state = state

    def __enter__(self) -> None:
        self._included, self._excluded = _is_included(_TRACER), _is_excluded(_TRACER)
        _exclude(_TRACER, False)
        set_tracing_state(None)

    def __exit__(self, *error: object) -> None:
        set_tracing_state(self._state)
        _include(_TRACER, self._included)
        _exclude(_TRACER, self._excluded)


class recorded:  # noqa: N801
    """Let the tracer record what is called inside, while it dispatches something else."""

    def __enter__(self) -> None:
        _exclude(_TRACER, False)

    def __exit__(self, *error: object) -> None:
        _exclude(_TRACER, True)


def preserved_keys() -> AbstractContextManager[Any]:
    """Put the dispatch keys of this thread back.  Without: torch's guards are trusted."""
    guard = getattr(_C, "_PreserveDispatchKeyGuard", None)
    return nullcontext() if guard is None else guard()


@contextmanager
def preserved_modes() -> Iterator[None]:
    """Leave modes that were entered inside and not left.  Without: they stay."""
    stacks = [
        [getattr(_C, f"_{verb}_torch_{kind}_stack", None) for verb in ("len", "pop")]
        for kind in ("function", "dispatch")
    ]
    known = [(length, pop, length()) for length, pop in stacks if length and pop]
    try:
        yield
    finally:
        for length, pop, before in known:
            while length() > before:
                pop()


def put_back(tensor: torch.Tensor, values: torch.Tensor, version: int) -> None:
    """Write values into a tensor unseen by autograd.  Without: its version goes up."""
    with torch.no_grad():
        tensor.copy_(values)
    set_version = getattr(_C._autograd, "_unsafe_set_version_counter", None)
    if set_version is not None:
        try:
            set_version((tensor,), (version,))
        except TypeError:  # torch 2.6
            set_version(tensor, version)


def is_composite(func: Any) -> bool:
    """Tell whether an operator is made of others.  Without: all are decomposed by torch."""
    key = _C.DispatchKey.CompositeImplicitAutograd
    return key in func.py_kernels or _C._dispatch_has_kernel_for_dispatch_key(func.name(), key)
