"""Models that a configuration names: from their source to one spec per layer kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mhaprof.cli.model import SHAPE_FIELDS, warn
from mhaprof.config import ModelSource
from mhaprof.errors import UsageError
from mhaprof.huggingface import layers_of
from mhaprof.huggingface.sources import read_config, read_preset
from mhaprof.spec import AttentionSpec

_said: set[str] = set()
"""What this process has said: a grid reads the same model at each of its points."""


def read_model(
    source: ModelSource, fields: Mapping[str, Any]
) -> Iterable[tuple[str, AttentionSpec]]:
    """Return a name and a spec for each distinct kind of layer of a model.

    ``fields`` are what the configuration gives beside the model: batch, tokens,
    kv_tokens, phase.  Says what the plan assumes or leaves out.  Raises UsageError for
    any other field, and what reading raises.
    """
    foreign = [name for name in fields if name not in SHAPE_FIELDS]
    if foreign:
        verb = "is" if len(foreign) == 1 else "are"
        raise UsageError(
            f"{', '.join(foreign)} {verb} what the model's file says; beside a model give "
            f"{', '.join(SHAPE_FIELDS)} alone, in the defaults too"
        )
    if source.kind == "preset":
        raw = read_preset(source.reference)
    else:
        raw = read_config(f"hf:{source.reference}" if source.kind == "hf" else str(source.path))
    plan = layers_of(
        raw.values,
        source=raw.source,
        locate=raw.locate,
        tokens=fields.get("tokens"),
        batch=fields.get("batch") or 1,
        phase=fields.get("phase") or "prefill",
        kv_tokens=fields.get("kv_tokens"),
    )
    warn(plan, _said)
    return [(kind.name, kind.spec) for kind in plan.kinds]
