"""Warm up, sample, stop: how many samples a number needs, and when it is honest.

Pure control flow over a ``Timer``; knows no device.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mhaprof import stats
from mhaprof.measure.timers import Batch, Call, Timer
from mhaprof.units import format_percent, format_seconds

BATCH_S = 0.05
"""Longest batch, in seconds: how often the clock and the progress look."""

MORE = 1.25
"""Factor of samples after which the interval is looked at again.

Looking takes time in proportion to the samples, in which a GPU idles and its clocks drop.
"""


@dataclass(frozen=True, kw_only=True)
class StopRule:
    """When to stop sampling.

    Stop at ``min_samples`` samples and ``min_time_s`` seconds and a 95 % interval of
    the median within ``precision`` (half width / median), the two halves of the samples
    agreeing within twice that; or, not converged, at ``max_time_s``.  ``samples`` asks
    for exactly that many instead, and convergence is still judged.
    """

    min_time_s: float = 0.5
    max_time_s: float = 15.0
    precision: float = 0.01
    min_samples: int = 20
    samples: int | None = None


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """How long to warm up: until two consecutive windows agree.

    ``min_time_s`` is 0.2 on a GPU, whose clocks ramp (25 ms reads up to 30 % slow).
    ``max_time_s`` bounds it when the windows never agree.
    """

    min_time_s: float = 0.05
    max_time_s: float = 3.0
    min_calls: int = 3
    agreement: float = 0.02


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What is known so far: samples taken and the median's relative half interval.

    ``precision`` is None below six samples.  ``stage`` is ``warm-up`` or ``sampling``.
    """

    stage: str
    samples: int
    precision: float | None
    elapsed_s: float


ProgressCallback = Callable[[Progress], float | None]
"""Called between batches.  Seconds that it returns were waited, and count as no time."""


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Everything that was sampled, and whether it is enough.

    ``interrupted`` says that the user stopped it: the samples are good, only fewer.
    ``paused_s`` is time in which others had their turn, not part of ``elapsed_s``.
    """

    samples_s: list[float]
    process_time_s: list[float] | None
    enqueue_s: list[float] | None
    converged: bool
    interrupted: bool
    elapsed_s: float
    paused_s: float = 0.0


def warm_up(
    timer: Timer,
    call: Call,
    *,
    rule: WarmUp,
    clock: Callable[[], float] = time.perf_counter,
    progress: ProgressCallback | None = None,
) -> int:
    """Call until two consecutive windows agree; return the number of calls.

    A window holds at least half of ``min_time_s`` and one call; windows agree when
    their medians differ by at most ``agreement`` of the smaller.
    """
    calls, previous, started, paused = 0, None, clock(), 0.0
    while True:
        window: list[float] = []
        window_start = clock()
        while not window or clock() - window_start < rule.min_time_s / 2:
            rest = rule.min_time_s / 2 - (clock() - window_start)
            count = _batch_size(timer, per_sample_s=_mean(window), budget_s=min(rest, BATCH_S))
            window += timer.batch(call, count).samples_s
        calls += len(window)
        current, elapsed = stats.median(window), clock() - started - paused
        if progress is not None:
            known = Progress(stage="warm-up", samples=calls, precision=None, elapsed_s=elapsed)
            paused += progress(known) or 0.0
        enough = elapsed >= rule.min_time_s and calls >= rule.min_calls
        if enough and previous is not None and _agree(previous, current, rule.agreement):
            return calls
        if elapsed >= rule.max_time_s and calls >= rule.min_calls:
            return calls
        previous = current


def sample(
    timer: Timer,
    call: Call,
    *,
    rule: StopRule,
    clock: Callable[[], float] = time.perf_counter,
    progress: ProgressCallback | None = None,
) -> Samples:
    """Sample until ``rule`` says stop; the garbage collector rests meanwhile.

    An interrupt (Ctrl-C) keeps what complete batches brought; with no sample yet it is
    raised again.
    """
    batches: list[Batch] = []
    times: list[float] = []
    known = _Known(rule)
    interrupted, elapsed, paused = False, 0.0, 0.0
    with _collector_paused():
        started = clock()
        try:
            while not _finished(known, elapsed):
                budget = min(BATCH_S, rule.max_time_s - elapsed)
                per_sample = elapsed / len(times) if times else 0.0
                count = _batch_size(timer, per_sample_s=per_sample, budget_s=budget)
                if rule.samples is not None:
                    count = min(count, rule.samples - len(times))
                batches.append(timer.batch(call, count))
                times += batches[-1].samples_s
                elapsed = clock() - started - paused
                known.look(times, elapsed)
                if progress is not None:
                    so_far = Progress(
                        stage="sampling",
                        samples=len(times),
                        precision=known.precision,
                        elapsed_s=elapsed,
                    )
                    paused += progress(so_far) or 0.0
        except KeyboardInterrupt:
            if not batches:
                raise
            interrupted = True
    return Samples(
        samples_s=[value for batch in batches for value in batch.samples_s],
        process_time_s=_joined([batch.process_time_s for batch in batches]),
        enqueue_s=_joined([batch.enqueue_s for batch in batches]),
        converged=is_converged(times, rule),
        interrupted=interrupted,
        elapsed_s=elapsed,
        paused_s=paused,
    )


class _Known:
    """What the samples show, looked at anew whenever they are a quarter more."""

    def __init__(self, rule: StopRule) -> None:
        self.rule, self.samples, self.converged = rule, 0, False
        self.precision: float | None = None
        self._next, self._may_stop = 1.0, False

    def look(self, times: list[float], elapsed: float) -> None:
        """Look at all samples, if it is time to: also as soon as the rule may stop."""
        rule, self.samples = self.rule, len(times)
        may_stop = elapsed >= rule.min_time_s and len(times) >= rule.min_samples
        if len(times) < self._next and may_stop == self._may_stop:
            return
        self._next, self._may_stop = MORE * len(times), may_stop
        self.precision = stats.summarize(times).precision
        self.converged = may_stop and _bears(times, self.precision, rule)


def is_converged(samples_s: list[float], rule: StopRule) -> bool:
    """Say whether the samples bear the precision that ``rule`` asks for.

    Besides a tight interval this asks that the first half and the second agree within
    twice the precision: a drift makes a tight interval around nothing.
    """
    if len(samples_s) < rule.min_samples:
        return False
    return _bears(samples_s, stats.summarize(samples_s).precision, rule)


def _bears(samples_s: list[float], precision: float | None, rule: StopRule) -> bool:
    if precision is None or precision > rule.precision:
        return False
    return _agree(*_half_medians(samples_s), 2 * rule.precision)


def why_not_converged(samples_s: list[float], rule: StopRule) -> str:
    """Say in a sentence what the samples lack of ``rule``."""
    if len(samples_s) < rule.min_samples:
        return f"{len(samples_s)} samples in the time limit, {rule.min_samples} are needed"
    precision = stats.summarize(samples_s).precision
    if precision is None or precision > rule.precision:
        known = "unknown" if precision is None else format_percent(precision)
        return f"precision {known} in the time limit, {format_percent(rule.precision)} was asked"
    first, second = map(format_seconds, _half_medians(samples_s))
    return f"the times drifted: median {first} in the first half, {second} in the second"


def _half_medians(samples_s: list[float]) -> tuple[float, float]:
    middle = len(samples_s) // 2
    return stats.median(samples_s[:middle]), stats.median(samples_s[middle:])


def _finished(known: _Known, elapsed: float) -> bool:
    rule = known.rule
    if not known.samples or elapsed >= rule.max_time_s:
        return bool(known.samples)
    return known.converged if rule.samples is None else known.samples >= rule.samples


def _batch_size(timer: Timer, *, per_sample_s: float, budget_s: float) -> int:
    """Return how many samples fit the budget; one while their cost is unknown."""
    if per_sample_s <= 0:
        return 1
    return max(1, min(timer.max_batch, int(budget_s / per_sample_s)))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _agree(first: float, second: float, tolerance: float) -> bool:
    return abs(first - second) <= tolerance * min(first, second)


def _joined(lists: list[list[float] | None]) -> list[float] | None:
    """Join parallel lists of batches; None when the timer has none."""
    present = [values for values in lists if values is not None]
    return [value for values in present for value in values] if present else None


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Collect no garbage while sampling, as timeit does."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
