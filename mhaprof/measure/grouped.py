"""Products of groups of rows, each with its own matrix (experts): what both counters count."""

from __future__ import annotations

import math
from collections.abc import Sequence


def grouped_macs(a: Sequence[int], b: Sequence[int]) -> int:
    """Return rows x k x n of ``a @ b``, whatever the offsets of the groups say.

    Groups split rows, contracted elements or columns of what has two dimensions; where
    both operands have three, the first is the group.
    """
    groups = a[0] if len(a) == len(b) == 3 else 1
    return int(math.prod((groups, a[-2], a[-1], b[-1])))
