"""A comparison as flat rows, as a table to be read, and as sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload

from mhaprof.compare import REASONS, Comparison, Judgement, PointVerdict
from mhaprof.report.tabular import Row
from mhaprof.report.view import LESS, SHOWN, WIDE, Column, View, text
from mhaprof.units import format_bytes, format_percent, format_ratio, format_seconds

SHOWN_WHEN_EQUAL = ("macs", "latency", "peak_bytes")
"""Metrics that stand side by side in a full table even where nothing changed."""

SHOWN_LABELS = 3
"""Points named of those that were skipped for one reason."""

_STYLES = {"regressed": "failed", "failed": "failed", "inconclusive": "skipped"}


class _Rows(Sequence[Row]):
    """Flat rows of judgements, made when they are asked for."""

    def __init__(
        self, found: Sequence[tuple[PointVerdict, Judgement]], *, styled: bool = False
    ) -> None:
        self._found, self._styled = found, styled

    def __len__(self) -> int:
        return len(self._found)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | Sequence[Row]:
        if isinstance(place, slice):
            return _Rows(self._found[place], styled=self._styled)
        point, judgement = self._found[place]
        style = {"status": _STYLES.get(judgement.verdict)} if self._styled else {}
        return _row(point, judgement) | style


def rows_of(comparison: Comparison) -> Sequence[Row]:
    """Return one flat row per judgement, sorted by what matters."""
    return _Rows(list(comparison.judgements()))


def _row(point: PointVerdict, judgement: Judgement) -> Row:
    return {
        "name": point.name,
        "role": point.role,
        "implementation": point.implementation,
        "device": point.device,
        "dtype": point.dtype,
        "metric": judgement.metric,
        "verdict": judgement.verdict,
        "reason": judgement.reason,
        "gate": judgement.gate,
        "blocks": judgement.blocks,
        "base": judgement.base,
        "new": judgement.new,
        "ratio": judgement.ratio,
        "ratio_low": judgement.ratio_low,
        "ratio_high": judgement.ratio_high,
        "threshold": judgement.threshold,
        "p": judgement.p,
        "message": judgement.message,
    }


def document_of(comparison: Comparison) -> dict[str, Any]:
    """Return what the JSON document holds beside the rows."""
    return {
        "comparison": {
            "exit_code": comparison.exit_code,
            "strict": comparison.strict,
            "points": len(comparison.points),
            "tally": comparison.tally(),
            "coverage": {
                name.replace(" ", "_"): number for name, number in comparison.coverage().items()
            },
            "allowed": [
                {"key": found.key, "base": found.base, "new": found.new, "points": found.points}
                for found in comparison.allowed
            ],
        }
    }


def view_of(comparison: Comparison, *, title: str, everything: bool) -> View:
    """Return the table: all points, or only what is not as it was.

    ``everything`` shows the main metrics of every point side by side.
    """
    shown = [
        (point, judgement)
        for point, judgement in (comparison.judgements() if everything else comparison.changed)
        if _is_shown(judgement, everything=everything)
    ]
    rows = _Rows(shown, styled=True)
    return View(title=title, columns=_COLUMNS, rows=rows, notes=sentences(comparison))


def _is_shown(judgement: Judgement, *, everything: bool) -> bool:
    if judgement.verdict != "unchanged":
        return True
    return everything and (
        judgement.metric in SHOWN_WHEN_EQUAL or judgement.reason == "still_skipped"
    )


def _verdict(row: Row) -> str:
    warns = row["gate"] == "warn" and row["verdict"] in ("regressed", "failed")
    return f"{row['verdict']} (warns)" if warns else str(row["verdict"])


def _value(row: Row, side: str) -> str:
    """Word one side of a metric in its unit; counts stay exact."""
    value = row[side]
    if value is None:
        return ""
    form = {"latency": format_seconds, "peak_bytes": format_bytes}.get(row["metric"])
    return form(value) if form else str(value)


def _ratio(row: Row) -> str:
    """Word the ratio; one that is not 1 shows digits until it differs from 1."""
    if row["ratio"] is None:
        return ""
    if row["ratio_low"] is not None and row["ratio_high"] is not None:
        interval = f" [{format_ratio(row['ratio_low'])}, {format_ratio(row['ratio_high'])}]"
        return format_ratio(row["ratio"]) + interval
    worded = format_ratio(row["ratio"])
    if row["ratio"] == 1 or float(worded) != 1:
        return worded
    digits = next(count for count in range(4, 17) if round(row["ratio"], count) != 1)
    return f"{row['ratio']:.{digits + 1}f}"


def _threshold(row: Row) -> str:
    return "" if row["threshold"] is None else format_percent(row["threshold"])


_COLUMNS = (
    text("point", "name"),
    text("implementation", "implementation", once=True),
    text("metric", "metric"),
    Column(title="base", key="base", cell=lambda row: _value(row, "base"), rank=SHOWN),
    Column(title="new", key="new", cell=lambda row: _value(row, "new"), rank=SHOWN),
    Column(title="new / base [95 %]", key="ratio", cell=_ratio),
    Column(title="threshold", key="threshold", cell=_threshold, rank=WIDE),
    Column(title="verdict", key="verdict", cell=_verdict, numeric=False),
    text("reason", "reason", rank=LESS),
)


def sentences(comparison: Comparison) -> list[str]:
    """Return what the comparison means, in sentences; what fails comes first."""
    lines = [f"fails: {_sentence(point, found)}" for point, found in comparison.blocking()]
    if comparison.strict:
        undecided = comparison.inconclusive()
        lines += [f"not decided: {_sentence(point, found)}" for point, found in undecided]
    lines += [f"allowed difference: {difference}" for difference in comparison.allowed]
    lines += _uncompared(comparison)
    lines.append(_tallied(comparison.tally(), len(comparison.points)))
    lines.append(covered(comparison))
    return lines


def covered(comparison: Comparison) -> str:
    """Return how much was compared: ``12 compared, 0 skipped``."""
    return ", ".join(f"{number} {name}" for name, number in comparison.coverage().items())


def _uncompared(comparison: Comparison) -> Iterable[str]:
    """Yield which points were skipped, by the reason, and which the baseline has not."""
    groups: dict[str, list[str]] = {}
    for point in comparison.points:
        if point.coverage in ("skipped", "new") and not point.worst.blocks:
            why = point.worst.message if point.coverage == "skipped" else "not in the baseline"
            groups.setdefault(f"{point.coverage}: {why}", []).append(point.label)
    for why, labels in groups.items():
        more = f", and {len(labels) - SHOWN_LABELS} more" if len(labels) > SHOWN_LABELS else ""
        yield f"{why}: {', '.join(labels[:SHOWN_LABELS])}{more}"


def _sentence(point: PointVerdict, judgement: Judgement) -> str:
    return f"{point.label}: {judgement.message} ({judgement.reason}: {meaning(judgement.reason)})"


def meaning(reason: str) -> str:
    """Return what a reason code means, in words."""
    return REASONS[reason][1]


def _tallied(tally: Mapping[Any, int], total: int) -> str:
    counted = ", ".join(f"{number} {verdict}" for verdict, number in tally.items())
    return f"{total} point{'' if total == 1 else 's'}: {counted or 'none'}"


def conclusion(comparison: Comparison, *, update: str | None) -> Iterable[str]:
    """Yield how a gate ended; ``update`` is the command that accepts a change, if any."""
    single = sum(found.reason == "intervals_disjoint" for _, found in comparison.changed)
    if single:
        yield (
            f"{single} of the times differ{'s' * (single == 1)} by one process a side, and the "
            "next process may differ on the same code: measure with --replicates 5, or by "
            "`mhaprof ab`, for a rank test"
        )
    code = comparison.exit_code
    if code == 1:
        yield "the gate fails: something became worse"
        if update is not None:
            yield f"if the change is meant, accept it: {update}"
    elif code == 4:
        yield "the gate fails: a point is broken, as it was before"
    elif code == 3:
        yield f"the gate fails: nothing was compared ({covered(comparison)})"
    elif code == 5:
        yield "the gate is not decided, and --strict wants it to be: measure more rounds"
    elif comparison.inconclusive():
        yield (
            f"the gate passes ({covered(comparison)}); what is inconclusive could not be "
            "decided: neither good nor bad"
        )
    else:
        yield f"the gate passes: {covered(comparison)}"
