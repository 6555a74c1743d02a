"""Conditions of ``exclude``: expressions in Python's own grammar, none of its names or calls.

    dim % heads != 0
    heads > 16 and tokens >= 4096
    not (causal == "none") or window == none

Names are the fields of a spec; values are numbers, quoted words, ``true``, ``false``
and ``none``.  ``+ - * / // %``, comparisons (chained as in mathematics), ``and``,
``or``, ``not`` and parentheses mean what they mean in Python.  Whatever is computed
from ``none`` is ``none``, and no order holds for it.
"""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

MAX_LENGTH = 200
"""The longest condition, in characters; bounds its depth too."""

_EXAMPLE = "expected a condition as dim % heads != 0"
_KNOWN = "known are + - * / // %, == != < <= > >=, and, or, not"
_CONSTANTS = {"true": True, "false": False, "none": None, "null": None}
_EQUALITIES: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_ORDERS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARITHMETIC: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_SIGNS: tuple[type[ast.AST], ...] = (
    *(ast.And, ast.Or, ast.Not, ast.USub),
    *(*_EQUALITIES, *_ORDERS, *_ARITHMETIC),
)


class ConditionError(ValueError):
    """Say what is wrong with a condition, when it is read or when it is asked."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A condition that was read; ``text`` is how it was written."""

    text: str
    tree: ast.expr

    def holds(self, fields: Mapping[str, Any]) -> bool:
        """Say whether it holds for the fields of a spec.

        Raises ``ConditionError`` when it has no answer (division by zero, the order of
        a word and a number).
        """
        try:
            answer = _value(self.tree, fields)
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
    line = re.sub(r"\s", " ", text)
    start = len(line) - len(line.lstrip())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a comparison of constants, and such
            tree = ast.parse(line.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        at = getattr(error, "offset", None) or 1
        raise ConditionError(f"is not understood at character {start + at}; {_EXAMPLE}") from None
    for node in ast.walk(tree):
        _check(node, names, line.strip(), start)
    return Condition(text=text, tree=tree)


def _check(node: ast.AST, names: Collection[str], line: str, start: int) -> None:
    """Refuse what is none of the language: a call, an attribute, another operator."""
    at = start + len(line.encode()[: getattr(node, "col_offset", 0)].decode()) + 1
    match node:
        case ast.Name(id=name) if name not in _CONSTANTS and name not in names:
            import difflib

            near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}?" if near else "words are quoted"
            raise ConditionError(f"{name} at character {at} is not a field; {hint}")
        case ast.Constant(value=bool() | int() | float() | str() | None) | ast.Name():
            return
        case ast.BoolOp() | ast.BinOp() | ast.UnaryOp() | ast.Compare():
            for sign in [*getattr(node, "ops", []), getattr(node, "op", ast.Not())]:
                if not isinstance(sign, _SIGNS):
                    raise ConditionError(f"has {type(sign).__name__} at character {at}; {_KNOWN}")
        case ast.expr():
            raise ConditionError(f"is not understood at character {at}; {_EXAMPLE}")


def _value(node: ast.AST, fields: Mapping[str, Any]) -> Any:  # noqa: PLR0911 (one per kind)
    """Compute a part of a condition; anything with ``none`` is ``none``, without order."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return fields[name] if name in fields else _CONSTANTS[name]
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_truth(_value(part, fields)) for part in parts)
        case ast.BoolOp(values=parts):
            return any(_truth(_value(part, fields)) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=part):
            return not _truth(_value(part, fields))
        case ast.UnaryOp(operand=part):
            return _computed(operator.sub, 0, _value(part, fields))
        case ast.BinOp(left=left, op=sign, right=right):
            return _computed(_ARITHMETIC[type(sign)], _value(left, fields), _value(right, fields))
        case ast.Compare(left=left, ops=signs, comparators=others):
            values = [_value(part, fields) for part in (left, *others)]
            return all(map(_compared, signs, values, values[1:]))
    raise AssertionError(node)


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is not true or false")
    return value


def _computed(apply: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    if a is None or b is None:
        return None
    if isinstance(a, (bool, str)) or isinstance(b, (bool, str)):
        raise TypeError(f"{a!r} and {b!r} are not both numbers")
    return apply(a, b)


def _compared(sign: ast.cmpop, a: Any, b: Any) -> bool:
    if type(sign) in _EQUALITIES:
        return bool(_EQUALITIES[type(sign)](a, b))
    if a is None or b is None:
        return False
    if isinstance(a, str) is not isinstance(b, str):
        raise TypeError(f"{a!r} and {b!r} have no order")
    return bool(_ORDERS[type(sign)](a, b))
