"""Clocks, power, temperature, throttling and neighbours of an NVIDIA GPU.

Through nvidia-ml-py (``pynvml``) when it is installed; without it, or without a
driver, there is nothing to say and nothing fails.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Answer = TypeVar("Answer")

THROTTLE_REASONS: Mapping[int, str] = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal limit",
    0x40: "hardware thermal limit",
    0x80: "power brake",
}
"""Bits of NVML's clocks event reasons that mean lowered clocks (nvml.h)."""


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """The state of a GPU now; None for what the driver does not tell.

    Clocks in MHz as NVML gives them, power in watts, temperature in degrees Celsius.
    ``other_processes`` counts compute processes besides this one.
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


def gpu_state(device: str) -> GpuState | None:
    """Read the state of a CUDA device (``cuda``, ``cuda:1``); None without NVML.

    The device is found by its UUID: NVML counts all GPUs, torch the visible ones.
    """
    return _asked(lambda nvml: read_state(nvml, nvml.nvmlDeviceGetHandleByUUID(_uuid(device))))


def driver_version() -> str | None:
    """Return the version of the NVIDIA driver; None without NVML."""
    return _asked(_driver)


def _asked(read: Callable[[Any], Answer]) -> Answer | None:
    """Return what NVML answers, or None where it is not there or refuses."""
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        nvml.nvmlInit()
        try:
            return read(nvml)
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError:
        return None


def _driver(nvml: Any) -> str:
    version = nvml.nvmlSystemGetDriverVersion()
    return version.decode() if isinstance(version, bytes) else str(version)


def read_state(nvml: Any, handle: Any) -> GpuState:
    """Read the state behind an NVML handle; each value that fails is None."""

    def ask(read: Callable[[], Any]) -> Any:
        try:
            return read()
        except nvml.NVMLError:
            return None

    reasons = ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) or 0
    processes = ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    power = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    limit = ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    return GpuState(
        driver=ask(lambda: _driver(nvml)),
        sm_clock_mhz=ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        sm_clock_max_mhz=ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
        memory_clock_mhz=ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        power_w=None if power is None else power / 1000,
        power_limit_w=None if limit is None else limit / 1000,
        temperature_c=ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        throttle_reasons=tuple(
            name for bit, name in THROTTLE_REASONS.items() if int(reasons) & bit
        ),
        other_processes=None
        if processes is None
        else sum(process.pid != os.getpid() for process in processes),
    )


def _nvml() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def _uuid(device: str) -> str:
    import torch

    return f"GPU-{torch.cuda.get_device_properties(torch.device(device)).uuid}"
