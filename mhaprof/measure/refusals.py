"""Why a module cannot be run for counting, in words of the person who brought it.

torch and fvcore speak of their insides; this is the one place where that is translated.
What they say of the module itself (sizes that do not fit) is passed on.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Sequence

import torch
from torch import nn

from mhaprof.errors import UsageError
from mhaprof.measure.meta_mode import DataDependent

_MESSAGE_LIMIT = 240
_NO_VALUES = (
    r"unallocated storage|not allocated yet|data-independent|[Mm]eta tensor|calling \.item\(\)"
    r"|'lengths' argument"
)
"""What torch says when an operator needs values that a meta tensor does not have."""

NESTED = "nested tensors have no sizes to count by: give padded tensors, or each sequence alone"
_KINDS = (
    (
        r"([\w.]+::\w+)\S*: .*fake impl|Could not run '([\w.]+::\w+)' .* 'Meta' backend",
        "operator {} has no shape rule: register one by torch.library.register_fake",
    ),
    (r"from the 'Sparse\w*' backend", "products of sparse tensors depend on data: give dense ones"),
    (
        r"traced functions\. Got|trace <__torch__\.torch\.classes",
        "it gives an operator an object that is no tensor, such as packed weights",
    ),
    (r"[Nn]ested ?[Tt]ensor|jagged|sym_(size|numel|is_contiguous)|is indeterminate", NESTED),
    (
        r"Cannot insert a Tensor that requires grad",
        "it uses parameters of a module that is not registered in it (in a list or a closure)",
    ),
    (
        r"ScriptModule|trace <__torch__",
        "it is TorchScript: give the module that was scripted",
    ),
    (r"meta device type tensor to numpy", "it leaves torch for numpy, where nothing is counted"),
    (
        r"not compiled with (CUDA|\w+ support)|NVIDIA driver|No CUDA GPUs",
        "it asks for a GPU that is not here: let it stay on the device of its input",
    ),
    (r"functorch|vmap", "it uses a transform of torch.func, which no trace can follow"),
    (r"unordered_map::at", "the tracer loses checkpointed blocks: give use_reentrant=False"),
    (
        r"INTERNAL ASSERT|ArrayRef|gradient function|list_trace|__torch_dispatch__|sym_",
        "torch's tracer has a fault on one of its operators",
    ),
)
"""A pattern over what was said, and what it means."""


def reason(error: BaseException) -> str:
    """Return in one line why a counter could not run a module."""
    said = " ".join(str(error).split())
    if isinstance(error, DataDependent):
        return f"it reads values of a tensor: {said}"
    for pattern, meaning in _KINDS:
        found = re.search(pattern, said)
        if found:
            return meaning.format(next(filter(None, found.groups()), ""))
    if wants_values(error):
        return "it reads values of a tensor"
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
    return text if len(text) <= _MESSAGE_LIMIT else f"{text[:_MESSAGE_LIMIT]}..."


def wants_values(error: BaseException) -> bool:
    """Tell whether the values of a tensor were asked for."""
    if "fake impl" in str(error) or "numpy" in str(error):
        return False
    return isinstance(error, DataDependent) or bool(re.search(_NO_VALUES, str(error)))


def refusal(
    module: nn.Module, tensors: Sequence[torch.Tensor], errors: dict[str, Exception]
) -> UsageError:
    """Return in one line why no counter could run the module; ``errors`` by counter."""
    name = f"{type(module).__name__}.forward"
    for error in errors.values():
        if wants_values(error):
            read = error if isinstance(error, DataDependent) else "by index or list"
            return UsageError(
                f"{name} reads values of a tensor ({read}{_place(error)}): what it computes "
                "depends on data, so its operations cannot be counted from shapes; count the "
                "modules in it that read none"
            )
    sizes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
    told = {counter: f"{reason(error)}{_place(error)}" for counter, error in errors.items()}
    reasons = "; ".join(f"{counter}: {why}" for counter, why in told.items())
    if len(set(told.values())) == 1:
        reasons = next(iter(told.values()))
    return UsageError(f"{name} cannot be run for counting on tensors of sizes {sizes}: {reasons}")


def _place(error: BaseException) -> str:
    """Return `` at file:line`` of the innermost frame outside torch and mhaprof."""
    frames = traceback.extract_tb(error.__traceback__)
    own = os.path.dirname(os.path.dirname(__file__))
    theirs = os.path.dirname(torch.__file__)
    for frame in reversed(frames):
        if not frame.filename.startswith((own, theirs, "<")) and "fvcore" not in frame.filename:
            return f" at {frame.filename}:{frame.lineno}"
    return ""
