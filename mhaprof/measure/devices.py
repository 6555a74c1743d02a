"""The device asked for: is it there, how is it named, how many threads, which timer.

Everything that touches a device's own interface to make a timer is here; the timers
themselves know none.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import math
import os
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mhaprof.errors import Unavailable, UsageError
from mhaprof.measure.timers import Call, EventTimer, WallTimer
from mhaprof.records import DEVICE, DEVICES, Cache, TimerChoice

if TYPE_CHECKING:
    import torch

FLUSH_BYTES = 256 * 2**20
"""Least bytes that a flush writes (or, on a CPU, reads)."""

SPIN_CYCLES = 200_000
"""About 0.1 ms of a GPU, without touching memory: longer than enqueueing most calls takes."""

CUDA_DRIVER = "libcuda.so.1"
"""What the CUDA runtime loads before it can find a device."""

ROOT = Path("/")


def resolve_device(name: str) -> str:
    """Return a device that is there: ``cpu``, ``cuda``, ``cuda:N``, ``mps`` or ``xpu``.

    ``auto`` takes the first of cuda, xpu, mps and cpu, ``gpu`` the first but cpu.  An
    explicit request never falls back: raises Unavailable (code ``no_cuda``, ``no_mps``,
    ``no_xpu``) when it is not there, UsageError when it is no device name.  ``cpu`` is
    always there: no torch needed.
    """
    if not re.fullmatch(rf"auto|gpu|{DEVICE}", name):
        raise UsageError(f"device {name!r} is not one of {DEVICES.replace('|', ', ')}")
    if name == "cpu" or (name == "auto" and _surely_no_accelerator()):
        return "cpu"
    import torch

    if name in ("auto", "gpu"):
        if torch.cuda.is_available():
            return "cuda"
        if torch.xpu.is_available():
            return "xpu"
        if torch.backends.mps.is_available():
            return "mps"
        name = "cpu" if name == "auto" else "cuda"
    kind, _, index = name.partition(":")
    if kind == "cuda":
        _require_cuda(name, int(index or 0))
    elif kind == "mps" and not torch.backends.mps.is_available():
        raise Unavailable(_absent(name, "Apple GPU"), code="no_mps")
    elif kind == "xpu" and not torch.xpu.is_available():
        raise Unavailable(_absent(name, "Intel GPU"), code="no_xpu")
    return name


def _surely_no_accelerator() -> bool:
    """Say that torch cannot find an accelerator here, without its import, which takes seconds.

    True where it is a build for CPUs alone, or for CUDA where no driver can be loaded.
    False where torch has to be asked: also when it is imported already.
    """
    if "torch" in sys.modules or sys.platform != "linux":
        return False
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return False
    try:
        text = Path(found.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return False
    built = dict(re.findall(r"^(cuda|hip|xpu)\b[^=\n]*= *(\S+)", text, re.MULTILINE))
    if built.keys() != {"cuda", "hip", "xpu"} or {built["hip"], built["xpu"]} != {"None"}:
        return False
    return built["cuda"] == "None" or not _can_load(CUDA_DRIVER)


def _can_load(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _require_cuda(name: str, index: int) -> None:
    import torch

    if not torch.cuda.is_available():
        if torch.version.cuda is None and torch.version.hip is None:
            why = f"torch {torch.__version__} is built without CUDA; install a CUDA build"
        else:
            why = "torch finds no GPU; check the driver with nvidia-smi"
        raise Unavailable(
            f"device {name} is not there: {why}, or give --device cpu", code="no_cuda"
        )
    count = torch.cuda.device_count()
    if index >= count:
        raise Unavailable(
            f"device {name} is not there: this machine has {count} CUDA device(s), "
            f"the last is cuda:{count - 1}",
            code="no_cuda",
        )


def _absent(name: str, what: str) -> str:
    return f"device {name} is not there: torch finds no {what}; give --device cpu"


def device_name(device: str) -> str:
    """Return the marketing name of a device (``NVIDIA H200``, or the CPU's model)."""
    if device == "cpu":
        return cpu_model()
    import torch

    if device.startswith("cuda"):
        return torch.cuda.get_device_name(torch.device(device))
    if device == "xpu":
        return torch.xpu.get_device_name()
    return f"{device} ({platform.machine()})"


def cpu_model(*, root: Path = ROOT) -> str:
    """Return the CPU's model name, or its architecture where the system keeps none."""
    try:
        text = (root / "proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match.group(1).strip() if match else platform.machine()


def default_threads(*, root: Path = ROOT) -> int:
    """Return how many threads may run at once: min(CPU affinity, cgroup quota), at least 1.

    The quota is cgroup v2's ``cpu.max`` or v1's ``cpu.cfs_quota_us / cpu.cfs_period_us``,
    of this process's group and all above it, rounded up.
    """
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:
        allowed = os.cpu_count() or 1
    quotas = [*_v2_quotas(root), *_v1_quotas(root)]
    return max(1, min([allowed, *(math.ceil(quota) for quota in quotas)]))


def _v2_quotas(root: Path) -> Iterator[float]:
    for folder in cgroup_folders(root, controller=""):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            continue
        if quota != "max":
            yield int(quota) / int(period)


def _v1_quotas(root: Path) -> Iterator[float]:
    for folder in cgroup_folders(root, controller="cpu"):
        try:
            quota = int((folder / "cpu.cfs_quota_us").read_text())
            period = int((folder / "cpu.cfs_period_us").read_text())
        except (OSError, ValueError):
            continue
        if quota > 0:
            yield quota / period


def cgroup_folders(root: Path, *, controller: str) -> list[Path]:
    """Return the folders of this process's cgroup and of those above it.

    ``controller`` is empty for the unified hierarchy (v2), else one of v1's (``cpu``,
    ``memory``).  A limit anywhere on the way binds.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            base = root / "sys/fs/cgroup"
            # Mounted by v1 under the controllers' names, in a hybrid v2 under ``unified``.
            mounts = (controllers, controller) if controller else ("unified",)
            base = next((base / name for name in mounts if (base / name).is_dir()), base)
            own = base / path.lstrip("/")
            # Inside a container the path names a folder that only the host sees.
            folders = [own, *own.parents] if own.is_dir() else [base]
            return [folder for folder in folders if folder.is_relative_to(base)]
    return []


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Run the body with ``count`` intra-op threads (None: leave them), then restore."""
    import torch

    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Run the body with TF32 matrix products allowed or not on CUDA, then restore.

    By the setting that was used before: once torch's newer one was (2.9 on), reading the
    older raises, and setting the newer would let the older, which the compiler reads, raise.
    """
    import torch

    matmul, put = torch.backends.cuda.matmul, torch.set_float32_matmul_precision
    try:
        before, wanted = torch.get_float32_matmul_precision(), "high" if allowed else "highest"
    except RuntimeError:
        put = functools.partial(setattr, matmul, "fp32_precision")
        before, wanted = matmul.fp32_precision, "tf32" if allowed else "ieee"
    put(wanted)
    try:
        yield
    finally:
        put(before)


def current(device: str) -> AbstractContextManager[object]:
    """Return a context in which a CUDA device is torch's current one; nothing elsewhere.

    Events, streams and waits that name no device are of the current one.
    """
    if not device.startswith("cuda"):
        return contextlib.nullcontext()
    import torch

    return torch.cuda.device(torch.device(device))


@contextmanager
def side_stream(device: str) -> Iterator[None]:
    """Run the body on a CUDA device, on a stream that is not its default one.

    A graph cannot be captured on the default stream, and a backward operator runs on
    the stream of its forward: so all that is timed of a point runs on this one.  It waits
    for what was enqueued before.  Afterwards, by an error too, the device and the stream
    from before are current again, and wait for it: memory goes back to that stream.
    """
    import torch

    with current(device):
        outer, side = torch.cuda.current_stream(), _stream_of(torch.cuda.current_device())
        side.wait_stream(outer)
        try:
            with torch.cuda.stream(side):
                yield
        finally:
            # A device that is lost has said so before.
            with contextlib.suppress(RuntimeError):
                outer.wait_stream(side)


@functools.cache
def _stream_of(index: int) -> torch.cuda.Stream:
    """Return the one side stream of a device: torch keeps the memory that is free by stream."""
    import torch

    return torch.cuda.Stream(torch.device("cuda", index))  # type: ignore[no-untyped-call]


def is_lost(device: str, wait: Call | None = None) -> bool:
    """Say whether an accelerator's context is broken: every later call would fail too.

    After an illegal access CUDA reports the same error on any call of the process.
    """
    if device.partition(":")[0] not in ("cuda", "xpu", "mps"):
        return False
    import torch

    if wait is None and not torch.accelerator.is_available():
        return False
    try:
        wait() if wait else synchronize(device)
    except RuntimeError:
        return True
    return False


def synchronize(device: str) -> None:
    """Wait until the device has done what was enqueued; nothing on a CPU."""
    if device == "cpu":
        return
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize(torch.device(device))
    else:
        torch.accelerator.synchronize()


def require_timer(device: str, wanted: TimerChoice) -> None:
    """Raise UsageError when a device has no such timer.

    ``graph`` is for CUDA, ``events`` for accelerators; ``wall`` and ``auto`` work everywhere.
    """
    kind = device.partition(":")[0]
    if wanted == "graph" and kind != "cuda":
        raise UsageError(f"timer graph replays CUDA graphs; device {device} has none")
    if wanted == "events" and kind == "cpu":
        raise UsageError("timer events needs an accelerator; on cpu give --timer wall")


def make_timer(device: str, *, cache: Cache) -> WallTimer | EventTimer:
    """Return the timer of a device: wall and process time on a CPU, else events."""
    if device == "cpu":
        return WallTimer(flush=_cpu_flush() if cache == "cold" else None)
    import torch

    from mhaprof.measure.torch_private import spin

    kind = device.partition(":")[0]
    flush = _device_flush(device) if cache == "cold" else None
    if kind == "cuda":
        return EventTimer(
            name="cuda-events",
            event=lambda: torch.cuda.Event(enable_timing=True),  # type: ignore[no-untyped-call]
            synchronize=torch.cuda.synchronize,
            flush=flush,
            backlog=None if flush else functools.partial(spin, SPIN_CYCLES),
        )
    return EventTimer(
        name=f"{kind}-events",
        event=lambda: torch.Event(device=kind, enable_timing=True),
        synchronize=torch.accelerator.synchronize,
        flush=flush,
    )


def _device_flush(device: str) -> Call:
    """Return a call that reads max(2 x L2, 256 MiB) on the current stream.

    What it would write is still to be written back when the call that is timed begins.
    """
    import torch

    size = FLUSH_BYTES
    if device.startswith("cuda"):
        size = max(size, 2 * l2_bytes(device))
    buffer = torch.zeros(size // 4, dtype=torch.int32, device=device)
    return buffer.sum


def l2_bytes(device: str) -> int:
    """Return the size of a CUDA device's L2 cache."""
    import torch

    return int(torch.cuda.get_device_properties(torch.device(device)).L2_cache_size)


def _cpu_flush() -> Call:
    """Return a call that reads max(2 x last-level cache, 256 MiB) with all threads.

    Reading, because large stores may bypass the caches and leave them as they are.
    """
    import torch

    size = max(FLUSH_BYTES, 2 * last_level_cache_bytes())
    return torch.zeros(size // 8, dtype=torch.int64).sum


def last_level_cache_bytes(*, root: Path = ROOT) -> int:
    """Return the size of the first CPU's largest cache; 0 where the system keeps none."""
    sizes = [0]
    for file in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        match = re.fullmatch(r"(\d+)([KMG]?)", file.read_text().strip())
        if match:
            sizes.append(int(match.group(1)) << {"": 0, "K": 10, "M": 20, "G": 30}[match.group(2)])
    return max(sizes)
