"""The masks are those whose pairs the closed form counts."""

from __future__ import annotations

import itertools

import pytest
import torch

from mhaprof.attention.base import (
    has_blind_queries,
    hidden_mask,
    hides_nothing,
    is_plain_causal,
    visible_mask,
)
from mhaprof.formulas import exact_pairs
from mhaprof.spec import AttentionSpec

SPECS = [
    AttentionSpec(tokens=tokens, kv_tokens=kv_tokens, causal=causal, window=window)
    for tokens, kv_tokens, causal, window in itertools.product(
        (1, 2, 5), (1, 3, 5, 7), ("none", "top-left", "bottom-right"), (None, 1, 2, 5, 9)
    )
    if causal != "none" or window is None or tokens == kv_tokens
]
SPECS += [
    AttentionSpec(tokens=tokens, kv_tokens=kv_tokens, causal=causal, chunk=chunk)
    for tokens, kv_tokens, causal, chunk in itertools.product(
        (1, 2, 5), (1, 3, 5, 7), ("top-left", "bottom-right"), (1, 2, 3, 5, 9)
    )
]


def dense(spec: AttentionSpec) -> torch.Tensor:
    mask = visible_mask(spec, device="cpu")
    shape = (spec.tokens, spec.kv_tokens)
    return torch.ones(shape, dtype=torch.bool) if mask is None else mask


def test_a_mask_has_as_many_pairs_as_the_closed_form_counts() -> None:
    for spec in SPECS:
        assert int(dense(spec).sum()) == exact_pairs(spec), spec


def test_the_hidden_mask_is_the_complement_of_the_visible_one() -> None:
    for spec in SPECS:
        visible, hidden = visible_mask(spec, device="cpu"), hidden_mask(spec, device="cpu")
        assert (visible is None) == (hidden is None)
        if visible is not None and hidden is not None:
            assert torch.equal(visible, ~hidden)


def test_no_mask_is_built_where_every_pair_is_visible() -> None:
    for spec in SPECS:
        assert hides_nothing(spec) == bool(dense(spec).all())
    decode = AttentionSpec(phase="decode", kv_tokens=7, causal="bottom-right")
    assert visible_mask(decode) is None


def test_blind_queries_are_those_with_an_empty_row() -> None:
    for spec in SPECS:
        assert has_blind_queries(spec) == bool((~dense(spec).any(dim=1)).any()), spec


def test_a_window_that_cuts_nothing_leaves_the_plain_causal_mask() -> None:
    for spec in SPECS:
        if spec.causal != "none":
            plain = dense(spec.replace(window=None, chunk=None))
            if is_plain_causal(spec):
                assert torch.equal(dense(spec), plain), spec
            elif spec.tokens <= spec.kv_tokens:
                assert not torch.equal(dense(spec), plain), spec


@pytest.mark.parametrize(
    ("causal", "expected"),
    [
        ("top-left", [[1, 0, 0, 0], [1, 1, 0, 0]]),
        ("bottom-right", [[1, 1, 1, 0], [1, 1, 1, 1]]),
    ],
)
def test_alignments_put_the_last_query_where_they_say(
    causal: str, expected: list[list[int]]
) -> None:
    spec = AttentionSpec(tokens=2, kv_tokens=4, causal=causal)
    assert dense(spec).int().tolist() == expected


def test_a_window_without_causal_mask_is_symmetric() -> None:
    spec = AttentionSpec(tokens=3, window=2)
    assert dense(spec).int().tolist() == [[1, 1, 0], [1, 1, 1], [0, 1, 1]]


def test_a_mask_on_meta_takes_no_memory_at_any_length() -> None:
    spec = AttentionSpec(tokens=1_048_576, causal="top-left")
    mask = visible_mask(spec, device="meta")
    assert mask is not None
    assert mask.is_meta
    assert tuple(mask.shape) == (1_048_576, 1_048_576)
