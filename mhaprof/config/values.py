"""The types of single values in a configuration file, with words for what they refuse."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from mhaprof.config.grid import distinct
from mhaprof.config.located import refusal, shown
from mhaprof.records import DEVICE, DEVICES, Dtype
from mhaprof.units import DTYPE_WORDS

INPUT_DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "bool")
"""The dtypes that an input of a module may have."""

_INPUT_DTYPES = "|".join([*INPUT_DTYPES, *DTYPE_WORDS])

T = TypeVar("T")


def as_list(value: object) -> object:
    """Let one value stand for a list of one."""
    return value if isinstance(value, list) else [value]


class OneStandsForMany:
    """Mark a list of which one item may stand alone, in the file and in its schema."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Wrap the list's own validation."""
        listed = core_schema.no_info_before_validator_function(as_list, handler(source))
        return core_schema.no_info_after_validator_function(_not_empty, listed)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Describe one item, or a list of them."""
        array = handler(schema)
        return {"anyOf": [array["items"], {**array, "minItems": 1}]}


def _not_empty(values: Any) -> Any:
    """Refuse an empty list."""
    if not values:
        raise refusal("the list is empty; expected at least one value")
    return values


OneOrMore = Annotated[tuple[T, ...], OneStandsForMany]
"""A list, or one value instead of a list of one."""

Distinct = Annotated[tuple[T, ...], AfterValidator(distinct), OneStandsForMany]
"""The same, each value once."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """Mark a text that has to match ``pattern``; ``wanted`` says what that is."""

    pattern: str
    wanted: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Check the form after the type."""
        return core_schema.no_info_after_validator_function(self.checked, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Give the pattern to editors too."""
        return {**handler(schema), "pattern": f"^({self.pattern})$"}

    def checked(self, value: str) -> str:
        """Return the text, or refuse it."""
        if not re.fullmatch(self.pattern, value):
            raise refusal(f"{shown(value)} is not {self.wanted}")
        return value


def _percentage(value: object) -> object:
    """Read ``1%`` as 0.01."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})? ?%", value):
        return float(value.rstrip(" %")) / 100
    return value


def _fraction(value: object) -> float:
    if isinstance(value, float) and 0 < value < 1:
        return value
    raise refusal(f"{shown(value)} is not a fraction between 0 and 1, such as 0.01 or 1%")


Label = Annotated[
    str,
    Form(
        pattern=r"[^\x00-\x1f\x7f-\x9f]{1,200}",
        wanted="a name of 1 to 200 characters, line breaks and escapes not among them",
    ),
]
FileStem = Annotated[
    str,
    Form(
        pattern=r"[^./\\\x00-\x1f\x7f-\x9f][^/\\\x00-\x1f\x7f-\x9f]{0,99}",
        wanted="a name that a file can have",
    ),
]
Text = Annotated[str, Form(pattern=r"[^\x00-\x1f\x7f-\x9f]{1,1000}", wanted="a name")]
ImplementationName = Annotated[
    str,
    Form(
        pattern=r"[A-Za-z0-9_.-]+(:[A-Za-z_][A-Za-z0-9_.]*)?",
        wanted="the name of an implementation (`mhaprof implementations` lists them)",
    ),
]
Target = Annotated[
    str,
    Form(
        pattern=r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*",
        wanted="of the form package.module:Class",
    ),
]
Shape = Annotated[
    str,
    Form(
        pattern=rf"[1-9][0-9]{{0,14}}(x[1-9][0-9]{{0,14}})*(:({_INPUT_DTYPES}))?",
        wanted="sizes like 2x128x64, with a dtype after a colon if not float32 (2x128:int64)",
    ),
]
Device = Annotated[
    str,
    Form(
        pattern=rf"auto|gpu|{DEVICE}",
        wanted=f"one of {DEVICES.replace('|', ', ')}",
    ),
]
DtypeWord = Annotated[
    Dtype,
    BeforeValidator(
        lambda word: DTYPE_WORDS.get(word, word) if isinstance(word, str) else word,
        json_schema_input_type=Dtype | Literal["fp64", "fp32", "fp16", "bf16"],
    ),
]
Fraction = Annotated[
    float,
    PlainValidator(lambda value: _fraction(_percentage(value)), json_schema_input_type=float | str),
]
