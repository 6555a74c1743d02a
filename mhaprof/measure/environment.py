"""Where and with what: versions, hardware, the machine's state, the git commit.

Versions come from package metadata, so that collecting for a CPU imports no torch.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from mhaprof.measure import allocator, conditions, devices, memory, nvidia
from mhaprof.records import Environment

Values = dict[str, str | int | float | None]

PACKAGES = (
    "mhaprof",
    "torch",
    "fvcore",
    "numpy",
    "pandas",
    "pydantic",
    "triton",
    "nvidia-ml-py",
    "transformers",
    "ray",
)
"""Packages whose versions are recorded when they are installed."""

VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "KMP_AFFINITY",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
)
"""Environment variables that change what is measured."""

GIT_TIMEOUT_S = 5.0


def collect(device: str = "cpu", *, threads: int | None = None) -> Environment:
    """Return the environment now, for a device that ``resolve_device`` returned.

    ``threads`` is what a CPU measurement uses (None: the default).  Nothing here fails:
    what cannot be read is None or absent.
    """
    hardware, state = _cpu_hardware(device), _cpu_state()
    software = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        **_versions(),
    }
    if device != "cpu":
        with contextlib.suppress(RuntimeError):  # of a device that is lost what came before
            _add_accelerator(device, software, hardware, state)
            state["device_available_bytes"] = memory.available_bytes(device)
    settings: dict[str, str | int | float | bool | None] = {
        name: os.environ[name] for name in VARIABLES if name in os.environ
    }
    if device == "cpu":
        settings["threads"] = threads or devices.default_threads()
        settings["freed_memory_kept"] = allocator.glibc() is not None
    return Environment(
        software=software,
        hardware=hardware,
        state=state,
        git=git_state(Path.cwd()),
        settings=settings,
    )


def collect_elsewhere(device: str) -> Environment:
    """Return what ``collect`` finds in a fresh process, so that this one stays off the device.

    A process that has asked a GPU for its free memory is on it until it ends, and those
    that measure there would count it as a neighbour.
    """
    command = [sys.executable, "-m", __name__, device]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Environment.model_validate_json(done.stdout)


def _versions() -> dict[str, str]:
    """Return the versions of installed packages, by their metadata."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu_hardware(device: str) -> Values:
    hardware: Values = {
        "device": device,
        "device_name": devices.cpu_model(),
        "cpu_model": devices.cpu_model(),
        "cores": os.cpu_count(),
        "allowed_threads": devices.default_threads(),
        "machine": platform.machine(),
        "last_level_cache_bytes": devices.last_level_cache_bytes() or None,
    }
    try:
        pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        hardware["memory_bytes"] = pages * page_bytes
    except (AttributeError, ValueError, OSError):
        hardware["memory_bytes"] = None
    return hardware


def _cpu_state() -> Values:
    """Return load, governor, clock, memory and steal of the machine now."""
    cpu = Path("/sys/devices/system/cpu/cpu0/cpufreq")
    state: Values = {
        "load_1min": None,
        "governor": _text(cpu / "scaling_governor"),
        "turbo_disabled": _text(cpu.parents[1] / "intel_pstate/no_turbo"),
        "available_bytes": memory.available_bytes("cpu"),
        "steal_s": conditions.cpu_state().steal_s,
    }
    with contextlib.suppress(AttributeError, OSError):
        state["load_1min"] = os.getloadavg()[0]
    khz = _text(cpu / "scaling_cur_freq")
    state["cpu_mhz"] = int(khz) / 1000 if khz and khz.isdigit() else None
    return state


def _add_accelerator(
    device: str, software: dict[str, str], hardware: Values, state: Values
) -> None:
    """Add what torch and the driver say about an accelerator."""
    import torch

    hardware["device_name"] = devices.device_name(device)
    if not device.startswith("cuda"):
        return
    for name, version in (("cuda", torch.version.cuda), ("hip", torch.version.hip)):
        if version is not None:
            software[name] = version
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    if cudnn is not None:
        software["cudnn"] = str(cudnn)
    properties = torch.cuda.get_device_properties(torch.device(device))
    hardware["device_memory_bytes"] = properties.total_memory
    hardware["compute_capability"] = f"{properties.major}.{properties.minor}"
    hardware["multiprocessors"] = properties.multi_processor_count
    hardware["l2_bytes"] = devices.l2_bytes(device)
    gpu = nvidia.gpu_state(device)
    if gpu is None:
        return
    values = gpu.values()
    hardware["driver"] = values.pop("driver")
    state["other_gpu_processes"] = values.pop("other_processes")
    state.update(values)


def git_state(folder: Path) -> dict[str, str | bool] | None:
    """Return commit, branch and whether something is uncommitted; None outside of git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    branch = _git(folder, "rev-parse", "--abbrev-ref", "HEAD") or ""
    status = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "branch": branch, "dirty": bool(status)}


def _git(folder: Path, *arguments: str) -> str | None:
    # Without optional locks: a measurement must not disturb a git that runs beside it.
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _text(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except OSError:
        return None


if __name__ == "__main__":
    print(collect(sys.argv[1]).model_dump_json())
