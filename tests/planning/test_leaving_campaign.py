"""Users who leave without an envelope, in closed loop: a small edition of benchmarks/leaving.py."""

import importlib
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_plan_that_knows_who_stays_earns_what_can_be_earned() -> None:
    folder = Path(__file__).parents[2] / "benchmarks"
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    shares = importlib.import_module("leaving").shares
    for seed in (0, 1):
        found = shares(8_000, seed, learned=False)
        assert found["planned"].min() > 0.95
        # Blind to leaving, an envelope is worth no more than what it earns at once.
        assert found["planned, blind to leaving"].max() < 0.8
