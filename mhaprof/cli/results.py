"""``mhaprof results``: show and export what a sweep stored."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from mhaprof.cli.options import takes
from mhaprof.cli.output import FORMATS, Output, OutputGroup, say
from mhaprof.errors import EXIT_OK, MissingExtra, UsageError
from mhaprof.records import RAW_FIELDS, Measured
from mhaprof.report.runfile import not_measured
from mhaprof.report.tabular import Row, csv_line, json_chunks, jsonl_chunks
from mhaprof.report.times import latency_view, pivot_view
from mhaprof.report.view import View
from mhaprof.report.views import counts_view, reason_notes
from mhaprof.store.reading import Reader

DEFAULT_LIMIT = 200
"""Rows that a table shows unless told otherwise; exports hold all."""

BESIDE = 5000
"""The most rows of which implementations are set side by side: all of them are read."""

ResultFlags = OutputGroup(*FORMATS, "jsonl", "parquet")


@takes(out=ResultFlags)
def results(
    file: Annotated[Path, typer.Argument(help="result file of a sweep", metavar="FILE")],
    limit: Annotated[
        int, typer.Option(min=0, metavar="N", help="rows that a table shows at most (0: all)")
    ] = DEFAULT_LIMIT,
    everything: Annotated[
        bool, typer.Option("--all", help="leave out no row, nor those of earlier plans")
    ] = False,
    samples: Annotated[
        bool, typer.Option("--samples", help="add the raw samples (json and jsonl)")
    ] = False,
    *,
    out: Output,
) -> int:
    """Show or export a result file: one row per point and round of the last plan.

    Rows are in the planned order; those that only earlier plans asked for are kept, named,
    and shown with --all.
    """
    with Reader(file, every_plan=everything) as reader:
        emit(reader, out, limit=0 if everything else limit, samples=samples)
        missing, earlier = reader.missing(), reader.earlier()
    if missing:
        names = f"{', '.join(point.name for point in missing[:3])}{', ...' * (len(missing) > 3)}"
        lacks = "points lack" if len(missing) > 1 else "point lacks"
        say(f"{len(missing)} planned {lacks} results ({names}); the same sweep command resumes")
    if earlier and not everything:
        say(earlier_rows(earlier))
    return EXIT_OK


def earlier_rows(count: int) -> str:
    """Say that rows are kept which the last plan does not ask for."""
    return f"{count} row{'s' * (count > 1)} of earlier plans: --all"


def emit(reader: Reader, out: Output, *, limit: int = DEFAULT_LIMIT, samples: bool = False) -> None:
    """Write the rows of a store in the format that was asked for."""
    if samples and out.format not in ("json", "jsonl"):
        raise UsageError(f"--samples goes with --format json or jsonl, not {out.format}")
    if out.format == "parquet":
        _write_parquet(reader, out.path)
    elif out.format == "csv":
        out.stream(lambda: _csv(reader))
    elif out.format in ("json", "jsonl"):
        chunks = jsonl_chunks if out.format == "jsonl" else json_chunks
        extra = {} if out.format == "jsonl" else _environments(reader)
        out.stream(lambda: chunks(_with_samples(reader) if samples else reader.rows(), **extra))
    else:
        total = reader.count()
        whole = not out.all_rows and total <= BESIDE
        if beside := side_by_side(list(reader.rows()), limit=limit) if whole else []:
            out.emit([], beside, whole=True)
            return
        if limit and total > limit:
            first = -(-limit // 2)
            shown = list(reader.rows(limit=first))
            shown += reader.rows(limit=limit - first, skip=total - limit + first)
        else:
            shown = list(reader.rows())
        out.emit([], views(shown, total=total), whole=True)


def side_by_side(rows: Sequence[Row], *, limit: int) -> list[View]:
    """Return times a line a problem, and what was counted alone; nothing to set side by side: [].

    All rows are wanted: of a part of them another would be the fastest.
    """
    alone = [row for row in rows if row.get("timer") is None and row.get("macs") is not None]
    timed = [row for row in rows if row.get("timer") is not None or row.get("macs") is None]
    view = pivot_view(timed, title="Times of one call")
    if view is None or not any(row.get("timer") for row in timed):
        return []
    tables = [view]
    if alone := [row for row in alone if row["role"] != "reference"]:
        tables.append(counts_view(alone, title="Counted, not timed", notes=reason_notes(alone)))
    return [table.shortened(limit) for table in tables] if limit else tables


def views(rows: Sequence[Row], *, total: int) -> list[View]:
    """Return the tables of stored rows: counts where they were counted, times where timed."""
    named = list(_with_rounds(rows))
    traced = any(row.get("fvcore_flops") or row.get("torch_macs") for row in named)
    counted = [row for row in named if traced and row.get("macs") is not None]
    timed = [row for row in named if row.get("timer") is not None]
    rest = [row for row in named if row.get("macs") is None]
    tables: list[View] = []
    if timed:
        tables.append(latency_view([*timed, *rest], title="Times of one call"))
    if counted or not timed:
        title = "Operations of one forward pass, dense"
        shown = counted if timed else named
        tables.append(counts_view(shown, title=title, notes=reason_notes(shown)))
    if total > len(rows):
        first = -(-len(rows) // 2)
        more = (
            f"{total - len(rows)} more rows between the first {first} and the last "
            f"{len(rows) - first}: --all shows them, --format csv or jsonl writes them."
        )
        tables[-1] = replace(tables[-1], notes=[*tables[-1].notes, more])
    return tables


def _with_rounds(rows: Iterable[Row]) -> Iterator[Row]:
    """Tell the rounds of one point apart by name, where there are several."""
    listed = list(rows)
    several = any(row.get("round") for row in listed)
    for row in listed:
        yield {**row, "name": f"{row['name']}, round {row['round'] + 1}"} if several else row


def _environments(reader: Reader) -> dict[str, Any]:
    """Return what the JSON document says about where it was measured, and what was not."""
    found = reader.environments()
    extra: dict[str, Any] = {
        "environments": {
            mark: {"device": device, **environment.model_dump()}
            for mark, (device, environment) in found.items()
        }
    }
    if len(found) == 1:
        extra["environment"] = next(iter(found.values()))[1]
    if missing := not_measured(reader):
        extra["missing"] = missing
    return extra


def _with_samples(reader: Reader) -> Iterator[Row]:
    """Yield the rows with their raw samples, in seconds, and a GPU's state around them."""
    for row, result in zip(reader.rows(), reader.results(), strict=True):
        outcome = result.outcome
        timed = outcome.latency if isinstance(outcome, Measured) else None
        raw = timed.model_dump(include=set(RAW_FIELDS)) if timed else {}
        yield {**row, **{name: raw.get(name) for name in RAW_FIELDS}}


def _csv(reader: Reader) -> Iterator[str]:
    """Yield all rows as CSV, as ``tabular.to_csv`` writes them, without a dict each."""
    columns = reader.columns()
    yield csv_line(columns)
    for values in reader.tuples(columns):
        yield csv_line(values)


def _write_parquet(source: Reader, target: Path | None) -> None:
    from mhaprof.store.columns import kind_of
    from mhaprof.store.frame import frame_of

    if target is None:
        raise UsageError("--format parquet is not text; give --output FILE")
    if find_spec("pyarrow") is None:
        raise MissingExtra(package="pyarrow", extra="parquet", purpose="--format parquet")
    temporary = target.with_name(f".{target.name}.part")
    try:
        frame = frame_of(source)
        for name in filter(lambda name: kind_of(name) == "JSON", frame.columns):
            # Structs need the same fields in all rows, and at least one.
            frame[name] = frame[name].map(_dict_as_json)
        frame.to_parquet(temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _dict_as_json(value: object) -> object:
    return json.dumps(value) if isinstance(value, dict) else value
