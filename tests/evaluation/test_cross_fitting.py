"""Certificates that all users check keep their promise: a small edition of benchmarks/cross_fitting.py."""

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

REPLICATIONS = 100


@pytest.fixture
def replicate() -> Any:
    folder = Path(__file__).parents[2] / "benchmarks"
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return importlib.import_module("cross_fitting").replicate


def test_errors_are_as_stated_where_each_group_checks_the_others_plan(replicate: Any) -> None:
    every = [replicate(seed, 1_000, 2) for seed in range(REPLICATIONS)]
    errors = np.array([one.error for one in every])
    # The mean of 100 errors varies by 0.1, their spread by 7 %; three of each.
    assert abs(errors.mean()) < 0.3
    assert errors.std() == pytest.approx(1, abs=0.21)
    over = sum(one.true["with learning"][1] > one.budget for one in every)
    assert over <= 11  # of 100 at 5 %: more happens once in 200 times


def test_errors_are_larger_where_each_group_checks_its_own_plan(replicate: Any) -> None:
    """What cross-fitting is for: on the users who trained it, a plan looks cheaper than it is."""
    errors = [replicate(seed, 1_000, 2, own=True).error for seed in range(REPLICATIONS)]
    assert np.mean(errors) < -0.3
