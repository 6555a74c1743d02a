"""``mhaprof env``: versions, devices and threads, as they are written into results."""

from __future__ import annotations

from typing import Annotated

import typer

from mhaprof.cli.options import takes
from mhaprof.cli.output import Output, OutputFlags
from mhaprof.errors import EXIT_OK
from mhaprof.report.view import View, text


@takes(out=OutputFlags)
def env(
    device: Annotated[
        str, typer.Option(help="device to describe", metavar="auto|cpu|cuda|cuda:N|mps|xpu")
    ] = "auto",
    *,
    out: Output,
) -> int:
    """Show the environment that results are valid for: versions, device, threads."""
    from mhaprof.measure.devices import default_threads, resolve_device
    from mhaprof.measure.environment import collect

    found = collect(resolve_device(device))
    rows = [
        {"section": section, "name": name, "value": value}
        for section, values in found.model_dump().items()
        for name, value in (values or {}).items()
    ]
    rows.append({"section": "settings", "name": "threads", "value": default_threads()})
    columns = [text("section", "section"), text("name", "name"), text("value", "value")]
    out.emit(rows, [View(title="Environment", columns=columns, rows=rows)])
    return EXIT_OK
