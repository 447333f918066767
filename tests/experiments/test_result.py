"""Intervals over seeds."""

from __future__ import annotations

import numpy as np
import pytest
from experiments.result import interval, with_interval


def test_the_interval_is_students() -> None:
    mean, low, high = interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert low is not None and high is not None
    # 4.302653 is the quantile of two degrees of freedom, 1/√3 the standard error.
    assert (low, high) == (pytest.approx(2 - 4.302653 / np.sqrt(3)), pytest.approx(2 + 4.302653 / np.sqrt(3)))


def test_one_value_has_no_interval() -> None:
    assert with_interval("cost", [1.5]) == {"cost": 1.5, "cost_lower": None, "cost_upper": None}


def test_the_interval_covers_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    covered = 0
    for values in generator.normal(size=(2_000, 5)):
        _, low, high = interval(values.tolist())
        covered += low is not None and high is not None and low <= 0 <= high
    # The share's own error is √(0.95 · 0.05 / 2000) = 0.005; four of it.
    assert covered / 2_000 == pytest.approx(0.95, abs=0.02)
