"""Statistics: order statistics, exact rank tests, intervals of ratios."""

from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys
import time

import numpy as np
import pytest
import scipy.stats as oracle
from hypothesis import given
from hypothesis import strategies as st

from mhaprof import stats

TIMES = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60)


@given(TIMES)
def test_quantiles_equal_numpys(samples: list[float]) -> None:
    summary = stats.summarize(samples)
    found = [summary.p5, summary.p25, summary.median, summary.p75, summary.p95]
    assert found == pytest.approx(np.percentile(samples, [5, 25, 50, 75, 95]), rel=1e-12)
    assert summary.minimum == min(samples)
    assert summary.mad == pytest.approx(
        np.median(np.abs(np.asarray(samples) - np.median(samples))), rel=1e-12, abs=1e-18
    )


def test_an_outlier_is_counted_and_kept() -> None:
    summary = stats.summarize([1.0, 1.1, 1.2, 1.1, 1.0, 9.0])
    assert (summary.count, summary.outliers) == (6, 1)


def test_five_samples_have_no_interval_and_six_have_the_whole_range() -> None:
    assert stats.summarize([1, 2, 3, 4, 5]).ci_low is None
    six = stats.summarize([1, 2, 3, 4, 5, 6])
    assert (six.ci_low, six.ci_high) == (1, 6)


@pytest.mark.parametrize("count", [*range(6, 60), 100, 333, 1000, 1001, 5000])
def test_interval_of_the_median_is_the_tightest_that_covers_95_percent(count: int) -> None:
    low, high = stats.median_interval(range(count)) or (0, 0)
    assert low + high == count - 1
    coverage = 1 - 2 * oracle.binom.cdf(int(low), count, 0.5)
    tighter = 1 - 2 * oracle.binom.cdf(int(low) + 1, count, 0.5)
    assert coverage >= 0.95 if count <= 1000 else coverage > 0.949
    assert tighter < 0.951


@pytest.mark.parametrize(("count", "exact"), [(1001, 469), (1100, 517), (5000, 2430)])
def test_interval_of_the_median_of_many_is_one_rank_wider_than_the_exact_one(
    count: int, exact: int
) -> None:
    assert oracle.binom.cdf(exact, count, 0.5) <= 0.025 < oracle.binom.cdf(exact + 1, count, 0.5)
    assert stats.median_interval(range(count)) == (exact - 1, count - exact)


def test_interval_of_the_median_covers_it_as_often_as_it_says() -> None:
    draw = random.Random(7)
    hits = 0
    for _ in range(2000):
        low, high = stats.median_interval(sorted(draw.expovariate(1) for _ in range(25))) or (0, 0)
        hits += low <= math.log(2) <= high
    assert 0.94 <= hits / 2000 <= 0.985


def test_precision_is_the_wider_half_of_the_interval() -> None:
    summary = stats.summarize([1.0, 2.0, 2.0, 2.0, 2.0, 3.0])
    assert summary.precision == 0.5
    above = stats.summarize([1.0, 2.0, 2.0, 2.0, 2.0, 6.0])
    below = stats.summarize([1.0, 6.0, 6.0, 6.0, 6.0, 7.0])
    assert (above.precision, below.precision) == (2.0, pytest.approx(5 / 6))
    assert stats.summarize([1.0]).precision is None


@pytest.mark.parametrize("samples", [[], [math.nan], [1.0, math.inf]])
def test_nothing_or_not_finite_is_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError, match=r"no samples|not finite"):
        stats.summarize(samples)


def test_five_slower_than_five_is_one_arrangement_of_252() -> None:
    assert stats.rank_test([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]) == pytest.approx(1 / 252)
    assert stats.rank_test([6, 7, 8, 9, 10], [1, 2, 3, 4, 5]) == 1.0


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
)
def test_rank_test_with_ties_equals_all_permutations(base: list[int], new: list[int]) -> None:
    ranks = oracle.rankdata([*base, *new])
    observed = ranks[len(base) :].sum()
    sums = [sum(chosen) for chosen in itertools.combinations(ranks, len(new))]
    expected = sum(total >= observed - 1e-9 for total in sums) / len(sums)
    assert stats.rank_test(base, new) == pytest.approx(expected)


@pytest.mark.parametrize("size", [5, 12, 30, 49])
def test_rank_test_without_ties_equals_scipys_exact_one(size: int) -> None:
    draw = random.Random(size)
    base = [draw.gauss(0, 1) for _ in range(size)]
    new = [draw.gauss(0.3, 1) for _ in range(size + 2)]
    expected = oracle.mannwhitneyu(new, base, alternative="greater", method="exact").pvalue
    assert stats.rank_test(base, new) == pytest.approx(expected, rel=1e-9)


def test_rank_test_of_many_equals_scipys_approximation() -> None:
    draw = random.Random(3)
    base = [float(draw.randint(0, 50)) for _ in range(300)]
    new = [float(draw.randint(2, 52)) for _ in range(200)]
    expected = oracle.mannwhitneyu(new, base, alternative="greater", method="asymptotic").pvalue
    assert stats.rank_test(base, new) == pytest.approx(expected, rel=1e-9)


def test_rank_test_of_equal_samples_says_nothing() -> None:
    assert stats.rank_test([1.0] * 5, [1.0] * 5) == 1.0
    assert stats.rank_test([1.0] * 500, [1.0] * 500) == 1.0


def test_interval_of_a_ratio_is_the_third_of_25_pairwise_ratios() -> None:
    base, new = [1.0, 1.01, 1.03, 1.02, 1.05], [2.0, 2.1, 2.05, 2.2, 2.15]
    pairs = sorted(b / a for a in base for b in new)
    found = stats.ratio_interval(base, new)
    assert found.ratio == pytest.approx(2.1 / 1.02)
    assert (found.low, found.high) == pytest.approx((pairs[2], pairs[22]), rel=1e-9)


def test_interval_of_a_ratio_holds_the_ratio_of_medians() -> None:
    base, new = [1.0] * 7 + [1.01] * 4 + [2.0] * 4, [1.0] * 8 + [2.0] * 2 + [2.02] * 5
    below, above = stats.ratio_interval(base, new), stats.ratio_interval(new, base)
    assert below.low == below.ratio == pytest.approx(1 / 1.01)
    assert above.high == above.ratio == pytest.approx(1.01)


@pytest.mark.parametrize(("counts", "exact"), [((51, 51), 1007), ((60, 60), 1426), ((50, 51), 986)])
def test_interval_of_a_ratio_of_many_is_one_pair_wider_than_the_exact_one(
    counts: tuple[int, int], exact: int
) -> None:
    draw = random.Random(3)
    base, new = ([draw.lognormvariate(0, 0.2) for _ in range(count)] for count in counts)
    pairs = sorted(b / a for a in base for b in new)
    found = stats.ratio_interval(base, new)
    assert (found.low, found.high) == pytest.approx((pairs[exact - 1], pairs[-exact]), rel=1e-9)


def test_interval_of_a_ratio_needs_four_a_side() -> None:
    assert stats.ratio_interval([1, 2, 3], [1, 2, 3]).low is None
    assert stats.ratio_interval([1, 2, 3, 4], [1, 2, 3, 4]).low is not None


@pytest.mark.parametrize("size", [5, 20, 80])
def test_interval_of_a_ratio_covers_it_as_often_as_it_says(size: int) -> None:
    draw, hits, tries = random.Random(size), 0, 200
    for _ in range(tries):
        base = [draw.lognormvariate(0, 0.2) for _ in range(size)]
        new = [1.3 * draw.lognormvariate(0, 0.2) for _ in range(size)]
        found = stats.ratio_interval(base, new)
        hits += (found.low or 9) <= 1.3 <= (found.high or 0)
    assert hits / tries >= 0.91


def test_interval_of_a_ratio_of_many_samples_forms_no_pairs() -> None:
    draw = random.Random(1)
    base = [draw.lognormvariate(0, 0.1) for _ in range(5000)]
    started = time.process_time()
    found = stats.ratio_interval(base, [2 * value for value in base])
    assert time.process_time() - started < 5
    assert found.low is not None
    assert found.high is not None
    assert 1.98 < found.low <= 2 <= found.high < 2.02


@pytest.mark.parametrize("samples", [([], [1.0]), ([0.0], [1.0]), ([1.0], [-1.0])])
def test_a_ratio_of_nothing_or_zero_is_refused(samples: tuple[list[float], list[float]]) -> None:
    with pytest.raises(ValueError, match="a ratio needs samples"):
        stats.ratio_interval(*samples)


@pytest.mark.parametrize("size", [1, 5, 10, 40])
def test_signed_rank_test_equals_scipys_exact_one(size: int) -> None:
    draw = random.Random(size)
    differences = [draw.gauss(0.3, 1) for _ in range(size)]
    expected = oracle.wilcoxon(differences, alternative="greater", method="exact").pvalue
    assert stats.signed_rank_test(differences) == pytest.approx(expected)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=8))
def test_signed_rank_test_with_ties_equals_all_changes_of_sign(values: list[int]) -> None:
    kept = [value for value in values if value]
    ranks = oracle.rankdata([abs(value) for value in kept]) if kept else []
    observed = sum(rank for rank, value in zip(ranks, kept, strict=True) if value > 0)
    sums = [
        sum(rank for rank, sign in zip(ranks, signs, strict=True) if sign)
        for signs in itertools.product((0, 1), repeat=len(kept))
    ]
    expected = sum(total >= observed - 1e-9 for total in sums) / len(sums)
    assert stats.signed_rank_test(values) == pytest.approx(expected)


def test_a_paired_ratio_does_not_see_what_both_sides_share() -> None:
    draw = random.Random(3)
    shared = [math.exp(draw.gauss(0, 0.3)) for _ in range(10)]
    base = [value * math.exp(draw.gauss(0, 0.005)) for value in shared]
    new = [1.1 * value * math.exp(draw.gauss(0, 0.005)) for value in shared]
    paired, unpaired = stats.paired_ratio(base, new), stats.ratio_interval(base, new)
    assert 1.09 < (paired.low or 0) < 1.1 < (paired.high or 0) < 1.11
    assert (unpaired.low or 9) < 0.95
    assert (unpaired.high or 0) > 1.2


def test_a_paired_ratio_of_five_has_all_five_for_an_interval_and_of_four_none() -> None:
    five = stats.paired_ratio([1.0] * 5, [1.0, 1.1, 1.2, 1.3, 2.0])
    assert (five.low, five.high) == pytest.approx((1.0, 2.0))
    assert stats.paired_ratio([1.0] * 4, [1.0, 1.1, 1.2, 1.3]).low is None


@pytest.mark.parametrize("size", [6, 10])
def test_interval_of_a_paired_ratio_covers_it_as_often_as_it_says(size: int) -> None:
    draw, hits = random.Random(size), 0
    for _ in range(1500):
        new = [1.2 * math.exp(draw.gauss(0, 0.1)) for _ in range(size)]
        found = stats.paired_ratio([1.0] * size, new)
        hits += (found.low or 9) <= 1.2 <= (found.high or 0)
    assert 0.94 <= hits / 1500 <= 0.985


@pytest.mark.parametrize("sides", [([], []), ([1.0], [0.0]), ([1.0, 2.0], [1.0])])
def test_a_paired_ratio_of_nothing_zero_or_unequal_numbers_is_refused(
    sides: tuple[list[float], list[float]],
) -> None:
    with pytest.raises(ValueError, match=r"above 0|shorter"):
        stats.paired_ratio(*sides)


def test_a_signed_rank_test_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="pairs"):
        stats.signed_rank_test([])


def test_holm_multiplies_by_what_is_left_and_never_decreases() -> None:
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert stats.holm([0.9, 0.8]) == [1.0, 1.0]
    assert stats.holm([]) == []


def test_a_clear_difference_is_distinguishable_and_a_small_or_noisy_one_is_not() -> None:
    draw = random.Random(5)
    base = [1 + draw.gauss(0, 0.01) for _ in range(50)]
    assert stats.distinguishable(base, [1.2 * value for value in base])
    assert stats.distinguishable([1.2 * value for value in base], base)
    assert not stats.distinguishable(base, [1.03 * value for value in base])
    assert stats.distinguishable(base, [1.03 * value for value in base], margin=0.01)
    noisy = [draw.lognormvariate(0, 1) for _ in range(8)]
    assert not stats.distinguishable(noisy, [1.2 * value for value in noisy])


def test_statistics_import_nothing_heavy() -> None:
    code = (
        "import sys, mhaprof.stats;"
        "print([n for n in ('torch', 'numpy', 'scipy', 'pandas') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_outlier_lies_beyond_one_and_a_half_interquartile_ranges() -> None:
    even = [float(value) for value in range(1, 21)]  # quartiles 5.75 and 15.25: reach 14.25
    assert stats.summarize([*even, 35.0]).outliers == 1
    assert stats.summarize([*even, 29.0]).outliers == 0


@pytest.mark.timeout(20)
@pytest.mark.parametrize("least", [1e-320, 1e-300, 1e-9])
@pytest.mark.parametrize("most", [1e308, 1e200, 1.0])
def test_times_that_nobody_measured_have_a_finite_interval(least: float, most: float) -> None:
    base, new = [least, 1.0, most] * 4, [most, 1.0, least] * 4
    for found in (
        *(stats.ratio_interval(base, new), stats.ratio_interval(new, base)),
        *(stats.paired_ratio(base, new), stats.paired_ratio(new, base)),
    ):
        assert found.low is not None
        assert found.high is not None
        assert 0 < found.low <= found.ratio <= found.high < math.inf
