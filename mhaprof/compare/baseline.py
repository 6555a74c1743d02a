"""A baseline: what a gate compares with, small and sorted so that a diff can be reviewed.

It holds, per point, what identifies it and what a gate judges, and the conditions
that it is valid for; raw samples stay in the run that it was made of.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mhaprof.compare.exact import BASELINE_COLUMNS
from mhaprof.compare.rows import (
    MODULE_COLUMNS,
    SETTING_COLUMNS,
    SPEC_COLUMNS,
    Row,
    RunRows,
    names_of,
    require_measured,
)
from mhaprof.errors import NotComparable, UsageError
from mhaprof.records import SCHEMA_VERSION, Environment

KIND = "baseline"
ROOT = Path("results/baselines")
COUNTS_ONLY = "counts"
"""The folder of baselines without times or peaks: they are valid on every device."""

DIGITS = 6
"""Significant digits of seconds: far below any threshold, and no noise in a diff."""

_flat = json.JSONEncoder(allow_nan=False, separators=(",\n   ", ": ")).encode
_VERSIONS = ("torch", "driver")
_MACHINE = ("torch", "fvcore", "python")
_TIMES = (
    "latency_median_s",
    "latency_ci_low_s",
    "latency_ci_high_s",
    "replicate_medians_s",
    "converged",
    "flags",
)
COLUMNS = (
    *("name", "role", "implementation", "status", "reason"),
    *SPEC_COLUMNS,
    *MODULE_COLUMNS,
    *SETTING_COLUMNS,
    "device_name",
    *_VERSIONS,
    *BASELINE_COLUMNS,
    *_TIMES,
    "peak_bytes",
)


def baselines(run: RunRows, *, name: str) -> Iterator[tuple[Path, str]]:
    """Yield the files that a run makes: paths as ``by_file`` has them, and what is in each."""
    for path, rows in by_file(run, name=name).items():
        yield path, _document(rows, run.environment, device=path.parent.name)


def by_file(run: RunRows, *, name: str) -> dict[Path, list[Row]]:
    """Return the rows of each file, relative to the baselines' folder, that a run makes.

    One file per device: ``<device>/<name>.json``.  Raises UsageError when a point
    failed (a failure is not a baseline) or none was measured.
    """
    bad = {"failed", "interrupted"}
    failed = [str(row.get("name")) for row in run.rows if bad & {row["status"], row.get("reason")}]
    if failed:
        raise UsageError(
            f"{run.source}: {len(failed)} of {len(run.rows)} points failed or were not measured "
            f"({', '.join(failed[:3])}{', ...' if len(failed) > 3 else ''}): a failure is "
            "no baseline; repair or leave out these points"
        )
    try:
        require_measured(run)
    except NotComparable:
        raise UsageError(
            f"{run.source} holds no measured point: there is nothing to make a baseline of"
        ) from None
    names = _device_names(run)
    files: dict[Path, list[Row]] = {}
    for row in run.rows:
        files.setdefault(Path(_folder(row, names)), []).append(row)
    return {folder / f"{slug(name)}.json": rows for folder, rows in files.items()}


def _device_names(run: RunRows) -> dict[str | None, str]:
    """Return the name of each device, for the rows of points that were not measured on it.

    The key None is for points that are none (no device was chosen for them): they go with
    the others where all have one device.
    """
    found: dict[str | None, str] = {}
    for row in run.rows:
        if row.get("device"):
            found.setdefault(str(row["device"]), "")
        if row.get("device") and row.get("device_name"):
            found[str(row["device"])] = str(row["device_name"])
    hardware = run.environment.hardware if run.environment else {}
    for device, name in found.items():
        key = "cpu_model" if device == "cpu" else "device_name"
        found[device] = name or str(hardware.get(key) or device)
    if len(set(found.values())) == 1:
        found[None] = next(iter(found.values()))
    return found


def _folder(row: Row, names: Mapping[str | None, str]) -> str:
    name = row.get("device_name")
    if not name and row.get("device"):
        name = names[str(row["device"])]
    elif not name and row.get("status") != "ok":
        name = names.get(None)
    return slug(str(name)) if name else COUNTS_ONLY


def slug(text: str) -> str:
    """Return a name that is safe in every file system: ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "unnamed"


def _document(rows: Sequence[Row], environment: Environment | None, *, device: str) -> str:
    """Return the file of one device; ``columns`` names what is null where a row lacks it."""
    measured = device != COUNTS_ONLY
    columns = _columns(rows, measured=measured)
    document: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "kind": KIND}
    kept = _environment(environment, machine=measured)
    if kept is not None:
        document["environment"] = kept
    document["columns"] = " ".join(columns)
    head = json.dumps(document, indent=1)
    lines = ",\n".join(map(_lines, _sorted([_small(row, columns) for row in rows])))
    return f'{head[:-2]},\n "rows": [\n{lines}\n ]\n}}\n'


def _lines(row: Mapping[str, Any]) -> str:
    """Return a row as ``json.dumps(indent=1)`` has it in the document, several times faster."""
    if any(isinstance(value, list | dict) for value in row.values()):
        return "  " + json.dumps(row, indent=1, allow_nan=False).replace("\n", "\n  ")
    return f"  {{\n   {_flat(row)[1:-1]}\n  }}"


def _columns(rows: Sequence[Row], *, measured: bool) -> list[str]:
    """Return the columns to keep of those that the run has, in a fixed order."""
    present = dict.fromkeys(name for names in dict.fromkeys(map(names_of, rows)) for name in names)
    stages = [name for name in present if name.startswith("macs_") and name not in COLUMNS]
    dropped = () if measured else _VERSIONS
    return [name for name in (*COLUMNS, *stages) if name in present and name not in dropped]


def _environment(environment: Environment | None, *, machine: bool) -> dict[str, Any] | None:
    """Keep what a comparison checks; nothing that changes from minute to minute."""
    if environment is None:
        return None
    software = {
        name: environment.software[name] for name in _MACHINE if name in environment.software
    }
    names = ("cpu_model", "device_name", "driver") if machine else ()
    hardware = {
        name: environment.hardware[name]
        for name in names
        if environment.hardware.get(name) is not None
    }
    return {"software": software, "hardware": hardware, "state": {}}


def _small(row: Row, columns: Sequence[str]) -> dict[str, Any]:
    """Keep what identifies the point and what is judged; leave out what there is not."""
    kept = {
        name: _rounded(row[name]) if name in _TIMES else row[name]
        for name in columns
        if row.get(name) not in (None, "")
    }
    if kept.get("status") == "ok":
        kept.pop("reason", None)
    return kept


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_rounded(item) for item in value]
    return value


def _sorted(rows: Sequence[Row]) -> list[Row]:
    """Sort rows by what a reader looks for; those that are alike in it by everything."""
    keys = ("name", "implementation", *SETTING_COLUMNS, "role")
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple([str(row.get(key, "")) for key in keys]), []).append(row)
    return [
        row
        for _, alike in sorted(found.items())
        for row in (alike if len(alike) == 1 else sorted(alike, key=_text))
    ]


def _text(row: Row) -> str:
    return json.dumps(row, sort_keys=True)
