"""Files of others: told apart, or put into the words of transformers (``formats.yaml``)."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mhaprof.errors import UsageError
from mhaprof.huggingface.keys import is_list, shown

FILE = Path(__file__).with_name("formats.yaml")


@functools.cache
def _facts() -> Mapping[str, Any]:
    from ruamel.yaml import YAML

    facts: Mapping[str, Any] = YAML(typ="safe", pure=True).load(FILE)
    return facts


def diffusers_row(name: str) -> Mapping[str, Any]:
    """Return how the blocks of a class of diffusers attend."""
    row: Mapping[str, Any] = _facts()["diffusers"][name]
    return row


def refuse_weights(path: Path, *, source: str) -> None:
    """Raise UsageError for a file that by its first bytes is weights, not text."""
    with path.open("rb") as file:
        head = file.read(9)
    rows = _facts()["weights"] if head[:1] not in b" {\n\r\t\xef" else ()
    what = next((row["what"] for row in rows if head.startswith(bytes.fromhex(row["starts"]))), "")
    if head[4:] == b"\0\0\0\0{":
        what = "a safetensors file (weights)"
    if what:
        raise UsageError(
            f"--model {source}: is {what}; give the config.json of the model that it holds"
        )


def translated(config: Mapping[str, Any], *, source: str) -> tuple[Mapping[str, Any], list[str]]:
    """Return the config in the words of transformers, and what is to be said of it.

    Raises UsageError for a file that describes no attention (an adapter, a tokenizer):
    what it is, and what to give instead; and for a key that is not known to be harmless.
    """
    named = isinstance(config.get("architecture"), str)
    if "model_type" in config and not named and not {"peft_type", "model_cfg"} & set(config):
        return config, []
    if named and ("pretrained_cfg" in config or config.get("model_type") in (None, "timm_wrapper")):
        return _timm(config, source)
    if "model_cfg" in config or {"vision_cfg", "text_cfg"} <= set(config):
        return _open_clip(config, source)
    if "_class_name" in config and str(config["_class_name"]) not in _facts()["diffusers"]:
        known = ", ".join(_facts()["diffusers"])
        raise UsageError(
            f"{source}: _class_name: {shown(config['_class_name'])} of diffusers is not a "
            f"transformer that mhaprof reads ({known}); of a pipeline give "
            "transformer/config.json"
        )
    for row in _facts()["translations"]:
        if set(row["keys"]) <= set(config) and "model_type" not in config:
            return _renamed(config, row, source)
    if "model_type" not in config or "peft_type" in config:
        _refuse_stranger(config, source)
    return config, []


def _refuse_stranger(config: Mapping[str, Any], source: str) -> None:
    """Raise UsageError for a file that goes beside a model's config.json."""
    sized = {"hidden_size", "n_embd", "d_model"} & set(config)
    for row in () if sized else _facts()["strangers"]:
        if set(row["keys"]) <= set(config):
            what = re.sub(r"\{(\w+)\}", lambda name: shown(config.get(name[1])), row["what"])
            raise UsageError(f"{source}: is {what}; give {row['give']}")


def _renamed(
    config: Mapping[str, Any], row: Mapping[str, Any], source: str
) -> tuple[Mapping[str, Any], list[str]]:
    """Translate a flat file, key by key."""
    unread = [name for name in config if name not in (*row["names"], *row["ignored"])]
    differs = [
        name for name, value in row["fixed"].items() if config.get(name, value) not in (value, None)
    ]
    for name in (*unread, *differs):
        raise UsageError(
            f"{source}: {name}: {shown(config[name])} may change the attention in a way that "
            f"mhaprof does not know of {row['what']}; give the model's config.json"
        )
    values = {new: config[old] for old, new in row["names"].items() if old in config}
    for name, same in row["same"].items():
        values.setdefault(name, values.get(same))
    values.setdefault("sliding_window", None)
    return {"model_type": row["model_type"], **values}, [f"read as {row['what']}"]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _timm(config: Mapping[str, Any], source: str) -> tuple[Mapping[str, Any], list[str]]:
    """Translate the config of a plain vision transformer: its sizes are in its name."""
    name = str(config.get("architecture"))
    found = re.fullmatch(r"(?:vit|deit)_(\w+?)(_distilled)?_patch(\d+)(_clip)?_(\d+)(\..*)?", name)
    width, layers, heads = _facts()["timm"].get(found[1] if found else "", (0, 0, 0))
    other = next((key for key in ("model_args", "model_kwargs") if config.get(key)), "num_features")
    if found is None or not width:
        raise UsageError(
            f"{source}: architecture: {shown(name)} of timm is not one whose sizes mhaprof "
            f"knows: vit or deit of {', '.join(_facts()['timm'])}, as vit_base_patch16_224"
        )
    if config.get(other, width) != width:
        raise UsageError(
            f"{source}: {other}: {shown(config[other])} differs from timm's {name}, whose "
            "sizes are known"
        )
    pixels = _mapping(config.get("pretrained_cfg")).get("input_size")
    side = int(found[5])
    values = {
        "model_type": "deit" if found[2] else "vit",
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "image_size": pixels[1:] if isinstance(pixels, list) else side,
        "patch_size": int(found[3]),
    }
    return values, [f"read as timm's {name}: width {width}, {layers} layers, {heads} heads"]


def _open_clip(config: Mapping[str, Any], source: str) -> tuple[Mapping[str, Any], list[str]]:
    """Translate a config of open_clip into one of CLIP."""
    model, known = _mapping(config.get("model_cfg", config)), _facts()["open_clip"]
    values: dict[str, Any] = {"model_type": "clip"}
    for part in ("vision", "text"):
        own = {"layers": 12, "head_width": 64, **_mapping(model.get(f"{part}_cfg"))}
        sizes = [key for key in ("width", "head_width") if not _is_size(own.get(key))]
        other = [key for key in own if key not in known or is_list(own[key])] + sizes
        if other:
            key = other[0]
            raise UsageError(
                f"{source}: {part}_cfg.{key}: {shown(own.get(key))} is not of a plain "
                "transformer of open_clip, which alone is read"
            )
        causal = part == "text" and not own.get("no_causal_mask")
        values[f"{part}_config"] = {
            "model_type": f"clip_{part}_model" if causal or part == "vision" else "bert",
            "hidden_size": own["width"],
            "num_hidden_layers": own["layers"],
            "num_attention_heads": own.get("heads", own["width"] // own["head_width"]),
            **{name: own[name] for name in ("image_size", "patch_size") if name in own},
        }
    return values, ["read as open_clip's config"]
