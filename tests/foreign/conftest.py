"""Models of transformers on meta, and the attention blocks that are in them: the oracle.

Nothing here comes from mhaprof.  A block is a module that holds projections of keys and
values; what it is called does not matter, which weights it has does.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

KEYS = (
    "k_proj", "key", "k", "k_lin", "to_k", "linear_k", "key_proj", "Wk", "project_k", "k_head",
    "to_key", "projection_key", "k_content_proj", "kv_a_proj_with_mqa", "kv_b_proj", "kv_proj",
    "to_kv", "kv", "wkv", "qkv", "qkv_proj", "query_key_value", "c_attn", "Wqkv", "in_proj_weight",
    "in_proj", "queries_keys_values", "keys_values", "kv_a_proj", "att_proj", "q_attn", "query_key",
)  # fmt: skip
"""What models call the projection of keys, alone or fused with others."""

VALUES = (
    "v_proj", "value", "v", "v_lin", "to_v", "linear_v", "value_proj", "Wv", "project_v", "v_head",
)  # fmt: skip
FUSED = (
    "qkv", "query_key_value", "c_attn.w", "Wqkv", "in_proj_weight", "in_proj.w", "att_proj",
)  # fmt: skip

BESIDE = ("post", "linear", "dense", "out_proj", "proj")
"""Output projections that lie beside the block."""

OUT = re.compile(
    r"(^|\.)(o|o_proj|out_proj|proj|c_proj|dense|out_lin|to_out|linear_out|projection|Wo|output|"
    r"attention_out|post|projection_layer|output_proj|wo|proj_out|final|post_proj|o_b_proj)(\.|$)"
)
NORM = re.compile(r"norm|(^|\.)ln|_ln(\.|$)|LayerNorm", re.IGNORECASE)
POSITIONS = re.compile(
    r"relative_attention_bias|rel_pos|relative_position|position_bias|logit_scale|rel_embeddings|"
    r"attention_biases|gru_rel_pos|rel_attn_embed|distance_embedding|layer_scale"
)
"""Weights of positions and scales: no projection."""
FOREIGN = re.compile(
    r"Linear|Delta|Mixer|Mamba|Lightning|Retention|SSM|Recurrent|LRU|Conv$|MLP|Mlp|FeedForward|"
    r"Experts|Deformable|Indexer|Compressor"
)
"""Classes that are no softmax attention, whatever their weights are called."""

OVERRIDES: Mapping[str, Mapping[str, Any]] = YAML(typ="safe", pure=True).load(
    Path(__file__).with_name("overrides.yaml")
)
"""Keys without which the class's own defaults build nothing."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """One attention of a built model; None where the module does not tell."""

    path: str
    weights: int
    biases: int
    norms: int
    sinks: int
    cached: int | None
    causal: bool | None
    window: int | None


@dataclass(frozen=True, kw_only=True)
class Built:
    """A model type's default config.json, and its blocks or why it could not be built."""

    config: dict[str, Any]
    blocks: tuple[Block, ...]
    failure: str = ""


@pytest.fixture(scope="session")
def built(transformers: Any) -> Callable[[str], Built]:
    """Build a model type's default model on meta."""
    transformers.logging.set_verbosity_error()
    return build


def build(model_type: str) -> Built:
    """Return the default config of a model type, and the blocks of the model it makes."""
    import torch
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    try:
        config = CONFIG_MAPPING[model_type](**OVERRIDES.get(model_type, {}))
    except Exception as error:  # noqa: BLE001 - whatever a class raises is what is told
        return Built(config={}, blocks=(), failure=_told(error))
    raw = json.loads(config.to_json_string(use_diff=False))
    try:
        cls = _class_of(model_type, CONFIG_MAPPING[model_type])
        if cls is None:
            return Built(config=raw, blocks=(), failure="no model of its own")
        with torch.device("meta"):
            model = cls(config)
    except Exception as error:  # noqa: BLE001 - as above
        return Built(config=raw, blocks=(), failure=_told(error))
    return Built(config=raw, blocks=tuple(_blocks(model)))


def _told(error: Exception) -> str:
    return (
        f"{type(error).__name__}: {str(error).strip().splitlines()[0][:80] if str(error) else ''}"
    )


def _class_of(model_type: str, config_class: Any) -> Any:
    """Return the class of the whole model: of the auto classes, else by its config class."""
    from transformers import PreTrainedModel
    from transformers.models.auto import modeling_auto

    module = importlib.import_module(config_class.__module__.replace("configuration_", "modeling_"))
    tables = ["MODEL_MAPPING_NAMES", *(name for name in dir(modeling_auto) if "_FOR_" in name)]
    for table in tables:
        names = getattr(modeling_auto, table)
        name = names.get(model_type) if table.endswith("_NAMES") else None
        for each in (name,) if isinstance(name, str) else name or ():
            if hasattr(module, each):
                return getattr(module, each)
    own = [
        cls
        for name, cls in vars(module).items()
        if inspect.isclass(cls)
        and issubclass(cls, PreTrainedModel)
        and cls.config_class is config_class
        and not name.endswith("PreTrainedModel")
    ]
    return min(own, key=lambda cls: ("For" in cls.__name__, len(cls.__name__)), default=None)


def _blocks(model: Any) -> Iterable[Block]:
    modules = dict(model.named_modules())
    prefix = re.sub(r"(Text)?(Model|For[A-Z].*)$", "", type(model).__name__)
    for path, module in modules.items():
        held = {name.partition(".")[0] for name, _ in module.named_parameters()} & set(KEYS)
        holds = any(_is_projection(getattr(module, name, None)) for name in held)
        holds |= _reuses_keys(module)
        parent = modules[path.rpartition(".")[0]]
        if holds and not any(_is_foreign(type(each).__name__, prefix) for each in (module, parent)):
            yield _block(path, module, modules)


def _is_projection(module: Any) -> bool:
    """Say whether it is a weight, or holds one at most one level below."""
    import torch

    if isinstance(module, torch.nn.Parameter):
        return True
    below = [module, *getattr(module, "children", tuple)()]
    return any(isinstance(getattr(each, "weight", None), torch.nn.Parameter) for each in below)


def _reuses_keys(module: Any) -> bool:
    """Say whether it projects queries and the output alone, as layers that share keys do."""
    names = {name.partition(".")[0] for name, _ in module.named_parameters(recurse=True)}
    return {"q_proj", "o_proj"} <= names <= {"q_proj", "o_proj", "q_norm"}


def _is_foreign(name: str, model: str) -> bool:
    """Say whether a class is no softmax attention: by its name without the model's."""
    own = name.removeprefix(model)
    attends = re.search(r"Att", name) and not re.search(r"Delta|Linear|Lightning|Deformable", own)
    return (bool(FOREIGN.search(own)) and not attends) or bool(re.match(r"Rwkv\w*Att", name))


def _parents(path: str) -> Iterable[str]:
    while path:
        path = path.rpartition(".")[0]
        yield path


def _block(path: str, module: Any, modules: Mapping[str, Any]) -> Block:
    """Count one block; an output projection that lies beside it is its own."""
    named = {n: p for n, p in module.named_parameters() if not n.startswith("indexer.")}
    parent = modules[path.rpartition(".")[0]] if path else module
    if not any(OUT.search(name) for name in named):
        beside = getattr(parent, "output", None)
        for each in (getattr(beside, "dense", beside), *(getattr(parent, n, None) for n in BESIDE)):
            if hasattr(each, "weight"):
                named |= {f"o_proj.{name}": value for name, value in each.named_parameters()}
                break
    weights = biases = norms = sinks = 0
    for name, parameter in named.items():
        if "sinks" in name:
            sinks += parameter.numel()
        elif POSITIONS.search(name) or re.match(
            r"(output\.)?(LayerNorm|layer_?norm|norm|ln)\.", name
        ):
            continue
        elif NORM.search(name):
            norms += parameter.numel()
        elif name.endswith("bias"):
            biases += parameter.numel()
        else:
            weights += parameter.numel()
    return Block(
        path=path,
        weights=weights,
        biases=biases,
        norms=norms,
        sinks=sinks,
        cached=_cached(named, module),
        causal=_causal(path, module, modules),
        window=_window(path, module, modules),
    )


def _cached(named: Mapping[str, Any], module: Any) -> int | None:
    """Return the elements that one token leaves in the cache: width of keys and of values."""
    if _reuses_keys(module):
        return 0
    alone = _width(named, "kv_a_proj_with_mqa", "kv_a_proj")
    keys = _width(named, *KEYS[:10])
    values = _width(named, *VALUES)
    if alone is None and keys is not None:
        return keys + (keys if values is None else values)
    return alone or _width(named, "kv_proj", "to_kv", "kv", "wkv") or _fused(named, module)


def _width(named: Mapping[str, Any], *names: str) -> int | None:
    """Return the outputs of the first projection that is there."""
    weights = (".weight", ".linear.weight", ".proj.weight")
    found = (named.get(name + weight) for name in names for weight in weights)
    return next((int(weight.shape[0]) for weight in found if weight is not None), None)


def _fused(named: Mapping[str, Any], module: Any) -> int | None:
    """Return what the queries, as wide as the output projection's inputs, leave of a fused one."""
    fused = next((p for name, p in named.items() if name.startswith(FUSED)), None)
    out = next((p for n, p in named.items() if OUT.search(n) and n.endswith("weight")), None)
    if fused is None or out is None:
        return None
    if type(getattr(module, "c_attn", None)).__name__ == "Conv1D":
        return int(fused.shape[1] - out.shape[0])
    return int(fused.shape[0] - math.prod(out.shape[1:]))


MASKS = {
    "causal": re.compile(
        r"create_causal_mask|create_sliding_window_causal|create_chunked_causal|"
        r"is_causal=True|create_masks_for_generate|_causal_mask\("
    ),
    "both": re.compile(r"create_bidirectional|_prepare_4d_attention_mask\("),
}


def _causal(path: str, module: Any, modules: Mapping[str, Any]) -> bool | None:
    """Say what mask the module's model makes; of several, what the module says of itself."""
    own = getattr(module, "is_causal", getattr(module, "is_decoder", None))
    if getattr(module, "is_cross_attention", False) or CROSS.search(path):
        return False
    for parent in (path, *_parents(path)):
        found = _makes(type(modules[parent]))
        if len(found) == 1:
            return found == {"causal"}
        if found:
            return None if own is None else bool(own)
        if hasattr(modules[parent], "config_class") and parent != path:
            break
    return bool(own)


CROSS = re.compile(r"cross|encoder_attn|EncDec|encoder_decoder|enc_att", re.IGNORECASE)


def _makes(cls: type) -> set[str]:
    return {word for word, mask in MASKS.items() if mask.search(_source(cls))}


@functools.cache
def _source(cls: type) -> str:
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):  # built in
        return ""


ASKS = re.compile(r"self\.config(\.|, \")sliding_window")


def _window(path: str, module: Any, modules: Mapping[str, Any]) -> int | None:
    """Return the module's window, or the config's where the module asks that.

    Keys that an indexer chooses are as many as a window of ``index_topk`` lets through.
    """
    parent = modules[path.rpartition(".")[0]]
    config = getattr(module, "config", None)
    value = getattr(module, "sliding_window", None)
    if not hasattr(module, "sliding_window") and ASKS.search(_source(type(module))):
        value = getattr(config, "sliding_window", None)
    if getattr(parent, "attention_type", None) == "local":
        value = config.window_size
    if hasattr(module, "indexer") and hasattr(config, "index_topk"):
        value = config.index_topk
    if value is None or getattr(module, "is_sliding", True) is False:
        return None
    return int(value) if isinstance(value, int) and value > 0 else None
