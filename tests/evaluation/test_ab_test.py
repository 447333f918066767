"""Differences between two arms: against Welch where nothing leans, and against truth where money does."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from redenvelope.evaluation.confidence import difference, mean_estimate
from redenvelope.plan.rollout_check import sample_ratio_mismatch


def test_without_skewness_it_is_the_interval_of_welch() -> None:
    draw = np.random.default_rng(3)
    first, second = (np.concatenate([half, -half]) for half in (draw.normal(size=400), 3 * draw.normal(size=100)))
    found = difference(first + 1, second, 0.95)
    error = np.hypot(first.std(ddof=1) / np.sqrt(len(first)), second.std(ddof=1) / np.sqrt(len(second)))
    assert found.standard_error == pytest.approx(error)
    assert (found.lower, found.upper) == pytest.approx((1 - 1.96 * error, 1 + 1.96 * error), abs=1e-3)
    welch = stats.ttest_ind(first + 1, second, equal_var=False)
    assert found.estimate / found.standard_error == pytest.approx(welch.statistic)


def test_a_mean_that_nobody_deviates_from_is_known() -> None:
    assert difference(np.full(5, 2.0), np.full(7, 1.5), 0.9).upper == pytest.approx(0.5)
    assert mean_estimate(np.full(5, 2.0), 0.9).lower == pytest.approx(2.0)


def test_intervals_of_skewed_money_cover_on_both_sides() -> None:
    """An arm of sixty users with exponential costs beside a large one, 4,000 times.

    Each side should be missed 2.5 % of the time; 4,000 draws tell that to 0.25 %. The normal interval misses 5.2 %
    above and 1.4 % below.
    """
    draw = np.random.default_rng(11)
    above = below = normal_above = 0
    for _ in range(4_000):
        first, second = draw.exponential(1.0, 60), draw.normal(size=600)
        found = difference(first, second, 0.95)
        above += found.upper < 1.0
        below += found.lower > 1.0
        normal_above += found.estimate + 1.96 * found.standard_error < 1.0
    assert 0.018 < above / 4_000 < 0.038 < 0.045 < normal_above / 4_000
    assert 0.018 < below / 4_000 < 0.032


def test_a_sample_ratio_mismatch_is_noticed() -> None:
    assert sample_ratio_mismatch(5_050, 4_950, 0.5) is None
    chance = sample_ratio_mismatch(5_300, 4_700, 0.5)
    assert chance == pytest.approx(stats.chisquare([5_300, 4_700]).pvalue)
    assert sample_ratio_mismatch(1_000, 9_000, 0.1) is None
