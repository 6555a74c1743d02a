"""``mhaprof implementations``: what can run here, and why not."""

from __future__ import annotations

from typing import Annotated, Any, get_args

import typer

from mhaprof import attention
from mhaprof.cli.options import SpecFlags, choices, one_of, takes
from mhaprof.cli.output import Output, OutputFlags
from mhaprof.cli.planning import Impossible, plan_flags
from mhaprof.errors import EXIT_OK, UsageError
from mhaprof.records import DEVICES, Dtype
from mhaprof.report.view import View, text


@takes(given=SpecFlags, out=OutputFlags)
def implementations(
    device: Annotated[str, typer.Option(help="where it would run", metavar=DEVICES)] = "auto",
    dtype: Annotated[str, typer.Option(help="in which dtype", metavar=choices(Dtype))] = "float32",
    *,
    given: dict[str, list[object]],
    out: Output,
) -> int:
    """List the implementations: which can count and run the attention asked for, and why not."""
    from mhaprof.measure.devices import resolve_device

    dtype = one_of("--dtype", dtype, get_args(Dtype))
    planned = plan_flags(given)
    if len(planned) != 1 or isinstance(planned[0], Impossible):
        raise UsageError("implementations takes one attention, not a grid; give single values")
    spec, place = planned[0].spec, resolve_device(device)
    rows = []
    for name in attention.names():
        implementation = attention.get(name)
        counts = implementation.rejects(spec, device="meta", dtype=dtype)
        runs = counts or implementation.rejects(spec, device=place, dtype=dtype)
        row: dict[str, Any] = {
            "implementation": name,
            "description": implementation.description,
            "version": implementation.version,
            "fused": implementation.fused,
            "device": place,
            "dtype": dtype,
            "expresses": counts is None,
            "runs": runs is None,
            "reason": runs.code if runs else None,
            "message": runs.message if runs else implementation.counter_note,
        }
        rows.append(row)
    columns = [
        text("implementation", "implementation"),
        text("what it is", "description"),
        text("expresses it", "expresses"),
        text(f"runs on {place}", "runs"),
        text("why not, or a note", "message"),
    ]
    out.emit(rows, [View(title="Implementations", columns=columns, rows=rows)])
    return EXIT_OK
