"""Rows that are data: ``families.yaml`` and, of images and sounds, ``towers.yaml``."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mhaprof.huggingface.family import Apart, Family, Image, Key, Names, Norm, Seq2Seq
from mhaprof.huggingface.keys import Keys, shown
from mhaprof.huggingface.stack import image_tokens

GUARD = re.compile(
    r"sliding|(?<!max_)window|sparse|index_(topk|head)|pattern|layers_block_type|linear_attn|"
    r"attention_chunk|qk_norm|qk_layernorm|attention_types?$|attn_type|cross_attention|is_causal|"
    r"kv_shared|per_layer_config|use_bidirectional|relative_attention|attention_layers|is_hybrid"
)
"""Keys that may change the attention; a row that was found by building says which does not."""


@dataclass(frozen=True, kw_only=True)
class Tower:
    """A row: where the facts are; sizes that a file may omit; what to say, and when.

    ``defaults`` are of the class in transformers: a file that lacks a size means them.
    ``class_sizes`` are those that the parts of composite files omit: a file of one model
    alone is rather broken without them.
    ``notes`` maps a key of the file to what is said when it is given (``!KEY``: unless it
    is false; ``always``).  ``tower`` is the part that a file of its own is.
    """

    family: Family
    tower: str | None = None
    tokens_key: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, Any] | None = None
    also_layers: str | None = None
    class_sizes: Mapping[str, Any] = field(default_factory=dict)

    def completed(self, keys: Keys, warnings: list[str]) -> Keys:
        """Return the keys with the class's sizes where the file has none, and say so."""
        self._guard(keys)
        for key, note in self.notes.items():
            unless = key.startswith("!")
            given = keys.values.get(key.removeprefix("!"), unless or key == "always")
            if given not in (None, False, 0, []):
                warnings.append(note)
        added = {
            name: value
            for name, value in (self.class_sizes if keys.path else self.defaults).items()
            if not set(self._names_of(name)) & set(keys.values)
            and not ("per_layer_config" in keys.values and name.startswith("global_"))
        }
        if self.also_layers is not None and (more := keys.size(self.also_layers)) is not None:
            name = self.family.layers[0]
            total = (keys.size(name) or 0) + more
            keys = Keys(values={**keys.values, name: total}, path=keys.path, faults=keys.faults)
        if not added:
            return keys
        sizes = ", ".join(f"{name} {shown(value)}" for name, value in added.items())
        warnings.append(f"the file omits what its class fixes, which is used: {sizes}")
        return Keys(values={**added, **keys.values}, path=keys.path, faults=keys.faults)

    def _guard(self, keys: Keys) -> None:
        """Note a fault for a key that may change what the row says, in a row of the file."""
        slides = self.family.pattern != "full"
        facts = repr(self.family if slides else replace(self.family, window=()))
        for name, value in keys.values.items() if self.known is not None else ():
            harmless: tuple[object, ...] = (None, False, 0, [], (self.known or {}).get(name))
            read = f"'{name}'" in facts or name in self.notes
            read |= "window" in name and any("windows" in note for note in self.notes.values())
            if GUARD.search(name) and not read and value not in harmless:
                keys.fault(
                    name,
                    f"{shown(value)} may change the attention of this family in a way that "
                    "mhaprof does not know",
                )

    def _names_of(self, name: str) -> Names:
        """Return the names under which the file may hold the same size."""
        family = self.family
        groups = (family.dim, family.heads, family.layers, family.kv_heads, (name,))
        return next(group for group in groups if name in group)

    def tokens(self, keys: Keys) -> int | None:
        """Return the tokens that one input makes, if the file fixes them."""
        if self.family.image is not None:
            return image_tokens(keys, self.family.image)
        return None if self.tokens_key is None else keys.size(self.tokens_key)


def row_of(model_type: str) -> Tower | None:
    """Return the row of a family; None if it has none."""
    said = _file("families.yaml")
    row = _rows("families.yaml").get(model_type)
    if row is None:  # most files are of a family of the first: the long one is not read
        row = _rows("towers.yaml").get(model_type)
    if row is None:
        return None
    family = replace(row.family, states=states())
    sizes = said["class_sizes"].get(model_type, {})
    notes = {**row.notes, **notes_of(model_type)}
    return replace(row, family=family, notes=notes, class_sizes={**sizes, **row.defaults})


def notes_of(model_type: str) -> Mapping[str, str]:
    """Return what is said of a family beside its row."""
    notes: Mapping[str, str] = _file("families.yaml")["notes"].get(model_type, {})
    return notes


def said_types() -> set[str]:
    """Return the model_types of ``families.yaml``."""
    return set(_rows("families.yaml"))


def states() -> Names:
    """Return the sums of keys that say what a layer keeps of a sequence, in their order."""
    return tuple(_file("families.yaml")["states"])


@functools.cache
def refused_types() -> Mapping[str, str]:
    """Return why each model_type is not counted that no row could say right."""
    return {name: why for why, names in _file("families.yaml")["refused"].items() for name in names}


@functools.cache
def _file(name: str) -> Mapping[str, Any]:
    from ruamel.yaml import YAML

    held: Mapping[str, Any] = YAML(typ="safe", pure=True).load(Path(__file__).with_name(name))
    return held


@functools.cache
def _rows(file: str) -> Mapping[str, Tower]:
    """Read the rows of a file by model_type; those that were found by building are guarded."""
    known: dict[str, Any] = {"known": {}} if file == "towers.yaml" else {}
    rows = _file(file)["towers"]
    return {name: _tower({**known, **row}) for row in rows for name in row["types"]}


def _tower(row: Mapping[str, Any]) -> Tower:
    facts = {
        name: _fact(name, value)
        for name, value in row.items()
        if name in Family.__dataclass_fields__
    }
    own = {name: value for name, value in row.items() if name not in (*facts, "types")}
    family = Family(**facts)
    return Tower(family=family, **{"tower": "vision" if family.image else None, **own})


@functools.cache
def seq2seq_rows() -> Mapping[str, Seq2Seq]:
    """Return the rows of encoder-decoders, by model_type."""
    return {
        name: Seq2Seq(
            encoder=_tower(row["encoder"]).family,
            decoder=_tower(row["decoder"]).family,
            source_tokens=row.get("source_tokens"),
        )
        for row in _file("families.yaml")["seq2seq"]
        for name in row["types"]
    }


def _fact(name: str, value: Any) -> Any:
    """Return a fact as ``Family`` holds it."""
    if name == "image":
        return Image(**value)
    if name == "norm":
        return Norm(**{key: _fact(key, each) for key, each in value.items()})
    if name == "apart":
        return {word: Apart(**own) for word, own in value.items()}
    if isinstance(value, Mapping) and "names" not in value:
        return {key: _fact(key, each) for key, each in value.items()}
    if isinstance(value, Mapping):
        return Key(names=tuple(value["names"]), default=value.get("default", False))
    return tuple(value) if isinstance(value, list) else value
