"""A user's own module to count: where its code is, how it is built, what goes in.

Importing a user's code is explicit: a command line names it itself, a file needs
``--allow-import``.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from mhaprof.errors import UsageError

if TYPE_CHECKING:
    import torch
    from torch import nn

INPUT_FORM = "sizes like 2x128x64, a dtype after a colon if not float32 (2x128:int64)"

_DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "bool")


class InputShape(BaseModel):
    """One tensor that goes into a module."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sizes: tuple[int, ...]
    dtype: str = "float32"


class ModuleSource(BaseModel):
    """A module named ``package.module:Class``, its constructor's kwargs and its inputs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: str
    kwargs: dict[str, Any] = {}
    inputs: tuple[InputShape, ...]


def parse_target(text: str) -> str:
    """Check the form ``package.module:Class``.  Raises UsageError."""
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", text):
        raise UsageError(f"module {text!r} is not of the form package.module:Class")
    return text


def parse_input(text: str) -> InputShape:
    """Read ``2x128x64`` or ``2x128:int64``.  Raises UsageError."""
    sizes, _, dtype = text.partition(":")
    if not re.fullmatch(r"\d+(x\d+)*", sizes) or 0 in (parsed := _sizes(sizes)):
        raise UsageError(f"input {text!r} is not of the form {INPUT_FORM}")
    if dtype and dtype not in _DTYPES:
        raise UsageError(f"input {text!r}: dtype {dtype!r} is not one of {', '.join(_DTYPES)}")
    return InputShape(sizes=parsed, dtype=dtype or "float32")


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split("x"))


def parse_kwargs(text: str) -> dict[str, Any]:
    """Read a JSON object of constructor arguments.  Raises UsageError."""
    try:
        kwargs = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"kwargs {text!r} is not JSON: {error}") from None
    if not isinstance(kwargs, dict):
        raise UsageError(f'kwargs {text!r} is not a JSON object like {{"dim": 64}}')
    return kwargs


def build(source: ModuleSource) -> nn.Module:
    """Import the class and construct it on the meta device; nothing is allocated.

    The working directory is importable, as with ``python -m``.  Raises UsageError when
    it cannot be imported, found or built, or is no ``nn.Module``.
    """
    import torch
    from torch import nn

    name, _, attribute = parse_target(source.target).partition(":")
    found = _imported(name, source.target)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(f"module {source.target}: {name} has no attribute {attribute!r}")
        found = getattr(found, part)
    try:
        with torch.device("meta"), _ranges_on_cpu():
            module = found if isinstance(found, nn.Module) else found(**source.kwargs)
    except Exception as error:
        raise UsageError(
            f"module {source.target} cannot be built with kwargs "
            f"{json.dumps(source.kwargs, default=str)}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(module, nn.Module):
        raise UsageError(f"module {source.target} is a {type(module).__name__}, not an nn.Module")
    return module


@contextmanager
def _ranges_on_cpu() -> Iterator[None]:
    """Give ranges their values in a constructor, which reads them (rates of drop-path)."""
    import torch
    from torch.overrides import TorchFunctionMode

    class RangesOnCpu(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            kwargs = dict(kwargs or {})
            if func in (torch.linspace, torch.arange, torch.logspace, torch.tensor):
                kwargs.setdefault("device", "cpu")
            return func(*args, **kwargs)

    with RangesOnCpu():
        yield


def _imported(name: str, target: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise UsageError(
            f"module {target}: {name} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def meta_inputs(shapes: Sequence[InputShape]) -> list[torch.Tensor]:
    """Return meta tensors of the shapes."""
    import torch

    return [
        torch.empty(shape.sizes, dtype=getattr(torch, shape.dtype), device="meta")
        for shape in shapes
    ]


def source_of(target: str, kwargs: Mapping[str, Any], inputs: Sequence[str]) -> ModuleSource:
    """Make a source of what was given as text.  Raises UsageError."""
    checked = parse_target(target)
    if not inputs:
        raise UsageError(f"module {target} needs its inputs; give --input with {INPUT_FORM}")
    return ModuleSource(
        target=checked,
        kwargs=dict(kwargs),
        inputs=tuple(parse_input(text) for text in inputs),
    )
