"""Every private name of torch and fvcore that mhaprof uses, and what happens without it.

All were seen in torch 2.10, 2.13 and 2.14 (``.ci/versions`` counts on the lowest and the
newest) and in fvcore 0.1.5.  A name that is missing costs speed or one of the two
counters, which a finding then says, never a wrong number: a test removes each in turn.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_C: Any = torch._C


class Unsupported(Exception):
    """Say that this torch or fvcore lacks a name without which a counter cannot run."""


@contextmanager
def replaced(module: Any, replacements: Mapping[str, Any]) -> Iterator[None]:
    """Replace those of a module's globals that it has, and put them back."""
    before = {name: getattr(module, name) for name in replacements if hasattr(module, name)}
    for name in before:
        setattr(module, name, replacements[name])
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


# Modules, operators and tensors.

FORWARD_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
HOOKS = (
    *FORWARD_HOOKS,
    "_backward_pre_hooks",
    "_backward_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
"""Tables of hooks in a module's ``__dict__``.  Without one: its hooks are copied and run."""


class PlainDispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """torch's own dispatch mode, with types; it also meets operators of higher order."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    def __enter__(self) -> Any:
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]


class DispatchMode(PlainDispatchMode):
    """A dispatch mode that starts at once."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from wrapping this class.  Without: torch._dynamo is imported (1 s)."""
        return False


def schema_of(func: Any) -> Any:
    """Return an operator's schema.  Without, as for higher-order ones: no view, no in-place."""
    return getattr(func, "_schema", None)


def packet_of(func: Any) -> Any:
    """Return an operator without its overload.  Without: it is uncounted, and named."""
    return getattr(func, "_overloadpacket", func)


def empty_quantized(size: Sequence[int], dtype: torch.dtype, **scale: Any) -> Any:
    """Return a quantized meta tensor.  Without: torch's own kernel is asked, and refuses."""
    make = getattr(torch, "_empty_affine_quantized", None)
    return make(size, dtype=dtype, device="meta", **scale) if make else NotImplemented


def spin(cycles: int) -> None:
    """Keep the current CUDA stream busy.  Without: calls have no backlog on it to hide behind."""
    sleep = getattr(torch.cuda, "_sleep", None)
    if sleep is not None:
        sleep(cycles)


def end_failed_capture(pool: Any) -> None:
    """Tell the allocator that a capture ended.  Without, up to 2.12: later ones fail too."""
    end = getattr(_C, "_cuda_endAllocateToPool", None)
    if end is not None:
        with suppress(RuntimeError):  # a torch that did it itself
            end(torch.cuda.current_device(), pool)


def version_of(tensor: torch.Tensor) -> int:
    """Return how often a tensor was written into.  Without: 0, and ``put_back`` leaves it."""
    return getattr(tensor, "_version", 0)


def put_back(tensor: torch.Tensor, values: torch.Tensor, version: int) -> None:
    """Write values into a tensor unseen by autograd.  Without: its version goes up."""
    with torch.no_grad():
        tensor.copy_(values)
    set_version = getattr(getattr(_C, "_autograd", None), "_unsafe_set_version_counter", None)
    if set_version is not None:
        set_version((tensor,), (version,))


# The tracer of TorchScript, which fvcore counts with.

_TRACER: Any = _C._dispatch_key_parse("Tracer") if hasattr(_C, "_dispatch_key_parse") else None
_TRACER_NAMES = (
    "_create_graph_by_tracing",
    "_dispatch_key_parse",
    "_dispatch_tls_is_dispatch_key_excluded",
    "_dispatch_tls_is_dispatch_key_included",
    "_dispatch_tls_set_dispatch_key_excluded",
    "_dispatch_tls_set_dispatch_key_included",
    "_get_tracing_state",
    "_set_tracing_state",
)


def get_tracing_state() -> Any:
    """Return the trace that is being recorded.  Without: none is (``scoped_graph`` refuses)."""
    get = getattr(_C, "_get_tracing_state", None)
    return get() if get else None


def set_tracing_state(state: Any) -> None:
    """Record into another trace, or into none."""
    put = getattr(_C, "_set_tracing_state", None)
    if put:
        put(state)


def is_recording() -> bool:
    """Tell whether the operator that is dispatched has not been recorded yet."""
    return bool(_C._dispatch_tls_is_dispatch_key_included(_TRACER))


class untraced:  # noqa: N801  (a context manager; a generator would cost twice the time)
    """Pause the trace: inside it ``tensor.shape`` holds numbers, and nothing is recorded.

    The tracer's dispatch key comes back as it was: ``.data`` dispatches with the key
    neither included nor excluded, operators of a composite one with it excluded.
    """

    __slots__ = ("_excluded", "_included", "_state")

    def __init__(self, state: Any) -> None:
        self._state = state

    def __enter__(self) -> None:
        self._included = _C._dispatch_tls_is_dispatch_key_included(_TRACER)
        self._excluded = _C._dispatch_tls_is_dispatch_key_excluded(_TRACER)
        _C._dispatch_tls_set_dispatch_key_excluded(_TRACER, False)
        _C._set_tracing_state(None)

    def __exit__(self, *error: object) -> None:
        _C._set_tracing_state(self._state)
        _C._dispatch_tls_set_dispatch_key_included(_TRACER, self._included)
        _C._dispatch_tls_set_dispatch_key_excluded(_TRACER, self._excluded)


class recorded:  # noqa: N801
    """Let the tracer record what is called inside, while it dispatches something else."""

    def __enter__(self) -> None:
        _C._dispatch_tls_set_dispatch_key_excluded(_TRACER, False)

    def __exit__(self, *error: object) -> None:
        _C._dispatch_tls_set_dispatch_key_excluded(_TRACER, True)


class _Traced(Exception):
    """End a trace before torch cleans its graph up."""


def graph_of(run: Callable[[], Any], tensors: Sequence[torch.Tensor]) -> Any:
    """Record what ``run`` computes from ``tensors``, also what it does not return.

    torch would remove that from the graph, in a time that grows with its square.

    Raises:
        Unsupported: a name of the tracer is missing.
    """
    missing = [name for name in _TRACER_NAMES if not hasattr(_C, name)]
    if missing:
        raise Unsupported(f"this torch has no {missing[0]}, which tracing needs")
    graphs: list[Any] = []

    def traced(*_: Any) -> Any:
        run()
        graphs.append(get_tracing_state().graph())
        raise _Traced

    try:
        _C._create_graph_by_tracing(traced, tuple(tensors), lambda _: "", True, False)
    except _Traced:
        inline = getattr(_C, "_jit_pass_inline", None)  # without: calls are named as uncounted
        if inline is not None:
            inline(graphs[0])
    return _Graph(graphs[0])


class _Graph:
    """The nodes of a trace, each in the scope of its module, as fvcore asks for them."""

    def __init__(self, block: Any, scope: str = "") -> None:
        self._block = block
        self._scope = scope

    def nodes(self) -> Iterator[Any]:
        """Yield the nodes, also those inside modules."""
        for node in self._block.nodes():
            if node.kind() == "prim::TracedModuleForward":
                for block in node.blocks():
                    yield from _Graph(block, node.s("scope")).nodes()
            else:
                yield _Node(node, self._scope)


class _Node:
    """A node of a trace; ``scopeName`` is the innermost module that was running."""

    __slots__ = ("_scope", "inputs", "kind", "outputs", "pyname")

    def __init__(self, node: Any, scope: str) -> None:
        self._scope = scope
        self.kind, self.inputs, self.outputs = node.kind, node.inputs, node.outputs
        self.pyname = getattr(node, "pyname", None)

    def scopeName(self) -> str:  # noqa: N802  (torch's name)
        return self._scope


def graph_for_fvcore(graph_of_names: Callable[[dict[int, str]], Any]) -> Any:
    """Let fvcore analyse the graph that is made from ``id(module) -> name``.

    Raises:
        Unsupported: fvcore has no function of its own that makes it.
    """
    analysis = importlib.import_module("fvcore.nn.jit_analysis")
    name = "_get_scoped_trace_graph"
    if not hasattr(analysis, name):
        raise Unsupported(f"this fvcore has no {name}")

    def scoped(_model: Any, _inputs: Any, aliases: Mapping[Any, str]) -> Any:
        modules = aliases.items()
        return graph_of_names({id(key): name for key, name in modules if not isinstance(key, str)})

    return replaced(analysis, {name: scoped})


# What a thread holds.


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


# Functions of torch that read values, or that no tracer can follow.


def without_reading_masks() -> AbstractContextManager[None]:
    """Let nn.Transformer believe its caller about masks.  Without: it compares their values.

    Then the row is refused, or a mask's values are read, which a finding says.
    """
    transformer = importlib.import_module("torch.nn.modules.transformer")
    believe = {"_detect_is_causal_mask": lambda mask, causal, *_: bool(causal)}
    return replaced(transformer, believe)


_FLEX_MODULE = "torch.nn.attention.flex_attention"


def dense_flex(dense: Callable[..., Any]) -> AbstractContextManager[None]:
    """Let flex_attention end in ``dense``.  Without: the row is refused in torch's words."""
    flex: Any = sys.modules.get(_FLEX_MODULE)
    if flex is None:
        return nullcontext()
    block = getattr(flex, "_LARGE_SPARSE_BLOCK_SIZE", 1 << 30)

    def no_block_mask(query: Any, key: Any) -> Any:
        """Return what flex_attention asks of a block mask; the real one cannot be traced."""
        return SimpleNamespace(
            BLOCK_SIZE=(block, block), kv_num_blocks=query, mask_mod=None, as_tuple=lambda: ()
        )

    replacements = {
        "flex_attention_hop": dense,
        "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True,
        "_validate_device": lambda *_: None,
        "_create_empty_block_mask": no_block_mask,
    }
    return replaced(flex, replacements)


# The compiler, for times.


def keeping_buffers() -> AbstractContextManager[Any]:
    """Let compiled code run backward more than once.  Without: a second backward fails."""
    try:
        config: Any = importlib.import_module("torch._functorch.config")
    except ImportError:
        return nullcontext()
    return (
        nullcontext()
        if not hasattr(config, "donated_buffer")
        else config.patch(donated_buffer=False)
    )


def compiler_counters() -> Any:
    """Return what the compiler says of graphs and their breaks."""
    return importlib.import_module("torch._dynamo.utils").counters
