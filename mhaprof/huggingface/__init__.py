"""A model's config.json -> what its attention costs, or an error that names the key.

Reads raw JSON, offline and without transformers.  ``layers_of`` makes the plan,
``cost.py`` counts it, ``sources.py`` finds files, presets and files of the hub.
"""

from __future__ import annotations

from mhaprof.huggingface.layers import layers_of
from mhaprof.huggingface.plan import LayerKind, LayersApart, ModelPlan

__all__ = ["layers_of", "LayerKind", "LayersApart", "ModelPlan"]
