"""Warm-up and stop rule on synthetic streams of times, with a fake clock."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator

import pytest

from mhaprof import stats
from mhaprof.measure.sampling import (
    Progress,
    Samples,
    StopRule,
    WarmUp,
    is_converged,
    sample,
    warm_up,
    why_not_converged,
)
from mhaprof.measure.timers import Batch


class Stream:
    """A timer whose samples come from a stream; its clock advances by them."""

    name = "stream"
    cache = "hot"
    max_batch = 50

    def __init__(self, times: Iterable[float]) -> None:
        self.times: Iterator[float] = iter(times)
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def batch(self, call: object, count: int) -> Batch:
        taken = [next(self.times) for _ in range(count)]
        self.now += sum(taken)
        return Batch(samples_s=taken, process_time_s=taken)


def run(times: Iterable[float], rule: StopRule | None = None) -> Samples:
    stream = Stream(times)
    return sample(stream, lambda: None, rule=rule or StopRule(), clock=stream.clock)  # type: ignore[arg-type]


def noisy(spread: float = 0.01, seed: int = 1) -> Iterator[float]:
    draw = random.Random(seed)
    while True:
        yield 1e-3 * (1 + draw.gauss(0, spread))


def test_a_steady_stream_stops_soon_after_half_a_second() -> None:
    taken = run(noisy())
    assert taken.converged
    assert 0.5 <= taken.elapsed_s < 0.6
    assert stats.summarize(taken.samples_s).precision < 0.01  # type: ignore[operator]


def test_slow_calls_stop_at_twenty_samples() -> None:
    taken = run(0.1 * value / 1e-3 for value in noisy(0.001))
    assert taken.converged
    assert len(taken.samples_s) == 20


def test_a_drifting_stream_runs_to_the_cap_and_is_not_converged() -> None:
    taken = run(1e-3 * (1 + index / 4_000) for index in itertools.count())
    assert not taken.converged
    assert 15.0 <= taken.elapsed_s < 15.2


def test_a_bimodal_stream_is_not_converged() -> None:
    draw = random.Random(2)
    rule = StopRule(max_time_s=2.0)
    taken = run((draw.choice([1e-3, 1.4e-3]) for _ in itertools.count()), rule)
    assert not taken.converged
    assert "asked" in why_not_converged(taken.samples_s, rule)


def test_one_outlier_does_not_stop_a_steady_stream_from_converging() -> None:
    times = itertools.chain([1e-3] * 30, [0.2], noisy())
    taken = run(times)
    assert taken.converged
    assert max(taken.samples_s) == 0.2
    assert taken.elapsed_s < 0.8


def test_a_very_long_call_is_reported_with_few_samples_and_not_converged() -> None:
    taken = run(itertools.repeat(6.0))
    assert len(taken.samples_s) == 3
    assert not taken.converged
    assert "3 samples" in why_not_converged(taken.samples_s, StopRule())


def test_a_call_beyond_the_cap_is_still_sampled_once() -> None:
    assert len(run(itertools.repeat(60.0)).samples_s) == 1


def test_asked_for_samples_are_taken_exactly_and_convergence_is_judged() -> None:
    assert len(run(noisy(), StopRule(samples=33)).samples_s) == 33
    assert run(noisy(), StopRule(samples=33)).converged
    assert not run(noisy(0.5), StopRule(samples=33)).converged
    assert not run(noisy(), StopRule(samples=7)).converged


def test_more_precision_takes_more_samples() -> None:
    fine = run(noisy(0.05), StopRule(precision=0.002, min_time_s=0.01))
    coarse = run(noisy(0.05), StopRule(precision=0.02, min_time_s=0.01))
    assert fine.converged
    assert len(fine.samples_s) > 4 * len(coarse.samples_s)


def test_an_interrupt_keeps_what_was_measured() -> None:
    def times() -> Iterator[float]:
        yield from [1e-3] * 200
        raise KeyboardInterrupt

    stream = Stream(times())
    stream.max_batch = 10
    taken = sample(stream, lambda: None, rule=StopRule(), clock=stream.clock)  # type: ignore[arg-type]
    assert taken.interrupted
    assert 180 <= len(taken.samples_s) <= 200


def test_an_interrupt_before_the_first_sample_is_not_swallowed() -> None:
    def times() -> Iterator[float]:
        raise KeyboardInterrupt
        yield 1.0

    with pytest.raises(KeyboardInterrupt):
        run(times())


def test_progress_tells_samples_and_precision_so_far() -> None:
    told: list[Progress] = []
    stream = Stream(noisy())
    sample(stream, lambda: None, rule=StopRule(), clock=stream.clock, progress=told.append)  # type: ignore[arg-type]
    counts = [entry.samples for entry in told]
    assert counts == sorted(counts)
    assert told[0].precision is None
    assert told[-1].precision is not None
    assert {entry.stage for entry in told} == {"sampling"}


def warm(times: Iterable[float], **limits: float) -> tuple[int, float]:
    stream = Stream(times)
    rule = WarmUp(**{"min_time_s": 0.2, **limits})  # type: ignore[arg-type]
    return warm_up(stream, lambda: None, rule=rule, clock=stream.clock), stream.now  # type: ignore[arg-type]


def test_a_steady_device_is_warm_after_the_least_time() -> None:
    _, seconds = warm(itertools.repeat(1e-3))
    assert 0.2 <= seconds < 0.35


def test_a_ramping_device_is_warmed_until_two_windows_agree() -> None:
    ramp = itertools.chain(
        (1e-3 * (1.5 - 0.5 * index / 1000) for index in range(1000)), itertools.repeat(1e-3)
    )
    calls, seconds = warm(ramp)
    assert calls > 1000
    assert seconds < 2.0


def test_warm_up_ends_at_its_cap_when_nothing_agrees() -> None:
    _, seconds = warm((1e-3 * 1.0004**index for index in itertools.count()), max_time_s=1.0)
    assert 1.0 <= seconds < 1.3


def test_long_calls_are_warmed_by_three_of_them() -> None:
    calls, _ = warm(itertools.repeat(5.0))
    assert calls == 3


def test_a_tight_interval_around_a_drift_does_not_converge() -> None:
    rule = StopRule()
    drift = [1.0 + 0.0001 * index for index in range(1000)]
    assert stats.summarize(drift).precision < rule.precision  # type: ignore[operator]
    assert not is_converged(drift, rule)
    assert why_not_converged(drift, rule) == (
        "the times drifted: median 1.025 s in the first half, 1.075 s in the second"
    )
    assert is_converged(sorted(drift, key=lambda value: (value * 7919) % 1), rule)


def test_time_in_which_others_had_their_turn_is_no_time_of_ours() -> None:
    stream = Stream(noisy())

    def wait(progress: Progress) -> float:
        stream.now += 10.0
        return 10.0

    taken = sample(
        stream,
        lambda: None,
        rule=StopRule(),
        clock=stream.clock,
        progress=wait,  # type: ignore[arg-type]
    )
    assert taken.converged
    assert 0.5 <= taken.elapsed_s < 0.6
    assert taken.paused_s >= 90.0
    stream.now = 0.0
    calls = warm_up(
        stream,
        lambda: None,
        rule=WarmUp(),
        clock=stream.clock,
        progress=wait,  # type: ignore[arg-type]
    )
    assert 40 <= calls <= 3100


class Counted(float):
    """A time that counts how often it is compared: the work of sorting it."""

    compared = 0

    def __lt__(self, other: float) -> bool:
        Counted.compared += 1
        return float(self) < float(other)


@pytest.mark.parametrize("samples", [3_000, 30_000])
def test_looking_at_the_samples_costs_the_same_a_sample_however_many_there_are(
    samples: int,
) -> None:
    draw = random.Random(3)
    times = (Counted(1e-3 * draw.choice([1.0, 1.4]) + draw.gauss(0, 1e-5)) for _ in range(samples))
    rule = StopRule(min_time_s=0.1, max_time_s=1.15e-3 * samples, precision=1e-9)
    stream = Stream(itertools.chain(times, itertools.repeat(1e-3)))
    stream.max_batch = 20
    Counted.compared = 0
    taken = sample(stream, lambda: None, rule=rule, clock=stream.clock)  # type: ignore[arg-type]
    assert 0.9 * samples < len(taken.samples_s) < 1.1 * samples
    assert Counted.compared / len(taken.samples_s) < 300
