"""Take the time of one point: check, warm up, sample, and say under which conditions.

The order is fixed: the first call is timed apart and its result compared with the
float64 reference; only what passed is warmed up and sampled.  ``Subject`` is all that
this module knows of attention.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mhaprof.measure import (
    allocator,
    backend,
    calls,
    conditions,
    devices,
    graphs,
    load,
    numerics,
    nvidia,
    sampling,
    streams,
)
from mhaprof.measure.sampling import ProgressCallback, Samples, StopRule, WarmUp, sample, warm_up
from mhaprof.measure.timers import Call, EventTimer, GraphTimer, Timer, WallTimer
from mhaprof.records import AUTO_BACKEND, Failed, Finding, Latency, Settings, Skipped

if TYPE_CHECKING:
    import torch

ACCELERATOR_WARM_UP = WarmUp(min_time_s=0.2)
"""Warm-up where clocks ramp up under load."""

LAUNCH_BOUND = "the host's launches, not the device, set the pace; see the graph time"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is timed, and what its result must be.

    ``inputs(k)`` makes the k-th set of inputs, drawn from N(0, 1) with a seed of k, all
    of the same shapes.  ``shape`` is that of the result.  ``reference`` is the float64
    result of ``part`` of the problem on set 0: ``part(result)`` cuts the same rows from
    the module's result (see ``numerics.checked_part``); its rows are of so many independent
    ``values``.  ``backend`` is the attention backend that the module asks for,
    ``AUTO_BACKEND`` if it leaves the choice to torch.
    """

    module: Callable[..., torch.Tensor]
    inputs: Callable[[int], tuple[torch.Tensor, ...]]
    shape: tuple[int, ...]
    reference: torch.Tensor
    part: Callable[[torch.Tensor], torch.Tensor]
    tolerance: float
    values: int | None = None
    backend: str | None = None


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A row's latency, one finding for each of its flags, and whether Ctrl-C ended it."""

    latency: Latency
    findings: list[Finding]
    interrupted: bool


@dataclass(kw_only=True)
class _Setup:
    """What is fixed before the first sample."""

    settings: Settings
    device: str
    run: Callable[..., torch.Tensor]
    inputs: tuple[torch.Tensor, ...]
    compiled: calls.Compiled | None
    first_call_s: float = 0.0
    check: numerics.Check | None = None
    resolved_backend: str | None = None
    flags: dict[str, str] = field(default_factory=dict)


def measure(
    subject: Subject,
    *,
    settings: Settings,
    rule: StopRule | None = None,
    progress: ProgressCallback | None = None,
) -> Timed | Failed | Skipped:
    """Measure one point under ``settings``, whose device and dtype are set.

    Returns ``Failed`` (``wrong_result``) without any time when the first result is
    wrong, or (``escaped_stream``) when its work is where no event sees it; ``Skipped``
    (``backend_unavailable``) with torch's reasons when no kernel takes the problem.
    Raises UsageError for a timer that the device does not have.
    """
    device = settings.device or "cpu"
    timer = choose_timer(device, settings)
    with _environment(subject, settings, device) as setup:
        refused = _first_call(subject, setup)
        if refused is not None:
            return refused
        setup.resolved_backend = _resolved_backend(subject, setup)
        call = calls.mode_call(setup.run, setup.inputs, settings.mode)
        refused = _first_gradients(call, setup)
        if refused is None and device.startswith("cuda"):
            refused = streams.escaped(call)
        if refused is not None:
            return refused
        if settings.timer == "graph":
            timer, call = _graph_timer(timer, call)
        return _timed(
            subject,
            setup,
            timer=timer,
            call=call,
            rule=rule or StopRule(),
            progress=progress,
        )


def choose_timer(device: str, settings: Settings) -> Timer:
    """Return the timer that ``settings`` ask for; raises UsageError when there is none.

    ``wall`` on an accelerator waits for it in each sample.  ``auto`` is wall on a CPU and
    events elsewhere.
    """
    devices.require_timer(device, settings.timer)
    timer = devices.make_timer(device, cache=settings.cache)
    if settings.timer != "wall" or isinstance(timer, WallTimer):
        return timer
    flush, wait = timer.flush, timer.synchronize
    return WallTimer(flush=None if flush is None else lambda: (flush(), wait()))


def cpu_threads(settings: Settings) -> int:
    """Return the threads of a CPU row: those asked for, else ``default_threads``."""
    return settings.threads or devices.default_threads()


@contextmanager
def _environment(subject: Subject, settings: Settings, device: str) -> Iterator[_Setup]:
    """Set threads, TF32, gradients, device, stream, backend, compiler; restore all."""
    with ExitStack() as stack:
        if device == "cpu":
            stack.enter_context(allocator.freed_memory_kept())
            stack.enter_context(devices.threads(cpu_threads(settings)))
        elif device.startswith("cuda"):
            stack.enter_context(devices.side_stream(device))
        stack.enter_context(devices.tf32(settings.tf32))
        stack.enter_context(calls.gradients(settings.mode))
        stack.enter_context(backend.pinned(subject.backend))
        compiled = None
        if settings.compile:
            compiled = stack.enter_context(calls.compiled(subject.module))
        yield _Setup(
            settings=settings,
            device=device,
            run=subject.module if compiled is None else compiled.module,
            inputs=subject.inputs(0),
            compiled=compiled,
        )


def _first_call(subject: Subject, setup: _Setup) -> Failed | Skipped | None:
    """Call once, time it apart, and check the result."""

    def call() -> torch.Tensor:
        result = setup.run(*setup.inputs)
        devices.synchronize(setup.device)
        return result

    devices.synchronize(setup.device)
    started = time.perf_counter()
    result, reason = backend.refusal_of(call)
    setup.first_call_s = time.perf_counter() - started
    if reason is not None:
        return Skipped(code="backend_unavailable", message=reason)
    setup.check = numerics.check_whole(
        result,
        subject.reference,
        shape=subject.shape,
        part=subject.part,
        tolerance=subject.tolerance,
        values=subject.values,
    )
    if not setup.check.ok:
        return Failed(code="wrong_result", message=setup.check.message)
    return None


def _resolved_backend(subject: Subject, setup: _Setup) -> str | None:
    """Return the backend that one call shows, or the only one there is.

    torch.compile decomposes math while it traces, so that a compiled call shows nothing
    of it: then the module as it is tells what torch chose.
    """
    if subject.backend in backend.UNSEEN_BACKENDS:
        return subject.backend
    inputs = setup.inputs
    found = backend.resolved_backend(
        lambda: setup.run(*inputs), compiled=setup.compiled is not None
    )
    if found is None and setup.compiled is not None:
        return backend.resolved_backend(lambda: subject.module(*inputs))
    return found


def _first_gradients(call: Call, setup: _Setup) -> Failed | None:
    """Call the backward pass once, add it to the first call's time, check for NaN."""
    if setup.settings.mode != "forward":
        devices.synchronize(setup.device)
        started = time.perf_counter()
        gradients = call()
        devices.synchronize(setup.device)
        setup.first_call_s += time.perf_counter() - started
        if not calls.finite(gradients):
            return Failed(code="wrong_result", message="a gradient is NaN or infinite")
    if setup.compiled is not None:
        setup.compiled.steady()
    return None


def _timed(
    subject: Subject,
    setup: _Setup,
    *,
    timer: Timer,
    call: Call,
    rule: StopRule,
    progress: ProgressCallback | None,
) -> Timed:
    """Warm up, sample, and assemble the row."""
    device = setup.device
    timed_call = _waiting(call, timer, device)
    warm_rule = WarmUp() if device == "cpu" else ACCELERATOR_WARM_UP
    warm_calls = warm_up(timer, timed_call, rule=warm_rule, progress=progress)
    before = conditions.cpu_state()
    with load.watched(timer, device) as (watched, gpu_states):
        taken = sample(watched, timed_call, rule=rule, progress=progress)
    after = conditions.cpu_state()
    setup.flags |= load.flags_of(*gpu_states)
    if device == "cpu":
        _note(
            setup.flags,
            "contended",
            conditions.contention(
                before,
                after,
                threads=cpu_threads(setup.settings),
                samples_s=taken.samples_s,
                process_time_s=taken.process_time_s,
                paused_s=taken.paused_s,
            ),
        )
    graph_samples, interrupted = None, taken.interrupted
    try:
        # After Ctrl-C nothing more is launched.
        if isinstance(timer, EventTimer) and not interrupted:
            graph_samples = _graph_samples(setup, timer, call, taken, rule)
    except KeyboardInterrupt:
        interrupted = True
    if setup.compiled is not None:
        _note(setup.flags, "compile_fallback", setup.compiled.fallback())
    return Timed(
        latency=_latency(
            setup,
            taken,
            timer=timer,
            warmup_calls=warm_calls,
            graph_samples=graph_samples,
            gpu_states=gpu_states,
        ),
        findings=_findings(subject, setup, taken, rule),
        interrupted=interrupted,
    )


def _latency(
    setup: _Setup,
    taken: Samples,
    *,
    timer: Timer,
    warmup_calls: int,
    graph_samples: list[float] | None,
    gpu_states: list[nvidia.GpuState],
) -> Latency:
    """Assemble the record of a row."""
    import torch

    settings, device, check = setup.settings, setup.device, setup.check
    assert check is not None
    on_cpu = device == "cpu"
    states = [state.values() for state in gpu_states]
    return Latency(
        device=device,
        device_name=devices.device_name(device),
        torch=str(torch.__version__),
        driver=nvidia.driver_version() if device.startswith("cuda") else None,
        dtype=settings.dtype or "float32",
        threads=cpu_threads(settings) if on_cpu else None,
        timer=timer.name,
        cache=timer.cache,
        mode=settings.mode,
        compiled=settings.compile,
        tf32=settings.tf32 if device.startswith("cuda") else None,
        resolved_backend=setup.resolved_backend,
        samples_s=taken.samples_s,
        process_time_s=taken.process_time_s if on_cpu else None,
        enqueue_s=taken.enqueue_s,
        graph_samples_s=graph_samples,
        first_call_s=setup.first_call_s,
        warmup_calls=warmup_calls,
        converged=taken.converged,
        max_error=check.max_error,
        tolerance=check.tolerance,
        flags=list(setup.flags),
        gpu_before=states[0] if states else None,
        gpu_after=states[-1] if states else None,
    )


def _findings(subject: Subject, setup: _Setup, taken: Samples, rule: StopRule) -> list[Finding]:
    """Return one warning for each flag, for a time that did not converge, for math."""
    found = [Finding(code=code, message=message) for code, message in setup.flags.items()]
    if not taken.converged and not taken.interrupted and rule.samples is None:
        message = sampling.why_not_converged(taken.samples_s, rule)
        found.append(Finding(code="not_converged", message=message))
    math = backend.math_finding(setup.resolved_backend) if subject.backend == AUTO_BACKEND else None
    return found if math is None else [*found, math]


def _note(flags: dict[str, str], flag: str, sentence: str | None) -> None:
    if sentence is not None:
        flags[flag] = sentence


def _graph_samples(
    setup: _Setup, timer: EventTimer, call: Call, taken: Samples, rule: StopRule
) -> list[float] | None:
    """Time a launch-bound call as a CUDA graph, flagged; None where it cannot be captured."""
    if not timer.is_launch_bound(call, taken.samples_s, taken.enqueue_s or [0.0]):
        return None
    setup.flags["launch_bound"] = LAUNCH_BOUND
    if not setup.device.startswith("cuda"):
        return None
    try:
        graph_timer, replay = _graph_timer(timer, call)
    except RuntimeError as error:
        setup.flags["launch_bound"] += f" (none: {str(error).splitlines()[0]})"
        return None
    warm_up(graph_timer, replay, rule=ACCELERATOR_WARM_UP)
    taken = sample(graph_timer, replay, rule=rule)
    if taken.interrupted:
        raise KeyboardInterrupt
    return taken.samples_s


def _graph_timer(timer: Timer, call: Call) -> tuple[GraphTimer, Call]:
    """Capture the call; return the timer of the replay, and it."""
    assert isinstance(timer, EventTimer)
    count = graphs.HOT_CALLS if timer.cache == "hot" else 1
    graph = graphs.capture(call, count)
    # What the call reads has to live as long as its replay does.
    return GraphTimer(events=timer, calls=count), lambda: (graph.replay(), call)


def _waiting(call: Call, timer: Timer, device: str) -> Call:
    """Let a wall timer wait for the accelerator inside each sample."""
    if device == "cpu" or not isinstance(timer, WallTimer):
        return call

    def call_and_wait() -> object:
        result = call()
        devices.synchronize(device)
        return result

    return call_and_wait
