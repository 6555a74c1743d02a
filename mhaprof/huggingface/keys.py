"""Read the keys of one config.json with their types; collect every fault with its key.

``null`` counts as not given, as in the published files.  A key is named by its path
(``text_config.hidden_size``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from mhaprof.errors import ConfigError, LocatedFault, UsageError

MAX_SIZE = 2**31 - 1
"""The largest size that a key may hold; more is a typo, not a model."""

MAX_LAYERS = 2_000
"""The most layers that a file may ask for: above the deepest published (1,000)."""

Path = tuple[str, ...]
Locate = Callable[[Path], tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class KeyFault:
    """One thing wrong with one key: what was given, what was expected."""

    path: Path
    message: str

    @property
    def key(self) -> str:
        """Name the key as a path (``text_config.hidden_size``)."""
        return ".".join(self.path)


@dataclass(kw_only=True)
class Keys:
    """One mapping of a config file, read key by key.

    ``faults`` is shared with the mappings nested in it.  Readers return None for a
    key that is absent, null or faulty; ask ``faults`` before believing a None.
    """

    values: Mapping[str, Any]
    path: Path = ()
    faults: list[KeyFault] = field(default_factory=list)

    def fault(self, name: str, message: str) -> None:
        """Note that a key is wrong; one fault for each key is enough."""
        path = (*self.path, name)
        if all(known.path != path for known in self.faults):
            self.faults.append(KeyFault(path=path, message=message))

    def given(self, *names: str) -> str | None:
        """Return the first of the names that holds a value other than null."""
        return next((name for name in names if self.values.get(name) is not None), None)

    def nested(self, *names: str) -> Keys | None:
        """Return the mapping under the first name that is given."""
        name = self.given(*names)
        if name is None:
            return None
        value = self.values[name]
        if not isinstance(value, Mapping):
            self.fault(name, f"{shown(value)} is not an object of keys")
            return None
        return Keys(values=value, path=(*self.path, name), faults=self.faults)

    def size(self, *names: str, required: bool = False, limit: int = MAX_SIZE) -> int | None:
        """Return a whole number of at least 1 under one of the names.

        Two names that hold different numbers contradict each other: a fault.
        """
        found = {name: self.values[name] for name in names if self.values.get(name) is not None}
        if not found:
            if required:
                self._missing(names[0])
            return None
        name, value = next(iter(found.items()))
        if is_list(value):
            self.fault(name, f"{shown(value)} is a list where one number is expected")
            return None
        other = next((key for key, held in found.items() if key != name and held != value), None)
        if other is not None:
            self.fault(name, f"{shown(value)} contradicts {other}: {shown(found[other])}")
            return None
        return self._checked_size(name, value, limit)

    def sizes(self, count: int, *names: str) -> list[int] | None:
        """Return one size for each of ``count`` layers if the key holds a list, else None."""
        name = self.given(*names)
        if name is None or not is_list(self.values[name]):
            return None
        value = self.values[name]
        if len(value) != count:
            self.fault(name, f"holds {len(value)} numbers for {count} layers")
            return None
        checked = [self._checked_size(name, each, MAX_SIZE) for each in value]
        return [each for each in checked if each is not None] if None not in checked else None

    def _checked_size(self, name: str, value: object, limit: int) -> int | None:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.fault(name, f"{shown(value)} is not a whole number of at least 1")
            return None
        if value > limit:
            self.fault(name, f"{shown(value)} is above {limit}, the most that is believed")
            return None
        return value

    def _missing(self, name: str) -> None:
        held = "is null" if name in self.values else "is missing"
        self.fault(name, f"{held}; expected a whole number of at least 1")

    def expression(self, text: str) -> int | None:
        """Return a sum of products of keys (``a*b+1``); None if a key is missing.

        A key may have two names (``a|b``) and lie in an object (``attn_config.a``).
        """
        terms = [[self._factor(each) for each in term.split("*")] for term in text.split("+")]
        known = [[each for each in term if each is not None] for term in terms]
        return sum(map(math.prod, known)) if known == terms else None

    def _factor(self, text: str) -> int | None:
        if text.isdecimal():
            return int(text)
        for alternative in text.split("|"):
            inner, _, name = alternative.rpartition(".")
            holder = self.nested(inner) if inner else self
            if holder is not None and holder.given(name):
                return holder.size(name)
        return None

    def number(self, name: str) -> float | None:
        """Return a finite number above 0."""
        value = self.values.get(name)
        if value is None:
            return None
        fine = isinstance(value, int | float) and not isinstance(value, bool)
        if not fine or not 0 < value <= MAX_SIZE:
            self.fault(name, f"{shown(value)} is not a number above 0")
            return None
        return float(value)

    def flag(self, *names: str, default: bool = False) -> bool:
        """Return true or false under the first name given, else ``default``."""
        name = self.given(*names)
        if name is None:
            return default
        value = self.values[name]
        if not isinstance(value, bool):
            self.fault(name, f"{shown(value)} is not true or false")
            return default
        return value

    def word(self, name: str) -> str | None:
        """Return text that fits into a line of a message."""
        value = self.values.get(name)
        if value is not None and not _is_word(value):
            self.fault(name, f"{shown(value)} is not text")
            return None
        return value

    def words(self, name: str) -> list[str] | None:
        """Return a list of words."""
        value = self.values.get(name)
        if value is None:
            return None
        if not is_list(value) or not all(_is_word(each) for each in value):
            self.fault(name, f"{shown(value)} is not a list of words")
            return None
        return list(value)

    def indices(self, name: str, count: int) -> set[int]:
        """Return a list of layer indices below ``count``; empty when not given."""
        value = self.values.get(name)
        if value is None:
            return set()
        fine = is_list(value) and all(
            isinstance(each, int) and not isinstance(each, bool) and 0 <= each < count
            for each in value
        )
        if not fine:
            self.fault(name, f"{shown(value)} is not a list of layer indices below {count}")
            return set()
        return set(value)


def _is_word(value: object) -> bool:
    return isinstance(value, str) and value.isprintable()


def architectures(keys: Keys) -> Sequence[object]:
    """Return the classes that a file names; none if it does not hold a list."""
    given = keys.values.get("architectures")
    return given if is_list(given) else ()


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Say whether a value is a list and not text."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def shown(value: object) -> str:
    """Show a value as JSON, shortened."""
    try:
        text = json.dumps(value, default=str)
    except ValueError:  # an integer beyond the digits that Python prints
        return "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."


def refusal(source: str, faults: Sequence[KeyFault], locate: Locate | None) -> UsageError:
    """Return the error that names every fault: located if the text is at hand."""
    if locate is None:
        return UsageError("\n".join(f"{source}: {fault.key}: {fault.message}" for fault in faults))
    located = []
    for fault in faults:
        line, column = locate(fault.path)
        located.append(
            LocatedFault(
                file=source, line=line, column=column, key=fault.key, message=fault.message
            )
        )
    return ConfigError(located)


def locator(text: str) -> Locate:
    """Return a function that finds a key's line and column in JSON text.

    A key that is not there is located at the key of the object that lacks it.
    """
    places = dict(_places(text))

    def locate(path: Path) -> tuple[int, int]:
        for length in range(len(path), -1, -1):
            if path[:length] in places:
                before = text[: places[path[:length]]]
                return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
        return 1, 1

    return locate


def _places(text: str) -> Iterator[tuple[Path, int]]:
    """Yield the path of each key of nested objects, with its offset in the JSON text.

    The text has been parsed before, so that it is known to be JSON.
    """
    scan = json.decoder.scanstring  # type: ignore[attr-defined]
    stack: list[str | None] = []  # the key that leads into each open object; None: a list
    offset, key, expects_key = 0, "", False
    while offset < len(text):
        mark = text[offset]
        offset += 1
        if mark == '"':
            start = offset - 1
            word, offset = scan(text, offset, True)
            if expects_key:
                key, expects_key = word, False
                if None not in stack:
                    yield tuple(str(part) for part in [*stack[1:], key]), start
        elif mark in "{[":
            if not stack:
                yield (), offset - 1
            stack.append(key if mark == "{" else None)
            expects_key = mark == "{"
        elif mark in "}]":
            stack.pop()
        elif mark == "," and stack:
            expects_key = stack[-1] is not None
