"""Products that are no plain matrix product, as both counters count them.

Groups of rows each with its own matrix (experts), triangular systems, packed weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

QUANTIZED_LINEAR = (
    "linear",
    "linear_relu",
    "linear_dynamic",
    "linear_relu_dynamic",
    "linear_dynamic_fp16",
    "linear_relu_dynamic_fp16",
)
"""Operators of torch.ao whose weights are packed: rows x in x out of what they are given."""


def grouped_macs(a: Sequence[int], b: Sequence[int]) -> int:
    """Return rows x k x n of ``a @ b``, whatever the offsets of the groups say.

    Groups split rows, contracted elements or columns of what has two dimensions; where
    both operands have three, the first is the group.
    """
    groups = a[0] if len(a) == len(b) == 3 else 1
    return int(math.prod((groups, a[-2], a[-1], b[-1])))


def triangular_macs(a: Sequence[int], b: Sequence[int], *, left: bool) -> int:
    """Return the multiply-adds of a triangular system of n unknowns: n(n-1)/2 a right side.

    Substitution, as LAPACK counts it (Working Note 41, xTRSM); divisions are no MACs.
    """
    n, columns = a[-1], b[-1] if left else b[-2]
    batch = max(math.prod(a[:-2]), math.prod(b[:-2]))
    return int(batch * columns * (n * (n - 1) // 2))
