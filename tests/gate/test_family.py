"""Judging many points at once: chance alone rarely fails a gate, and power remains."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from typing import Any

import pytest

from mhaprof.compare import RunRows, compare, family, preset
from mhaprof.compare.family import adjusted, step_down
from mhaprof.stats import holm, rank_test


def sides(seed: int, points: int, shift: float, noise: float = 0.05) -> Any:
    chance = random.Random(seed)
    base = [[chance.lognormvariate(0, noise) for _ in range(5)] for _ in range(points)]
    new = [[(1 + shift) * chance.lognormvariate(0, noise) for _ in range(5)] for _ in range(points)]
    return base, new


def test_few_points_are_adjusted_by_holm() -> None:
    base, new = sides(1, 6, 0.0)
    p_values = [rank_test(*pair) for pair in zip(base, new, strict=True)]
    assert adjusted(p_values, base, new, alpha=0.05) == holm(p_values)


def test_holm_could_never_reject_fifty_points_of_five_rounds_and_step_down_does() -> None:
    base, new = sides(1, 50, 0.5)
    p_values = [rank_test(*pair) for pair in zip(base, new, strict=True)]
    assert min(holm(p_values)) > 0.05
    assert max(adjusted(p_values, base, new, alpha=0.05)) < 0.05


def test_step_down_matches_its_definition_on_a_small_case() -> None:
    base, new = sides(3, 4, 0.03)
    total = [[*before, *after] for before, after in zip(base, new, strict=True)]
    pooled = [family._Centred.of(values) for values in total]
    observed = [point.shift(range(5, 10)) for point in pooled]
    order = sorted(range(4), key=lambda place: -observed[place])
    expected, highest = [0.0] * 4, 0.0
    for rank, place in enumerate(order):
        rest = order[rank:]
        hits = sum(
            max(pooled[other].shift(chosen) for other in rest) >= observed[place] - 1e-9
            for chosen in itertools.combinations(range(10), 5)
        )
        highest = max(highest, hits / 252)
        expected[place] = highest
    assert step_down(base, new) == pytest.approx(expected)


def test_relabelings_of_many_rounds_are_drawn_alike_every_time() -> None:
    chance = random.Random(0)
    base = [[chance.lognormvariate(0, 0.05) for _ in range(9)] for _ in range(3)]
    new = [[1.2 * chance.lognormvariate(0, 0.05) for _ in range(9)] for _ in range(3)]
    first = step_down(base, new)
    assert first == step_down(base, new)
    assert max(first) < 0.05


def test_points_with_unequal_rounds_are_relabeled_apart_and_share_the_level() -> None:
    base, new = sides(1, 30, 0.5)
    base[0].append(1.0)
    p_values = [rank_test(*pair) for pair in zip(base, new, strict=True)]
    found = adjusted(p_values, base, new, alpha=0.05)
    alone = step_down(base[:1], new[:1]) + step_down(base[1:], new[1:])
    assert found == pytest.approx([min(1.0, 2 * p_value) for p_value in alone])
    assert max(found) < 0.05


def test_one_point_that_lost_a_round_does_not_hide_the_regressions_of_the_others(
    make_rows: Any,
) -> None:
    rows = make_rows(seed=1, points=50)
    slow = make_rows(seed=2, points=50, slower=dict.fromkeys(range(50), 2.0))
    slow[0]["replicate_medians_s"].pop()
    runs = (RunRows(source="base", rows=rows), RunRows(source="new", rows=slow))
    assert len(compare(*runs, preset("default")).blocking()) == 50


@pytest.mark.parametrize("noise", [0.02, 0.2])
def test_many_identical_points_rarely_fail_the_gate_whatever_the_noise(
    make_rows: Any, noise: float
) -> None:
    failed = 0
    for seed in range(12):
        base = RunRows(source="base", rows=make_rows(seed=1000 + seed, noise=noise, points=30))
        new = RunRows(source="new", rows=make_rows(seed=2000 + seed, noise=noise, points=30))
        failed += compare(base, new, preset("default")).exit_code == 1
    assert failed <= 2


def test_three_rounds_a_side_cannot_prove_a_regression(make_rows: Any) -> None:
    base = RunRows(source="base", rows=make_rows(seed=1, rounds=3))
    new = RunRows(source="new", rows=make_rows(seed=2, rounds=3, slower={7: 1.5}))
    found = compare(base, new, preset("default"))
    reasons = {(point.name, point.worst.reason) for point in found.points}
    assert found.exit_code == 0
    assert ("p07", "too_few_rounds") in reasons


@pytest.mark.parametrize(
    ("settings", "threshold"),
    [
        ({"device": "cuda", "timer": "cuda-events"}, 0.05),
        ({"device": "cpu", "timer": "wall", "threads": 1}, 0.05),
        ({"device": "cpu", "timer": "process", "threads": 2}, 0.05),
        ({"device": "cpu", "timer": "wall", "threads": 2}, 0.10),
        ({"device": "cpu", "timer": "wall", "threads": 1, "flags": "contended"}, 0.25),
    ],
)
def test_the_threshold_follows_what_the_clock_can_vouch_for(
    make_rows: Any, settings: dict[str, Any], threshold: float
) -> None:
    rows = make_rows(seed=1, points=1, rounds=None, **settings)
    run = RunRows(source="run", rows=rows)
    (point,) = compare(run, run, preset("default")).points
    (latency,) = [found for found in point.judgements if found.metric == "latency"]
    assert latency.threshold == threshold


def rounds_of(points: int, rounds: int, shift: float, *, seed: int) -> tuple[RunRows, RunRows]:
    """Return two sides whose rounds share a noise of 20 %, beside 1 % of their own."""
    chance = random.Random(seed)
    sides: list[list[dict[str, Any]]] = [[], []]
    for place in range(points):
        shared = [1e-3 * chance.lognormvariate(0, 0.2) for _ in range(rounds)]
        for rows, factor in zip(sides, (1.0, 1 + shift), strict=True):
            medians = [factor * value * chance.lognormvariate(0, 0.01) for value in shared]
            rows.append(
                {
                    "name": f"p{place}",
                    "implementation": "eager",
                    "status": "ok",
                    "device": "cpu",
                    "timer": "wall",
                    "threads": 1,
                    "torch": "2.13",
                    "replicate_medians_s": medians,
                }
            )
    base, new = sides
    return (
        RunRows(source="base", rows=base, paired=True),
        RunRows(source="new", rows=new, paired=True),
    )


@pytest.mark.parametrize("points", [1, 6, 50])
def test_rounds_in_pairs_show_a_tenth_through_noise_of_a_fifth(points: int) -> None:
    base, new = rounds_of(points, 5, 0.1, seed=points)
    found = compare(base, new, preset("default"))
    assert len(found.blocking()) == points
    assert {judgement.reason for _, judgement in found.blocking()} == {"rank_test"}
    alone = [RunRows(source=run.source, rows=run.rows) for run in (base, new)]
    assert compare(*alone, preset("default")).blocking() == []


@pytest.mark.parametrize("rounds", [5, 10])
def test_equal_sides_in_pairs_rarely_fail_the_gate(rounds: int) -> None:
    failed = sum(
        compare(*rounds_of(30, rounds, 0.0, seed=seed), preset("default")).exit_code == 1
        for seed in range(20)
    )
    assert failed <= 2


def test_pairs_are_adjusted_by_holm_where_it_can_reject_and_else_by_swapping_sides() -> None:
    chance = random.Random(5)
    for rounds, points in ((10, 6), (5, 6)):
        base = [[chance.lognormvariate(0, 0.1) for _ in range(rounds)] for _ in range(points)]
        new = [[1.3 * chance.lognormvariate(0, 0.1) for _ in range(rounds)] for _ in range(points)]
        p_values = [family.PAIRED.test(*pair) for pair in zip(base, new, strict=True)]
        found = adjusted(p_values, base, new, alpha=0.05, design=family.PAIRED)
        by_holm = points / 2**rounds < 0.05
        assert (found == holm(p_values)) is by_holm
        if not by_holm:
            assert found == family.paired_step_down(base, new)


def test_swapping_sides_matches_its_definition_on_a_small_case() -> None:
    chance = random.Random(2)
    logs = [[chance.gauss(0.05, 0.1) for _ in range(5)] for _ in range(3)]
    base = [[1.0] * 5 for _ in logs]
    new = [[math.exp(value) for value in point] for point in logs]

    def statistic(values: list[float]) -> float:
        spread = statistics.stdev(values) / 5**0.5
        return statistics.mean(values) / (spread + family.SPREAD_FLOOR)

    observed = [statistic(point) for point in logs]
    order = sorted(range(3), key=lambda place: -observed[place])
    expected, highest = [0.0] * 3, 0.0
    for rank, place in enumerate(order):
        hits = 0
        for signs in itertools.product((1, -1), repeat=5):
            largest = max(
                statistic([sign * value for sign, value in zip(signs, logs[other], strict=True)])
                for other in order[rank:]
            )
            hits += largest >= observed[place] - 1e-9
        highest = max(highest, hits / 32)
        expected[place] = highest
    assert family.paired_step_down(base, new) == pytest.approx(expected)


def test_three_rounds_in_pairs_cannot_prove_a_regression() -> None:
    found = compare(*rounds_of(2, 3, 0.5, seed=1), preset("default"))
    assert found.exit_code == 0
    assert {point.worst.reason for point in found.points} == {"too_few_rounds"}
