"""Models that a configuration names: from their source to one spec per layer kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mhaprof.config import ModelSource
from mhaprof.huggingface import layers_of
from mhaprof.huggingface.sources import read_config, read_preset
from mhaprof.spec import AttentionSpec

SHAPE_FIELDS = ("batch", "tokens", "kv_tokens", "phase")
"""The spec fields that a model's file does not fix."""


def read_model(
    source: ModelSource, fields: Mapping[str, Any]
) -> Iterable[tuple[str, AttentionSpec]]:
    """Return a name and a spec for each distinct kind of layer of a model.

    ``fields`` are what the configuration gives beside the model: batch, tokens,
    kv_tokens, phase.  Raises UsageError for any other, and what reading raises.
    """
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
    return [(kind.name, kind.spec) for kind in plan.kinds]
