"""Counting a user's own module: the part of ``mhaprof flops`` behind ``--module``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mhaprof import module_source
from mhaprof.cli.planning import AskedModule
from mhaprof.errors import UsageError
from mhaprof.module_source import ModuleSource
from mhaprof.report.tabular import COLUMNS, Row
from mhaprof.report.view import View, count, text
from mhaprof.report.views import FLOPS_TITLE, FVCORE_TITLE
from mhaprof.units import flops_of

if TYPE_CHECKING:
    from mhaprof.measure.flops import ModuleFlops


@dataclass(frozen=True, kw_only=True)
class ModuleReport:
    """Counted modules: their rows, what a table shows, and what has to be said."""

    rows: list[Row]
    views: list[View]
    notes: list[str]
    blocked: bool


def count_modules(
    modules: Sequence[AskedModule], *, counters: Sequence[str], backward: bool
) -> ModuleReport:
    """Count named modules of the user.

    Raises UsageError with a line for each that cannot be built or run.
    """
    if not modules:
        return ModuleReport(rows=[], views=[], notes=[], blocked=False)
    tracers = [counter for counter in counters if counter != "closed-form"]
    if not tracers:
        raise UsageError("a module has no closed form; give --counter fvcore or torch")
    rows, views, notes, faults, blocked = [], [], [], [], False
    for asked in modules:
        name = asked.name
        try:
            found = _counted(asked.source, tracers, backward=backward)
        except UsageError as error:
            faults.append(f"{asked.place}: {name}: {error}" if asked.place else str(error))
            continue
        rows.append(_row(name, asked.source, found))
        views += [_operators(name, found), _submodules(name, found)]
        notes += [f"{name}: {finding.message}" for finding in found.findings]
        blocked = blocked or any(finding.blocking for finding in found.findings)
    if faults:
        raise UsageError("\n".join(faults))
    return ModuleReport(rows=rows, views=[_summary(rows), *views], notes=notes, blocked=blocked)


def _counted(source: ModuleSource, counters: Sequence[str], *, backward: bool) -> ModuleFlops:
    from mhaprof.measure.flops import count_module

    try:
        module = module_source.build(source)
        inputs = module_source.meta_inputs(source.inputs)
        return count_module(module, inputs, counters=counters, backward=backward)
    except SystemExit as stop:
        message = f"module {source.target} ended the program by sys.exit({stop.code!r})"
        raise UsageError(message) from stop


def _row(name: str, source: ModuleSource, found: ModuleFlops) -> Row:
    row: Row = dict.fromkeys(COLUMNS)
    blocking = [finding for finding in found.findings if finding.blocking]
    shown = blocking or list(found.findings)
    backward = found.backward_macs
    row.update(
        name=name,
        role="point",
        implementation=source.target,
        status="failed" if blocking else "ok",
        reason=shown[0].code if shown else None,
        message="; ".join(finding.message for finding in shown) or None,
        fvcore_flops=found.fvcore_macs,
        torch_macs=found.torch_macs,
        macs=found.macs,
        flops=found.flops,
        params=found.params,
        flops_backward=None if backward is None else flops_of(backward),
        flops_forward_backward=None if backward is None else flops_of(backward + found.macs),
        uncounted_ops=" ".join(sorted(found.uncounted_ops)) or None,
        inputs=[_worded(shape) for shape in source.inputs],
        kwargs=source.kwargs,
        by_operator=found.by_operator,
        by_module=found.by_module,
        elementwise=found.elementwise,
    )
    return row


def _worded(shape: module_source.InputShape) -> str:
    sizes = "x".join(map(str, shape.sizes))
    return sizes if shape.dtype == "float32" else f"{sizes}:{shape.dtype}"


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


def _operators(name: str, found: ModuleFlops) -> View:
    ordered = sorted(found.by_operator.items(), key=lambda item: -item[1])
    rows: list[dict[str, Any]] = [{"operator": key, "macs": macs} for key, macs in ordered]
    return View(
        title=f"{name}: by operator",
        columns=[text("operator", "operator"), count("MACs", "macs")],
        rows=rows,
    )


def _submodules(name: str, found: ModuleFlops) -> View:
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
