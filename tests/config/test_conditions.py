"""Conditions of exclude mean what they say, and nothing else can be said."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhaprof.config.conditions import ConditionError, read_condition

FIELDS: dict[str, Any] = {
    "dim": 512,
    "heads": 7,
    "tokens": 4096,
    "window": None,
    "causal": "none",
    "out_proj": True,
}

NOT_UNDERSTOOD = "is not understood at character"
EXPECTED = "expected a condition as dim % heads != 0"
KNOWN = "known are + - * / // %, == != < <= > >=, and, or, not"


def holds(text: str, **fields: Any) -> bool:
    return read_condition(text, names=FIELDS).holds({**FIELDS, **fields})


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("dim % heads != 0", True),
        ("dim % heads == 0", False),
        ("heads > 16 and tokens >= 4096", False),
        ("heads > 16 or tokens >= 4096", True),
        ("not heads > 16 and tokens >= 4096", True),
        ("not (heads > 16 and tokens >= 4096)", True),
        ("1 < heads <= 7", True),
        ("1 < heads < 7", False),
        ("heads * 2 + 1 == 15", True),
        ("2 + heads * 2 == 16", True),
        ("(2 + heads) * 2 == 18", True),
        ("dim // heads == 73", True),
        ("dim / 1024 == 0.5", True),
        ("10 - 3 - 2 == 5", True),
        ("-heads == 0 - 7", True),
        ("- -heads == 7", True),
        ("tokens == 4.096e3", True),
        ("causal == 'none'", True),
        ('causal != "none"', False),
        ("out_proj", True),
        ("not out_proj", False),
        ("out_proj == true and false == false", True),
        ("window == none", True),
        ("window == null", True),
        ("window > 128", False),
        ("window <= 128", False),
        ("window != 128", True),
        ("window * 2 > 128", False),
        ("  heads==7  ", True),
    ],
)
def test_conditions_mean_what_they_mean_in_python(text: str, answer: bool) -> None:
    assert holds(text) is answer


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"{NOT_UNDERSTOOD} 1; {EXPECTED}"),
        ("dim %", f"{NOT_UNDERSTOOD} 1; {EXPECTED}"),
        ("dim heads", f"{NOT_UNDERSTOOD} 5; {EXPECTED}"),
        ("(dim > 1", f"{NOT_UNDERSTOOD} 1; {EXPECTED}"),
        ("dim > 1)", f"{NOT_UNDERSTOOD} 8; {EXPECTED}"),
        ("dim = 1", f"{NOT_UNDERSTOOD} 5; {EXPECTED}"),
        ("dim > 1; x", f"{NOT_UNDERSTOOD} 8; {EXPECTED}"),
        ("__import__('os')", f"{NOT_UNDERSTOOD} 1; {EXPECTED}"),
        ("dim.real > 1", f"{NOT_UNDERSTOOD} 1; {EXPECTED}"),
        ("heads[0] > 1", f"{NOT_UNDERSTOOD} 1; {EXPECTED}"),
        ("and dim", f"{NOT_UNDERSTOOD} 1; {EXPECTED}"),
        ("dim if dim else 1", f"{NOT_UNDERSTOOD} 1; {EXPECTED}"),
        ("f'{dim}' == '1'", f"{NOT_UNDERSTOOD} 1; {EXPECTED}"),
        ("1j == dim", f"{NOT_UNDERSTOOD} 1; {EXPECTED}"),
        ("[dim] == 1", f"{NOT_UNDERSTOOD} 1; {EXPECTED}"),
        ("hed > 1", "hed at character 1 is not a field; did you mean heads?"),
        ("causal == sideways", "sideways at character 11 is not a field; words are quoted"),
        ("dim ** 2 > 1", f"has Pow at character 1; {KNOWN}"),
        ("dim > 1 and heads & 1 == 1", f"has BitAnd at character 13; {KNOWN}"),
        ("dim in 'a'", f"has In at character 1; {KNOWN}"),
        ("heads > 1 or " * 20, "is longer than 200 characters; split it"),
    ],
)
def test_what_is_no_condition_says_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(ConditionError) as caught:
        read_condition(text, names=FIELDS)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dim", "'dim' is 512; expected a comparison"),
        ("dim % 0 == 1", "'dim % 0 == 1' has no answer: integer modulo by zero"),
        ("causal > 3", "'causal > 3' has no answer: 'none' and 3 have no order"),
        ("causal + 3 > 3", "'causal + 3 > 3' has no answer: 'none' and 3 are not both numbers"),
        ("not dim", "'not dim' has no answer: 512 is not true or false"),
    ],
)
def test_a_condition_without_answer_says_so(text: str, message: str) -> None:
    with pytest.raises(ConditionError) as caught:
        holds(text)
    assert str(caught.value) == message


PIECES = ["dim", "heads", "window", "causal", "out_proj", "1", "2.5", "'a'", "none", "true"]
PIECES += ["and", "or", "not", "(", ")", "+", "-", "*", "/", "//", "%", "==", "!=", "<", ">="]


PHRASES = st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join)


@given(st.one_of(st.text(max_size=30), PHRASES))
def test_any_text_is_a_condition_or_a_condition_error(text: str) -> None:
    with contextlib.suppress(ConditionError):
        assert holds(text) in (True, False)


OPERANDS = st.sampled_from(["dim", "heads", "tokens", "3", "7", "512"])
SIGNS = st.sampled_from(["+", "-", "*", "//", "%"])
COMPARISONS = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])


@given(
    st.lists(st.tuples(OPERANDS, SIGNS), max_size=4),
    OPERANDS,
    st.lists(st.tuples(COMPARISONS, OPERANDS), min_size=1, max_size=3),
    st.sampled_from([" and ", " or "]),
    st.booleans(),
)
def test_numbers_are_computed_as_in_python(
    terms: list[tuple[str, str]],
    last: str,
    compared: list[tuple[str, str]],
    join: str,
    negated: bool,
) -> None:
    chain = " ".join(f"{sign} {operand}" for sign, operand in compared)
    left = " ".join(f"{operand} {sign}" for operand, sign in terms) + f" {last}"
    text = f"{left.strip()} {chain}" + join + ("not " if negated else "") + f"dim {chain}"
    try:
        wanted = bool(eval(text, {}, FIELDS))
    except ZeroDivisionError:
        with pytest.raises(ConditionError):
            holds(text)
        return
    assert holds(text) is wanted
