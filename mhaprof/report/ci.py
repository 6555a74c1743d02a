"""What GitHub Actions shows of a comparison: annotations and the job summary."""

from __future__ import annotations

from collections.abc import Iterator

from mhaprof.compare import Comparison, Judgement
from mhaprof.errors import EXIT_NOT_COMPARABLE, printable
from mhaprof.report import markdown
from mhaprof.report.comparison import view_of
from mhaprof.report.view import View

SUMMARY_LIMIT = 1024 * 1024
"""Bytes that one step may put into its job summary."""

ANNOTATION_LIMIT = 10
"""Annotations of one level that GitHub shows of a step; the last says what is left out."""


def workflow_commands(comparison: Comparison) -> Iterator[str]:
    """Yield workflow commands: errors for what fails, warnings, notices for the better."""
    found: dict[str, list[str]] = {"error": [], "warning": [], "notice": []}
    for point, judgement in comparison.changed:
        level = _level(judgement, strict=comparison.strict)
        if level is not None:
            title = f"{judgement.verdict}: {point.label}"
            message = f"{judgement.message} ({judgement.reason})"
            found[level].append(f"::{level} title={_property(title)}::{_data(message)}")
    if comparison.exit_code == EXIT_NOT_COMPARABLE:
        found["error"].append("::error title=mhaprof gate::nothing was compared")
    for level, lines in found.items():
        if len(lines) > ANNOTATION_LIMIT:
            left = len(lines) - ANNOTATION_LIMIT + 1
            lines[ANNOTATION_LIMIT - 1 :] = [
                f"::{level} title=mhaprof gate::{left} more of this kind in the log"
            ]
        yield from lines


def _level(judgement: Judgement, *, strict: bool) -> str | None:
    if judgement.blocks:
        return "error"
    if judgement.verdict == "inconclusive":
        return "error" if strict and judgement.gate == "block" else "warning"
    if judgement.verdict in ("regressed", "failed"):
        return "warning"
    return "notice" if judgement.verdict == "improved" else None


def _data(text: str) -> str:
    """Escape the message of a workflow command."""
    return printable(text).replace("%", "%25")


def _property(text: str) -> str:
    """Escape a property of a workflow command."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def summary(comparison: Comparison, *, title: str, limit: int = SUMMARY_LIMIT) -> str:
    """Return Markdown of at most ``limit`` bytes, sorted by what matters, cut at a row.

    Empty where not even its notes have room.
    """
    view = view_of(comparison, title=title, everything=True)
    notes = [note for note in view.notes if not note.startswith(("fails:", "not decided:"))]
    full = View(title=view.title, columns=view.columns, rows=view.rows, notes=notes)
    text = markdown.render(full)
    if len(text.encode()) <= limit:
        return text
    lines = [f"{line}\n" for line in text.split("\n")]
    ending = "\n{} rows left out: a job summary holds " + f"{SUMMARY_LIMIT // 1024} KiB\n"
    used = len(ending) + 20 + sum(len(f"\n{note}\n".encode()) for note in notes)
    kept: list[str] = []
    first_row = 4
    for line in lines[: first_row + len(view.rows)]:
        used += len(line.encode())
        if used > limit:
            break
        kept.append(line)
    if len(kept) < first_row:
        return ""
    left = first_row + len(view.rows) - len(kept)
    return "".join([*kept, *(f"\n{note}\n" for note in notes), ending.format(left)])
