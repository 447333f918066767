"""Concentration: whales are refused with their number and share, moderate tails are not."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope.evaluation.confidence import Concentration
from redenvelope.evaluation.diagnostics import Weight


def with_whales(users: int, whales: int, times: float) -> np.ndarray:
    costs = np.random.default_rng(0).exponential(size=users)
    costs[:whales] = times
    return costs


def test_seven_whales_are_refused_by_number_and_share() -> None:
    costs = with_whales(4_500, 7, 300.0)
    found = Concentration.of(costs)
    assert found.carriers == 7
    assert found.share == pytest.approx(2_100 / costs.sum())
    reason = found.reason()
    assert reason is not None and (reason.rule, reason.weight) == ("concentrated", Weight.REFUSAL)
    assert reason.message.startswith("7 users of 4,500 carry 31% of the cost")


@pytest.mark.parametrize("users", [1_200, 8_000])
@pytest.mark.parametrize("spread", [0.0, 0.8, 1.3])
def test_moderate_tails_are_not_refused(users: int, spread: float) -> None:
    generator = np.random.default_rng(users)
    for _ in range(20):
        assert Concentration.of(generator.lognormal(0.0, spread, size=users)).reason() is None


def test_many_whales_can_be_bounded() -> None:
    assert Concentration.of(with_whales(100_000, 100, 400.0)).reason() is None


def test_a_few_who_cost_little_more_are_nothing() -> None:
    assert Concentration.of(with_whales(4_500, 7, 20.0)).reason() is None
    assert Concentration.of(np.zeros(10)).reason() is None


def test_batches_merge_to_all_users() -> None:
    costs = np.random.default_rng(3).permutation(with_whales(4_500, 7, 300.0))
    merged = Concentration.of(costs[:700]).merge(Concentration.of(costs[700:]))
    assert merged.reason() == Concentration.of(costs).reason()
