"""The parts of a composite file (text, vision, audio), and the way to the one asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from mhaprof.huggingface.family import Names
from mhaprof.huggingface.keys import Keys
from mhaprof.huggingface.towers import row_of

Part = Literal["text", "vision", "audio"]

PART_KEYS: Mapping[Part, Names] = {
    "text": ("text_config", "llm_config", "language_config"),
    "vision": ("vision_config", "image_config", "vision_encoder_config", "backbone_config"),
    "audio": ("audio_config", "speech_config", "encoder_config"),
}
WRAPPERS = ("thinker_config", "vlm_config")
"""Objects around the parts, where these are not at the top of the file."""

PREFIXES = ("paligemma",)
"""Models whose text has a prefix that attends in both directions, and a cache all the same."""

ATTENDS = frozenset(
    {"model_type", "num_attention_heads", "num_heads", "n_heads", "num_hidden_layers", "depth"}
)
"""Keys of which a nested object that is a model of its own has at least one."""


def held_parts(keys: Keys) -> dict[Part, str]:
    """Return the key of each part that a file holds in an object of its own.

    ``encoder_config`` is audio only beside a text: others use the word for other things.
    """
    found = {part: name for part in get_args(Part) if (name := keys.given(*PART_KEYS[part]))}
    if found.get("audio") == "encoder_config" and "text" not in found:
        del found["audio"]
    return found


def descend(
    keys: Keys, model_type: str, part: Part, warnings: list[str]
) -> tuple[Keys, str] | None:
    """Return the part that was asked for and its model_type; None if the file has none.

    What lies beside it is named in the warnings, and how to count it.  Faults are noted.
    """
    held = held_parts(keys)
    if part not in held and (wrapper := keys.nested(*WRAPPERS)) is not None:
        _say_what_is_left(keys, wrapper.path[-1], {}, part, warnings)
        return descend(wrapper, wrapper.word("model_type") or model_type, part, warnings)
    name = held.pop(part, None)
    nested = None if name is None else keys.nested(name)
    if name is not None and nested is None:
        return keys, model_type
    if nested is not None:
        _say_what_is_left(keys, nested.path[-1], held, part, warnings)
        inner = part_type(nested.word("model_type") or "", model_type, part)
        if model_type in PREFIXES and nested.values.get("use_bidirectional_attention") is True:
            warnings.append("image and prompt attend in both directions; all is counted as causal")
            causal = {**nested.values, "use_bidirectional_attention": False}
            nested = Keys(values=causal, path=nested.path, faults=nested.faults)
        return (nested, inner) if part != "text" else descend(nested, inner, part, warnings)
    if part == "text":
        if held and not keys.given("num_hidden_layers", "num_layers", "n_layer", "n_layers"):
            only = next(iter(held))
            warnings.append(f"this file has no text; {held[only]} is counted (--part {only})")
            return descend(keys, model_type, only, warnings)
        if held:
            _say_what_is_left(keys, "the text", held, part, warnings)
        return keys, model_type
    row = row_of(model_type)
    return (keys, model_type) if row is not None and row.tower == part else None


def part_type(inner: str, outer: str, part: Part) -> str:
    """Name the row of a part: old files give the whole model's name to it, or none.

    The first of the names that has a row; of the part's own, if none has.
    """
    names = [] if part == "text" else [f"{inner}_{part}", f"{inner}_{part}_encoder"]
    names.append(inner)
    if not inner or part != "text":
        names += [f"{outer}_{part}", f"{outer}_{part}_model", f"{outer}_{part}_encoder"]
    if not inner and part == "text":
        names.append(outer)
    return next((name for name in names if name and row_of(name) is not None), inner)


def missing(keys: Keys, part: Part) -> str:
    """Say which parts a file has, for one that lacks the part asked for."""
    held = held_parts(keys)
    if not held:
        return f"{PART_KEYS[part][0]}: is missing; --part text counts this"
    listed = ", ".join(f"{name} ({key})" for name, key in held.items())
    if part != "text" and "text" not in held:
        listed = f"text, {listed}"
    first = "text" if part != "text" else next(iter(held))
    return f"{PART_KEYS[part][0]}: is missing; this file has {listed}: --part {first} counts it"


def _say_what_is_left(
    keys: Keys, counted: str, held: Mapping[Part, str], part: Part, warnings: list[str]
) -> None:
    """Warn which objects beside the counted one are models that are not counted."""
    others = [
        name
        for name, value in keys.values.items()
        if name != counted and isinstance(value, Mapping) and ATTENDS & set(value)
    ]
    others += [name for name in held.values() if name not in others]
    if counted == "backbone_config":
        others.append("the rest of the file")
    if part != "text" and "text" not in held and keys.given("num_hidden_layers"):
        others.insert(0, "the text")
    if not others:
        return
    parts = [name for name in held if name != part] or ["text"]
    listed = " and ".join([", ".join(others[:-1])] * (len(others) > 1) + [others[-1]])
    verb, them = ("is", "it") if len(others) == 1 else ("are", "one")
    how = f": --part {' or '.join(parts)} counts {them}" if held or part != "text" else ""
    warnings.append(
        f"{counted} alone is counted; {listed} {verb} left out, as is what joins them{how}"
    )
