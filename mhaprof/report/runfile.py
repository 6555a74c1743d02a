"""Read a run's rows back, from whatever file they were written to.

JSON (``--format json``, a record of a run, or a baseline), JSON Lines, CSV, or the
SQLite file of a sweep; told apart by content.  Nothing heavy is imported.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from mhaprof.compare import CONDITIONS, RunRows
from mhaprof.compare.baseline import COLUMNS, KIND
from mhaprof.compare.exact import BASELINE_COLUMNS
from mhaprof.compare.rounds import fold
from mhaprof.compare.rows import PackedRow, Places, Row, picked, require_measured
from mhaprof.errors import NotComparable, UsageError
from mhaprof.records import SCHEMA_VERSION, Environment, Measured, Result, Run
from mhaprof.report.tabular import FORMULA, SPEC_COLUMNS, row_of
from mhaprof.store.columns import kind_of

if TYPE_CHECKING:
    from mhaprof.store.reading import Reader

_SQLITE = b"SQLite format 3\x00"
_REQUIRED = ("name", "implementation", "status")
NOT_MEASURED = "not_measured"
_STATUSES = ("ok", "skipped", "failed")
_NUMBERS = (
    *(name for name in (*SPEC_COLUMNS, *BASELINE_COLUMNS) if kind_of(name) in ("INTEGER", "REAL")),
    *("macs", "params", "peak_bytes", "round"),
    *(f"latency_{x}_s" for x in ("median", "ci_low", "ci_high")),
)
_ROW = frozenset(_REQUIRED)
_MAY_BE_ENDLESS = (float, list, dict)
_VERSIONS = ("torch", "driver")
_COMPARED = frozenset((*COLUMNS, "message", "identity", "round")).difference(_VERSIONS)
"""The columns of a store that a comparison or an export of a gate looks at."""

LARGEST_TEXT = 256 * 2**20
"""Bytes of JSON or CSV that are read: twice what 100000 points take."""

_SCALARS = (
    *(*_REQUIRED, "role", "identity", "reason", "message", "plan"),
    *(*SPEC_COLUMNS, *CONDITIONS, *BASELINE_COLUMNS),
)
_LISTS = ("replicate_medians_s", "samples_s")


def load_run(path: Path) -> RunRows:
    """Return the rows of a run file, rounds of one point folded into one row.

    Of a sweep those of its last plan; a planned point that was not measured is a failed row
    (``not_measured``).  Raises UsageError when the file is missing, is none of the formats,
    holds more text than ``LARGEST_TEXT``, or is newer than this mhaprof.
    """
    try:
        with path.open("rb") as file:
            content = file.read(len(_SQLITE))
            if content != _SQLITE:
                if os.fstat(file.fileno()).st_size > LARGEST_TEXT:
                    raise _too_large(path)
                content += file.read(LARGEST_TEXT)
                if file.read(1):
                    raise _too_large(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    environment, kind, earlier = None, "run", 0
    if content == _SQLITE:
        rows, earlier = _from_store(path)
    else:
        text = _decoded(content, path)
        del content
        if text.lstrip().startswith(("{", "[")):
            rows, environment, kind = _from_json(text, path)
        else:
            rows = _from_csv(text, path)
        del text
    _check_rows(rows, path)
    last = [row for row in rows if row.get("plan") != "earlier"]
    return RunRows(
        source=str(path),
        rows=fold_rounds(last),
        environment=environment,
        is_baseline=kind == KIND,
        earlier=earlier + len(rows) - len(last),
    )


def load_candidate(path: Path) -> RunRows:
    """Return the rows of a run; raises UsageError for a baseline in its place."""
    run = load_run(path)
    if run.is_baseline:
        raise UsageError(
            f"{path} is a baseline, where a run file is expected; a comparison takes the "
            "baseline first and the run second: BASE NEW"
        )
    return run


def load_baseline(path: Path) -> RunRows:
    """Return the rows of a baseline.

    Raises NotComparable when there is no such file, or when it has no measured point.
    """
    if not path.exists():
        raise NotComparable(
            f"there is no baseline {path}; make one of a run you trust: mhaprof baseline update RUN"
        )
    run = load_run(path)
    measured = [row for row in run.rows if row.get("reason") != NOT_MEASURED]
    return require_measured(replace(run, rows=measured))


def _too_large(path: Path) -> UsageError:
    return UsageError(
        f"{path} holds more than {LARGEST_TEXT // 2**20} MiB of text; give the SQLite file of the "
        "sweep, or leave out raw samples"
    )


def _decoded(content: bytes, path: Path) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}: byte {error.start} is not UTF-8; expected a run file: "
            "JSON, JSON Lines, CSV or SQLite"
        ) from error


def _from_json(text: str, path: Path) -> tuple[list[Any], Environment | None, str]:
    """Read ``{"rows": ...}``, a record of a run, a list of rows, or one row a line."""
    try:
        document = _parsed(text, path)
    except json.JSONDecodeError as error:
        lines = text.split("\n")
        if error.msg == "Extra data" and len(lines) > 1:
            return _from_json_lines(lines, path), None, "run"
        raise UsageError(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from error
    if isinstance(document, list):
        return document, None, "run"
    if "rows" not in document and "results" not in document:
        if "name" in document:
            return [document], None, "run"
        raise UsageError(f"{path}: no rows in it; expected the output of --format json")
    version = document.get("schema_version", SCHEMA_VERSION)
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise UsageError(
            f"{path}: schema_version {version} is newer than this mhaprof reads "
            f"({SCHEMA_VERSION}); upgrade mhaprof"
        )
    try:
        if "results" in document:
            run = Run.model_validate(document)
            return [_with_samples(result) for result in run.results], run.environment, "run"
        found = document.get("environment")
        environment = None if found is None else Environment.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"{path}: {place}: {first['msg']}") from error
    return _rows_of(document), environment, str(document.get("kind", "run"))


def _parsed(text: str, path: Path) -> Any:
    """Parse JSON as the standard has it: Python's own parser lets NaN and Infinity in."""

    def refuse(constant: str) -> Any:
        raise UsageError(f"{path}: {constant} is no JSON; a number that does not exist is null")

    try:
        return json.loads(text, parse_constant=refuse, object_hook=_Packing())
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError):
            raise
        raise UsageError(f"{path}: not to be read as JSON: {error}") from error


class _Packing:
    """Pack the flat rows among parsed objects; those of the same columns share them."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, ...], Places] = {}

    def __call__(self, found: dict[str, Any]) -> Mapping[str, Any]:
        if not found.keys() >= _ROW:
            return found
        names = tuple(found)
        places = self._places.get(names) or self._places.setdefault(names, Places(names))
        return PackedRow(places, found.values())


def _rows_of(document: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a document, a sweep's ``missing`` too; a baseline leaves out nulls."""
    columns, rows = str(document.get("columns", "")).split(), []
    for found in (document["rows"], document.get("missing") or []):
        rows += found if isinstance(found, list) else [found]
    whole: dict[tuple[str, ...], Places] = {}
    for row in rows:
        if isinstance(row, PackedRow):
            names = row.places.names
            row.places = whole.get(names) or whole.setdefault(names, Places(names, columns))
    return rows


def _with_samples(result: Result) -> Row:
    """Flatten a record; raw samples stay, for formats that hold distributions."""
    row = row_of(result, latency=True)
    if isinstance(result.outcome, Measured) and result.outcome.latency is not None:
        row["samples_s"] = result.outcome.latency.samples_s
    return row


def _from_json_lines(lines: Iterable[str], path: Path) -> list[Row]:
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            rows.append(_parsed(line, path))
        except json.JSONDecodeError as error:
            raise UsageError(f"{path}:{number}:{error.colno}: not JSON: {error.msg}") from error
    return rows


def _from_csv(text: str, path: Path) -> list[Row]:
    """Read CSV with a header; the type of a value follows from its column."""
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        header = reader.fieldnames or ()
    except csv.Error as error:
        raise UsageError(f"{path}: neither JSON, SQLite nor CSV: {error}") from error
    missing = [name for name in _REQUIRED if name not in header]
    if missing:
        raise UsageError(
            f"{path}: neither JSON nor SQLite, and as CSV it lacks the column "
            f"{', '.join(missing)}; expected a run file of mhaprof"
        )
    rows: list[Row] = []
    for row in _csv_lines(reader, path):
        if None in row or None in row.values():
            raise UsageError(f"{path}:{reader.line_num}: not as many fields as the header has")
        try:
            rows.append({name: _typed(name, value) for name, value in row.items()})
        except ValueError as error:
            raise UsageError(f"{path}:{reader.line_num}: {error}") from error
    return rows


def _csv_lines(reader: csv.DictReader[str], path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows; raises UsageError for what the parser refuses (NUL, huge fields)."""
    try:
        yield from reader
    except csv.Error as error:
        raise UsageError(f"{path}:{reader.line_num}: not CSV: {error}") from error


def _typed(column: str, text: str) -> Any:
    """Return the value of a CSV field; an empty field is None."""
    kind = kind_of(column)
    if text[:1] == "'" and text[1:].startswith(FORMULA):
        text = text[1:]
    try:
        if text == "" or kind == "TEXT":
            return text or None
        if kind == "INTEGER":
            return int(text)
        if kind == "REAL":
            return float(text)
        if kind == "BOOLEAN":
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        return json.loads(text) if kind == "JSON" else text
    except (ValueError, KeyError):
        raise ValueError(f"{column}: {text!r} is not of type {kind}") from None


def _from_store(path: Path) -> tuple[list[Row], int]:
    """Read the last plan of a sweep's file, and count the rows of earlier ones.

    Each row carries its own torch and driver.
    """
    from mhaprof.store.reading import Reader

    with Reader(path) as reader:
        known: dict[Any, tuple[Any, ...]] = {
            key: (found.software.get("torch"), found.hardware.get("driver"))
            for key, (_, found) in reader.environments().items()
        }
        # Of 100000 rows the empty columns are half the memory.
        kept = [
            name
            for name in reader.columns()
            if name in _COMPARED or name.startswith("macs_") or name in _VERSIONS
        ]
        filled = reader.filled()
        own = [name for name in _VERSIONS if name in filled]
        columns = [name for name in kept if name in filled and name not in _VERSIONS]
        places = Places((*columns, *_VERSIONS), [x for x in kept if x in (*_SCALARS, *_NUMBERS)])
        rows: list[Row] = []
        for values in reader.tuples([*columns, *own, "environment"]):
            row, measured = values[: len(columns)], values[len(columns) : -1]
            versions = known.get(values[-1])
            if versions is None:
                versions = tuple(map(dict(zip(own, measured, strict=True)).get, _VERSIONS))
            rows.append(PackedRow(places, (*row, *versions)))
        rows += not_measured(reader)
        return rows, reader.earlier()


def not_measured(reader: Reader) -> list[Row]:
    """Return rows of the planned points without a result: what is not known is left out."""
    return [
        {
            "name": point.name,
            "role": point.role,
            "implementation": point.implementation,
            "status": "failed",
            "reason": NOT_MEASURED,
            "message": "planned, and not measured yet: the same sweep command resumes",
        }
        for point in reader.missing()
        if not point.rounds
    ]


def _check_rows(rows: Sequence[Any], path: Path) -> None:
    """Raise UsageError for what is no row, so that nothing below meets a surprise.

    Rows of the same columns and types differ in their numbers alone.
    """
    known: dict[tuple[int, tuple[type, ...]], tuple[tuple[str, ...], list[str], list[str]]] = {}
    for number, row in enumerate(rows, start=1):
        kinds = tuple(map(type, row.packed)) if isinstance(row, PackedRow) else ()
        sound = known.get((id(row.places), kinds)) if kinds else None
        if sound is None or not _are_sound(row, *sound):
            _check_row(row, number, path)
            if kinds and not isinstance(row.get("flags"), list):
                numbers = [name for name in _NUMBERS if row.get(name) is not None]
                lists = [name for name in _LISTS if row.get(name) is not None]
                others = [n for n, kind in zip(row, kinds, strict=False) if kind in _MAY_BE_ENDLESS]
                known[id(row.places), kinds] = (*numbers, *numbers), lists, others


def _are_sound(
    row: PackedRow, numbers: tuple[str, ...], lists: Sequence[str], others: Sequence[str]
) -> bool:
    """Say whether the values are sound of a row whose types are."""
    # Neither JSON nor SQLite has a NaN, which would hide among these.
    found = picked(row, numbers) if numbers else (0,)
    return (
        row["status"] in _STATUSES
        and min(found) >= 0
        and max(found) <= sys.float_info.max
        and all(_is_sound(row[name], many=True) for name in lists)
        and not any(_is_endless(row[name]) for name in others)
    )


def _check_row(row: Any, number: int, path: Path) -> None:
    if not isinstance(row, Mapping):
        raise UsageError(f"{path}: row {number} is a {type(row).__name__}, not an object")
    missing = [name for name in _REQUIRED if row.get(name) is None]
    if missing:
        raise UsageError(f"{path}: row {number} has no {', '.join(missing)}")
    nested = [name for name in _SCALARS if isinstance(row.get(name), list | dict)]
    if nested:
        raise UsageError(f"{path}: row {number}: {nested[0]} is a list or an object")
    if row["status"] not in _STATUSES:
        raise UsageError(
            f"{path}: row {number}: status {row['status']!r} is not one of {', '.join(_STATUSES)}"
        )
    if endless := [name for name, value in row.items() if _is_endless(value)]:
        shown = f"{endless[0]} {row[endless[0]]!r}"
        raise UsageError(f"{path}: row {number}: {shown} is not a finite number or text")
    if not _are_words(row.get("flags")):
        raise UsageError(f"{path}: row {number}: flags {row['flags']!r} are not words")
    for column in (*_NUMBERS, *_LISTS):
        many, whole = column in _LISTS, kind_of(column) == "INTEGER"
        if not _is_sound(row.get(column), many=many, whole=whole):
            expected = "a list of numbers" if many else "a number"
            raise UsageError(f"{path}: row {number}: {column} {row[column]!r} is not {expected}")


def _is_endless(value: Any) -> bool:
    """Say whether a value is or holds what JSON cannot: infinity, NaN or bytes."""
    if isinstance(value, dict | list):
        return any(map(_is_endless, value.values() if isinstance(value, dict) else value))
    return isinstance(value, bytes) or (isinstance(value, float) and not math.isfinite(value))


def _is_sound(value: Any, *, many: bool, whole: bool = False) -> bool:
    """Say whether a value is absent, or finite and not negative; ``many``: all of a list.

    Counts (``whole``) are compared exactly and may be beyond any float.
    """
    if value is None:
        return True
    if many:
        return isinstance(value, list) and all(
            item is not None and _is_sound(item, many=False) for item in value
        )
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    exact = whole and isinstance(value, int)
    return is_number and value >= 0 and (exact or value <= sys.float_info.max)


def _are_words(value: Any) -> bool:
    """Say whether flags are absent, words in one text, or a list of words."""
    if isinstance(value, list):
        return all(isinstance(word, str) for word in value)
    return value is None or isinstance(value, str)


def fold_rounds(rows: Sequence[Row]) -> list[Row]:
    """Fold the rounds of one point (rows that differ in ``round``) into one row each."""
    if not any(row.get("round") is not None for row in rows):
        return list(rows)
    groups: dict[object, list[Row]] = {}
    for place, row in enumerate(rows):
        key = row.get("identity") or place
        groups.setdefault((key, row.get("name")), []).append(row)
    return [group[0] if len(group) == 1 else fold(group) for group in groups.values()]
