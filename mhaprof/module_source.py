"""A user's own module to count: where its code is, how it is built, what goes in.

Importing a user's code is explicit: a command line names it itself, a file needs
``--allow-import``.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from importlib.metadata import version
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from mhaprof.errors import UsageError
from mhaprof.records import ModulePoint
from mhaprof.units import DTYPE_WORDS

if TYPE_CHECKING:
    import torch
    from torch import nn

INPUT_FORM = "sizes like 2x128x64, a dtype after a colon if not float32 (2x128:int64)"

_DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "bool")

_CODE = (".py", ".so", ".pyd", ".dll", ".dylib", ".c", ".cc", ".cpp", ".h", ".cu", ".cuh")
_MOST_FILES = 20_000
_MOST_FOLDERS = 5_000
_INSTALLED = frozenset({"site-packages", "dist-packages"})


class InputShape(BaseModel):
    """One tensor that goes into a module."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sizes: tuple[int, ...]
    dtype: str = "float32"


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


def module_point(
    name: str,
    target: str,
    kwargs: Mapping[str, Any],
    inputs: Sequence[str],
    *,
    code: str | None = None,
) -> ModulePoint:
    """Return the point of a module, checked as far as text can be.  Raises UsageError."""
    parse_target(target)
    if not inputs:
        raise UsageError(f"module {target} needs its inputs; give --input with {INPUT_FORM}")
    spelled = tuple(map(_in_torchs_words, inputs))
    for text in spelled:
        parse_input(text)
    return ModulePoint(
        name=name, implementation=target, kwargs=dict(kwargs), inputs=spelled, code=code
    )


def _in_torchs_words(text: str) -> str:
    sizes, colon, dtype = text.partition(":")
    return sizes + colon + DTYPE_WORDS.get(dtype, dtype)


def code_of(target: str) -> str:
    """Return a fingerprint of the user's code behind ``package.module:attribute``.

    Of the whole top-level package or file, and of every other that its sources import by
    name and that is not installed, and so on; nothing is imported.  Empty where there is
    none to be found.  Of torch it is the version.  What is imported by a name made at run
    time is not followed.
    """
    own = _top_level(target.partition(":")[0])
    waiting, known = [own], dict[str, str]()
    while waiting:
        top = waiting.pop()
        if top in known:
            continue
        known[top] = version(top) if top == "torch" else ""
        for place in () if known[top] else _places(top):
            installed = top == "mhaprof" or not _INSTALLED.isdisjoint(place.parts)
            if top == own or not installed:
                known[top] += fingerprint(place)
            if not installed:
                waiting += _imports(place)
    found = sorted(item for item in known.items() if item[1])
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:12] if found else ""


def _places(top: str) -> list[Path]:
    """Return the folders of a top-level package, or the file of a module, as a worker finds it."""
    try:
        spec = PathFinder.find_spec(top, [str(Path.cwd()), *sys.path]) or find_spec(top)
    except ValueError:  # a module without a spec, such as __main__
        return []
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return [Path(place) for place in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.has_location and spec.origin else []


def _top_level(name: str) -> str:
    return name.partition(".")[0]


def _imports(place: Path) -> set[str]:
    """Return the top-level names that the sources in a folder, or a file, import."""
    names: set[str] = set()
    for file in islice(_code_files(place), _MOST_FILES):
        if file.suffix != ".py":
            continue
        try:
            with warnings.catch_warnings(action="ignore"):
                tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {_top_level(alias.name) for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(_top_level(node.module))
    return names - sys.stdlib_module_names


def fingerprint(place: Path) -> str:
    """Return a hash of the code below a folder, or of a file.

    Folders whose name begins with a dot, and virtual environments, are left out.
    """
    place = place.resolve()
    found = hashlib.sha256()
    for file in islice(_code_files(place), _MOST_FILES):
        found.update(f"{file.relative_to(place)}\0".encode())
        try:
            found.update(hashlib.sha256(file.read_bytes()).digest())
        except OSError:
            continue
    return found.hexdigest()[:12]


def _code_files(place: Path) -> Iterator[Path]:
    """Yield the files of code below a folder, in a fixed order; or the file itself."""
    if place.is_file():
        yield place
    for here, folders, files in islice(os.walk(place), _MOST_FOLDERS):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith((".", "__pycache__"))
            and not Path(here, name, "pyvenv.cfg").exists()
        )
        yield from (Path(here, name) for name in sorted(files) if name.endswith(_CODE))


def build(point: ModulePoint) -> nn.Module:
    """Import the class and construct it on the meta device; nothing is allocated.

    The working directory is importable, as with ``python -m``.  Raises UsageError when
    it cannot be imported, found or built, or is no ``nn.Module``.
    """
    import torch
    from torch import nn

    target = parse_target(point.implementation)
    found = imported(target, what=f"module {target}")
    try:
        with torch.device("meta"), _ranges_on_cpu():
            module = found if isinstance(found, nn.Module) else found(**point.kwargs)
    except Exception as error:
        raise UsageError(
            f"module {target} cannot be built with kwargs "
            f"{json.dumps(point.kwargs, default=str)}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(module, nn.Module):
        raise UsageError(f"module {target} is a {type(module).__name__}, not an nn.Module")
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


def imported(target: str, *, what: str) -> Any:
    """Import ``package.module:attribute``; ``what`` begins the message.  Raises UsageError.

    The working directory is importable, as for ``python -m``.
    """
    name, _, attribute = target.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        found: Any = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{what}: {name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{what}: {name} has no attribute {attribute!r}")
        found = getattr(found, part)
    return found


def meta_inputs(inputs: Sequence[str]) -> list[torch.Tensor]:
    """Return meta tensors of the shapes, given as text.  Raises UsageError."""
    import torch

    return [
        torch.empty(shape.sizes, dtype=getattr(torch, shape.dtype), device="meta")
        for shape in map(parse_input, inputs)
    ]
