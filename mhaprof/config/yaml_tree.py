"""The tree that a YAML file is read into: every value knows its line and column."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Scalar = None | bool | int | float | str


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A value at ``line`` and ``column`` (from 1); ``weight`` counts the values in it."""

    line: int
    column: int
    weight: int = 1
    depth: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalarNode(Node):
    """A scalar; ``text`` is how it was written."""

    value: Scalar
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ListNode(Node):
    """A list."""

    items: tuple[Node, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class MapNode(Node):
    """A mapping; keys are text and each stands once."""

    entries: tuple[tuple[ScalarNode, Node], ...]

    def key(self, name: str) -> ScalarNode | None:
        """Return the node of a key, or None."""
        return next((key for key, _ in self.entries if key.text == name), None)

    def value(self, name: str) -> Node | None:
        """Return the node of a key's value, or None."""
        return next((value for key, value in self.entries if key.text == name), None)


def plain(node: Node) -> Any:
    """Return the tree as lists, dicts and scalars."""
    if isinstance(node, ScalarNode):
        return node.value
    if isinstance(node, ListNode):
        return [plain(item) for item in node.items]
    if isinstance(node, MapNode):
        return {key.text: plain(value) for key, value in node.entries}
    raise TypeError(node)


def value_at(node: Node, loc: Iterable[int | str]) -> Node:
    """Return the value at a path of keys and indices, or the last one on the way.

    An index into what is not a list stays: a single value stands for a list of one.
    """
    for step in loc:
        inner: Node | None = None
        if isinstance(node, MapNode):
            inner = node.value(str(step)) if isinstance(step, str) else node
        elif isinstance(node, ListNode) and isinstance(step, int) and step < len(node.items):
            inner = node.items[step]
        elif isinstance(step, int):
            inner = node
        if inner is None:
            break
        node = inner
    return node
