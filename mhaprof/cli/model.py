"""``mhaprof model`` and ``mhaprof presets``; and ``--model`` for the commands that measure."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast, get_args

import typer

from mhaprof import signals
from mhaprof.cli.options import choices, listed, one_of, option, parsed, takes
from mhaprof.cli.output import Output, OutputFlags, say
from mhaprof.cli.planning import Impossible, Planned, check_types, worded
from mhaprof.config.grid import too_many
from mhaprof.errors import EXIT_OK, UsageError
from mhaprof.huggingface import LayersApart, ModelPlan, layers_of
from mhaprof.huggingface.cost import cost_of
from mhaprof.huggingface.parts import Part
from mhaprof.huggingface.sources import (
    RawConfig,
    preset_names,
    preset_note,
    read_config,
    read_preset,
)
from mhaprof.huggingface.what_if import SIZES, Change, changed, parse_changes
from mhaprof.point.options import DEFAULT_CACHE_DTYPE
from mhaprof.report.model import model_rows, model_views, preset_view
from mhaprof.report.tabular import Row
from mhaprof.spec import Phase
from mhaprof.units import CACHE_BITS, CacheFormat

SHAPE_FIELDS = ("batch", "tokens", "kv_tokens", "phase")
"""The spec fields that a model's file does not fix: the flags that go with ``--model``."""

ASSUME_HELP = "read the file as if it did not have a key"
MODEL_HELP = "a model's config.json, its folder, or hf:org/name"


@takes(out=OutputFlags)
def model(
    config: Annotated[
        str | None, typer.Argument(help=MODEL_HELP, metavar="FILE", show_default=False)
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="a model whose shapes mhaprof knows", metavar="NAME")
    ] = None,
    tokens: Annotated[
        list[str] | None,
        typer.Option(
            help="tokens of the text; in phase decode, of the cache (a list: a table each)",
            metavar="N",
            show_default="1024; a vision encoder: what its image makes",
        ),
    ] = None,
    batch: Annotated[
        list[str] | None,
        typer.Option(help="sequences in the batch", metavar="N", show_default="1"),
    ] = None,
    phase: Annotated[
        list[str] | None,
        typer.Option(
            help="prefill, or decode: one token", metavar=choices(Phase), show_default="prefill"
        ),
    ] = None,
    kv_tokens: Annotated[
        list[str] | None,
        typer.Option(
            help="tokens that cross-attention reads; without any, in phase decode, of the cache",
            metavar="N",
            show_default="what the file fixes, else tokens",
        ),
    ] = None,
    cache_dtype: Annotated[
        str,
        typer.Option(help=f"dtype of the KV cache: {', '.join(CACHE_BITS)}", metavar="DTYPE"),
    ] = DEFAULT_CACHE_DTYPE,
    cache_scales: Annotated[
        str | None,
        typer.Option(
            help="scales of a quantized cache: one for each key and value of a head and token "
            "(fp16/head), or for each N of its elements (fp16/64)",
            metavar="DTYPE/head|N",
            show_default="none",
        ),
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if",
            help="the same model with other numbers beside it (kv_heads=1,2,4 or window=4096)",
            metavar="NAME=VALUE",
        ),
    ] = None,
    part: Annotated[
        str, typer.Option(help="part of a composite file", metavar=choices(Part))
    ] = "text",
    partial: Annotated[
        bool, typer.Option("--partial", help="leave out layers of which nothing is known")
    ] = False,
    assume: Annotated[
        list[str] | None, typer.Option(help=ASSUME_HELP, metavar="KEY=ignored")
    ] = None,
    *,
    out: Output,
) -> int:
    """Say what the attention of a model costs: for each kind of layer, and in all."""
    cache_dtype = one_of("--cache-dtype", cache_dtype, CACHE_BITS)
    try:
        CacheFormat.of(cache_dtype, cache_scales)
    except ValueError as error:
        raise UsageError(f"--cache-scales: {error}") from error
    changes = [change for each in what_if or () for change in parse_changes(each)]
    choice = _choice(
        config=config, preset=preset, layer=None, part=part, partial=partial, assume=assume
    )
    if choice is None:
        raise UsageError("model needs a config.json, hf:org/name or a preset (mhaprof presets)")
    given = {"tokens": tokens, "batch": batch, "phase": phase, "kv_tokens": kv_tokens}
    lists = {name: list(map(parsed, listed(texts))) for name, texts in given.items() if texts}
    if refused := too_many(lists.values()):
        raise UsageError(f"the flags make {refused}")
    groups: list[list[Row]] = []
    said: dict[str, None] = {}
    try:
        for shape in itertools.product(*lists.values()):
            plan = choice.plan(dict(zip(lists, shape, strict=True)))
            cost = cost_of(plan, cache_dtype=cache_dtype, cache_scales=cache_scales)
            groups.append(model_rows(cost))
            said |= dict.fromkeys(_notes(plan))
            signals.enter("keeping")
            for change in changes:
                dtype = change.cache_dtype or cache_dtype
                scales = cache_scales if CACHE_BITS[dtype] <= 8 else None
                cost = cost_of(changed(plan, change), cache_dtype=dtype, cache_scales=scales)
                groups[-1] += model_rows(cost, what_if=change.text)
    except KeyboardInterrupt:
        if not groups:
            raise
        signals.interrupted()
    for note in said:
        say(f"{choice.raw.source}: {note}")
    rows = [row for group in groups for row in group]
    views = [view for group in groups for view in model_views(group, notes=())]
    out.emit(rows, views, warnings=list(said))
    return EXIT_OK


@takes(out=OutputFlags)
def presets(*, out: Output) -> int:
    """List the models whose shapes mhaprof knows, with the source of the facts."""
    rows: list[Row] = [
        {
            "name": name,
            "model_type": read_preset(name).values["model_type"],
            "note": preset_note(name),
        }
        for name in preset_names()
    ]
    out.emit(rows, [preset_view(rows)])
    return EXIT_OK


@dataclass(frozen=True, kw_only=True)
class ModelChoice:
    """A model that was asked for by ``--model`` or ``--preset``, and which of its layers."""

    raw: RawConfig
    layer: int | None
    part: Part
    partial: bool
    ignored: tuple[str, ...]

    def plan(self, shape: Mapping[str, Any]) -> ModelPlan:
        """Return the model's layers at the given batch, tokens, kv_tokens and phase."""
        phase = shape.get("phase") or "prefill"
        if phase not in get_args(Phase):
            raise UsageError(f"--phase {phase!r} is not one of {', '.join(get_args(Phase))}")
        for field in ("batch", "tokens", "kv_tokens"):
            value = shape.get(field)
            if value is not None and not isinstance(value, int):
                flag = field.replace("_", "-")
                raise UsageError(f"--{flag} {value!r} is not a whole number of at least 1")
        return layers_of(
            self.raw.values,
            source=self.raw.source,
            locate=self.raw.locate,
            tokens=shape.get("tokens"),
            batch=1 if shape.get("batch") is None else shape["batch"],
            phase=cast(Phase, phase),
            kv_tokens=shape.get("kv_tokens"),
            part=self.part,
            partial=self.partial,
            ignored=self.ignored,
        )

    def planned(self, given: Mapping[str, Sequence[object]]) -> list[Planned | Impossible]:
        """Return each distinct kind of layer as a point; lists make a grid.

        Sizes that the model's file fixes are changed as by ``mhaprof model --what-if``; of a
        grid, what makes no attention is a skip.  Raises UsageError for any other flag.
        """
        for field in given:
            if field not in (*SHAPE_FIELDS, *SIZES):
                flag = field.replace("_", "-")
                raise UsageError(
                    f"--{flag} is what the model's file says; {', '.join(SIZES)} can be varied"
                )
        check_types(given)
        varied = [field for field, values in given.items() if len(values) > 1]
        points: list[Planned | Impossible] = []
        said: set[str] = set()
        if refused := too_many(given.values()):
            raise UsageError(f"the flags make {refused}")
        faults: list[UsageError] = []
        for values in itertools.product(*given.values()):
            fields = dict(zip(given, values, strict=True))
            suffix = "".join(f" {field}={worded(fields[field])}" for field in varied)
            try:
                plan = self._changed(fields)
            except UsageError as error:
                faults.append(error)
                message = str(error)
                points.append(
                    Impossible(
                        name=suffix.strip(), given={}, code="impossible_spec", message=message
                    )
                )
                continue
            warn(plan, said)
            kinds = plan.kinds if self.layer is None else plan.kinds_of(self.layer)
            points += [Planned(name=kind.name + suffix, spec=kind.spec) for kind in kinds]
        if len(faults) == len(points):
            raise faults[0]
        return points

    def _changed(self, fields: Mapping[str, Any]) -> ModelPlan:
        """Return the plan at a shape, with other sizes than the file's where they are given."""
        sizes = {name: value for name, value in fields.items() if name not in SHAPE_FIELDS}
        text = ",".join(f"{name}={worded(value)}" for name, value in sizes.items())
        plan = self.plan(fields)
        return changed(plan, Change(text=text, fields=sizes, cache_dtype=None)) if sizes else plan


def _choice(
    *,
    config: str | None,
    preset: str | None,
    layer: int | None,
    part: str,
    partial: bool,
    assume: Sequence[str] | None,
) -> ModelChoice | None:
    """Read what was asked for; None if no model was."""
    if part not in get_args(Part):
        raise UsageError(f"--part {part!r} is not one of {', '.join(get_args(Part))}")
    if config is not None and preset is not None:
        raise UsageError("--preset and a config.json were both given; give one")
    if config is None and preset is None:
        if layer is not None:
            raise UsageError("--layer is of a model; give --model or --preset")
        return None
    for text in assume or ():
        if not text.removesuffix("=ignored") or not text.endswith("=ignored"):
            raise UsageError(f"--assume {text!r} is not of the form KEY=ignored")
    ignored = tuple(dict.fromkeys(text.removesuffix("=ignored") for text in assume or ()))
    raw = read_config(config) if config is not None else read_preset(str(preset))
    return ModelChoice(
        raw=raw, layer=layer, part=cast(Part, part), partial=partial, ignored=ignored
    )


def _notes(plan: ModelPlan) -> list[str]:
    """Return the plan's warnings, the layers that were left out among them."""
    return [*plan.warnings, *map(_apart, plan.apart)]


def _apart(layers: LayersApart) -> str:
    """Say what is stated of layers apart from softmax attention, and not in the total."""
    count = len(layers.indices)
    if not layers.known:
        return f"{count} layers of {layers.name} are left out and not in the total"
    if layers.attends:
        return (
            f"{layers.name} of {count} layers: its MACs, parameters and cache are not in the total"
        )
    state = "" if layers.state_elements is not None else "; their state is not known"
    return f"{count} layers of {layers.name} are no softmax attention and not in the total{state}"


def warn(plan: ModelPlan, said: set[str]) -> None:
    """Say the plan's notes, each once: those in ``said`` were, and the others are added."""
    for note in _notes(plan):
        line = f"{plan.source}: {note}"
        if line not in said:
            said.add(line)
            say(line)


class _ModelFlags:
    """``--model``, ``--preset``, ``--layer``, ``--part``, ``--partial`` and ``--assume``."""

    def parameters(self) -> list[inspect.Parameter]:
        """Return the options, under a panel of their own."""
        panel: dict[str, Any] = {"rich_help_panel": "Model"}
        return [
            option("model", str | None, help=MODEL_HELP, metavar="FILE", **panel),
            option(
                "preset", str | None, help="a model of `mhaprof presets`", metavar="NAME",
                **panel,
            ),
            option(
                "layer", int | None, help="this layer alone, counted from 0", metavar="N",
                show_default="each distinct kind", min=0, **panel,
            ),
            option(
                "part", str, help="part of a composite file", default="text",
                metavar=choices(Part), **panel,
            ),
            option(
                "partial", bool, "--partial", default=False,
                help="leave out layers of which nothing is known", **panel,
            ),
            option(
                "assume", list[str] | None, help=ASSUME_HELP, metavar="KEY=ignored", **panel
            ),
        ]  # fmt: skip

    def collect(self, values: Mapping[str, Any]) -> ModelChoice | None:
        """Read the file or preset; None if neither was given."""
        return _choice(
            config=values["model"],
            preset=values["preset"],
            layer=values["layer"],
            part=values["part"],
            partial=values["partial"],
            assume=values["assume"],
        )


ModelFlags = _ModelFlags()
