"""The numbers printed in "Self-attention and multi-head attention explained"."""

from __future__ import annotations

import pytest
import torch

from mhaprof import attention
from mhaprof.attention.base import canonical_weights
from mhaprof.spec import AttentionSpec

NAMES = ["eager", "eager-separate", "per-head", "sdpa", "torch-mha", "torch-mha-weights"]


@pytest.mark.parametrize("name", NAMES)
def test_the_worked_example_gives_the_articles_vectors(name: str) -> None:
    spec = AttentionSpec(batch=1, tokens=2, dim=2, heads=1)
    implementation = attention.get(name)
    module = implementation.build(spec).double()
    weights = {
        "w_q": torch.tensor([[1.0, 0.0], [1.0, 1.0]]),
        "w_k": torch.tensor([[0.0, 1.0], [1.0, -1.0]]),
        "w_v": torch.tensor([[0.0, 1.0], [1.0, -1.0]]),
        "w_o": torch.eye(2),
    }
    implementation.load(module, spec, weights)
    with torch.no_grad():
        result = module(torch.tensor([[[1.0, 1.0], [1.0, 0.0]]], dtype=torch.float64))
    assert [[f"{value:.2f}" for value in row] for row in result[0].tolist()] == [
        ["0.33", "0.67"],
        ["0.50", "0.50"],
    ]


@pytest.mark.parametrize("name", NAMES)
def test_swapping_two_tokens_swaps_their_results_and_leaves_the_first(name: str) -> None:
    spec = AttentionSpec(batch=1, tokens=3, dim=2, heads=1)
    implementation = attention.get(name)
    module = implementation.build(spec).double()
    weights = canonical_weights(spec, dtype=torch.float64, device="cpu")
    implementation.load(module, spec, weights)
    tokens = torch.tensor([[[1.0, 2.0], [2.0, 3.0], [3.0, 4.0]]], dtype=torch.float64)
    with torch.no_grad():
        result, swapped = module(tokens)[0], module(tokens[:, [0, 2, 1]])[0]
    torch.testing.assert_close(swapped, result[[0, 2, 1]], rtol=0, atol=1e-14)
    # The tokens do get different results: otherwise a swap would prove nothing.
    assert (result[1] - result[2]).abs().max() > 1e-3
