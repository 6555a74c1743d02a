"""The state of an NVIDIA GPU, read from a fake NVML."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from mhaprof.measure import nvidia


class NvmlError(Exception):
    pass


def fake(**changes: Any) -> SimpleNamespace:
    def clock(_handle: object, kind: int) -> int:
        return {0: 1755, 2: 3201}[kind]

    nvml = SimpleNamespace(
        NVMLError=NvmlError,
        NVML_CLOCK_SM=0,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        nvmlSystemGetDriverVersion=lambda: b"570.1",
        nvmlDeviceGetClockInfo=clock,
        nvmlDeviceGetMaxClockInfo=lambda handle, kind: 1980,
        nvmlDeviceGetPowerUsage=lambda handle: 650_500,
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: 700_000,
        nvmlDeviceGetTemperature=lambda handle, kind: 61,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x01 | 0x04 | 0x40,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [
            SimpleNamespace(pid=os.getpid()),
            SimpleNamespace(pid=1),
        ],
    )
    for name, value in changes.items():
        setattr(nvml, name, value)
    return nvml


def test_the_state_is_in_the_units_that_its_names_say() -> None:
    assert nvidia.read_state(fake(), object()) == nvidia.GpuState(
        driver="570.1",
        sm_clock_mhz=1755,
        sm_clock_max_mhz=1980,
        memory_clock_mhz=3201,
        power_w=650.5,
        power_limit_w=700.0,
        temperature_c=61,
        throttle_reasons=("power cap", "hardware thermal limit"),
        other_processes=1,
    )


def test_an_idle_gpu_is_not_throttled() -> None:
    idle = fake(nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x01 | 0x02)
    assert nvidia.read_state(idle, object()).throttle_reasons == ()


def test_what_the_driver_refuses_is_none_and_the_rest_remains() -> None:
    def refuse(*_: object) -> Any:
        raise NvmlError

    state = nvidia.read_state(
        fake(nvmlDeviceGetPowerUsage=refuse, nvmlDeviceGetComputeRunningProcesses=refuse), object()
    )
    assert (state.power_w, state.other_processes, state.temperature_c) == (None, None, 61)


def test_without_nvml_there_is_no_state(monkeypatch: Any) -> None:
    monkeypatch.setattr(nvidia, "_nvml", lambda: None)
    assert nvidia.gpu_state("cuda") is None
