"""Conditions of ``exclude``: a small language of its own, read without running code.

    dim % heads != 0
    heads > 16 and tokens >= 4096
    not (causal == "none") or window == none

Names are the fields of a spec; values are numbers, quoted words, ``true``, ``false``
and ``none``.  ``+ - * / // %``, comparisons (chained as in mathematics), ``and``,
``or``, ``not`` and parentheses mean what they mean in Python.  Whatever is computed
from ``none`` is ``none``, and no order holds for it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

MAX_LENGTH = 200
"""The longest condition, in characters; bounds the depth of its nesting too."""

MAX_NESTING = 20
"""The most parentheses, signs and negations inside each other."""

Fields = Mapping[str, Any]
Part = Callable[[Fields], Any]

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?)"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9]*)"
    r"|(?P<word>\"[^\"]*\"|'[^']*')"
    r"|(?P<sign>//|[<>=!]=|[-+*/%<>()]))"
)
_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SUMS: Mapping[str, Callable[[Any, Any], Any]] = {"+": operator.add, "-": operator.sub}
_PRODUCTS: Mapping[str, Callable[[Any, Any], Any]] = {
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}
_CONSTANTS = {"true": True, "false": False, "none": None, "null": None}


class ConditionError(ValueError):
    """Say what is wrong with a condition, when it is read or when it is asked."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A condition that was read; ``text`` is how it was written."""

    text: str
    part: Part

    def holds(self, fields: Fields) -> bool:
        """Say whether it holds for the fields of a spec.

        Raises ``ConditionError`` when it has no answer (division by zero, the order of
        a word and a number).
        """
        try:
            answer = self.part(fields)
        except (ArithmeticError, TypeError) as error:
            raise ConditionError(f"{self.text!r} has no answer: {error}") from None
        if not isinstance(answer, bool):
            raise ConditionError(f"{self.text!r} is {answer!r}; expected a comparison")
        return answer


def read_condition(text: str, *, names: Collection[str]) -> Condition:
    """Read a condition over ``names``.

    Raises ``ConditionError`` that says what was expected where.
    """
    if len(text) > MAX_LENGTH:
        raise ConditionError(f"is longer than {MAX_LENGTH} characters; split it")
    reader = _Reader(tokens=_tokens(text), names=names)
    part = reader.either()
    reader.expect("")
    return Condition(text=text, part=part)


@dataclass(frozen=True, kw_only=True)
class _Token:
    kind: str
    text: str
    at: int


def _tokens(text: str) -> list[_Token]:
    """Split a condition into tokens; the last one is empty."""
    tokens, at = [], 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise ConditionError(f"{text[at]!r} at character {at + 1} has no meaning here")
        kind = str(match.lastgroup)
        tokens.append(_Token(kind=kind, text=match[kind], at=match.start(kind)))
        at = match.end()
    return [*tokens, _Token(kind="end", text="", at=end)]


@dataclass(kw_only=True)
class _Reader:
    """Read tokens from the loosest binding (``or``) to the tightest (a value)."""

    tokens: list[_Token]
    names: Collection[str]
    index: int = 0
    nesting: int = 0

    def take(self, *texts: str) -> str | None:
        """Step over the next token if it is one of ``texts``."""
        token = self.tokens[self.index]
        if token.kind in ("sign", "name") and token.text in texts:
            self.index += 1
            return token.text
        return None

    def expect(self, text: str) -> None:
        """Step over ``text`` (empty: the end), or say that it was expected."""
        token = self.tokens[self.index]
        if token.text != text:
            wanted = repr(text) if text else "an operator"
            raise self.wrong(token, wanted)
        self.index += 1

    def wrong(self, token: _Token, wanted: str) -> ConditionError:
        """Word what was found and what was expected."""
        found = repr(token.text) if token.text else "the end"
        return ConditionError(f"{found} at character {token.at + 1}; expected {wanted}")

    def either(self) -> Part:
        """Read ``a or b``."""
        parts = [self.both()]
        while self.take("or"):
            parts.append(self.both())
        return parts[0] if len(parts) == 1 else lambda f: any(_truth(part(f)) for part in parts)

    def both(self) -> Part:
        """Read ``a and b``."""
        parts = [self.negated()]
        while self.take("and"):
            parts.append(self.negated())
        return parts[0] if len(parts) == 1 else lambda f: all(_truth(part(f)) for part in parts)

    def negated(self) -> Part:
        """Read ``not a``."""
        if not self.take("not"):
            return self.compared()
        self.deeper()
        part = self.negated()
        self.nesting -= 1
        return lambda f: not _truth(part(f))

    def compared(self) -> Part:
        """Read ``a < b <= c``."""
        parts, signs = [self.summed()], []
        while sign := self.take(*_COMPARISONS):
            signs.append(sign)
            parts.append(self.summed())
        if not signs:
            return parts[0]
        if len(signs) == 1:
            return _comparison(signs[0], parts[0], parts[1])
        pairs = [_comparison(*given) for given in zip(signs, parts, parts[1:], strict=False)]
        return lambda f: all(pair(f) for pair in pairs)

    def summed(self) -> Part:
        """Read ``a + b - c``."""
        part = self.multiplied()
        while sign := self.take(*_SUMS):
            part = _arithmetic(_SUMS[sign], part, self.multiplied())
        return part

    def multiplied(self) -> Part:
        """Read ``a * b / c // d % e``."""
        part = self.signed()
        while sign := self.take(*_PRODUCTS):
            part = _arithmetic(_PRODUCTS[sign], part, self.signed())
        return part

    def signed(self) -> Part:
        """Read ``-a``."""
        if not self.take("-"):
            return self.value()
        self.deeper()
        part = self.signed()
        self.nesting -= 1
        return _arithmetic(operator.sub, lambda f: 0, part)

    def value(self) -> Part:
        """Read a number, a word, a name or something in parentheses."""
        token = self.tokens[self.index]
        if self.take("("):
            self.deeper()
            part = self.either()
            self.expect(")")
            self.nesting -= 1
            return part
        if token.kind == "number":
            number = int(token.text) if token.text.isdigit() else float(token.text)
            return self.constant(number)
        if token.kind == "word":
            return self.constant(token.text[1:-1])
        if token.kind == "name" and token.text in _CONSTANTS:
            return self.constant(_CONSTANTS[token.text])
        if token.kind == "name" and token.text in self.names:
            self.index += 1
            return operator.itemgetter(token.text)
        if token.kind == "name" and token.text not in ("and", "or", "not"):
            raise self.unknown(token)
        raise self.wrong(token, "a field or a value")

    def constant(self, value: object) -> Part:
        """Step over a constant."""
        self.index += 1
        return lambda f: value

    def unknown(self, token: _Token) -> ConditionError:
        """Word a name that is no field, with the nearest one."""
        import difflib

        near = difflib.get_close_matches(token.text, list(self.names), n=1, cutoff=0.6)
        hint = f"; did you mean {near[0]}?" if near else "; words are quoted"
        return ConditionError(f"{token.text} at character {token.at + 1} is not a field{hint}")

    def deeper(self) -> None:
        """Count one more level of nesting."""
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise ConditionError(f"is nested deeper than {MAX_NESTING} levels")


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is not true or false")
    return value


def _arithmetic(apply: Callable[[Any, Any], Any], left: Part, right: Part) -> Part:
    """Combine two values; anything with ``none`` is ``none``."""

    def part(fields: Fields) -> Any:
        a, b = left(fields), right(fields)
        if a is None or b is None:
            return None
        if isinstance(a, (bool, str)) or isinstance(b, (bool, str)):
            raise TypeError(f"{a!r} and {b!r} are not both numbers")
        return apply(a, b)

    return part


def _comparison(sign: str, left: Part, right: Part) -> Part:
    """Compare two values; ``none`` equals only itself and has no order."""
    apply = _COMPARISONS[sign]
    if sign in ("==", "!="):
        return lambda fields: apply(left(fields), right(fields))

    def part(fields: Fields) -> Any:
        a, b = left(fields), right(fields)
        if a is None or b is None:
            return False
        if isinstance(a, str) is not isinstance(b, str):
            raise TypeError(f"{a!r} and {b!r} have no order")
        return apply(a, b)

    return part
