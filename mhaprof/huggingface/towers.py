"""Rows that are data: ``families.yaml`` and, of images and sounds, ``towers.yaml``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mhaprof.huggingface.families import FAMILIES
from mhaprof.huggingface.family import Apart, Family, Image, Key, Names, Norm
from mhaprof.huggingface.keys import Keys, shown
from mhaprof.huggingface.stack import image_tokens

FILES = ("families.yaml", "towers.yaml")


@dataclass(frozen=True, kw_only=True)
class Tower:
    """A row: where the facts are; sizes that a file may omit; what to say, and when.

    ``defaults`` are of the class in transformers: a file that lacks a size means them.
    ``class_sizes`` are those that the parts of composite files omit: a file of one model
    alone is rather broken without them.
    ``notes`` maps a key of the file (or ``always``) to what is said when it is given.
    """

    family: Family
    is_tower: bool = False
    tokens_key: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    class_sizes: Mapping[str, Any] = field(default_factory=dict)

    def completed(self, keys: Keys, warnings: list[str]) -> Keys:
        """Return the keys with the class's sizes where the file has none, and say so."""
        for key, note in self.notes.items():
            if key == "always" or keys.values.get(key) not in (None, False, 0, []):
                warnings.append(note)
        added = {
            name: value
            for name, value in (self.class_sizes if keys.path else self.defaults).items()
            if not set(self._names_of(name)) & set(keys.values)
            and not ("per_layer_config" in keys.values and name.startswith("global_"))
        }
        if not added:
            return keys
        sizes = ", ".join(f"{name} {shown(value)}" for name, value in added.items())
        warnings.append(f"the file omits what its class fixes, which is used: {sizes}")
        return Keys(values={**added, **keys.values}, path=keys.path, faults=keys.faults)

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
    """Return the row of a family, of the table or of the file of towers."""
    rows, class_sizes, states = _rows()
    row = rows.get(model_type)
    if row is None and model_type in FAMILIES:
        family = FAMILIES[model_type]
        row = Tower(family=family, is_tower=family.image is not None)
    sizes = class_sizes.get(model_type, {})
    if row is None:
        return None
    family = replace(row.family, states=states)
    return replace(row, family=family, class_sizes={**sizes, **row.defaults})


@functools.cache
def _rows() -> tuple[Mapping[str, Tower], Mapping[str, Mapping[str, Any]], Names]:
    """Read the files: rows by model_type, sizes that each class has by default, states."""
    from ruamel.yaml import YAML

    read = [YAML(typ="safe", pure=True).load(Path(__file__).with_name(name)) for name in FILES]
    rows = {name: _tower(row) for file in read for row in file["towers"] for name in row["types"]}
    return rows, read[0]["class_sizes"] or {}, tuple(read[0]["states"])


def _tower(row: Mapping[str, Any]) -> Tower:
    facts = {
        name: _fact(name, value)
        for name, value in row.items()
        if name in Family.__dataclass_fields__
    }
    own = {name: value for name, value in row.items() if name not in (*facts, "types")}
    return Tower(family=Family(**facts), **own)


def states() -> Names:
    """Return the sums of keys that say what a layer keeps of a sequence, in their order."""
    return _rows()[2]


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
