"""Count an einsum exactly, as torch contracts it: pair by pair, in integers.

torch multiplies two operands by ``bmm`` when a label is summed that both have
(lengths over 1), after summing away what only one of them has; without such a label
it multiplies elementwise, which is no MAC.  Operands are taken from the left, or
along the path that opt_einsum found.
(Source: aten/src/ATen/native/Linear.cpp, einsum and sumproduct_pair.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Term = dict[str, int]


def einsum_macs(
    equation: str, sizes: Sequence[Sequence[int]], *, path: Sequence[int] | None = None
) -> int:
    """Return the MACs of ``torch.einsum(equation, ...)`` on operands of these sizes.

    ``path`` is torch's flat list of operand pairs, each pair removed and its product
    appended; without it each next operand joins the product of those before.

    Raises:
        ValueError: the equation does not describe operands of these ranks.
    """
    operands, output = _labels(equation, [len(size) for size in sizes])
    terms = [_term(labels, size) for labels, size in zip(operands, sizes, strict=True)]
    steps = list(path) if path else None
    total = 0
    while len(terms) > 1:
        first, second = (0, 1) if steps is None else (steps.pop(0), steps.pop(0))
        pair = terms[first], terms[second]
        terms = [term for index, term in enumerate(terms) if index not in (first, second)]
        macs, product = _contract(*pair, kept=set(output).union(*terms))
        total += macs
        terms.insert(0 if steps is None else len(terms), product)
    return total


def _labels(equation: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """Split an equation into labels; ellipsis dims are labelled ``.0``, ``.1`` from the right."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    subscripts = left.split(",")
    if len(subscripts) != len(ranks):
        raise ValueError(f"einsum {equation!r} names {len(subscripts)} operands, not {len(ranks)}")
    operands = []
    widest = 0
    for subscript, rank in zip(subscripts, ranks, strict=True):
        covered = rank - len(subscript.replace("...", ""))
        if covered < 0 or (covered and "..." not in subscript):
            raise ValueError(f"einsum {equation!r}: {subscript!r} does not fit {rank} dimensions")
        widest = max(widest, covered)
        operands.append(_expand(subscript, covered))
    if arrow:
        return operands, _expand(right, widest)
    seen = [label for labels in operands for label in labels]
    single = sorted(label for label in set(seen) if label[0] != "." and seen.count(label) == 1)
    return operands, _expand("...", widest) + single


def _expand(subscript: str, covered: int) -> list[str]:
    ellipsis = [f".{index}" for index in reversed(range(covered))]
    before, dots, after = subscript.partition("...")
    return [*before, *(ellipsis if dots else []), *after]


def _term(labels: Sequence[str], size: Sequence[int]) -> Term:
    """Return length by label; a repeated label is a diagonal, taken once."""
    term: Term = {}
    for label, length in zip(labels, size, strict=True):
        term[label] = max(term.get(label, 1), length)
    return term


def _contract(left: Term, right: Term, *, kept: set[str]) -> tuple[int, Term]:
    """Return the MACs of one pairwise product, and the term it leaves."""
    joined = {label: max(left.get(label, 1), right.get(label, 1)) for label in {**left, **right}}
    gone = joined.keys() - kept
    summed = [label for label in gone if left.get(label, 1) != 1 and right.get(label, 1) != 1]
    product = {label: length for label, length in joined.items() if label in kept}
    if not summed:
        return 0, product
    return math.prod(product.values()) * math.prod(joined[label] for label in summed), product
