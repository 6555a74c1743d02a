"""What the simulation puts in the place of clocks, torch.cuda and NVML, and takes back."""

from __future__ import annotations

import os
import sys
import time
import types
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from simcuda import Sim


class Patches:
    """Attributes and items that were replaced, put back in reverse."""

    def __init__(self) -> None:
        self.undo: list[Any] = []

    def attribute(self, owner: Any, name: str, value: Any) -> None:
        missing = object()
        before = owner.__dict__.get(name, missing)
        self.undo.append(
            (lambda: delattr(owner, name))
            if before is missing
            else (lambda: setattr(owner, name, before))
        )
        setattr(owner, name, value)

    def item(self, owner: Any, name: str, value: Any) -> None:
        before = owner.get(name)
        self.undo.append(
            (lambda: owner.pop(name))
            if name not in owner
            else (lambda: owner.__setitem__(name, before))
        )
        owner[name] = value


def patch_clocks(patches: Patches, sim: Sim) -> None:
    """Let the host's clocks be virtual, those too that were bound as defaults."""
    seconds, nanoseconds = time.perf_counter, time.perf_counter_ns
    virtual = {seconds: sim.read, nanoseconds: lambda: int(sim.read() * 1e9)}
    patches.attribute(time, "perf_counter", virtual[seconds])
    patches.attribute(time, "perf_counter_ns", virtual[nanoseconds])
    for name in ("sampling", "timers"):
        module = sys.modules.get(f"mhaprof.measure.{name}")
        for found in vars(module).values() if module else ():
            function = found.__init__ if isinstance(found, type) else found
            defaults = getattr(function, "__kwdefaults__", None) or {}
            for key, value in list(defaults.items()):
                if value in (seconds, nanoseconds):
                    patches.item(defaults, key, virtual[value])


def patch_torch(patches: Patches, sim: Sim) -> None:
    """Let torch.cuda be that of the simulation."""
    import simcuda

    cuda, card = torch.cuda, sim.card

    def properties(device: Any = None) -> types.SimpleNamespace:
        return types.SimpleNamespace(
            name=card.name,
            total_memory=card.memory,
            L2_cache_size=card.l2,
            major=card.capability[0],
            minor=card.capability[1],
            multi_processor_count=132,
            uuid=f"sim-{sim.physical[sim.index(device)]}",
        )

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        sim.alive()
        return card.memory - sim.memories[sim.index(device)].reserved, card.memory

    def memory(name: str) -> Any:
        return lambda device=None: getattr(sim.memories[sim.index(device)], name)

    def reset(device: Any = None) -> None:
        found = sim.memories[sim.index(device)]
        found.peak = found.allocated

    def pool() -> tuple[int, int]:
        sim.pools += 1
        return (0, sim.pools)

    replaced = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: len(sim.physical),
        "current_device": lambda: sim.device,
        "set_device": lambda device: setattr(sim, "device", sim.index(device)),
        "get_device_name": lambda device=None: card.name,
        "get_device_capability": lambda device=None: card.capability,
        "get_device_properties": properties,
        "mem_get_info": mem_get_info,
        "memory_allocated": memory("allocated"),
        "memory_reserved": memory("reserved"),
        "max_memory_allocated": memory("peak"),
        "reset_peak_memory_stats": reset,
        "synchronize": simcuda.synchronize,
        "empty_cache": simcuda.empty_cache,
        "Stream": simcuda.Stream,
        "Event": simcuda.Event,
        "CUDAGraph": simcuda.CUDAGraph,
        "graph": simcuda.graph,
        "graph_pool_handle": pool,
        "stream": simcuda.stream_context,
        "device": simcuda.device_context,
        "current_stream": sim.current,
        "default_stream": lambda device=None: sim.defaults[sim.index(device)],
        "_sleep": simcuda.sleep,
    }
    for name, value in replaced.items():
        patches.attribute(cuda, name, value)
    patches.attribute(torch._C, "_cuda_endAllocateToPool", simcuda.end_allocate_to_pool)
    patches.attribute(torch.version, "cuda", "13.0")
    patches.attribute(torch.accelerator, "is_available", lambda: True)
    patches.attribute(torch.accelerator, "synchronize", simcuda.synchronize)
    patches.attribute(torch.backends.cudnn, "version", lambda: 91500)
    generator = torch.Generator

    class Generator:
        """Makes real ones, on the CPU where a simulated device is named."""

        def __new__(cls, device: Any = "cpu") -> Any:
            return generator("cpu" if torch.device(device).type == "cuda" else device)

    patches.attribute(torch, "Generator", Generator)


def nvml_of(sim: Sim) -> types.ModuleType:
    """Return a module pynvml that tells of the simulated devices."""
    nvml = types.ModuleType("pynvml")
    nvml.NVMLError = type("NVMLError", (Exception,), {})  # type: ignore[attr-defined]

    def busy(handle: int) -> bool:
        sim.clock += 3e-4
        return any(s.ready > sim.clock for s in sim.streams if sim.physical[s.index] == handle)

    def handle(uuid: str) -> int:
        kind, _, index = uuid.partition("-sim-")
        if kind != "GPU":
            raise nvml.NVMLError(uuid)
        return int(index)

    answers = {
        "Init": lambda: None,
        "Shutdown": lambda: None,
        "SystemGetDriverVersion": lambda: "580.00",
        "DeviceGetHandleByUUID": handle,
        "DeviceGetCurrentClocksEventReasons": lambda h: sim.card.busy_reasons if busy(h) else 0x1,
        "DeviceGetComputeRunningProcesses": lambda h: [types.SimpleNamespace(pid=os.getpid())],
        "DeviceGetPowerUsage": lambda h: 690_000 if busy(h) else 120_000,
        "DeviceGetEnforcedPowerLimit": lambda h: 700_000,
        "DeviceGetClockInfo": lambda h, kind: 1755 if busy(h) else 345,
        "DeviceGetMaxClockInfo": lambda h, kind: 1980,
        "DeviceGetTemperature": lambda h, kind: int(1000 * (sim.clock - 1000.0)),
    }
    for name, answer in answers.items():
        setattr(nvml, f"nvml{name}", answer)
    nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM, nvml.NVML_TEMPERATURE_GPU = 1, 2, 0  # type: ignore[attr-defined]
    return nvml
