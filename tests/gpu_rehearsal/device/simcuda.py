"""A CUDA device in virtual time: results are computed for real on the CPU, times are a model's.

``installed(Card())`` patches ``torch.cuda`` for the body; a process that finds ``SIMCUDA`` (a
JSON of ``Card`` fields) in its environment and this folder on its PYTHONPATH has the device from
its start (``sitecustomize.py``).  The host's clock is virtual too: launches, events, waits and
readings move it, and nothing else, so that a run gives the same on every machine.

Modelled: asynchronous streams and a launch queue of 1024; events; waits; an L2 of
least-recently-used storages, whose dirty lines are written back when they are evicted, and DRAM
behind it; a caching allocator with a pool for each stream; several devices; graphs, captures that
fail, and what torch up to 2.12 leaves behind then; the operators that CUDA has for attention
(flash, efficient, math); TF32; faults at the n-th launch of an operator; NVML.  ``races`` notes
blocks that are reused while another stream uses them, and what is read before another stream has
written it.

Not modelled: the time of Python itself, partial cache lines, kernels that run at once on one
device, clocks that move, compilation (flex, torch.compile), cuDNN, more than one process on a
device.  Operators over buffers of 64 MiB and more (the flush) take their time and compute nothing.
"""

from __future__ import annotations

import collections
import contextlib
import json
import math
import os
import signal
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from kernels import LIBRARY_OF_ATTENTION, attend
from patches import Patches, nvml_of, patch_clocks, patch_torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

NOT_COMPUTED = 64 * 2**20
WAITS = ("_local_scalar_dense", "nonzero")
ALLOCATES = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
EVENT_S, READ_S = 5e-7, 5e-8


@dataclass(frozen=True, kw_only=True)
class Card:
    """What the device can do: bytes, bytes and FLOPs per second, seconds."""

    name: str = "NVIDIA H200"
    count: int = 1
    memory: int = 141 * 10**9
    l2: int = 50 * 2**20
    dram: float = 4.8e12
    l2_rate: float = 10e12
    flops: dict[str, float] = field(
        default_factory=lambda: {
            "float64": 30e12,
            "float32": 50e12,
            "tf32": 400e12,
            "float16": 700e12,
            "bfloat16": 700e12,
        }
    )
    launch_s: float = 5e-6
    kernel_s: float = 2e-6
    queue: int = 1024
    capability: tuple[int, int] = (9, 0)
    hertz: float = 2e9
    old_graphs: bool = True
    """Torch up to 2.12: the allocator believes a failed capture still under way."""
    other_threads: bool = False
    """Another thread of the process calls CUDA all the time: it breaks ``global`` captures."""
    busy_reasons: int = 0
    """NVML's reasons for lower clocks while the device works."""
    faults: list[tuple[str, str, int]] = field(default_factory=list)
    """``(kind, operator, n)``: at the n-th launch of the operator; see ``FAULTS``."""


FAULTS = {
    "oom": "CUDA out of memory. Tried to allocate 2.00 GiB. (simulated)",
    "driver_oom": "CUDA error: out of memory",
    "cublas": "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cudnn": "cuDNN Frontend error: No valid execution plans support the graph",
    "image": "CUDA error: no kernel image is available for execution on the device",
    "assert": "CUDA error: device-side assert triggered",
}


class CudaError(RuntimeError):
    """What torch raises for the runtime's errors."""


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One kernel that ran: where, when (seconds) and the bytes it moved from and to DRAM."""

    name: str
    device: int
    stream: int
    start: float
    end: float
    dram: float
    bytes: int
    precision: str
    replayed: bool

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(kw_only=True)
class Op:
    """An operator as it is launched or captured."""

    name: str
    flops: float
    reads: list[tuple[int, int]]
    writes: list[tuple[int, int]]
    precision: str
    seconds: float = 0.0


class Memory:
    """The caching allocator of one device, and its L2."""

    def __init__(self) -> None:
        self.l2: collections.OrderedDict[int, int] = collections.OrderedDict()
        self.dirty: set[int] = set()
        self.blocks: dict[int, Block] = {}
        self.written: dict[int, tuple[int, float]] = {}
        self.free: list[Block] = []
        self.allocated = self.reserved = self.peak = 0


@dataclass(eq=False)
class Block:
    stream: Stream
    size: int
    used_until: float = 0.0


class Stream:
    """``torch.cuda.Stream``: work in order, in the device's time."""

    def __init__(self, device: Any = None, priority: int = 0, **more: Any) -> None:
        self.index = SIM.index(device)
        self.ready = SIM.clock
        self.pending: collections.deque[float] = collections.deque()
        self.capture: Capture | None = None
        self.number = len(SIM.streams)
        SIM.streams.append(self)

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.index)

    def wait_stream(self, other: Stream) -> None:
        SIM.alive()
        SIM.waits.append((self.number, other.number))
        self.ready = max(self.ready, other.ready)

    def wait_event(self, event: Event) -> None:
        self.ready = max(self.ready, event.at or 0.0)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        SIM.alive()
        SIM.refuse_in_capture()
        SIM.clock = max(SIM.clock, self.ready)

    def query(self) -> bool:
        return self.ready <= SIM.clock


class Event:
    """``torch.cuda.Event``."""

    def __init__(self, enable_timing: bool = False, **more: Any) -> None:
        self.at: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        SIM.alive()
        SIM.clock += 2 * EVENT_S
        stream = stream or SIM.current()
        if stream.capture is None:
            stream.ready = self.at = max(stream.ready, SIM.clock) + EVENT_S

    def synchronize(self) -> None:
        SIM.alive()
        SIM.refuse_in_capture()
        SIM.clock = max(SIM.clock, self.at or 0.0)

    def query(self) -> bool:
        return (self.at or 0.0) <= SIM.clock

    def elapsed_time(self, end: Event) -> float:
        SIM.alive()
        if self.at is None or end.at is None:
            raise CudaError("Both events must be recorded before calculating elapsed time.")
        if max(self.at, end.at) > SIM.clock:
            raise CudaError("CUDA error: device not ready")
        return (end.at - self.at) * 1e3


@dataclass
class Capture:
    ops: list[Op] = field(default_factory=list)
    invalid: bool = False


class CUDAGraph:
    """``torch.cuda.CUDAGraph``."""

    def __init__(self, keep_graph: bool = False) -> None:
        self.ops: list[Op] | None = None

    def replay(self) -> None:
        SIM.alive()
        if self.ops is None:
            raise CudaError("Called CUDAGraph::replay without a preceding successful capture.")
        SIM.clock += SIM.card.launch_s
        stream = SIM.current()
        stream.ready = max(stream.ready, SIM.clock + 2e-6)
        for op in self.ops:
            SIM.run(op, stream, replayed=True)


class graph:  # noqa: N801  (torch's name)
    """``torch.cuda.graph``: capture on a stream."""

    default: Stream | None = None

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: Any = None,
        stream: Stream | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        if stream is None:
            graph.default = graph.default or Stream()
        self.stream, self.graph, self.pool = stream or graph.default, cuda_graph, pool or (0, 0)
        self.mode = capture_error_mode

    def __enter__(self) -> None:
        synchronize()
        empty_cache()
        self.context = stream_context(self.stream)
        self.context.__enter__()
        if SIM.current() is SIM.defaults[SIM.device]:
            raise CudaError("CUDA graphs must be captured on a non-default stream.")
        SIM.current().capture = Capture(invalid=SIM.card.other_threads and self.mode == "global")
        SIM.underway.append(self.pool)

    def __exit__(self, *error: object) -> None:
        stream = SIM.current()
        capture, stream.capture = stream.capture, None
        assert capture is not None
        if not capture.invalid or not SIM.card.old_graphs:
            SIM.underway.remove(self.pool)
        if capture.invalid:
            # Torch raises before it goes back to the stream from before.
            raise CudaError("CUDA error: operation failed due to a previous error during capture")
        self.graph.ops = capture.ops
        self.context.__exit__(None, None, None)


class stream_context:  # noqa: N801
    """``torch.cuda.stream``; no generator, whose end would come when it is collected."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.device, self.before = SIM.device, SIM.currents[self.stream.index]
            SIM.device, SIM.currents[self.stream.index] = self.stream.index, self.stream

    def __exit__(self, *error: object) -> None:
        if self.stream is not None:
            SIM.currents[self.stream.index], SIM.device = self.before, self.device


@contextlib.contextmanager
def device_context(device: Any) -> Iterator[None]:
    before, SIM.device = SIM.device, SIM.index(device)
    try:
        yield
    finally:
        SIM.device = before


def synchronize(device: Any = None) -> None:
    SIM.alive()
    SIM.refuse_in_capture()
    index = SIM.index(device)
    ends = [stream.ready for stream in SIM.streams if stream.index == index]
    SIM.clock = max([SIM.clock, *ends]) + 3e-6


def empty_cache() -> None:
    SIM.alive()
    if SIM.underway:
        raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED (simulated)")
    for memory in SIM.memories:
        memory.free.clear()
        memory.reserved = memory.allocated


def end_allocate_to_pool(device: int, pool: Any) -> None:
    if pool not in SIM.underway:
        raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
    SIM.underway.remove(pool)


def sleep(cycles: int) -> None:
    SIM.launch(
        Op(name="spin", flops=0, reads=[], writes=[], precision="", seconds=cycles / SIM.card.hertz)
    )


class Sim:
    """The devices of this process, and its clock."""

    def __init__(self, card: Card) -> None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        listed = range(card.count) if visible is None else map(int, visible.split(","))
        self.physical = [index for index in listed if 0 <= index < card.count]
        self.card, self.clock, self.device = card, 1000.0, 0
        self.streams: list[Stream] = []
        self.defaults: dict[int, Stream] = {}
        self.currents: dict[int, Stream] = {}
        self.memories = [Memory() for _ in self.physical]
        self.where: dict[int, int] = {}
        self.kernels: list[Kernel] = []
        self.waits: list[tuple[int, int]] = []
        self.races: list[tuple[int, float]] = []
        self.underway: list[Any] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self.faults = [tuple(fault) for fault in card.faults]
        self.poisoned: str | None = None
        self.force: int | None = None
        self.pools = 0

    def read(self) -> float:
        self.clock += READ_S
        return self.clock

    def index(self, device: Any = None) -> int:
        if device is None:
            return self.device
        if isinstance(device, int):
            return device if device >= 0 else self.device
        found = torch.device(device)
        return self.device if found.index is None else found.index

    def current(self, device: Any = None) -> Stream:
        return self.currents[self.index(device)]

    def alive(self) -> None:
        if self.poisoned:
            raise CudaError(self.poisoned)

    def refuse_in_capture(self) -> None:
        for stream in self.streams:
            if stream.capture is not None:
                stream.capture.invalid = True
                raise CudaError("CUDA error: operation not permitted when stream is capturing")

    # kernels
    def launch(self, op: Op, keys: tuple[int, ...] = ()) -> None:
        self.alive()
        self.counts[op.name] += 1
        self._fault(op.name)
        self.clock += self.card.launch_s
        stream = self.current()
        if stream.capture is not None:
            stream.capture.ops.append(op)
            return
        end = self.run(op, stream)
        blocks = self.memories[stream.index].blocks
        for key in keys:
            if key in blocks:
                blocks[key].used_until = max(blocks[key].used_until, end)
        stream.pending.append(end)
        while stream.pending and stream.pending[0] <= self.clock:
            stream.pending.popleft()
        if len(stream.pending) > self.card.queue:
            self.clock = max(self.clock, stream.pending.popleft())

    def run(self, op: Op, stream: Stream, replayed: bool = False) -> float:
        """Run an operator at the end of a stream; return when it ends."""
        memory = self.memories[stream.index]
        dram = sum(self._touch(memory, key, size, False) for key, size in op.reads)
        dram += sum(self._touch(memory, key, size, True) for key, size in op.writes)
        size = sum(size for _, size in op.reads + op.writes)
        card = self.card
        rate = card.flops.get(op.precision, card.flops["float32"])
        seconds = op.seconds or max(
            card.kernel_s, op.flops / rate, dram / card.dram, size / card.l2_rate
        )
        start = max(stream.ready, self.clock)
        for key, size in op.reads:
            writer, end = memory.written.get(key, (stream.number, 0.0))
            if writer != stream.number and end > start + 1e-9:
                self.races.append((size, end - start))
        stream.ready = start + seconds
        memory.written.update({key: (stream.number, stream.ready) for key, _ in op.writes})
        self.kernels.append(
            Kernel(
                name=op.name,
                device=stream.index,
                stream=stream.number,
                start=start,
                end=stream.ready,
                dram=dram,
                bytes=size,
                precision=op.precision,
                replayed=replayed,
            )
        )
        return stream.ready

    def _touch(self, memory: Memory, key: int, size: int, write: bool) -> int:
        """Return the bytes from and to DRAM: what the L2 lacks, and dirty lines that leave it."""
        capacity = self.card.l2
        missing = size - min(memory.l2.pop(key, 0), size)
        memory.l2[key] = min(size, capacity)
        traffic = max(0, size - capacity) if write else missing
        if write:
            memory.dirty.add(key)
        while sum(memory.l2.values()) > capacity and len(memory.l2) > 1:
            old, held = memory.l2.popitem(last=False)
            if old in memory.dirty:
                memory.dirty.discard(old)
                traffic += held
        return traffic

    def _fault(self, name: str) -> None:
        for fault in self.faults:
            kind, operator, number = fault
            if operator != name or self.counts[name] != number:
                continue
            self.faults.remove(fault)
            if kind == "interrupt":
                os.kill(os.getpid(), signal.SIGINT)
            elif kind == "assert":
                self.poisoned = FAULTS[kind]
            else:
                raise (torch.OutOfMemoryError if kind == "oom" else CudaError)(FAULTS[kind])
            return

    # memory
    def key(self, tensor: torch.Tensor) -> int:
        return tensor.untyped_storage()._cdata

    def owns(self, tensor: torch.Tensor) -> bool:
        return type(tensor) is not torch.Size and self.key(tensor) in self.where

    def adopt(self, tensor: torch.Tensor, index: int) -> None:
        """Count a tensor's storage as memory of a device."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.where:
            return
        self.alive()
        memory = self.memories[index]
        size = -(-storage.nbytes() // 512) * 512
        block = self._block(memory, self.current(index), size)
        self.where[key] = index
        memory.blocks[key] = block
        memory.allocated += size
        memory.peak = max(memory.peak, memory.allocated)
        weakref.finalize(storage, self._free, memory, key, size).atexit = False

    def _block(self, memory: Memory, stream: Stream, size: int) -> Block:
        fitting = [block for block in memory.free if block.stream is stream and block.size >= size]
        if fitting:
            block = min(fitting, key=lambda found: found.size)
            memory.free.remove(block)
            start = max(stream.ready, self.clock)
            if block.used_until > start + 1e-9:
                self.races.append((size, block.used_until - start))
            return Block(stream, block.size)
        if memory.reserved + size > self.card.memory and not self.underway:
            memory.reserved = memory.allocated
            memory.free.clear()
        if memory.reserved + size > self.card.memory:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.")
        memory.reserved += size
        return Block(stream, size)

    def _free(self, memory: Memory, key: int, size: int) -> None:
        self.where.pop(key, None)
        memory.l2.pop(key, None)
        memory.dirty.discard(key)
        memory.written.pop(key, None)
        memory.allocated -= size
        block = memory.blocks.pop(key, None)
        if block is not None:
            memory.free.append(block)

    def release(self, tensor: torch.Tensor) -> torch.Tensor:
        """Take a tensor off the device: a copy for the host."""
        self.where.pop(self.key(tensor), None)
        return tensor

    @property
    def allocated(self) -> int:
        return sum(memory.allocated for memory in self.memories)


SIM: Sim


def _flat(value: Any, found: list[torch.Tensor]) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, list | tuple):
        for each in value:
            _flat(each, found)
    return found


def _device_of(value: Any) -> torch.device | None:
    """Return the device that an argument names."""
    if isinstance(value, torch.device):
        return value
    if isinstance(value, str) and value.partition(":")[0] in ("cuda", "cpu"):
        return torch.device(value)
    return None


class Devices(TorchFunctionMode):
    """Let ``cuda`` in any argument mean the CPU, and remember where the result belongs."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.device.__get__:
            there = args[0].device if args[0].device.type != "cpu" else None
            index = None if there else SIM.where.get(SIM.key(args[0]))
            return func(*args) if index is None else torch.device("cuda", index)
        if func is torch.Tensor.is_cuda.__get__:
            return args[0].device.type == "cpu" and SIM.owns(args[0])
        if func is torch.nn.functional.scaled_dot_product_attention and SIM.owns(args[0]):
            return attend(func, args, kwargs, tf32=_tf32())
        if func in (torch.Tensor.cpu, torch.Tensor.numpy) and SIM.owns(args[0]):
            args = (args[0].to("cpu"), *args[1:])
        target, changed = None, []
        for value in args:
            named = _device_of(value)
            target = target or named
            changed.append(torch.device("cpu") if named and named.type == "cuda" else value)
        if named := _device_of(kwargs.get("device")):
            target = named
            kwargs["device"] = torch.device("cpu") if named.type == "cuda" else named
        if target is None or func is torch.device:
            return func(*args, **kwargs)
        index = SIM.index(target) if target.type == "cuda" else None
        mine = changed and isinstance(changed[0], torch.Tensor) and SIM.owns(changed[0])
        if index is None and mine:
            SIM.alive()
            SIM.clock = max(SIM.clock, SIM.current().ready)
            with _forced(None):
                return SIM.release(func(*changed, **kwargs).clone())
        with _forced(index):
            result = func(*changed, **kwargs)
            if index is not None and isinstance(result, torch.Tensor) and not SIM.owns(result):
                if any(result is value for value in changed):
                    result = result.clone()
                SIM.adopt(result, index)
        return result


@contextlib.contextmanager
def _forced(index: int | None) -> Iterator[None]:
    before, SIM.force = SIM.force, index
    try:
        yield
    finally:
        SIM.force = before


def _tf32() -> bool:
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


def _precision(name: str, tensor: torch.Tensor) -> str:
    """Return the rate that products of an operator run at."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype != "float32":
        return dtype
    # The memory-efficient kernel multiplies in three TF32 products, whatever is allowed.
    if "efficient_attention" in name:
        return "tf32" if _tf32() else "tf32x3"
    return "tf32" if _tf32() else "float32"


_FLOPS: dict[Any, int] = {}


def _flops(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Return the FLOPs of an operator by torch's formulas, remembered by shapes."""
    counter = flop_registry.get(getattr(func, "overloadpacket", None))
    if counter is None:
        return 0
    key = (func, *(tensor.shape for tensor in _flat((args, tuple(kwargs.values())), [])))
    if key not in _FLOPS:
        try:
            _FLOPS[key] = counter(*args, **kwargs, out_val=result)
        except Exception:  # noqa: BLE001  (a formula that does not fit)
            _FLOPS[key] = 0
    return _FLOPS[key]


class Launches(TorchDispatchMode):
    """Charge every operator on tensors of a device to its current stream."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func).split(".")[1] if "." in str(func) else str(func)
        given = _flat((args, tuple(kwargs.values())), [])
        mine = [tensor for tensor in given if tensor.device.type == "cpu" and SIM.owns(tensor)]
        if not mine and SIM.force is None:
            return func(*args, **kwargs)
        large = mine and mine[0].numel() * mine[0].element_size() > NOT_COMPUTED
        if large and name in ("zero_", "fill_"):
            result = args[0]
        elif large and name in ("sum", "amax"):
            result = torch.zeros((), dtype=torch.int64)
        elif name == "zeros" and math.prod(args[0]) > NOT_COMPUTED // 4:
            result = torch.empty(*args, **kwargs)
        else:
            result = func(*args, **kwargs)
        if name in WAITS:
            SIM.alive()
            SIM.refuse_in_capture()
            SIM.clock = max(SIM.clock, SIM.current().ready)
            return result
        homes = {SIM.where[SIM.key(tensor)] for tensor in mine if tensor.dim()}
        if len(homes) > 1:
            raise RuntimeError(f"Expected all tensors to be on the same device ({name})")
        index = SIM.where[SIM.key(mine[0])] if mine else SIM.force
        assert index is not None
        self._charge(func, name, args, kwargs, result, mine, index)
        return result

    def _charge(
        self,
        func: Any,
        name: str,
        args: Any,
        kwargs: Any,
        result: Any,
        mine: list[torch.Tensor],
        index: int,
    ) -> None:
        outs = [out for out in _flat(result, []) if out.device.type == "cpu"]
        fresh = [out for out in outs if not SIM.owns(out)]
        for out in fresh:
            SIM.adopt(out, index)
        schema = getattr(func, "_schema", None)
        written = fresh or [
            tensor
            for argument, tensor in zip(schema.arguments if schema else (), args, strict=False)
            if argument.alias_info and argument.alias_info.is_write and tensor in (*mine,)[:1]
        ]
        if not written or name in ALLOCATES:
            return
        size = {SIM.key(t): t.numel() * t.element_size() for t in (*mine, *written)}
        writes = [SIM.key(tensor) for tensor in written]
        reads = [SIM.key(tensor) for tensor in mine if SIM.key(tensor) not in writes]
        op = Op(
            name=name,
            flops=_flops(func, args, kwargs, result),
            reads=[(key, size[key]) for key in dict.fromkeys(reads)],
            writes=[(key, size[key]) for key in dict.fromkeys(writes)],
            precision=_precision(name, (mine or outs)[0]),
        )
        with device_context(index):
            SIM.launch(op, tuple(size))


# A mode's own method would be wrapped so that each call asks torch.compile, which takes seconds.
Launches.__torch_dispatch__ = Launches.dispatch  # type: ignore[method-assign]


@contextlib.contextmanager
def installed(card: Card) -> Iterator[Sim]:
    """Let this process have the devices of ``card`` for the body."""
    global SIM
    patches, SIM = Patches(), Sim(card)
    graph.default = None
    for index in range(len(SIM.physical)):
        SIM.defaults[index] = SIM.currents[index] = Stream(index)
    library, threads = LIBRARY_OF_ATTENTION(), torch.get_num_threads()
    torch.set_num_threads(1)
    patch_clocks(patches, SIM)
    patch_torch(patches, SIM)
    patches.item(sys.modules, "pynvml", nvml_of(SIM))
    with Devices(), Launches():
        try:
            yield SIM
        finally:
            for undo in reversed(patches.undo):
                undo()
            library._destroy()
            torch.set_num_threads(threads)


def install_from(text: str) -> None:
    """Install the card of a JSON text for the life of the process."""
    given = json.loads(text or "{}")
    context = installed(Card(**given))
    context.__enter__()
    _KEPT.append(context)


_KEPT: list[Any] = []
