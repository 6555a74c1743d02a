"""What a configuration file may hold, version 1: its models and its JSON Schema.

These models are the single description of the file: loading validates with them, and
``config_schema`` is what editors read.  They hold what was written; ``config`` makes
points of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    WrapValidator,
    create_model,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from mhaprof.config.conditions import Condition, ConditionError, read_condition
from mhaprof.config.grid import Axis, RangeError, distinct, range_values
from mhaprof.config.located import refusal, shown
from mhaprof.config.values import (
    Device,
    Distinct,
    DtypeWord,
    FileStem,
    Fraction,
    ImplementationName,
    Label,
    OneOrMore,
    OneStandsForMany,
    Shape,
    Target,
    Text,
)
from mhaprof.records import Cache, Mode, Natural, Positive, Seed, Threads, TimerChoice
from mhaprof.spec import Flag, PartialSpec, Size

CONFIG_VERSION = 1
"""The version of the format; a newer one is refused by name."""

SOURCE_KEYS = ("model", "preset", "module", "kwargs", "inputs")
"""The keys that name what a point is made of, where that is no spec."""

Metric = Literal["flops", "latency", "memory"]

SPEC_FIELDS = tuple(PartialSpec.model_fields)
"""The fields of a spec, which points give and sweeps vary."""


class Section(BaseModel):
    """Be the base of the file's mappings: frozen, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SettingsSection(Section):
    """How to measure: the names of the options of ``mhaprof latency``.

    ``None`` is not given.  ``device``, ``dtype`` and ``threads`` may be lists: axes.
    """

    device: Distinct[Device] | None = Field(None, description="where to run; a list is an axis")
    dtype: Distinct[DtypeWord] | None = Field(None, description="of tensors; a list is an axis")
    threads: Distinct[Threads] | None = Field(None, description="of the CPU; a list is an axis")
    timer: TimerChoice | None = Field(None, description="how GPU time is taken")
    cache: Cache | None = Field(None, description="state of the caches before each call")
    mode: Mode | None = Field(None, description="what is timed")
    compile: Flag | None = Field(None, description="time the module under torch.compile")
    tf32: Flag | None = Field(None, description="let float32 products run in TF32")
    min_time: Positive | None = Field(None, description="least seconds of samples of a point")
    max_time: Positive | None = Field(None, description="most seconds of samples of a point")
    precision: Fraction | None = Field(
        None, description="width of the median's interval to reach: 0.01 or 1%"
    )
    samples: Natural | None = Field(None, description="least samples of a point")
    replicates: Natural | None = Field(None, description="fresh processes for each point")
    rounds: Natural | None = Field(None, description="interleaved rounds over all points")
    timeout: Positive | None = Field(None, description="seconds after which a point has failed")
    seed: Seed | None = Field(None, description="of the inputs and of the order of points")
    peak_tflops: Positive | None = Field(None, description="the device's dense peak, TFLOP/s")
    peak_gbps: Positive | None = Field(None, description="the device's memory bandwidth, GB/s")
    allow_uncounted: Distinct[Text] | None = Field(
        None, description="operators that may stay without a count, such as mine::op"
    )

    def merged(self, over: SettingsSection) -> SettingsSection:
        """Return these settings with those that ``over`` gives in their place."""
        given = {name: value for name, value in over if value is not None}
        return self.model_copy(update=given)


class DefaultsSection(PartialSpec):
    """What every point and sweep starts from."""

    implementations: Distinct[ImplementationName] | None = Field(
        None, description="what computes the attention"
    )


class PointSection(PartialSpec):
    """One point: a spec, a model whose layers are points, or a module to count."""

    name: Label | None = Field(None, description="of the row; made of the fields if left out")
    implementations: Distinct[ImplementationName] | None = Field(
        None, description="what computes the attention"
    )
    model: Text | None = Field(None, description="a model's config.json, or hf:ORG/NAME")
    preset: Text | None = Field(None, description="a known model (`mhaprof presets`)")
    module: Target | None = Field(None, description="PACKAGE.MODULE:CLASS to count as it is")
    kwargs: dict[str, Any] | None = Field(None, description="of the module's constructor")
    inputs: OneOrMore[Shape] | None = Field(None, description="of the module: 2x128x64")


class Pow2(Section):
    """The powers of two between two of them, both included."""

    pow2: Annotated[list[Size], Field(min_length=2, max_length=2)]


class Steps(Section):
    """First, last and step (1): both ends included."""

    range: Annotated[list[Size], Field(min_length=2, max_length=3)]


class _RangeValues(list[Any]):
    """The values that a range stands for."""


def _range_or_value(value: object, handler: Callable[[object], object]) -> object:
    """Expand a range, or validate one value of a field."""
    if not isinstance(value, Mapping):
        return handler(value)
    try:
        values = range_values(value)
    except RangeError as error:
        raise refusal(f"{shown(value)}: {error}") from None
    handler(values[0])
    return _RangeValues(values)


def _flattened(values: list[Any]) -> tuple[Any, ...]:
    """Put the values of ranges among the others."""
    flat: list[Any] = []
    for value in values:
        flat.extend(value if isinstance(value, _RangeValues) else [value])
    return tuple(flat)


def _condition(value: object) -> Condition:
    """Read a condition of ``exclude``."""
    if not isinstance(value, str):
        raise refusal(f"{shown(value)} is not a condition such as 'dim % heads != 0'")
    try:
        return read_condition(value, names=SPEC_FIELDS)
    except ConditionError as error:
        raise refusal(f"{shown(value)}: {error}") from None


ExcludeCondition = Annotated[Condition, PlainValidator(_condition, json_schema_input_type=str)]


def _version(value: object) -> int:
    """Accept this version of the format; refuse a newer one by name."""
    if value == CONFIG_VERSION and not isinstance(value, bool):
        return CONFIG_VERSION
    if isinstance(value, int) and value > CONFIG_VERSION:
        raise refusal(
            f"{value} is newer than {CONFIG_VERSION}, which this mhaprof reads; upgrade mhaprof"
        )
    raise refusal(f"{shown(value)} is not {CONFIG_VERSION}")


Version = Annotated[int, PlainValidator(_version, json_schema_input_type=Literal[1])]


class ZipSection(Section):
    """Fields that vary together: as many values of each."""

    @model_validator(mode="after")
    def _as_long(self) -> Self:
        lengths = {name: len(values) for name, values in given_lists(self).items()}
        if not lengths:
            raise refusal("the group is empty; expected fields with lists")
        if len(set(lengths.values())) > 1:
            counted = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise refusal(f"{counted} values; zip takes as many of each")
        return self

    def axis(self) -> Axis:
        """Return the group as one axis."""
        lists = given_lists(self)
        rows = distinct(zip(*lists.values(), strict=True))
        return Axis(fields=tuple(lists), rows=rows)


class SweepSection(Section):
    """A grid: the product of its fields' lists and of its zipped groups."""

    implementations: Distinct[ImplementationName] | None = Field(
        None, description="what computes the attention"
    )
    exclude: OneOrMore[ExcludeCondition] = Field(
        (), description="conditions over fields; what meets one is a skip"
    )
    zip: OneOrMore[ZipSection] = Field((), description="groups of fields that vary together")

    @model_validator(mode="after")
    def _each_field_once(self) -> Self:
        seen = set(given_lists(self))
        for group in self.zip:
            for name in group.axis().fields:
                if name in seen:
                    raise refusal(f"{name} varies twice; keep it in the grid or in one zip group")
                seen.add(name)
        return self

    def axes(self, order: Iterable[str]) -> list[Axis]:
        """Return the axes, those named in ``order`` first and as ordered there."""
        lists = given_lists(self)
        axes = [
            Axis(fields=(name,), rows=distinct((value,) for value in lists[name]))
            for name in dict.fromkeys((*order, *lists))
            if name in lists
        ]
        return axes + [group.axis() for group in self.zip]


def given_lists(section: BaseModel) -> dict[str, tuple[Any, ...]]:
    """Return the lists of spec fields that a sweep or a zipped group gives."""
    given = section.model_fields_set
    return {name: getattr(section, name) for name in SPEC_FIELDS if name in given}


def _groups_of(group: Any) -> Any:
    """Return the field ``zip`` over groups of this model."""
    return OneOrMore[group], Field((), description="groups of fields that vary together")


def _optional(section: Any) -> Any:
    """Return the type of one or several sections that may be left out."""
    return OneOrMore[section] | None


def _with_lists(name: str, base: type[Section], **more: Any) -> Any:
    """Return ``base`` with a list for every field of a spec."""
    lists: dict[str, Any] = {
        field: (_values_of(info), Field(None, description=info.description))
        for field, info in PartialSpec.model_fields.items()
    }
    return create_model(name, __base__=base, __doc__=base.__doc__, **lists, **more)


def _values_of(info: FieldInfo) -> Any:
    """Return the type of a field's values: one, a list, or ranges."""
    kind: Any = info.annotation
    for mark in info.metadata:
        kind = _marked(kind, mark)
    written = kind | Pow2 | Steps
    item: Any = _marked(kind, WrapValidator(_range_or_value, json_schema_input_type=written))
    return _marked(_marked(_list_of(item), AfterValidator(_flattened)), OneStandsForMany)


def _list_of(item: Any) -> Any:
    return list[item]


def _marked(kind: Any, mark: Any) -> Any:
    """Return ``Annotated[kind, mark]`` of a type that is only known here."""
    return Annotated[kind, mark]


_ZipGroup = _with_lists("ZipGroup", ZipSection)
_Sweep = _with_lists("Sweep", SweepSection, zip=_groups_of(_ZipGroup))


class FileSection(Section):
    """A configuration of mhaprof: what to measure, and how."""

    version: Version = Field(description="of this format", examples=[CONFIG_VERSION])
    name: FileStem | None = Field(None, description="of the results; the file's own if left out")
    defaults: DefaultsSection | None = Field(None, description="what all points start from")
    points: OneOrMore[PointSection] | None = Field(None, description="points, one by one")
    sweep: OneOrMore[SweepSection] | None = Field(None, description="grids of points")
    zip: OneOrMore[ZipSection] = Field((), description="groups that vary in every sweep")
    exclude: OneOrMore[ExcludeCondition] = Field(
        (), description="conditions over fields; what meets one in a sweep is a skip"
    )
    measure: Distinct[Metric] = Field(("flops",), description="what `mhaprof sweep` measures")
    settings: SettingsSection | None = Field(None, description="how it is measured")
    reference: Flag = Field(True, description="with the row of one full head without W_O")
    model: Text | None = Field(None, description="a model's config.json, or hf:ORG/NAME")
    preset: Text | None = Field(None, description="a known model (`mhaprof presets`)")
    module: Target | None = Field(None, description="PACKAGE.MODULE:CLASS to count as it is")
    kwargs: dict[str, Any] | None = Field(None, description="of the module's constructor")
    inputs: OneOrMore[Shape] | None = Field(None, description="of the module: 2x128x64")


ConfigFile: type[FileSection] = create_model(
    "ConfigFile",
    __base__=FileSection,
    __doc__=FileSection.__doc__,
    zip=_groups_of(_ZipGroup),
    sweep=(_optional(_Sweep), Field(None, description="grids of points")),
)
"""The model of a whole file."""

SYNONYMS: Mapping[str, str] = {
    "seq_len": "tokens",
    "sequence_length": "tokens",
    "seqlen": "tokens",
    "context": "kv_tokens",
    "kv_len": "kv_tokens",
    "batch_size": "batch",
    "d_model": "dim",
    "embed_dim": "dim",
    "hidden_size": "dim",
    "num_heads": "heads",
    "n_heads": "heads",
    "nhead": "heads",
    "num_attention_heads": "heads",
    "num_kv_heads": "kv_heads",
    "num_key_value_heads": "kv_heads",
    "head_size": "head_dim",
    "sliding_window": "window",
    "is_causal": "causal",
    "impl": "implementations",
    "implementation": "implementations",
    "devices": "device",
    "dtypes": "dtype",
    "grid": "sweep",
    "cases": "points",
}
"""Names from other tools, and the key that is meant."""

ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(SPEC_FIELDS, "under defaults, a point or a sweep"),
    "implementations": "under defaults, a point or a sweep",
    **dict.fromkeys(SettingsSection.model_fields, "under settings"),
    **dict.fromkeys(("measure", "settings", "reference", "points", "sweep"), "at the top level"),
}
"""Where a key belongs that stands in a section that has none of that name."""


class _EditorSchema(GenerateJsonSchema):
    """Leave out what editors would only repeat: titles, and that nothing is the default."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Set no titles: they repeat the keys."""
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Drop a default of null."""
        made = super().default_schema(schema)
        return {key: value for key, value in made.items() if (key, value) != ("default", None)}


def schema_text() -> str:
    """Return the JSON Schema (draft 2020-12) of a configuration file, as JSON text."""
    made = ConfigFile.model_json_schema(schema_generator=_EditorSchema)
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **made,
        "title": "mhaprof configuration",
    }
    return json.dumps(schema, indent=2) + "\n"
