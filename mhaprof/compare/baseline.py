"""A baseline: what a gate compares with, small and sorted so that a diff can be reviewed.

It holds, per point, what identifies it and what a gate judges, and the conditions
that it is valid for; raw samples stay in the run that it was made of.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mhaprof.compare.exact import BASELINE_COLUMNS
from mhaprof.compare.rows import SETTING_COLUMNS, SPEC_COLUMNS, Row, RunRows
from mhaprof.errors import UsageError
from mhaprof.records import SCHEMA_VERSION, Environment

KIND = "baseline"
ROOT = Path("results/baselines")
COUNTS_ONLY = "counts"
"""The folder of baselines without times or peaks: they are valid on every device."""

DIGITS = 6
"""Significant digits of seconds: far below any threshold, and no noise in a diff."""

_MACHINE = ("torch", "fvcore", "python")
_TIMES = (
    "latency_median_s",
    "latency_ci_low_s",
    "latency_ci_high_s",
    "replicate_medians_s",
    "converged",
    "flags",
)
_COLUMNS = (
    *("name", "role", "implementation", "status", "reason"),
    *SPEC_COLUMNS,
    *SETTING_COLUMNS,
    "device_name",
    "driver",
    *BASELINE_COLUMNS,
    *_TIMES,
    "peak_bytes",
)


def baselines(run: RunRows, *, name: str) -> dict[Path, str]:
    """Return the files, relative to the baselines' folder, that a run makes.

    One file per device: ``<device>/<name>.json``.  Raises UsageError when a point
    failed (a failure is not a baseline) or the run is empty.
    """
    if not run.rows:
        raise UsageError(f"{run.source} holds no points: there is nothing to make a baseline of")
    failed = [str(row.get("name")) for row in run.rows if row.get("status") == "failed"]
    if failed:
        raise UsageError(
            f"{run.source}: {len(failed)} of {len(run.rows)} points failed "
            f"({', '.join(failed[:3])}{', ...' if len(failed) > 3 else ''}): a failure is "
            "no baseline; repair or leave out these points"
        )
    by_device: dict[str, list[Row]] = {}
    for row in run.rows:
        by_device.setdefault(_folder(row), []).append(row)
    return {
        Path(device) / f"{slug(name)}.json": _document(rows, run.environment, device=device)
        for device, rows in by_device.items()
    }


def _folder(row: Row) -> str:
    device = row.get("device_name") or row.get("device")
    return slug(str(device)) if device else COUNTS_ONLY


def slug(text: str) -> str:
    """Return a name that is safe in every file system: ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "unnamed"


def _document(rows: Sequence[Row], environment: Environment | None, *, device: str) -> str:
    document: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "kind": KIND}
    kept = _environment(environment, machine=device != COUNTS_ONLY)
    if kept is not None:
        document["environment"] = kept
    document["rows"] = sorted((_small(row) for row in rows), key=_order)
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


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


def _small(row: Row) -> dict[str, Any]:
    """Keep what identifies the point and what is judged; leave out what there is not."""
    stages = [name for name in row if name.startswith("macs_") and name not in _COLUMNS]
    return {
        name: _rounded(row[name])
        for name in (*_COLUMNS, *stages)
        if row.get(name) is not None and row[name] != ""
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_rounded(item) for item in value]
    return value


def _order(row: Mapping[str, Any]) -> tuple[str, ...]:
    keys = ("name", "implementation", *SETTING_COLUMNS, "role")
    return (*(str(row.get(key, "")) for key in keys), json.dumps(row, sort_keys=True))
