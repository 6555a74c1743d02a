"""``mhaprof env``: versions, devices and threads, as they are written into results."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mhaprof.cli.options import takes
from mhaprof.cli.output import Output, OutputFlags, say
from mhaprof.errors import EXIT_OK, UsageError
from mhaprof.records import DEVICES, MOST_THREADS
from mhaprof.report.view import View, text


@takes(out=OutputFlags)
def env(
    device: Annotated[str, typer.Option(help="device to describe", metavar=DEVICES)] = "auto",
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="measure this device's peak rates and bandwidth, and keep them for rooflines",
        ),
    ] = False,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_THREADS,
            metavar="N",
            help="CPU threads",
            show_default="what affinity and cgroup quota allow",
        ),
    ] = None,
    *,
    out: Output,
) -> int:
    """Show the environment that results are valid for: versions, device, threads."""
    from mhaprof.measure.devices import resolve_device
    from mhaprof.measure.environment import collect

    place = resolve_device(device)
    if calibrate:
        _calibrate(place, threads)
    found = collect(place, threads=threads)
    rows = [
        {"section": section, "name": name, "value": value}
        for section, values in found.model_dump().items()
        for name, value in (values or {}).items()
    ]
    rows += _peak_rows(place, threads)
    columns = [text("section", "section"), text("name", "name"), text("value", "value")]
    out.emit(rows, [View(title="Environment", columns=columns, rows=rows)])
    return EXIT_OK


def _calibrate(device: str, threads: int | None) -> None:
    """Measure the device's peaks and keep them in the user's cache folder."""
    from mhaprof.measure.calibrate import calibrate
    from mhaprof.measure.devices import default_threads, device_name
    from mhaprof.roofline import save_calibrated

    count = (threads or default_threads()) if device == "cpu" else None
    peaks = calibrate(device, threads=count, progress=lambda what: say(f"measuring {what}"))
    try:
        file = save_calibrated(device_name(device), peaks, threads=count)
    except OSError as error:
        raise UsageError(
            f"the calibration cannot be kept: {error}; set XDG_CACHE_HOME to a writable folder"
        ) from error
    say(f"kept in {file}")


def _peak_rows(device: str, threads: int | None) -> list[dict[str, Any]]:
    """Return the peaks that rooflines on this device use, and their source."""
    from mhaprof.measure.devices import default_threads, device_name
    from mhaprof.roofline import HINT, find_peaks

    count = (threads or default_threads()) if device == "cpu" else None
    peaks = find_peaks(device_name(device), dtype="float32", threads=count)
    if peaks is None:
        return [{"section": "peaks", "name": "source", "value": f"none: {HINT}"}]
    values: dict[str, object] = {f"{name}_tflops": rate for name, rate in peaks.tflops.items()}
    values |= {"gbps": peaks.gbps, "source": peaks.source}
    return [{"section": "peaks", "name": name, "value": value} for name, value in values.items()]
