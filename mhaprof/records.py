"""What is measured and what a result file holds: Point, Outcome, Result, Environment, Run.

All of it is pydantic: validated when read, JSON and JSON Schema for free.  A record
holds facts; statistics are derived from stored samples, and what does not exist is
``None``, never 0 or NaN.
"""

from __future__ import annotations

import functools
import hashlib
import json
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from mhaprof.formulas import reference_macs
from mhaprof.spec import AttentionSpec, integral
from mhaprof.stats import Summary, summarize
from mhaprof.units import flops_of

SCHEMA_VERSION = 1

Role = Literal["point", "reference"]
Mode = Literal["forward", "backward", "forward-backward"]
Cache = Literal["cold", "hot"]
TimerChoice = Literal["auto", "events", "graph", "wall"]
Dtype = Literal["float64", "float32", "float16", "bfloat16"]

DEVICE = r"cpu|cuda(:[0-9]{1,4})?|mps|xpu"
"""The form of a device that was resolved."""

DEVICES = "auto|cpu|gpu|cuda|cuda:N|mps|xpu"
"""What may be asked for: ``auto`` is the best that is there, ``gpu`` the best but a CPU."""

MOST = 10**9
MOST_THREADS = 4096
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Natural = Annotated[int, Field(strict=True, ge=1, le=MOST), BeforeValidator(integral)]
Threads = Annotated[int, Field(strict=True, ge=1, le=MOST_THREADS), BeforeValidator(integral)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
"""The bounds of settings, for flags, files and Python alike."""


AUTO_BACKEND = "auto"
"""The backend of an implementation that lets torch choose one on each call, math included."""

RAW_FIELDS = (
    "samples_s",
    "process_time_s",
    "enqueue_s",
    "graph_samples_s",
    "gpu_before",
    "gpu_after",
)
"""The fields of ``Latency`` that come with raw samples and are no columns of a row."""


class Record(BaseModel):
    """Be the base of all records: frozen, keyword-only, no unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def trusted(cls, **fields: Any) -> Self:
        """Return the record of fields that mhaprof computed itself, for grids of many points.

        All fields have to be given, in their types: nothing is checked or filled in, which
        takes half the time.  The record is equal to the validated one.
        """
        record = cls.__new__(cls)
        _set(record, "__dict__", fields)
        _set(record, "__pydantic_fields_set__", _all_fields(cls))
        _set(record, "__pydantic_extra__", None)
        _set(record, "__pydantic_private__", None)
        return record


_set = object.__setattr__


@functools.cache
def _all_fields(record: type[Record]) -> set[str]:
    """Return the names of all fields, one set for all records: they are frozen."""
    return set(record.model_fields)


def default_cache(device: str | None) -> Cache:
    """Return the cache state that a device is measured in unless asked otherwise.

    Accelerators cold: the next layer of a model finds other data in the L2.  A CPU hot:
    last-level caches of hundreds of MiB are shared with other tenants, and flushing one
    takes longer than most calls.
    """
    return "hot" if device == "cpu" else "cold"


class Settings(Record):
    """The settings that change what a number means; part of a point's identity.

    ``device`` is ``cpu``, ``cuda``, ``cuda:N``, ``mps`` or ``xpu``, already resolved
    from ``auto``; counting has none.  ``threads`` is for CPU rows alone.  ``cache`` that
    is not given is the default of the device.
    """

    device: str | None = None
    dtype: Dtype | None = None
    threads: Threads | None = None
    timer: TimerChoice = "auto"
    cache: Cache = "cold"
    mode: Mode = "forward"
    compile: bool = False
    tf32: bool = False

    @model_validator(mode="before")
    @classmethod
    def _default_cache(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("cache") is None:
            return given | {"cache": default_cache(given.get("device"))}
        return given


class Point(Record):
    """One thing to measure: a spec, an implementation, settings, and a name for the row.

    ``code`` is the fingerprint of the sources of an implementation of the user's.
    """

    name: str
    role: Role = "point"
    spec: AttentionSpec
    implementation: str
    implementation_version: int = 1
    settings: Settings = Settings()
    code: str | None = None

    @property
    def reference_macs(self) -> int | None:
        """Return the MACs that the ratio of this point refers to."""
        return reference_macs(self.spec)

    def identity(self) -> str:
        """Return the hash that says whether two points are the same measurement."""
        content = {
            "spec": self.spec.key(),
            "implementation": self.implementation,
            "version": self.implementation_version,
            "settings": self.settings.model_dump(),
        }
        return digest(content if self.code is None else content | {"code": self.code})


class ModulePoint(Record):
    """A module of the user to count: ``implementation`` is its ``package.module:Class``.

    ``inputs`` are shapes as text (``2x128x64``), ``code`` the fingerprint of its sources.
    """

    name: str
    role: Role = "point"
    implementation: str
    kwargs: dict[str, Any] = {}
    inputs: tuple[str, ...]
    code: str | None = None
    settings: ClassVar[Settings] = Settings()
    reference_macs: ClassVar[None] = None

    def identity(self) -> str:
        """Return the hash of what is built, what goes in, and the code."""
        return digest(self.model_dump(mode="json", exclude={"name", "role"}))


class ImpossiblePoint(Record):
    """A planned point whose fields make no spec; its outcome is always a skip.

    ``given`` holds the fields as they were written.
    """

    name: str
    role: Role = "point"
    implementation: str
    given: dict[str, int | float | str | bool | None]

    def identity(self) -> str:
        """Return the hash of what was given."""
        return digest({"given": self.given, "implementation": self.implementation})


def digest(content: dict[str, Any]) -> str:
    """Return 16 hexadecimal digits that tell contents apart."""
    return hashlib.sha256(_canonical(content).encode()).hexdigest()[:16]


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


class Finding(Record):
    """Something the user has to see beside a number.

    ``blocking`` findings make the row failed and the exit code 1 (counters that
    disagree, operators left uncounted); the others are warnings.
    """

    code: str
    message: str
    blocking: bool = False


class Counts(Record):
    """Exact counts of one point.  MACs unless a name says otherwise; forward, dense.

    ``fvcore_flops`` is in fvcore's unit (1 per MAC).  The three counters stand side
    by side; ``macs`` is the number they agree on.  ``macs_exact`` and ``pairs_exact``
    count only the query-key pairs that the mask lets through (pairs of one head and
    one sequence).  ``arithmetic_intensity`` is FLOPs (2 per MAC) per byte moved, as
    ``formulas.moved_bytes`` bounds it from below; over the visible pairs where the
    attention is fused, dense where it is not.
    """

    fvcore_flops: int | None
    torch_macs: int | None
    closed_form_macs: int | None
    macs: int
    macs_exact: int
    pairs_exact: int
    by_stage: dict[str, int]
    params: int
    norm_params: int
    sink_params: int
    softmax_ops: int
    uncounted_ops: dict[str, int] = {}
    flops_backward: int | None = None
    flops_forward_backward: int | None = None
    cache_dtype: str
    kv_bytes_per_token: int
    kv_cache_bytes: int
    arithmetic_intensity: float

    @property
    def flops(self) -> int:
        """Return FLOPs at two per MAC."""
        return flops_of(self.macs)

    def timed_flops(self, mode: Mode) -> tuple[int, int]:
        """Return the FLOPs of what is timed: dense, and over the pairs of the mask.

        A backward pass has its own FLOPs; its exact number scales as the forward's.
        """
        backward = self.flops_backward or 0
        dense = {
            "forward": self.flops,
            "backward": backward,
            "forward-backward": self.flops + backward,
        }[mode]
        return dense, dense * self.macs_exact // self.macs


class ModuleCounts(Record):
    """Exact counts of a module of the user, in the units of ``Counts``; it has no closed form.

    ``by_operator`` and ``by_module`` (qualified names, ``''`` is the whole) sum to ``macs``;
    ``elementwise`` is beside it.
    """

    fvcore_flops: int | None
    torch_macs: int | None
    macs: int
    params: int
    uncounted_ops: dict[str, int] = {}
    flops_backward: int | None = None
    flops_forward_backward: int | None = None
    by_operator: dict[str, int]
    by_module: dict[str, int]
    elementwise: dict[str, int] = {}

    @property
    def flops(self) -> int:
        """Return FLOPs at two per MAC."""
        return flops_of(self.macs)


class Latency(Record):
    """Times of one point, in seconds per call: raw samples and how they were taken.

    ``samples_s`` is what the timer names (device time for ``cuda-events``, wall time
    for ``wall``); ``process_time_s`` and ``enqueue_s`` are parallel lists where the
    timer has them.  ``first_call_s`` is apart (compilation, lazy loading).
    ``flags`` are among contended, throttled, power_limited, launch_bound, above_peak,
    compile_fallback.  ``torch`` and ``driver`` are versions; a CPU has no driver.
    ``gpu_before`` and ``gpu_after`` sampling are the state of an NVIDIA GPU under load:
    clocks (MHz), power (W), temperature (degrees C), throttle reasons, other processes.
    """

    device: str
    device_name: str
    torch: str | None = None
    driver: str | None = None
    dtype: str
    threads: int | None
    timer: str
    cache: Cache
    mode: Mode
    compiled: bool
    tf32: bool | None
    resolved_backend: str | None
    samples_s: list[float]
    process_time_s: list[float] | None = None
    enqueue_s: list[float] | None = None
    graph_samples_s: list[float] | None = None
    first_call_s: float
    warmup_calls: int
    converged: bool
    max_error: float
    tolerance: float
    replicate_medians_s: list[float] | None = None
    flags: list[str] = []
    gpu_before: dict[str, str | int | float | None] | None = None
    gpu_after: dict[str, str | int | float | None] | None = None

    @property
    def summary(self) -> Summary:
        """Derive median, interval and quantiles from the raw samples."""
        return summarize(self.samples_s)


class Memory(Record):
    """Peak bytes of one call: predicted before, measured after (None if not measured)."""

    predicted_peak_bytes: int
    peak_bytes: int | None
    available_bytes: int | None


class Roof(Record):
    """Where a timed call lies under the roofline of its device.

    ``bound`` is compute, memory or launch; ``attained_fraction`` the share of what it
    allows.  ``peak_tflops`` (TFLOP/s) and ``peak_gbps`` (GB/s) are None where nothing is
    known of the device, and then so are bound and fraction.
    """

    bound: str | None
    attained_fraction: float | None
    peak_tflops: float | None
    peak_gbps: float | None
    peak_source: str | None


class Measured(Record):
    """The outcome of a point that was measured; ``module`` are the counts of a ModulePoint."""

    status: Literal["ok"] = "ok"
    counts: Counts | None = None
    module: ModuleCounts | None = None
    latency: Latency | None = None
    memory: Memory | None = None
    roof: Roof | None = None
    findings: list[Finding] = []


class Skipped(Record):
    """The outcome of a point that cannot be measured here; ``code`` is stable.

    ``memory`` is what was predicted of a point that does not fit.
    """

    status: Literal["skipped"] = "skipped"
    code: str
    message: str
    memory: Memory | None = None


class Failed(Record):
    """The outcome of a point that broke while it was measured."""

    status: Literal["failed"] = "failed"
    code: str
    message: str
    traceback: str | None = None


Outcome = Annotated[Measured | Skipped | Failed, Field(discriminator="status")]


class Result(Record):
    """A point with its outcome.  ``reference_macs`` is what its ratio refers to."""

    point: Point | ModulePoint | ImpossiblePoint
    outcome: Outcome
    reference_macs: int | None = None


class Environment(Record):
    """Where and with what a run was measured.

    ``software`` maps package to version; ``hardware`` holds what identifies the
    machine (cpu_model, cores, device_name, driver, memory_bytes); ``state`` holds
    what changes from minute to minute (load, clocks, temperature, steal, other
    processes); ``git`` the commit of the working directory, if it is one.
    """

    software: dict[str, str]
    hardware: dict[str, str | int | float | None]
    state: dict[str, str | int | float | None]
    git: dict[str, str | bool] | None = None
    settings: dict[str, str | int | float | bool | None] = {}


class Run(Record):
    """What a result file holds."""

    schema_version: int = SCHEMA_VERSION
    environment: Environment | None = None
    environment_after: Environment | None = None
    results: list[Result]
