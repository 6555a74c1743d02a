"""What a comparison says: a verdict and a reason code for each metric of each point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from mhaprof.errors import (
    EXIT_FINDING,
    EXIT_INCONCLUSIVE,
    EXIT_NOT_COMPARABLE,
    EXIT_OK,
    EXIT_POINT_FAILED,
)

Verdict = Literal["regressed", "failed", "inconclusive", "improved", "unchanged"]
Gate = Literal["block", "warn", "ignore"]

VERDICTS: tuple[Verdict, ...] = ("regressed", "failed", "inconclusive", "improved", "unchanged")
"""All verdicts, in the order in which a reader wants to see them."""

REASONS: dict[str, tuple[str, str]] = {
    "exact_equal": ("unchanged", "a count or a name is the same"),
    "exact_changed": ("regressed", "a count or a name differs, and any change counts"),
    "exact_decreased": ("improved", "a count is smaller, and only increases count"),
    "within_threshold": ("unchanged", "the whole interval of the ratio is inside the threshold"),
    "below_floor": ("unchanged", "the difference is smaller than what a timer can vouch for"),
    "rank_test": ("both ways", "processes rank apart, beyond threshold and floor"),
    "intervals_disjoint": (
        "both ways",
        "one process a side: intervals of the medians clearly apart",
    ),
    "above_threshold": ("both ways", "measured bytes beyond threshold and floor"),
    "too_noisy": ("inconclusive", "the interval of the ratio reaches across the threshold"),
    "too_few_rounds": ("inconclusive", "beyond the threshold, with too few processes to prove it"),
    "not_significant": (
        "inconclusive",
        "beyond the threshold, but chance explains it (many points)",
    ),
    "no_interval": ("inconclusive", "a median without spread: fewer than six samples"),
    "metric_missing": ("inconclusive", "the baseline has this metric, the candidate has not"),
    "new_point": ("inconclusive", "the baseline has no such point"),
    "point_vanished": ("regressed", "the candidate has no such point"),
    "definition_changed": (
        "both ways",
        "the same name now means another attention problem; what it costs decides, "
        "unless the work is another (batch, tokens, phase, inputs)",
    ),
    "newly_failing": ("regressed", "the point was fine and fails now"),
    "newly_skipped": ("regressed", "the point was fine and is skipped now"),
    "newly_passing": ("improved", "the point failed or was skipped and is fine now"),
    "still_failing": ("failed", "the point failed before and fails now"),
    "still_skipped": ("unchanged", "the point is skipped on both sides"),
}
"""Every reason code with the verdict that it explains and what it means: the one table."""


Coverage = Literal["compared", "skipped", "new", "not compared"]


class Judgement(NamedTuple):
    """What became of one metric of one point: a tuple, for there are millions of them.

    ``base`` and ``new`` are in the metric's own unit (MACs, bytes, seconds, a name).
    ``ratio`` is new / base with its interval, where the metric has them.
    ``threshold`` is the fraction that was allowed, ``p`` the family-wise p-value of
    the rank test.  ``gate`` says whether a regression blocks or only warns.
    """

    metric: str
    verdict: Verdict
    reason: str
    message: str
    gate: Gate = "block"
    base: int | float | str | None = None
    new: int | float | str | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    threshold: float | None = None
    p: float | None = None

    @property
    def blocks(self) -> bool:
        """Say whether this alone fails a gate."""
        return self.gate == "block" and self.verdict in ("regressed", "failed")

    def weight(self) -> tuple[bool, int, float]:
        """Return a sort key: what blocks, then by verdict, then the larger change."""
        if self.verdict == "unchanged" and self.ratio in (None, 1.0):
            return _UNCHANGED
        size = self.ratio or 1.0
        return (not self.blocks, VERDICTS.index(self.verdict), -max(size, 1 / size))


_UNCHANGED = (True, VERDICTS.index("unchanged"), -1.0)


class PointVerdict(NamedTuple):
    """All judgements of one point by weight, and the settings under which it was measured.

    ``label`` names the point with its implementation and those settings.
    """

    name: str
    implementation: str
    role: str
    label: str
    judgements: Sequence[Judgement]
    device: str | None = None
    dtype: str | None = None
    coverage: Coverage = "compared"

    @property
    def worst(self) -> Judgement:
        """Return the judgement that decides the point."""
        return self.judgements[0]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One condition that differs between two runs, and the points that it concerns."""

    key: str
    base: str
    new: str
    points: Sequence[str]

    def __str__(self) -> str:
        where = "" if len(self.points) != 1 else f" ({self.points[0]})"
        return f"{self.key}: {self.base} in the baseline, {self.new} in the candidate{where}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The outcome of comparing two runs; points sorted by what matters.

    ``allowed`` are differences of conditions that the user allowed by name.
    ``strict`` makes an inconclusive point fail (exit 5).
    """

    points: Sequence[PointVerdict]
    allowed: Sequence[Difference] = ()
    strict: bool = False

    def judgements(self) -> Iterable[tuple[PointVerdict, Judgement]]:
        """Yield every judgement with its point."""
        return ((point, judgement) for point in self.points for judgement in point.judgements)

    @cached_property
    def changed(self) -> Sequence[tuple[PointVerdict, Judgement]]:
        """Return the judgements of the points that are not unchanged in everything."""
        changed = [point for point in self.points if point.worst.verdict != "unchanged"]
        return [(point, judgement) for point in changed for judgement in point.judgements]

    def blocking(self) -> list[tuple[PointVerdict, Judgement]]:
        """Return the judgements that fail the gate."""
        return [(point, judgement) for point, judgement in self.changed if judgement.blocks]

    def inconclusive(self) -> list[tuple[PointVerdict, Judgement]]:
        """Return the judgements that could not be made, of metrics that may block."""
        return [
            (point, judgement)
            for point, judgement in self.changed
            if judgement.verdict == "inconclusive" and judgement.gate == "block"
        ]

    def tally(self) -> dict[Verdict, int]:
        """Count the points by the verdict that decides each."""
        found = Counter(point.worst.verdict for point in self.points)
        return {verdict: found[verdict] for verdict in VERDICTS if found[verdict]}

    def coverage(self) -> dict[Coverage, int]:
        """Count the points that were compared, skipped, or not compared; without references."""
        found = Counter(point.coverage for point in self.points if point.role != "reference")
        counted: dict[Coverage, int] = {"compared": 0, "skipped": 0}
        return {**counted, **found}

    @property
    def exit_code(self) -> int:
        """Return 1 for a regression, 4 for a point that still fails, 3 if nothing was compared.

        Else 5 for what is inconclusive where the gate is strict, or 0.
        """
        verdicts = {judgement.verdict for _, judgement in self.blocking()}
        if "regressed" in verdicts:
            return EXIT_FINDING
        if "failed" in verdicts:
            return EXIT_POINT_FAILED
        if not self.coverage()["compared"]:
            return EXIT_NOT_COMPARABLE
        return EXIT_INCONCLUSIVE if self.strict and self.inconclusive() else EXIT_OK
