"""Products of any shape are counted exactly: properties against brute force and against torch."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (the name that everyone uses)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mhaprof.measure.einsum import einsum_macs
from mhaprof.measure.flops import count_module

length = st.integers(1, 4)


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def agreed(function, *inputs, **kwargs):
    count = count_module(Calls(function), inputs, kwargs=kwargs)
    assert count.fvcore_macs == count.torch_macs == count.macs
    assert count.findings == ()
    return count.macs


@st.composite
def matmul_sizes(draw):
    """Two sizes that torch.matmul accepts: 1-D to 4-D, batch dimensions broadcast."""
    rows, inner, columns = (draw(length) for _ in range(3))
    batch = draw(st.lists(length, max_size=2))
    lone = st.sampled_from([(rows, inner), (inner,)])
    left = draw(lone)
    right = draw(st.sampled_from([(inner, columns), (inner,)]))

    def batched(size):
        kept = batch[draw(st.integers(0, len(batch))) :]
        return (*[draw(st.sampled_from([n, 1])) for n in kept], *size)

    return (
        batched(left) if len(left) == 2 else left,
        batched(right) if len(right) == 2 else right,
    )


@settings(max_examples=60, deadline=None)
@given(matmul_sizes())
def test_matmul_counts_each_multiplication_of_the_result(sizes):
    left, right = sizes
    result = np.matmul(np.ones(left), np.ones(right))
    # Each element of a product of ones is the number of its multiply-adds.
    assert agreed(torch.matmul, torch.empty(left), torch.empty(right)) == int(result.sum())


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_attention_counts_query_heads_times_pairs_times_both_widths(data):
    batch, groups, kv_heads, tokens, keys, width, v_width = (data.draw(length) for _ in range(7))
    rank = data.draw(st.sampled_from([3, 4]))
    heads = groups * kv_heads
    outer = (batch, heads) if rank == 4 else (heads,)
    kv_outer = (batch, kv_heads) if rank == 4 and groups > 1 else outer
    q = torch.empty(*outer, tokens, width)
    k = torch.empty(*kv_outer, keys, width)
    v = torch.empty(*kv_outer, keys, v_width)
    options = data.draw(
        st.sampled_from([{}, {"is_causal": True}, {"attn_mask": torch.zeros(tokens, keys)}])
    )
    options = {**options, "enable_gqa": kv_outer != outer, "scale": 0.5}
    expected = math.prod(outer) * tokens * keys * (width + v_width)
    assert agreed(F.scaled_dot_product_attention, q, k, v, **options) == expected
    named = {"query": q, "key": k, "value": v}
    assert agreed(F.scaled_dot_product_attention, **named, **options) == expected


@st.composite
def equations(draw, *, operands, shortest=1):
    """An einsum equation and sizes: repeated labels, ellipsis, implicit results, spaces."""
    lengths = {label: draw(st.integers(shortest, 4)) for label in "abcde"}
    dots = [draw(st.integers(shortest, 3)) for _ in range(draw(st.integers(0, 2)))]
    subscripts, sizes = [], []
    for _ in range(operands):
        labels = draw(st.lists(st.sampled_from("abcde"), min_size=1, max_size=3))
        at = draw(st.integers(0, len(labels)))
        inside = dots[draw(st.integers(0, len(dots))) :] if dots else []
        has_dots = bool(dots) and draw(st.booleans())
        text = "".join(labels)
        subscripts.append(text[:at] + ("..." if has_dots else "") + text[at:])
        own = [lengths[label] for label in labels]
        sizes.append([*own[:at], *(inside if has_dots else []), *own[at:]])
    equation = ", ".join(subscripts)
    if draw(st.booleans()):
        used = sorted(set("".join(subscripts)) - {"."})
        kept = draw(st.lists(st.sampled_from(used), unique=True))
        equation += " -> " + ("..." if dots else "") + "".join(kept)
    return equation, sizes


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 4).flatmap(lambda n: equations(operands=n)))
def test_einsum_counts_what_torch_contracts(case):
    equation, sizes = case
    agreed(lambda *xs: torch.einsum(equation, *xs), *[torch.empty(size) for size in sizes])


@settings(max_examples=40, deadline=None)
@given(equations(operands=3), st.permutations(range(3)), st.integers(0, 1))
def test_einsum_follows_a_given_path(case, order, last):
    equation, sizes = case
    path = [order[0], order[1], last, 1 - last]
    with FlopCounterMode(display=False) as counter:
        inputs = [torch.empty(size, device="meta") for size in sizes]
        torch._C._VariableFunctions.einsum(equation, inputs, path=path)
    assert einsum_macs(equation, sizes, path=path) * 2 == counter.get_total_flops()


@settings(max_examples=40, deadline=None)
@given(st.permutations("bhnmd"), st.data())
def test_a_contraction_of_two_counts_every_combination_of_labels(labels, data):
    """Against brute force: enumerate the index space, in every order of the labels."""
    lengths = {label: data.draw(st.integers(2, 4)) for label in labels}
    left = "".join(label for label in labels if label != "m")
    right = "".join(label for label in reversed(labels) if label != "n")
    out = "".join(label for label in labels if label != "d")
    sizes = [[lengths[label] for label in subscript] for subscript in (left, right)]
    space = itertools.product(*(range(lengths[label]) for label in labels))
    assert einsum_macs(f"{left},{right}->{out}", sizes) == sum(1 for _ in space)


def test_einsum_stays_an_exact_integer_at_any_size():
    sizes = [[32, 8, 1048576, 64], [32, 8, 1048576, 64]]
    assert einsum_macs("bhnd,bhmd->bhnm", sizes) == 32 * 8 * 1048576**2 * 64


@pytest.mark.parametrize(
    ("equation", "sizes"),
    [("ab,bc", [[2, 3]]), ("abc,cd->abd", [[2, 3], [3, 4]]), ("ab,bc->ac", [[2, 3, 4], [3, 4]])],
)
def test_an_equation_that_does_not_fit_is_refused(equation, sizes):
    with pytest.raises(ValueError, match="einsum"):
        einsum_macs(equation, sizes)
