"""The options of timing, shared by the commands that measure on a device."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from mhaprof.cli.options import choices, listed, option, parsed
from mhaprof.config import SettingsSection
from mhaprof.config.grid import too_many
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
    section: SettingsSection, *, rows: int = 1, resolve: Callable[[str], str] | None = None
) -> list[Settings]:
    """Return the settings of every combination of devices, dtypes and threads.

    Devices are resolved and defaults filled: device auto, dtype float32, as many
    threads as affinity and cgroup quota allow.  ``resolve`` turns a device as it was
    given into one that is there; the default raises Unavailable where it is not.  Raises
    UsageError where ``rows`` points in each of them are more than are planned.
    """
    from mhaprof.measure.devices import default_threads, resolve_device

    combined: list[Settings] = []
    axes = (
        section.device or ("auto",),
        section.dtype or (DEFAULT_DTYPE,),
        section.threads or (None,),
    )
    if (fault := too_many((range(rows), *axes))) is not None:
        raise UsageError(f"points x implementations x devices x dtypes x threads: {fault}")
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


_AXES = ("device", "dtype", "threads")
_FLAGS = (
    ("device", DEVICES, "where to run (a list is an axis)", "auto"),
    ("dtype", choices(Dtype), "element type (a list is an axis)", DEFAULT_DTYPE),
    ("threads", "N", "CPU threads (a list is an axis)", "what affinity and cgroup quota allow"),
    ("mode", choices(Mode), "which pass is timed", "forward"),
    (
        "cache",
        choices(Cache),
        "flush the caches before each sample, or not",
        "cold on a GPU, hot on a CPU",
    ),
    (
        "timer",
        choices(TimerChoice),
        "what takes the time (in a graph's replays inputs rotate, weights are warm)",
        "auto: events on a GPU, wall on a CPU",
    ),
    ("compile", None, "torch.compile the module", "no-compile"),
    ("tf32", None, "let float32 products use TF32 on a GPU", "no-tf32"),
    ("min_time", "S", "seconds to sample at least", f"{DEFAULT_MIN_TIME_S:g}"),
    ("max_time", "S", "seconds to sample at most", f"{DEFAULT_MAX_TIME_S:g}"),
    (
        "precision",
        "P",
        "half width of the median's 95 % interval to reach, 1% or 0.01",
        f"{100 * DEFAULT_PRECISION:g}%",
    ),
    ("samples", "N", "take exactly this many samples", "as many as the precision needs"),
    ("seed", "N", "seed of weights and inputs", "0"),
    ("peak_tflops", "X", "the device's dense peak, TFLOP/s", "a table of known devices"),
    ("peak_gbps", "X", "the device's memory bandwidth, GB/s", "a table of known devices"),
)
"""Name, metavar (none: a switch), help and default of each flag."""


def _timing_option(
    name: str, metavar: str | None, help_text: str, default: str
) -> inspect.Parameter:
    flag = name.replace("_", "-")
    switch = (f"--{flag}/--no-{flag}",) if metavar is None else ()
    kind: Any = bool if switch else list[str] if name in _AXES else str
    return option(
        name,
        kind | None,
        *switch,
        metavar=metavar,
        help=help_text,
        show_default=default,
        rich_help_panel=PANEL,
    )


class _TimingFlags:
    """The flags of timing; collects those given as a ``SettingsSection``, checked."""

    def parameters(self) -> list[inspect.Parameter]:
        """Return the options."""
        return [_timing_option(*flag) for flag in _FLAGS]

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
