"""The options of timing, shared by the commands that measure on a device."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from mhaprof.cli.options import choices, option
from mhaprof.errors import UsageError
from mhaprof.point.options import (
    DEFAULT_MAX_TIME_S,
    DEFAULT_MIN_TIME_S,
    DEFAULT_PRECISION,
    MeasureOptions,
)
from mhaprof.records import Cache, Dtype, Mode, Settings, TimerChoice

DEVICES = "auto|cpu|cuda|cuda:N|mps|xpu"
PANEL = "Timing"


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How to time: the settings that are axes, and the options that are not.

    ``devices`` may hold ``auto``; ``settings`` resolves it.
    """

    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    threads: tuple[int | None, ...]
    fixed: Mapping[str, Any]
    options: MeasureOptions

    def settings(self) -> list[Settings]:
        """Return the settings of every combination of the axes, devices resolved.

        Raises Unavailable for a device that is not there.
        """
        from mhaprof.measure.devices import default_cache, default_threads, resolve_device

        combined = []
        for name, dtype, threads in itertools.product(self.devices, self.dtypes, self.threads):
            device = resolve_device(name)
            fixed = dict(self.fixed)
            fixed["cache"] = fixed["cache"] or default_cache(device)
            count = (threads or default_threads()) if device == "cpu" else None
            made = Settings.model_validate(
                {"device": device, "dtype": dtype, "threads": count, **fixed}
            )
            if made not in combined:
                combined.append(made)
        return combined


class _TimingFlags:
    """The flags of timing; collects a ``Timing``.  Values are checked at once."""

    def parameters(self) -> list[inspect.Parameter]:
        """Return the options."""

        def panel(*args: Any, **extra: Any) -> inspect.Parameter:
            return option(*args, rich_help_panel=PANEL, **extra)

        return [
            panel("device", str, default="auto", metavar=DEVICES, help="where to run (a list)"),
            panel(
                "dtype",
                str,
                default="float32",
                metavar=choices(Dtype),
                help="element type (a list is an axis)",
            ),
            panel(
                "threads",
                str | None,
                metavar="N",
                help="CPU threads (a list is an axis)",
                show_default="what affinity and cgroup quota allow",
            ),
            panel(
                "mode", str, default="forward", metavar=choices(Mode), help="which pass is timed"
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
                str,
                default="auto",
                metavar=choices(TimerChoice),
                help="what takes the time; auto is events on a GPU, wall on a CPU",
            ),
            panel("compile", bool, "--compile", default=False, help="torch.compile the module"),
            panel(
                "tf32",
                bool,
                "--tf32/--no-tf32",
                default=False,
                help="let float32 products use TF32 on a GPU",
            ),
            panel(
                "min_time",
                float,
                default=DEFAULT_MIN_TIME_S,
                metavar="S",
                help="seconds to sample at least",
            ),
            panel(
                "max_time",
                float,
                default=DEFAULT_MAX_TIME_S,
                metavar="S",
                help="seconds to sample at most",
            ),
            panel(
                "precision",
                str,
                default=f"{100 * DEFAULT_PRECISION:g}%",
                metavar="P",
                help="half width of the median's 95 % interval to reach",
            ),
            panel(
                "samples",
                int | None,
                min=1,
                metavar="N",
                help="take exactly this many samples",
                show_default="as many as the precision needs",
            ),
            panel("seed", int, default=0, metavar="N", help="seed of weights and inputs"),
            panel(
                "peak_tflops",
                float | None,
                metavar="X",
                help="the device's peak rate, TFLOP/s",
                show_default="a table of known devices",
            ),
            panel(
                "peak_gbps",
                float | None,
                metavar="X",
                help="the device's memory bandwidth, GB/s",
                show_default="a table of known devices",
            ),
        ]

    def collect(self, values: Mapping[str, Any]) -> Timing:
        """Check every value and make the ``Timing``."""
        dtypes = _words(values["dtype"])
        for dtype in dtypes:
            _check("--dtype", dtype, Dtype)
        _check("--mode", values["mode"], Mode)
        _check("--timer", values["timer"], TimerChoice)
        if values["cache"] is not None:
            _check("--cache", values["cache"], Cache)
        min_time, max_time = values["min_time"], values["max_time"]
        if min_time < 0 or max_time <= 0 or min_time > max_time:
            raise UsageError(
                f"--min-time {min_time:g} and --max-time {max_time:g}: expected "
                "0 <= min-time <= max-time and max-time above 0"
            )
        for name in ("peak_tflops", "peak_gbps"):
            if values[name] is not None and not values[name] > 0:
                raise UsageError(f"--{name.replace('_', '-')} {values[name]:g} is not above 0")
        return Timing(
            devices=_words(values["device"]),
            dtypes=dtypes,
            threads=_threads(values["threads"]),
            fixed={name: values[name] for name in ("mode", "cache", "timer", "compile", "tf32")},
            options=MeasureOptions(
                min_time_s=min_time,
                max_time_s=max_time,
                precision=parse_precision(values["precision"]),
                samples=values["samples"],
                seed=values["seed"],
                peak_tflops=values["peak_tflops"],
                peak_gbps=values["peak_gbps"],
            ),
        )


TimingFlags = _TimingFlags()


def _words(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _check(flag: str, value: str, alias: Any) -> None:
    if value not in get_args(alias):
        raise UsageError(f"{flag} {value!r} is not one of {', '.join(get_args(alias))}")


def _threads(text: str | None) -> tuple[int | None, ...]:
    if text is None:
        return (None,)
    counts = _words(text)
    for count in counts:
        if not re.fullmatch(r"[1-9]\d*", count):
            raise UsageError(f"--threads {count!r} is not a whole number of at least 1")
    return tuple(int(count) for count in counts)


def parse_precision(text: str) -> float:
    """Read ``1%`` or ``0.01``.  Raises UsageError outside (0, 1)."""
    number = text.removesuffix("%").strip()
    try:
        value = float(number) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise UsageError(f"--precision {text!r} is not a share like 1% or 0.01")
    return value
