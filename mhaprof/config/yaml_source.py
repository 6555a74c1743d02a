"""YAML text -> a tree whose every value knows its line and column.

YAML 1.2 with its core scalars: ``1e3`` is a number, ``no``, ``on`` and ``1:30`` are
text, merge keys (``<<``) work.  Nothing is ever constructed but the plain scalars,
lists and mappings below: tags of one's own are refused where they stand.  Size,
depth and the growth by aliases are bounded, so that no text exhausts the machine.
Building is iterative: the parser of ruamel.yaml streams its events.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from mhaprof.config.yaml_tree import ListNode, MapNode, Node, Scalar, ScalarNode
from mhaprof.errors import ConfigError, LocatedFault

MAX_BYTES = 1024 * 1024
"""The largest file read; the parser takes about ten seconds for one of this size."""

MAX_DEPTH = 20
"""The deepest nesting, aliases followed; a configuration needs six levels."""

MAX_NODES = 200_000
"""The most values, counting what an alias repeats: a bound on billion laughs."""

MAX_DIGITS = 60
"""The longest whole number; more digits are a typo, and Python refuses very many."""

_NULL = re.compile(r"~|null|Null|NULL|")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+")
_BASED_INT = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")

_PARSER_DEFECTS = (ValueError, OverflowError, AssertionError)
"""What the parser lets through besides its own errors, on odd escapes and directives."""

_CORE = "tag:yaml.org,2002:"
_SCALAR_TAGS: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
}


def read_text(path: Path) -> str:
    """Read a UTF-8 file of at most ``MAX_BYTES``.

    Raises ``ConfigError`` when it is missing, a directory, too large or not UTF-8.
    """
    file = str(path)
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise _file_error(file, "there is no such file") from None
    except IsADirectoryError:
        raise _file_error(file, "this is a directory; expected a YAML file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _file_error(file, f"cannot be read: {reason}") from None
    if len(raw) > MAX_BYTES:
        raise _file_error(file, f"is larger than {MAX_BYTES} bytes; use sweep for large grids")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8", "replace")
        line, column = _position(before, len(before))
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8"
        fault = LocatedFault(file=file, line=line, column=column, key="file", message=message)
        raise ConfigError([fault]) from None


def _file_error(file: str, message: str) -> ConfigError:
    return ConfigError([LocatedFault(file=file, line=1, column=1, key="file", message=message)])


def _position(text: str, index: int) -> tuple[int, int]:
    """Return line and column, from 1, of a character."""
    return text.count("\n", 0, index) + 1, index - (text.rfind("\n", 0, index) + 1) + 1


def parse_yaml(text: str, *, file: str) -> tuple[Node | None, list[LocatedFault]]:
    """Return the tree of one YAML document and what is wrong in it.

    The tree is None for a document without any value, and whenever a fault leaves
    none.  Faults that allow it (a key twice, a tag) leave the rest of the tree usable;
    a syntax error ends the reading.
    """
    builder = _Builder(file=file)
    try:
        for event in _events(text):
            builder.take(event)
    except _Stop as stop:
        builder.fault(stop.line, stop.column, stop.key, stop.message)
        return None, builder.faults
    return builder.root, builder.faults


class _Stop(Exception):
    """End the reading: nothing sensible can follow this fault."""

    def __init__(self, line: int, column: int, key: str, message: str) -> None:
        self.line, self.column, self.key, self.message = line, column, key, message
        super().__init__(message)


def _events(text: str) -> Iterator[Event]:
    """Stream the parser's events; every failure of the parser is a ``_Stop``."""
    line, column = 1, 1
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            line, column = event.end_mark.line + 1, event.end_mark.column + 1
            yield event
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        problem = " ".join(str(error.problem or error.context or "invalid YAML").split())
        if "'\\t'" in problem:
            problem += "; indent with spaces, not tabs"
        context = f"{error.context}: " if error.context and error.problem else ""
        raise _Stop(line, column, "yaml", context + problem) from None
    except YAMLError as error:
        position = getattr(error, "position", 0)
        line, column = _position(text, position if isinstance(position, int) else 0)
        raise _Stop(line, column, "yaml", str(error).splitlines()[0]) from None
    except _PARSER_DEFECTS as error:
        message = f"cannot be read after this place: {error}"
        raise _Stop(line, column, "yaml", message) from None


@dataclass(kw_only=True)
class _Open:
    """A list or mapping that is being read; ``merged`` came by ``<<``."""

    event: NodeEvent
    items: list[Node] = field(default_factory=list)
    entries: dict[str, tuple[ScalarNode, Node]] = field(default_factory=dict)
    merged: dict[str, tuple[ScalarNode, Node]] = field(default_factory=dict)
    key: Node | None = None


@dataclass(kw_only=True)
class _Builder:
    """Build the tree from events; a stack stands for recursion."""

    file: str
    faults: list[LocatedFault] = field(default_factory=list)
    root: Node | None = None
    stack: list[_Open] = field(default_factory=list)
    anchors: dict[str, Node | None] = field(default_factory=dict)
    documents: int = 0
    total: int = 0

    def fault(self, line: int, column: int, key: str, message: str) -> None:
        """Note a fault."""
        self.faults.append(
            LocatedFault(file=self.file, line=line, column=column, key=key, message=message)
        )

    def take(self, event: Event) -> None:
        """Take in one event."""
        if isinstance(event, DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                raise _Stop(*_place(event), "yaml", "a second document; expected one in a file")
        elif isinstance(event, ScalarEvent):
            self.add(self.scalar(event), event)
        elif isinstance(event, AliasEvent):
            self.add(self.aliased(event), event)
        elif isinstance(event, (SequenceStartEvent, MappingStartEvent)):
            if len(self.stack) >= MAX_DEPTH:
                raise _Stop(*_place(event), "yaml", f"nested deeper than {MAX_DEPTH} levels")
            if event.anchor:
                self.anchors[event.anchor] = None
            self.check_tag(event)
            self.stack.append(_Open(event=event))
        elif isinstance(event, (SequenceEndEvent, MappingEndEvent)):
            opened = self.stack.pop()
            self.add(self.closed(opened), opened.event)

    def add(self, node: Node, event: NodeEvent) -> None:
        """Put a finished value where it belongs."""
        self.total += 1
        if max(node.weight, self.total) > MAX_NODES:
            raise _Stop(*_place(event), "yaml", f"more than {MAX_NODES} values, aliases followed")
        if node.depth + len(self.stack) > MAX_DEPTH:
            raise _Stop(*_place(event), "yaml", f"nested deeper than {MAX_DEPTH} levels")
        if event.anchor and not isinstance(event, AliasEvent):
            self.anchors[event.anchor] = node
        if not self.stack:
            self.root = node
        elif isinstance(self.stack[-1].event, SequenceStartEvent):
            self.stack[-1].items.append(node)
        elif self.stack[-1].key is None:
            self.stack[-1].key = node
        else:
            self.pair(self.stack[-1], self.stack[-1].key, node)
            self.stack[-1].key = None

    def pair(self, opened: _Open, key: Node, value: Node) -> None:
        """Add one key and its value to an open mapping."""
        if not isinstance(key, ScalarNode):
            self.fault(key.line, key.column, "key", "a list or mapping is a key; expected a word")
        elif key.text == "<<" and key.value == "<<":
            self.merge(opened, key, value)
        elif key.text in opened.entries:
            first = opened.entries[key.text][0].line
            message = f"is given twice, first on line {first}; keep one"
            self.fault(key.line, key.column, _shown(key.text), message)
        else:
            opened.entries[key.text] = (key, value)

    def merge(self, opened: _Open, key: ScalarNode, value: Node) -> None:
        """Take over the keys of other mappings; keys of its own win, then earlier ones."""
        sources = value.items if isinstance(value, ListNode) else (value,)
        for source in sources:
            if isinstance(source, MapNode):
                for inner, node in source.entries:
                    opened.merged.setdefault(inner.text, (inner, node))
            else:
                self.fault(key.line, key.column, "<<", "expected a mapping or a list of mappings")

    def closed(self, opened: _Open) -> Node:
        """Finish a list or mapping."""
        line, column = _place(opened.event)
        if isinstance(opened.event, SequenceStartEvent):
            items = tuple(opened.items)
            weight, depth = _extent(items)
            return ListNode(line=line, column=column, weight=weight, depth=depth, items=items)
        entries = tuple((opened.merged | opened.entries).values())
        weight, depth = _extent(value for _, value in entries)
        return MapNode(line=line, column=column, weight=weight, depth=depth, entries=entries)

    def aliased(self, event: AliasEvent) -> Node:
        """Return the value that an alias repeats."""
        name = str(event.anchor)
        if name not in self.anchors:
            raise _Stop(*_place(event), f"*{name}", f"there is no anchor &{name} before it")
        node = self.anchors[name]
        if node is None:
            raise _Stop(*_place(event), f"*{name}", "an alias inside its own anchor has no end")
        return node

    def scalar(self, event: ScalarEvent) -> ScalarNode:
        """Resolve a scalar by the core schema of YAML 1.2 (section 10.3)."""
        line, column = _place(event)
        text = str(event.value)
        tag = self.check_tag(event)
        value: Scalar = text
        if tag not in ("str", "!") and (event.style is None or tag is not None):
            value = scalar_of(text)
        if isinstance(value, int) and len(text) > MAX_DIGITS:
            self.fault(line, column, _shown(text), f"has more than {MAX_DIGITS} digits")
        kinds = _SCALAR_TAGS.get(tag or "")
        if kinds is not None and type(value) not in kinds:
            self.fault(line, column, f"!!{tag}", f"{_shown(text)} is not of that type")
        return ScalarNode(line=line, column=column, value=value, text=text)

    def check_tag(self, event: ScalarEvent | SequenceStartEvent | MappingStartEvent) -> str | None:
        """Return the core tag of a node (``str``, ``!``); note a fault for any other."""
        tag: str | None = event.tag
        if tag is None or tag == "!":
            return tag
        name = str(tag).removeprefix(_CORE)
        fitting: tuple[str, ...] = ("str", *_SCALAR_TAGS)
        if not isinstance(event, ScalarEvent):
            fitting = ("seq",) if isinstance(event, SequenceStartEvent) else ("map",)
        if str(tag).startswith(_CORE) and name in fitting:
            return name
        self.fault(*_place(event), _shown(str(tag)), "tags are not read here; leave the tag out")
        return "str"


def scalar_of(text: str) -> Scalar:
    """Return the value of a plain scalar by the core schema of YAML 1.2 (section 10.3.2).

    A whole number of more than ``MAX_DIGITS`` digits is 0: Python converts no text of any length.
    """
    value: Scalar = text
    if _NULL.fullmatch(text):
        value = None
    elif _TRUE.fullmatch(text) or _FALSE.fullmatch(text):
        value = text[0] in "tT"
    elif _INT.fullmatch(text):
        value = int(text) if len(text) <= MAX_DIGITS else 0
    elif _BASED_INT.fullmatch(text):
        value = int(text, 0) if len(text) <= MAX_DIGITS else 0
    elif _FLOAT.fullmatch(text):
        value = float(text)
    elif _INFINITE.fullmatch(text):
        value = float(text.replace(".", ""))
    return value


def _extent(nodes: Iterable[Node]) -> tuple[int, int]:
    """Return weight and depth of a collection of these values."""
    weight, depth = 1, 0
    for node in nodes:
        weight += node.weight
        depth = max(depth, node.depth)
    return weight, depth + 1


def _place(event: Event) -> tuple[int, int]:
    """Return line and column of an event, from 1."""
    return event.start_mark.line + 1, event.start_mark.column + 1


def _shown(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."
