"""Counting a user's own module: the part of ``mhaprof flops`` behind ``--module``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mhaprof import signals
from mhaprof.cli.planning import AskedModule
from mhaprof.errors import UsageError
from mhaprof.point.counting import count_own
from mhaprof.point.options import MeasureOptions
from mhaprof.records import ModuleCounts, Result
from mhaprof.report.tabular import Row, row_of
from mhaprof.report.view import View, count, text
from mhaprof.report.views import FLOPS_TITLE, FVCORE_TITLE


@dataclass(frozen=True, kw_only=True)
class ModuleReport:
    """Counted modules: their rows, what a table shows, and what has to be said."""

    rows: list[Row]
    views: list[View]
    notes: list[str]
    blocked: bool


def count_modules(modules: Sequence[AskedModule], options: MeasureOptions) -> ModuleReport:
    """Count named modules of the user.

    Raises UsageError with a line for each that cannot be built or run.
    """
    if not modules:
        return ModuleReport(rows=[], views=[], notes=[], blocked=False)
    rows: list[Row] = []
    views, notes, faults, blocked = [], [], [], False
    for asked in modules:
        name = asked.point.name
        try:
            measured = count_own(asked.point, options)
        except UsageError as error:
            faults.append(f"{asked.place}: {name}: {error}" if asked.place else str(error))
            continue
        except KeyboardInterrupt:
            if not rows:
                raise
            signals.interrupted()
            notes.append(f"interrupted: {len(modules) - len(rows)} modules are not counted")
            break
        signals.enter("keeping")
        assert measured.module is not None
        rows.append(row_of(Result(point=asked.point, outcome=measured)))
        views += [_operators(name, measured.module), _submodules(name, measured.module)]
        notes += [f"{name}: {finding.message}" for finding in measured.findings]
        blocked = blocked or any(finding.blocking for finding in measured.findings)
    if faults:
        raise UsageError("\n".join(faults))
    return ModuleReport(rows=rows, views=[_summary(rows), *views], notes=notes, blocked=blocked)


def _summary(rows: Sequence[Row]) -> View:
    columns = [
        text("name", "name"),
        text("module", "implementation"),
        count(FVCORE_TITLE, "macs"),
        count(FLOPS_TITLE, "flops"),
        count("parameters", "params"),
        text("uncounted operators", "uncounted_ops"),
        text("status", "status"),
    ]
    if any(row["flops_backward"] is not None for row in rows):
        columns.insert(4, count("FLOPs backward (1 MAC = 2)", "flops_backward"))
    return View(title="Operations of one forward pass", columns=columns, rows=rows)


def _operators(name: str, found: ModuleCounts) -> View:
    ordered = sorted(found.by_operator.items(), key=lambda item: -item[1])
    rows: list[dict[str, Any]] = [{"operator": key, "macs": macs} for key, macs in ordered]
    return View(
        title=f"{name}: by operator",
        columns=[text("operator", "operator"), count("MACs", "macs")],
        rows=rows,
    )


def _submodules(name: str, found: ModuleCounts) -> View:
    rows: list[dict[str, Any]] = [
        {"module": _indented(key), "macs": macs} for key, macs in found.by_module.items()
    ]
    return View(
        title=f"{name}: by submodule",
        columns=[text("submodule", "module"), count("MACs", "macs")],
        rows=rows,
    )


def _indented(qualified: str) -> str:
    """Draw a dotted name as a branch of the tree."""
    if not qualified:
        return "(all)"
    depth = qualified.count(".") + 1
    return "  " * depth + qualified.rpartition(".")[2]
