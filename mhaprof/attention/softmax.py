"""Scores to weights in plain torch: soft-capping, masks, sinks, softmax."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mhaprof.attention.base import has_blind_queries, hidden_mask
from mhaprof.spec import AttentionSpec


class SoftmaxWeights(nn.Module):
    """Turn scaled scores (... x N x M) into attention weights of the same shape.

    The mask is built once, on torch's default device, one byte per pair.
    """

    hidden: Tensor | None

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__()
        self.softcap = spec.softcap
        self.register_buffer("hidden", hidden_mask(spec), persistent=False)
        self.zero_blind = has_blind_queries(spec) and not spec.sinks

    def forward(self, scores: Tensor, sinks: Tensor | None = None) -> Tensor:
        """Return the weights; ``sinks`` (one for each head of the scores) take their share.

        A sink is one more logit in each row whose weight meets no value (StreamingLLM,
        arXiv 2309.17453; learned, as in gpt-oss).
        """
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.hidden is not None:
            scores = scores.masked_fill(self.hidden, float("-inf"))
        if sinks is not None:
            # Shaped here: torch's module tracker cannot follow a parameter's view as input.
            column = sinks.view(-1, 1, 1).expand(*scores.shape[:-1], 1)
            return torch.cat([scores, column], dim=-1).softmax(dim=-1)[..., :-1]
        weights = scores.softmax(dim=-1)
        # A row without any key is 0/0 in the softmax; its result is defined as zero.
        if self.zero_blind and self.hidden is not None:
            weights = weights.masked_fill(self.hidden, 0.0)
        return weights
