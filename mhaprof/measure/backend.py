"""Which attention kernel ran: read from the dispatched operators, not from the request."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

from mhaprof.records import Finding

Returned = TypeVar("Returned")

FUSED_OPERATORS: Mapping[str, str] = {
    "_scaled_dot_product_flash_attention_for_cpu": "flash",
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_efficient_attention": "efficient",
    "_scaled_dot_product_cudnn_attention": "cudnn",
    "_scaled_dot_product_fused_attention_overrideable": "overrideable",
    "_scaled_dot_product_attention_math_for_mps": "mps",
    "_native_multi_head_attention": "native-mha",
    "_transformer_encoder_layer_fwd": "native-encoder-layer",
    "flex_attention": "flex",
    # Below the others, which are made of these two: a causal bias calls them by itself.
    "_flash_attention_forward": "flash",
    "_efficient_attention_forward": "efficient",
}
"""Operators in torch's aten (and one higher-order) namespace that are attention as a whole."""

MATH_OPERATORS = ("_scaled_dot_product_attention_math", "_safe_softmax")
"""What F.scaled_dot_product_attention is made of when no fused kernel takes it.

It decomposes before a dispatch mode sees it; its softmax is one that nothing else uses.
"""

UNSEEN_BACKENDS = ("flex",)
"""Backends of which no operator tells: compiled to kernels without a name, or not run at all."""

PINNABLE_BACKENDS: Mapping[str, str] = {
    "math": "MATH",
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
}
"""Backends that torch can be held to, with their names in ``SDPBackend``."""

NO_KERNEL = re.compile("No available kernel|No viable backend for scaled_dot_product")
"""How torch begins its errors (CUDA, CPU) when the pinned backend refuses the problem."""


def backend_of(operators: Collection[str]) -> str | None:
    """Return the backend that a set of operator names belongs to, or None.

    Names without namespace and overload.  None: no call of
    F.scaled_dot_product_attention was seen (plain torch operators).
    """
    for operator, backend in FUSED_OPERATORS.items():
        if operator in operators:
            return backend
    return "math" if any(operator in operators for operator in MATH_OPERATORS) else None


def pinned(name: str | None) -> AbstractContextManager[object]:
    """Return a context in which the named backend alone can run; for others one that does nothing.

    An implementation that finds its backend pinned need not pin it on each call, which
    takes the host more than ten microseconds.
    """
    if name is None or name not in PINNABLE_BACKENDS:
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(getattr(SDPBackend, PINNABLE_BACKENDS[name]))


def dispatched_operators(call: Callable[[], object]) -> set[str]:
    """Run ``call`` once and return the names of all operators dispatched meanwhile."""
    from mhaprof.measure.torch_private import PlainDispatchMode

    seen: set[str] = set()

    class Recorder(PlainDispatchMode):
        # flex_attention is compiled by whoever calls it: else it is an error here.
        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.add(_plain(str(func)))
            return func(*args, **(kwargs or {}))

    with Recorder():
        call()
    return seen


def recorded_operators(call: Callable[[], object]) -> set[str]:
    """Run a compiled ``call`` once and return the operators that it ran.

    A dispatch mode would make torch.compile leave its graph; torch's execution trace
    only listens.
    """
    from torch.profiler import ExecutionTraceObserver

    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        observer = ExecutionTraceObserver().register_callback(str(trace))
        try:
            with _quiet_stderr():
                observer.start()
            call()
        finally:
            with _quiet_stderr():
                observer.stop()
                observer.unregister_callback()
        return {_plain(node["name"]) for node in json.loads(trace.read_text())["nodes"]}


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Drop what C++ writes to stderr in the body: the observer announces itself there."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def resolved_backend(call: Callable[[], object], *, compiled: bool = False) -> str | None:
    """Run ``call`` once and return the backend that it dispatched to, or None.

    ``flash``, ``efficient``, ``cudnn``, ``math``, ``flex``, ``native-mha``; None for
    attention out of plain operators.
    """
    operators = recorded_operators(call) if compiled else dispatched_operators(call)
    return backend_of(operators)


def _plain(name: str) -> str:
    """Strip namespace and overload: ``aten.bmm.default`` and ``aten::bmm`` are ``bmm``."""
    bare = name.rpartition("::")[2]
    if bare != name:
        return bare
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else name


def math_finding(resolved: str | None) -> Finding | None:
    """Return the warning that an automatic choice became the math backend, or None."""
    if resolved != "math":
        return None
    return Finding(
        code="auto_became_math",
        message="scaled_dot_product_attention chose its math backend: no fused kernel takes "
        "this shape, dtype and device; the whole score matrix is in memory",
    )


def refusal_of(call: Callable[[], Returned]) -> tuple[Returned | None, str | None]:
    """Run ``call``; return its result, or torch's reasons why no kernel takes it.

    Torch warns with one reason for each backend and then raises; any other error
    passes.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            return call(), None
        except RuntimeError as error:
            if not NO_KERNEL.match(str(error)):
                raise
            own_words = str(error).splitlines()[0]
    reasons = [str(warning.message).split(" (Triggered")[0].strip() for warning in caught]
    return None, " ".join(dict.fromkeys(reasons)) or own_words
