"""Results as flat rows, and rows as JSON, CSV and JSON Lines.

A row is a dict with the same keys whatever the command; a value that does not exist
is ``None`` (JSON ``null``, an empty CSV field).  Counts are integers to the end.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from mhaprof import formulas
from mhaprof.records import (
    SCHEMA_VERSION,
    Counts,
    Environment,
    Failed,
    ImpossiblePoint,
    Latency,
    Measured,
    ModuleCounts,
    ModulePoint,
    Point,
    Result,
    Settings,
    Skipped,
)
from mhaprof.spec import AttentionSpec
from mhaprof.stats import median
from mhaprof.units import tflops_per_s

Row = dict[str, Any]

SPEC_COLUMNS = tuple(AttentionSpec.model_fields)

STAGE_COLUMNS = tuple(f"macs_{stage}" for stage in formulas.STAGES)

COUNT_COLUMNS = (
    "fvcore_flops",
    "torch_macs",
    "closed_form_macs",
    "macs",
    "flops",
    "macs_exact",
    "pairs_exact",
    "params",
    "norm_params",
    "sink_params",
    "softmax_ops",
    "ratio_to_reference",
    *STAGE_COLUMNS,
    *(f"macs_{stage}" for stage in formulas.EXTRA_STAGES),
    "flops_backward",
    "flops_forward_backward",
    "cache_dtype",
    "kv_bytes_per_token",
    "kv_cache_bytes",
    "arithmetic_intensity",
    "uncounted_ops",
)

LATENCY_COLUMNS = (
    "device",
    "device_name",
    "torch",
    "driver",
    "dtype",
    "threads",
    "timer",
    "cache",
    "mode",
    "compiled",
    "tf32",
    "resolved_backend",
    "latency_median_s",
    "latency_ci_low_s",
    "latency_ci_high_s",
    "latency_p5_s",
    "latency_p25_s",
    "latency_p75_s",
    "latency_p95_s",
    "latency_min_s",
    "latency_mad_s",
    "samples",
    "outliers",
    "converged",
    "tflops_per_s",
    "tflops_per_s_exact",
    "graph_median_s",
    "enqueue_median_s",
    "first_call_s",
    "max_error",
    "tolerance",
    "flags",
    "replicates",
    "replicate_medians_s",
    "replicate_spread",
)

ROOF_COLUMNS = ("bound", "attained_fraction", "peak_tflops", "peak_gbps", "peak_source")

MEMORY_COLUMNS = ("predicted_peak_bytes", "peak_bytes", "available_bytes")

COLUMNS = (
    "name",
    "role",
    "implementation",
    "status",
    "reason",
    "message",
    *SPEC_COLUMNS,
    *COUNT_COLUMNS,
)
"""The columns of a row that counts; a row that times has LATENCY_, ROOF_ and MEMORY_COLUMNS too."""

_COUNTED: Row = dict.fromkeys(COLUMNS)
_TIMED: Row = dict.fromkeys((*COLUMNS, *LATENCY_COLUMNS, *ROOF_COLUMNS, *MEMORY_COLUMNS))
_encoded = json.JSONEncoder(allow_nan=False).encode
_STAGE_COLUMN = {stage: f"macs_{stage}" for stage in (*formulas.STAGES, *formulas.EXTRA_STAGES)}


def row_of(result: Result, *, latency: bool = False) -> Row:
    """Flatten one result; ``latency`` adds the columns of times, empty if unmeasured."""
    row = (_TIMED if latency else _COUNTED).copy()
    point, outcome = result.point, result.outcome
    row["name"], row["role"] = point.name, point.role
    row["implementation"], row["status"] = point.implementation, outcome.status
    if isinstance(point, ModulePoint):
        row.update(kwargs=point.kwargs, inputs=list(point.inputs))
    else:
        row.update(point.given if isinstance(point, ImpossiblePoint) else vars(point.spec))
    if latency and isinstance(point, Point) and point.settings.device is not None:
        _add_settings(row, point.settings)
    if isinstance(outcome, Skipped | Failed):
        row.update(reason=outcome.code, message=outcome.message)
        if latency and isinstance(outcome, Skipped) and outcome.memory is not None:
            row.update(outcome.memory.model_dump())
        return row
    if outcome.findings:
        _add_findings(row, outcome)
    if counts := outcome.counts or outcome.module:
        _add_counts(row, counts, result.reference_macs)
    if outcome.latency is not None:
        _add_latency(row, outcome.latency, outcome.counts)
    if outcome.memory is not None:
        row.update(outcome.memory.model_dump())
    if outcome.roof is not None:
        row.update(outcome.roof.model_dump())
    return row


def _add_settings(row: Row, settings: Settings) -> None:
    """Say what was asked for, as a measured row says it: it tells unmeasured rows apart too."""
    row.update(
        device=settings.device,
        dtype=settings.dtype,
        threads=settings.threads,
        cache=settings.cache,
        mode=settings.mode,
        compiled=settings.compile,
        tf32=settings.tf32 if (settings.device or "").startswith("cuda") else None,
    )


def _add_findings(row: Row, outcome: Measured) -> None:
    """Mark the row: a blocking finding makes it failed, another is a reason alone."""
    blocking = [finding for finding in outcome.findings if finding.blocking]
    shown = (blocking or outcome.findings)[0]
    row.update(
        status="failed" if blocking else "ok",
        reason=shown.code,
        message="; ".join(finding.message for finding in blocking or outcome.findings),
    )


def _add_counts(row: Row, counts: Counts | ModuleCounts, reference_macs: int | None) -> None:
    # Not dumped, which costs as much as counting: grids are large.
    fields = vars(counts).copy()
    for stage, macs in fields.pop("by_stage", {}).items():
        row[_STAGE_COLUMN[stage]] = macs
    left_out = sorted(counts.uncounted_ops.items())
    fields["uncounted_ops"] = ", ".join(f"{name} x{calls}" for name, calls in left_out) or None
    row.update(fields)
    row["flops"] = counts.flops
    if reference_macs:
        row["ratio_to_reference"] = counts.macs / reference_macs


def _add_latency(row: Row, latency: Latency, counts: Counts | None) -> None:
    shared = set(LATENCY_COLUMNS) & set(Latency.model_fields) - {"flags"}
    row.update(latency.model_dump(include=shared))
    summary = latency.summary
    row.update(
        latency_median_s=summary.median,
        latency_ci_low_s=summary.ci_low,
        latency_ci_high_s=summary.ci_high,
        latency_p5_s=summary.p5,
        latency_p25_s=summary.p25,
        latency_p75_s=summary.p75,
        latency_p95_s=summary.p95,
        latency_min_s=summary.minimum,
        latency_mad_s=summary.mad,
        samples=summary.count,
        outliers=summary.outliers,
        flags=" ".join(latency.flags) or None,
    )
    if latency.graph_samples_s:
        row["graph_median_s"] = median(latency.graph_samples_s)
    if "launch_bound" in latency.flags and latency.enqueue_s:
        row["enqueue_median_s"] = median(latency.enqueue_s)
    medians = latency.replicate_medians_s
    if medians:
        middle = sorted(medians)[len(medians) // 2]
        row.update(replicates=len(medians), replicate_spread=(max(medians) - min(medians)) / middle)
    if counts is not None:
        flops, exact = counts.timed_flops(latency.mode)
        row["tflops_per_s"] = tflops_per_s(flops, summary.median)
        row["tflops_per_s_exact"] = tflops_per_s(exact, summary.median)


def to_json(rows: Iterable[Row], **extra: Any) -> str:
    """Return the document of ``json_chunks`` as one text."""
    return "".join(json_chunks(rows, **extra))


def json_chunks(
    rows: Iterable[Row],
    *,
    environment: Environment | None = None,
    environment_after: Environment | None = None,
    **extra: Any,
) -> Iterator[str]:
    """Yield ``{"schema_version": 1, ..., "rows": [...]}``, one row a line."""
    document: dict[str, Any] = {"schema_version": SCHEMA_VERSION, **extra}
    if environment is not None:
        document["environment"] = environment.model_dump()
    if environment_after is not None:
        document["environment_after"] = environment_after.model_dump()
    yield json.dumps(document, indent=2, allow_nan=False)[:-2] + ',\n  "rows": ['
    between = "\n    "
    for row in rows:
        yield between + _encoded(row)
        between = ",\n    "
    yield "]\n}\n" if between == "\n    " else "\n  ]\n}\n"


def to_csv(rows: Sequence[Row]) -> str:
    """Return the text of ``csv_chunks``."""
    return "".join(csv_chunks(rows))


def csv_chunks(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the rows as lines of CSV with a header; lists are written as JSON.

    Rows that are no sequence are gone through once, and all have the columns of the first.
    """
    left = iter(rows)
    first = list(islice(left, 1))  # made before anything is written
    columns = columns_of(rows if isinstance(rows, Sequence) else first)
    yield csv_line(columns)
    for row in chain(first, left):
        yield csv_line(
            row.values() if list(row) == columns else [row.get(name) for name in columns]
        )


def jsonl_chunks(rows: Iterable[Row]) -> Iterator[str]:
    """Yield one JSON object a line."""
    return (_encoded(row) + "\n" for row in rows)


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return all keys of the rows in the order of their first appearance."""
    columns: dict[str, None] = {}
    for keys in dict.fromkeys(map(tuple, rows)):
        columns.update(dict.fromkeys(keys))
    return list(columns) or list(COLUMNS)


class _CsvLine:
    """Return the lines of ``csv.writer``, ended by a line feed alone.

    The writer quotes a carriage return only where it ends its lines with one.
    """

    def write(self, line: str) -> str:
        return line.removesuffix("\r\n") + "\n"


_csv_writer = csv.writer(_CsvLine())


def csv_line(values: Collection[Any]) -> str:
    """Return one line of CSV, every cell safe in a spreadsheet."""
    cells = ["" if value is None else str(value) for value in values]
    line = ",".join(cells)
    # A plain line needs no quotes and is written as it is, in half the writer's time.
    if line and line.count(",") == len(cells) - 1 and not _SPECIAL.search(line):
        return line + "\n"
    written: str = _csv_writer.writerow([csv_cell(value) for value in values])
    return written


FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the start of a formula."""

_SPECIAL = re.compile(r'["\n\r\[{]|(?:^|,)[=+\-@\t]')


def csv_cell(value: Any) -> Any:
    """Return lists and dicts as JSON, and text that a spreadsheet would run behind a quote."""
    if isinstance(value, str):
        return "'" + value if value.startswith(FORMULA) else value
    return json.dumps(value) if isinstance(value, list | dict) else value
