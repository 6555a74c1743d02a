"""Ranges, zipped groups and the product."""

from __future__ import annotations

import pytest

from mhaprof.config.grid import MAX_POINTS, Axis, RangeError, combinations, range_values, size


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"pow2": [64, 512]}, [64, 128, 256, 512]),
        ({"pow2": [1, 1]}, [1]),
        ({"pow2": [1.0, 2.0]}, [1, 2]),
        ({"range": [8, 32, 8]}, [8, 16, 24, 32]),
        ({"range": [8, 31, 8]}, [8, 16, 24]),
        ({"range": [3, 5]}, [3, 4, 5]),
    ],
)
def test_ranges_include_both_ends(given: dict[str, object], values: list[int]) -> None:
    assert range_values(given) == values


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "expected {pow2: [64, 8192]} or {range: [8, 64, 8]}"),
        ({"pow3": [1, 2]}, "expected {pow2: [64, 8192]} or {range: [8, 64, 8]}"),
        ({"pow2": [1, 2], "range": [1, 2]}, "expected {pow2: [64, 8192]} or {range: [8, 64, 8]}"),
        ({"pow2": 8}, "pow2 takes [first, last]"),
        ({"pow2": [1, 2, 3]}, "pow2 takes [first, last]"),
        ({"range": [1]}, "range takes [first, last, step]"),
        ({"range": [8, 4]}, "range goes up, and 4 is below 8"),
        ({"range": [1, 8, 0]}, "range takes whole numbers of at least 1"),
        ({"range": [1, True]}, "range takes whole numbers of at least 1"),
        ({"range": [1, "8"]}, "range takes whole numbers of at least 1"),
        (
            {"pow2": [64, 5000]},
            "pow2 goes from one power of two to another, and 5000 is none; "
            "the nearest are 4096 and 8192",
        ),
        ({"range": [1, 10**15]}, f"{10**15} values; at most {MAX_POINTS} are planned"),
    ],
)
def test_a_range_that_is_none_says_what_is_expected(given: dict[str, object], message: str) -> None:
    with pytest.raises(RangeError) as caught:
        range_values(given)
    assert str(caught.value) == message


AXES = [
    Axis(fields=("dim",), rows=((512,),)),
    Axis(fields=("heads", "kv_heads"), rows=((8, 8), (8, 1))),
    Axis(fields=("out_proj",), rows=((True,), (False,))),
]


def test_the_first_axis_varies_slowest_and_names_hold_what_varies() -> None:
    assert [name for _, name in combinations(AXES)] == [
        "heads=8 kv_heads=8 out_proj=true",
        "heads=8 kv_heads=8 out_proj=false",
        "heads=8 kv_heads=1 out_proj=true",
        "heads=8 kv_heads=1 out_proj=false",
    ]
    assert size(AXES) == 4
    fields, _ = next(combinations(AXES))
    assert fields == {"dim": 512, "heads": 8, "kv_heads": 8, "out_proj": True}


def test_names_can_hold_every_field() -> None:
    _, name = next(combinations(AXES, name_all=True))
    assert name == "dim=512 heads=8 kv_heads=8 out_proj=true"


def test_an_axis_without_a_field_keeps_each_row_once() -> None:
    assert AXES[1].without(["kv_heads"]) == Axis(fields=("heads",), rows=((8,),))
    assert AXES[0].without(["dim"]) == Axis(fields=(), rows=((),))
