"""Clocks, power, temperature, throttling and neighbours of an NVIDIA GPU.

Through nvidia-ml-py (``pynvml``) when it is installed; without it, or without a
driver, there is nothing to say and nothing fails.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

POWER_CAP = "power cap"

THROTTLE_REASONS: Mapping[int, str] = {
    0x04: POWER_CAP,
    0x08: "hardware slowdown",
    0x20: "software thermal limit",
    0x40: "hardware thermal limit",
    0x80: "power brake",
}
"""Bits of NVML's clocks event reasons that mean lowered clocks (nvml.h)."""

UUID_KINDS = ("GPU", "MIG")
"""What NVML writes before the UUID that torch gives: a whole GPU, or a slice of one."""


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """The state of a GPU now; None for what the driver does not tell.

    Clocks in MHz as NVML gives them, power in watts, temperature in degrees Celsius.
    ``other_processes`` counts compute processes besides this one and its parent.
    """

    driver: str | None
    sm_clock_mhz: int | None
    sm_clock_max_mhz: int | None
    memory_clock_mhz: int | None
    power_w: float | None
    power_limit_w: float | None
    temperature_c: int | None
    throttle_reasons: tuple[str, ...]
    other_processes: int | None

    def values(self) -> dict[str, str | int | float | None]:
        """Return the state as records keep it: throttle reasons are one text."""
        return {**asdict(self), "throttle_reasons": ", ".join(self.throttle_reasons) or None}


def gpu_state(device: str) -> GpuState | None:
    """Read the state of a CUDA device (``cuda``, ``cuda:1``) now; None without NVML."""
    with reader(device) as read:
        return None if read is None else read()


@contextlib.contextmanager
def reader(device: str) -> Iterator[Callable[[], GpuState] | None]:
    """Open NVML, yield what reads the state of a CUDA device, and close it again.

    Opening takes longer than reading.  None without NVML, or where it does not know the
    device, which is found by its UUID: NVML counts all GPUs, torch the visible ones.
    """
    with _opened() as nvml:
        handle = None if nvml is None else _handle(nvml, device)
        yield None if handle is None else lambda: read_state(nvml, handle)


def driver_version() -> str | None:
    """Return the version of the NVIDIA driver; None without NVML."""
    with _opened() as nvml:
        return None if nvml is None else _driver(nvml)


@contextlib.contextmanager
def _opened() -> Iterator[Any]:
    """Yield NVML, open; None where it is not there or refuses."""
    nvml = _nvml()
    if nvml is not None:
        try:
            nvml.nvmlInit()
        except nvml.NVMLError:
            nvml = None
    try:
        yield nvml
    finally:
        if nvml is not None:
            _ask(nvml, "nvmlShutdown")


def _ask(nvml: Any, function: str, *arguments: object) -> Any:
    """Return what a function of NVML answers; None where the driver or pynvml lacks it."""
    try:
        return getattr(nvml, function)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


def _driver(nvml: Any) -> str | None:
    version = _ask(nvml, "nvmlSystemGetDriverVersion")
    return version.decode() if isinstance(version, bytes) else version


def _handle(nvml: Any, device: str) -> Any:
    uuid = _uuid(device)
    handles = (_ask(nvml, "nvmlDeviceGetHandleByUUID", f"{kind}-{uuid}") for kind in UUID_KINDS)
    return next((handle for handle in handles if handle is not None), None)


def read_state(nvml: Any, handle: Any) -> GpuState:
    """Read the state behind an NVML handle; each value that fails is None."""

    def ask(function: str, *arguments: object) -> Any:
        return _ask(nvml, f"nvmlDeviceGet{function}", handle, *arguments)

    # One function under its two names: drivers and pynvml of before 2023 know the second.
    reasons = ask("CurrentClocksEventReasons") or ask("CurrentClocksThrottleReasons") or 0
    processes = ask("ComputeRunningProcesses")
    power, limit = ask("PowerUsage"), ask("EnforcedPowerLimit")
    return GpuState(
        driver=_driver(nvml),
        sm_clock_mhz=ask("ClockInfo", nvml.NVML_CLOCK_SM),
        sm_clock_max_mhz=ask("MaxClockInfo", nvml.NVML_CLOCK_SM),
        memory_clock_mhz=ask("ClockInfo", nvml.NVML_CLOCK_MEM),
        power_w=None if power is None else power / 1000,
        power_limit_w=None if limit is None else limit / 1000,
        temperature_c=ask("Temperature", nvml.NVML_TEMPERATURE_GPU),
        throttle_reasons=tuple(
            name for bit, name in THROTTLE_REASONS.items() if int(reasons) & bit
        ),
        other_processes=None
        if processes is None
        else _others([process.pid for process in processes]),
    )


def _others(pids: Collection[int]) -> int:
    """Count the processes that are neither this one nor its parent, which only waits.

    Inside a container NVML may list the numbers that the host gives: none of them is
    this process's, and one of them is this process.
    """
    own = os.getpid()
    others = sum(pid not in (own, os.getppid()) for pid in pids)
    return others if own in pids else max(0, others - 1)


def _nvml() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def _uuid(device: str) -> str:
    import torch

    return str(torch.cuda.get_device_properties(torch.device(device)).uuid)
