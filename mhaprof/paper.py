"""The paper's claim: the cases that show it, and whether the counts bear it out.

"Due to the reduced dimension of each head, the total computational cost is similar
to that of single-head attention with full dimensionality."  Vaswani et al. 2017,
"Attention Is All You Need", section 3.2.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mhaprof import formulas
from mhaprof.errors import UsageError
from mhaprof.records import Counts, Point
from mhaprof.spec import DEFAULT_HEADS, AttentionSpec
from mhaprof.units import format_percent, format_ratio

HEADS = (1, 2, 4, 16, 32)
"""Head counts shown beside the paper's eight."""

REFERENCE = "one full head, no W_O"


def claim_points(*, dim: int, tokens: int, batch: int) -> list[Point]:
    """Return the claim's cases: one full head, eight heads, and other head counts.

    Head counts that do not divide ``dim`` are left out; raises UsageError when that
    leaves one head alone, beside which there is nothing to compare.
    """
    if all(dim % heads for heads in HEADS[1:]):
        raise UsageError(f"dim {dim} cannot be split into heads; give an even --dim")
    shape = {"dim": dim, "tokens": tokens, "batch": batch}
    first = Point(
        name=REFERENCE,
        role="reference",
        spec=AttentionSpec(heads=1, out_proj=False, **shape),
        implementation="eager",
    )
    cases = [(DEFAULT_HEADS, True), (DEFAULT_HEADS, False), (1, True)]
    cases += [(heads, out_proj) for heads in HEADS[1:] for out_proj in (True, False)]
    return [first] + [
        Point(
            name=_case_name(heads, out_proj),
            spec=AttentionSpec(heads=heads, out_proj=out_proj, **shape),
            implementation="eager",
        )
        for heads, out_proj in cases
        if dim % heads == 0
    ]


def _case_name(heads: int, out_proj: bool) -> str:
    noun = "head" if heads == 1 else "heads"
    return f"{heads} {noun}, {'W_O' if out_proj else 'no W_O'}"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether the claim holds, and the sentences that say what was found and why."""

    holds: bool
    sentences: tuple[str, ...]


def judge(points: Sequence[Point], counted: Mapping[str, Counts]) -> Verdict:
    """Compare the counts of the cases, by the names of the points.

    The claim holds when every case was counted, all cases without W_O cost what one
    full head costs, and all cases with W_O cost that plus W_O's own MACs, whatever
    the number of heads.
    """
    missing = [point.name for point in points if point.name not in counted]
    if missing:
        return Verdict(holds=False, sentences=(f"Not counted: {', '.join(missing)}.",))
    reference = points[0]
    base = counted[reference.name].macs
    spec = reference.spec
    w_o = formulas.stage_macs(spec.replace(out_proj=True))["out_proj"]
    wrong = [
        f"{point.name} costs {counted[point.name].macs}, not {base + w_o * point.spec.out_proj}"
        for point in points
        if counted[point.name].macs != base + w_o * point.spec.out_proj
    ]
    if wrong:
        return Verdict(holds=False, sentences=("NOT reproduced: " + "; ".join(wrong) + ".",))
    return Verdict(holds=True, sentences=tuple(_sentences(points, counted, base, w_o)))


def _sentences(
    points: Sequence[Point], counted: Mapping[str, Counts], base: int, w_o: int
) -> list[str]:
    spec = points[0].spec
    heads = sorted({point.spec.heads for point in points})
    full = base + w_o
    softmax = {
        point.spec.heads: counted[point.name].softmax_ops / (2 * full)
        for point in points
        if point.spec.out_proj
    }
    low, high = min(softmax), max(softmax)
    odd = [heads for heads in sorted({DEFAULT_HEADS, *HEADS}) if spec.dim % heads]
    sentences = [
        f"Reproduced: with {_listed(heads)} heads the count is the same, {base} without W_O, "
        f"equal to one full head; with W_O it is {full}, {format_ratio(full / base)} times "
        f"one full head, and the difference, {w_o}, is W_O alone.",
        "Why: a head is dim/heads wide. The projections cost batch x tokens x dim x "
        "(heads x dim/heads) each, scores and context batch x heads x tokens x tokens x "
        "dim/heads each: heads cancels everywhere. "
        f"3 x {spec.batch} x {spec.tokens} x {spec.dim}^2 + "
        f"2 x {spec.batch} x {spec.tokens}^2 x {spec.dim} = {base}.",
        "What does not cancel: softmax works on heads x tokens x tokens scores; it adds "
        f"{format_percent(softmax[low])} of the operations at {low} head and "
        f"{format_percent(softmax[high])} at {high} (3 for each score, beside 2 for each MAC).",
    ]
    if odd:
        sentences.append(f"Left out: {_listed(odd)} heads, which do not divide dim {spec.dim}.")
    return sentences


def _listed(numbers: Sequence[int]) -> str:
    """Word numbers as ``1, 2 and 4``."""
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last
