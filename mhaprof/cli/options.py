"""Groups of options that several commands share, declared once.

A command names the groups it takes and receives one value for each:

    @takes(given=SpecFlags, out=OutputFlags)
    def flops(*, given: dict[str, list[object]], out: Output) -> int: ...
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Protocol, get_args

import typer

from mhaprof.errors import UsageError
from mhaprof.spec import DEFAULTS, DERIVED_DEFAULTS, PartialSpec
from mhaprof.units import DTYPE_WORDS

Command = Callable[..., int]


AllowImport = Annotated[
    bool, typer.Option("--allow-import", help="let CONFIG or --impl name code to import")
]
ConfigFile = Annotated[
    Path | None, typer.Argument(help="YAML file of points and sweeps", metavar="CONFIG")
]


MAY_DIFFER = "what may differ between environments (a list): torch, cpu_model, or all"
"""The help of ``--allow-env-mismatch`` where results are joined."""


def flag(metavar: str, text: str, default: str | bool = True, **extra: Any) -> Any:
    """Declare an option in short: what stands for its value, its help, its default in words."""
    return typer.Option(metavar=metavar, help=text, show_default=default, **extra)


def impl_option(what: str, default: str | bool) -> Any:
    """Declare ``--impl``; ``what`` says what is done with the implementations."""
    yours = "or package.module:attribute of yours, which makes an nn.Module of an AttentionSpec"
    also = "(with --allow-import; mhaprof help extending)"
    return flag("NAME", f"implementations {what} (a list), {yours} {also}", default)


class Group(Protocol):
    """A group of options: the parameters it adds and the value made of them."""

    def parameters(self) -> list[inspect.Parameter]:
        """Return the parameters that the command line shows."""
        ...

    def collect(self, values: Mapping[str, Any]) -> Any:
        """Make the value that the command receives."""
        ...


def takes(**groups: Group) -> Callable[[Command], Command]:
    """Give a command the options of ``groups``; each arrives under its keyword."""

    def decorate(command: Command) -> Command:
        own = [
            parameter
            for parameter in inspect.signature(command, eval_str=True).parameters.values()
            if parameter.name not in groups
        ]
        added = [parameter for group in groups.values() for parameter in group.parameters()]
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own + added]

        @functools.wraps(command)
        def wrapper(**values: Any) -> int:
            mine = {parameter.name: values[parameter.name] for parameter in own}
            collected = {
                name: group.collect({p.name: values[p.name] for p in group.parameters()})
                for name, group in groups.items()
            }
            return command(**mine, **collected)

        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate


def option(
    name: str, kind: Any, *flags: str, help: str, default: Any = None, **extra: Any
) -> inspect.Parameter:
    """Declare one option as a parameter; the flag is the name with dashes."""
    declared = flags or ("--" + name.replace("_", "-"),)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, typer.Option(*declared, help=help, **extra)],
    )


class _SpecFlags:
    """One flag per field of ``PartialSpec``; a list, or the flag again, is a grid.

    Lists are separated by commas.  Collects ``{field: [values]}`` of the flags that were given.
    """

    @functools.cache  # noqa: B019  (one object, for the life of the process)
    def parameters(self) -> list[inspect.Parameter]:
        """Return one option per field; values are checked later, all at once."""
        return [_spec_option(name) for name in PartialSpec.model_fields]

    def collect(self, values: Mapping[str, Any]) -> dict[str, list[object]]:
        """Parse what was given; what does not parse stays text for the spec to refuse."""
        return {
            name: [value]
            if isinstance(value, bool)
            else [one for text in value for one in _values(name, text)]
            for name, value in values.items()
            if value is not None
        }


SpecFlags = _SpecFlags()


def _spec_option(name: str) -> inspect.Parameter:
    field = PartialSpec.model_fields[name]
    default = DEFAULTS.get(name, DERIVED_DEFAULTS.get(name))
    if isinstance(default, bool):
        default = "yes" if default else "no"
    dashed = name.replace("_", "-")
    extra: dict[str, Any] = {"show_default": str(default), "rich_help_panel": "Attention"}
    help_text = field.description or ""
    if _is_flag(name):
        return option(name, bool | None, f"--{dashed}/--no-{dashed}", help=help_text, **extra)
    return option(name, list[str] | None, help=help_text, metavar=_metavar(name), **extra)


@functools.cache
def _properties() -> dict[str, Any]:
    properties: dict[str, Any] = PartialSpec.model_json_schema()["properties"]
    return properties


def _options_of(name: str) -> list[dict[str, Any]]:
    schema = _properties()[name]
    return [option for option in schema.get("anyOf", [schema]) if option.get("type") != "null"]


def _is_flag(name: str) -> bool:
    return _options_of(name)[0].get("type") == "boolean"


def _metavar(name: str) -> str:
    first = _options_of(name)[0]
    if "enum" in first:
        return "|".join(word for word in first["enum"] if word != "true")
    return {"integer": "N", "number": "X"}[first["type"]]


_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)


def listed(texts: Iterable[str]) -> list[str]:
    """Return the values of a flag that takes lists: of ``a,b`` and of the flag given again."""
    return [part.strip() for text in texts for part in text.split(",")]


def _values(name: str, text: str) -> list[object]:
    """Parse a list; ``none`` un-gives a field that takes numbers, as its help says."""
    absent = ("null", "~") if "enum" in _options_of(name)[0] else ("null", "~", "none")
    return [None if part in absent else parsed(part) for part in listed([text])]


def parsed(text: str) -> object:
    """Read a number as a YAML 1.2 scalar would be read; leave words alone."""
    if _NUMBER.fullmatch(text):
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
    return text


def one_of(flag: str, value: str, allowed: Iterable[str]) -> str:
    """Return the value, as torch spells a dtype.  Raises UsageError if it is not allowed."""
    word = DTYPE_WORDS.get(value, value)
    if word not in allowed:
        raise UsageError(f"{flag} {value!r} is not one of {', '.join(allowed)}")
    return word


def choices(alias: Any) -> str:
    """Word the values of a ``Literal`` as a metavar: ``cold|hot``."""
    return "|".join(str(value) for value in get_args(alias))
