"""The state of an NVIDIA GPU, read from a fake NVML."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from mhaprof.measure import nvidia

OTHER = 2**22 + 1
"""A process id beyond those that Linux gives: neither this process nor its parent."""


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
        nvmlDeviceGetComputeRunningProcesses=listing(os.getpid(), OTHER),
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
    )
    for name, value in changes.items():
        setattr(nvml, name, value)
    return nvml


def listing(*pids: int) -> Any:
    return lambda handle: [SimpleNamespace(pid=pid) for pid in pids]


def refuse(*_: object) -> Any:
    raise NvmlError


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
    state = nvidia.read_state(
        fake(nvmlDeviceGetPowerUsage=refuse, nvmlDeviceGetComputeRunningProcesses=refuse), object()
    )
    assert (state.power_w, state.other_processes, state.temperature_c) == (None, None, 61)


def test_without_nvml_there_is_no_state(monkeypatch: Any) -> None:
    monkeypatch.setattr(nvidia, "_nvml", lambda: None)
    assert nvidia.gpu_state("cuda") is None
    assert nvidia.driver_version() is None


@pytest.mark.parametrize(
    ("pids", "others"),
    [
        ((), 0),
        ((os.getpid(),), 0),
        ((os.getpid(), OTHER), 1),
        ((os.getpid(), os.getppid()), 0),
        # The ids of a container's host: one of them is this process.
        ((OTHER,), 0),
        ((OTHER, OTHER + 1), 1),
    ],
)
def test_neither_this_process_nor_its_parent_is_a_neighbour(
    pids: tuple[int, ...], others: int
) -> None:
    nvml = fake(nvmlDeviceGetComputeRunningProcesses=listing(*pids))
    assert nvidia.read_state(nvml, object()).other_processes == others


def test_throttling_is_read_under_its_new_name_or_its_old_one() -> None:
    new, old = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
    renamed = fake(**{new: lambda handle: 0x04})
    delattr(renamed, old)
    newer_than_its_driver = fake(**{new: refuse, old: lambda handle: 0x04})
    for nvml in (renamed, newer_than_its_driver):
        assert nvidia.read_state(nvml, object()).throttle_reasons == ("power cap",)


def test_a_function_that_pynvml_lacks_is_none_and_the_rest_remains() -> None:
    old = fake()
    del old.nvmlDeviceGetEnforcedPowerLimit, old.nvmlDeviceGetCurrentClocksThrottleReasons
    state = nvidia.read_state(old, object())
    assert (state.power_limit_w, state.throttle_reasons, state.power_w) == (None, (), 650.5)


@pytest.mark.parametrize("kind", ["GPU", "MIG"])
def test_a_device_is_found_by_its_uuid_whole_or_sliced(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def handle(uuid: str) -> str:
        asked.append(uuid)
        return uuid if uuid.startswith(kind) else refuse()

    nvml = fake(nvmlDeviceGetHandleByUUID=handle)
    monkeypatch.setattr(nvidia, "_nvml", lambda: nvml)
    monkeypatch.setattr(nvidia, "_uuid", lambda device: "7")
    state = nvidia.gpu_state("cuda:1")
    assert state is not None
    assert state.temperature_c == 61
    assert asked[-1] == f"{kind}-7"


def test_a_device_that_nvml_does_not_know_has_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "_nvml", lambda: fake(nvmlDeviceGetHandleByUUID=refuse))
    monkeypatch.setattr(nvidia, "_uuid", lambda device: "7")
    assert nvidia.gpu_state("cuda") is None
    assert nvidia.driver_version() == "570.1"


def test_nvml_is_closed_again_and_one_that_does_not_open_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []
    nvml = fake(nvmlInit=lambda: log.append("open"), nvmlShutdown=lambda: log.append("close"))
    monkeypatch.setattr(nvidia, "_nvml", lambda: nvml)
    monkeypatch.setattr(nvidia, "_uuid", lambda device: "7")
    with nvidia.reader("cuda") as read:
        assert read is not None
        assert read() == read() == nvidia.read_state(nvml, object())
        assert log == ["open"]
    assert log == ["open", "close"]
    nvml.nvmlInit = refuse
    with nvidia.reader("cuda") as read:
        assert read is None


def test_a_state_in_a_record_is_flat() -> None:
    values = nvidia.read_state(fake(), object()).values()
    assert values["throttle_reasons"] == "power cap, hardware thermal limit"
    assert (values["sm_clock_mhz"], values["other_processes"]) == (1755, 1)
    idle = fake(nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0)
    assert nvidia.read_state(idle, object()).values()["throttle_reasons"] is None
