"""Validate a YAML tree against a pydantic model; word each fault at its place.

Serves every file that mhaprof reads.  A validator that has words of its own raises
``refusal(...)``; the other faults are worded here from pydantic's error types.
"""

from __future__ import annotations

import difflib
import json
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from mhaprof.config.yaml_tree import MapNode, Node, plain, value_at
from mhaprof.errors import LocatedFault
from mhaprof.spec import PartialSpec, expected

Loc = tuple[int | str, ...]
Model = TypeVar("Model", bound=BaseModel)

MAX_LISTED = 20
"""The most valid keys that a message lists."""

_REFUSAL = "refusal"


def refusal(message: str) -> PydanticCustomError:
    """Return the error that a validator raises to say in its own words what is wrong."""
    return PydanticCustomError(_REFUSAL, "{message}", {"message": message})


@dataclass(frozen=True, kw_only=True)
class FaultList:
    """Collect the faults of one file, each where its value stands in the tree."""

    file: str
    tree: Node
    faults: list[LocatedFault] = field(default_factory=list)

    def add(self, loc: Loc, key: str, message: str) -> None:
        """Note a fault at the value at ``loc``, or at the last one on the way to it."""
        place = value_at(self.tree, loc)
        self.faults.append(
            LocatedFault(
                file=self.file,
                line=place.line,
                column=place.column,
                key=shortened(key),
                message=message,
            )
        )

    def extend(self, faults: Iterable[LocatedFault]) -> None:
        """Note faults that have their place; each once."""
        self.faults.extend(fault for fault in faults if fault not in self.faults)


@dataclass(frozen=True, kw_only=True)
class Checked(Generic[Model]):
    """A validated model, or None with the faults; ``places`` are where they are."""

    value: Model | None
    faults: list[LocatedFault]
    places: list[Loc]


def check(
    model: type[Model],
    tree: MapNode,
    *,
    file: str,
    synonyms: Mapping[str, str] | None = None,
    elsewhere: Mapping[str, str] | None = None,
) -> Checked[Model]:
    """Validate a tree.

    ``synonyms`` maps names that people bring along to the right key (``seq_len``),
    ``elsewhere`` keys of other sections to where they belong.
    """
    try:
        return Checked(value=model.model_validate(plain(tree)), faults=[], places=[])
    except ValidationError as error:
        details = error.errors(include_url=False)
    words = _Words(model=model, synonyms=synonyms or {}, elsewhere=elsewhere or {})
    faults = [_located(detail, tree, words=words, file=file) for detail in details]
    return Checked(value=None, faults=faults, places=[detail["loc"] for detail in details])


@dataclass(frozen=True, kw_only=True)
class _Words:
    model: type[BaseModel]
    synonyms: Mapping[str, str]
    elsewhere: Mapping[str, str]


def _located(detail: ErrorDetails, tree: MapNode, *, words: _Words, file: str) -> LocatedFault:
    """Put one error of pydantic where it belongs in the file."""
    loc = detail["loc"]
    place: Node = value_at(tree, loc)
    key = next((str(step) for step in reversed(loc) if isinstance(step, str)), "file")
    message: str
    if detail["type"] == "extra_forbidden":
        parent = value_at(tree, loc[:-1])
        place = (parent.key(key) if isinstance(parent, MapNode) else None) or place
        message = _unknown_key(key, model_at(words.model, loc[:-1]), words)
    elif detail["type"] == "missing":
        message = "is missing" + _example(model_at(words.model, loc[:-1]), key)
    else:
        message = wrong_value(key, detail)
    return LocatedFault(
        file=file, line=place.line, column=place.column, key=shortened(key), message=message
    )


def _unknown_key(key: str, model: type[BaseModel] | None, words: _Words) -> str:
    """Word an unknown key: the nearest valid one, or where it belongs."""
    valid = list(model.model_fields) if model else []
    synonym = words.synonyms.get(key.lower().replace("-", "_"))
    if synonym in valid:
        return f"unknown key; did you mean {synonym}?"
    if key in words.elsewhere:
        return f"unknown key here; it belongs {words.elsewhere[key]}"
    near = nearest(key, valid)
    if near is not None:
        return f"unknown key; did you mean {near}?"
    listed = ", ".join(valid[:MAX_LISTED]) + (", ..." if len(valid) > MAX_LISTED else "")
    return f"unknown key; expected one of {listed}"


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """Return the valid name that was probably meant, or None."""
    tried = name.lower().replace("-", "_")
    near = difflib.get_close_matches(tried, list(valid), n=1, cutoff=0.6)
    return near[0] if near else None


def _example(model: type[BaseModel] | None, key: str) -> str:
    """Say what to add for a key that is missing, if the model has an example of it."""
    examples = model.model_fields[key].examples if model else None
    return f"; add {key}: {examples[0]}" if examples else ""


def wrong_value(key: str, detail: ErrorDetails) -> str:
    """Word a value of the wrong type or out of range."""
    if detail["type"] == _REFUSAL:
        return detail["msg"]
    if key in PartialSpec.model_fields:
        wanted: str | None = expected(key, detail["type"])
    else:
        wanted = _wanted(detail["type"], detail.get("ctx", {}))
    return f"{shown(detail['input'])} is not {wanted or 'right: ' + detail['msg']}"


def _wanted(kind: str, bounds: Mapping[str, Any]) -> str | None:
    """Say in words what an error type of pydantic misses."""
    if kind in ("greater_than_equal", "less_than_equal", "greater_than", "less_than"):
        word, limit = {
            "greater_than_equal": ("of at least", "ge"),
            "less_than_equal": ("of at most", "le"),
            "greater_than": ("above", "gt"),
            "less_than": ("below", "lt"),
        }[kind]
        bound = bounds.get(limit)
        return f"a number {word} {bound if isinstance(bound, int) else format(bound, 'g')}"
    if kind == "literal_error":
        return "one of " + str(bounds.get("expected")).replace("'", "").replace(" or ", ", ")
    return {
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "float_type": "a number",
        "finite_number": "a finite number",
        "bool_type": "true or false",
        "string_type": "text; put it in quotes",
        "list_type": "a list",
        "tuple_type": "a list",
        "dict_type": "a mapping",
        "model_type": "a mapping",
        "model_attributes_type": "a mapping",
    }.get(kind)


def shown(value: object) -> str:
    """Show a value of a file in a message: short, on one line."""
    if value is None:
        return "null"
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def shortened(key: str) -> str:
    """Show a key in a message: short."""
    return key if len(key) <= 40 else key[:37] + "..."


def model_at(model: type[BaseModel], loc: Sequence[int | str]) -> type[BaseModel] | None:
    """Return the model that describes the mapping at a path, if one does."""
    found: type[BaseModel] | None = model
    for step in loc:
        if isinstance(step, int):
            continue
        if found is None or step not in found.model_fields:
            return None
        found = _model_in(found.model_fields[step].annotation)
    return found


def _model_in(annotation: object) -> type[BaseModel] | None:
    """Find the model inside ``Annotated``, optional and list types."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    origin = typing.get_origin(annotation)
    if origin in (Annotated, typing.Union, types.UnionType, list, tuple):
        for inner in typing.get_args(annotation):
            found = _model_in(inner)
            if found is not None:
                return found
    return None
