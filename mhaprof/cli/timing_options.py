"""The options of timing, shared by the commands that measure on a device."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from mhaprof.cli.options import choices, listed, option, parsed
from mhaprof.config import SettingsSection
from mhaprof.config.located import wrong_value
from mhaprof.errors import UsageError
from mhaprof.point.options import (
    DEFAULT_MAX_TIME_S,
    DEFAULT_MIN_TIME_S,
    DEFAULT_PRECISION,
    MeasureOptions,
)
from mhaprof.records import DEVICES, Cache, Dtype, Mode, Settings, TimerChoice, default_cache

PANEL = "Timing"
DEFAULT_DTYPE: Dtype = "float32"


def settings_of(
    section: SettingsSection, *, resolve: Callable[[str], str] | None = None
) -> list[Settings]:
    """Return the settings of every combination of devices, dtypes and threads.

    Devices are resolved and defaults filled: device auto, dtype float32, as many
    threads as affinity and cgroup quota allow.  ``resolve`` turns a device as it was
    given into one that is there; the default raises Unavailable where it is not.
    """
    from mhaprof.measure.devices import default_threads, resolve_device

    combined: list[Settings] = []
    axes = (
        section.device or ("auto",),
        section.dtype or (DEFAULT_DTYPE,),
        section.threads or (None,),
    )
    for name, dtype, threads in itertools.product(*axes):
        device = (resolve or resolve_device)(name)
        made = Settings(
            device=device,
            dtype=dtype,
            threads=(threads or default_threads()) if device == "cpu" else None,
            timer=section.timer or "auto",
            cache=section.cache or default_cache(device),
            mode=section.mode or "forward",
            compile=bool(section.compile),
            tf32=bool(section.tf32),
        )
        if made not in combined:
            combined.append(made)
    return combined


def options_of(section: SettingsSection, **more: Any) -> MeasureOptions:
    """Return how to measure, defaults filled; ``more`` are other fields of the options."""
    min_time = DEFAULT_MIN_TIME_S if section.min_time is None else section.min_time
    max_time = DEFAULT_MAX_TIME_S if section.max_time is None else section.max_time
    if min_time > max_time:
        raise UsageError(
            f"min_time {min_time:g} is more than max_time {max_time:g}; expected "
            "--min-time at most --max-time"
        )
    return MeasureOptions(
        min_time_s=min_time,
        max_time_s=max_time,
        precision=DEFAULT_PRECISION if section.precision is None else section.precision,
        samples=section.samples,
        seed=section.seed or 0,
        peak_tflops=section.peak_tflops,
        peak_gbps=section.peak_gbps,
        allow_uncounted=section.allow_uncounted or (),
        **more,
    )


class _TimingFlags:
    """The flags of timing; collects those given as a ``SettingsSection``, checked."""

    def parameters(self) -> list[inspect.Parameter]:
        """Return the options."""

        def panel(*args: Any, **extra: Any) -> inspect.Parameter:
            return option(*args, rich_help_panel=PANEL, **extra)

        return [
            panel(
                "device",
                list[str] | None,
                metavar=DEVICES,
                help="where to run (a list is an axis)",
                show_default="auto",
            ),
            panel(
                "dtype",
                list[str] | None,
                metavar=choices(Dtype),
                help="element type (a list is an axis)",
                show_default=DEFAULT_DTYPE,
            ),
            panel(
                "threads",
                list[str] | None,
                metavar="N",
                help="CPU threads (a list is an axis)",
                show_default="what affinity and cgroup quota allow",
            ),
            panel(
                "mode",
                str | None,
                metavar=choices(Mode),
                help="which pass is timed",
                show_default="forward",
            ),
            panel(
                "cache",
                str | None,
                metavar=choices(Cache),
                help="flush the caches before each sample, or not",
                show_default="cold on a GPU, hot on a CPU",
            ),
            panel(
                "timer",
                str | None,
                metavar=choices(TimerChoice),
                help="what takes the time (in a graph's replays inputs rotate, weights are warm)",
                show_default="auto: events on a GPU, wall on a CPU",
            ),
            panel(
                "compile",
                bool | None,
                "--compile/--no-compile",
                help="torch.compile the module",
                show_default="no-compile",
            ),
            panel(
                "tf32",
                bool | None,
                "--tf32/--no-tf32",
                help="let float32 products use TF32 on a GPU",
                show_default="no-tf32",
            ),
            panel(
                "min_time",
                str | None,
                metavar="S",
                help="seconds to sample at least",
                show_default=f"{DEFAULT_MIN_TIME_S:g}",
            ),
            panel(
                "max_time",
                str | None,
                metavar="S",
                help="seconds to sample at most",
                show_default=f"{DEFAULT_MAX_TIME_S:g}",
            ),
            panel(
                "precision",
                str | None,
                metavar="P",
                help="half width of the median's 95 % interval to reach, 1% or 0.01",
                show_default=f"{100 * DEFAULT_PRECISION:g}%",
            ),
            panel(
                "samples",
                str | None,
                metavar="N",
                help="take exactly this many samples",
                show_default="as many as the precision needs",
            ),
            panel(
                "seed",
                str | None,
                metavar="N",
                help="seed of weights and inputs",
                show_default="0",
            ),
            panel(
                "peak_tflops",
                str | None,
                metavar="X",
                help="the device's dense peak, TFLOP/s",
                show_default="a table of known devices",
            ),
            panel(
                "peak_gbps",
                str | None,
                metavar="X",
                help="the device's memory bandwidth, GB/s",
                show_default="a table of known devices",
            ),
        ]

    def collect(self, values: Mapping[str, Any]) -> SettingsSection:
        """Check every value that was given.  Raises UsageError."""
        return section_of(values)


def section_of(values: Mapping[str, Any]) -> SettingsSection:
    """Read flags as a file's settings are read.  Raises UsageError, naming the flag."""
    given = {
        name: [parsed(part) for part in listed(value)] if isinstance(value, list) else value
        for name, value in values.items()
        if value is not None
    }
    texts = {name: parsed(value) for name, value in given.items() if isinstance(value, str)}
    try:
        return SettingsSection.model_validate(given | texts)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        name = str(detail["loc"][0])
        flag = name.replace("_", "-")
        raise UsageError(f"--{flag} {wrong_value(name, detail)}") from None


TimingFlags = _TimingFlags()
