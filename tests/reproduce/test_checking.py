"""Estimates against the truth, and landings against closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope.log.encoding import Encoder
from redenvelope.log.read import log_from_frame
from redenvelope.log.split import split
from redenvelope.models.examples import Examples
from redenvelope.models.tabular import fit_tabular
from redenvelope.reproduce.checking import CheckedPrice, Curve, bisect_budget, estimated_curve, land_on
from redenvelope.reproduce.methods import Counted, true_value
from redenvelope.simulate.two_step import two_step

BUDGET = 2.9295


@pytest.fixture(scope="module")
def price() -> CheckedPrice:
    train, validation = split(log_from_frame(two_step().log(8_000, seed=5)), (0.5, 0.5), seed=0)
    encoder = Encoder.fit(train)
    return CheckedPrice(Counted(fit_tabular(Examples.from_log(train, encoder))), encoder, validation)


def test_estimates_hold_the_truth(price: CheckedPrice) -> None:
    duals = np.array([0.0, 1.15, 2.0])
    curve = estimated_curve(price.method, price.encoder, price.log, duals)
    for place, dual in enumerate(duals):
        truth = true_value(two_step(), price.method, price.encoder, (float(dual),), (1.0,))
        # Four standard errors: one of these six would be further off by chance in 2,600 logs.
        assert abs(curve.costs[place] - truth.cost) < 4 * curve.cost_errors[place]
        assert abs(curve.rewards[place] - truth.reward) < 4 * curve.reward_errors[place]
        assert curve.cost_errors[place] < 0.05


def test_bisection_lands_on_the_budget_by_its_own_account_and_close_to_it_in_truth(price: CheckedPrice) -> None:
    landing = bisect_budget(price, BUDGET)
    assert landing.cost == pytest.approx(BUDGET, rel=2e-4)
    assert sum(landing.shares) == pytest.approx(1.0)
    truth = true_value(two_step(), price.method, price.encoder, landing.duals, landing.shares)
    # 4,000 users know a cost to 0.024 or so; four of that.
    assert truth.cost == pytest.approx(BUDGET, abs=0.1)
    # The counted model of 4,000 users orders all plans rightly, so at its cost nothing earns more.
    assert truth.reward == pytest.approx(two_step().optimum(truth.cost).reward, abs=0.005)


def _curve(costs: list[float], rewards: list[float]) -> Curve:
    errors = np.ones(len(costs))
    return Curve(np.arange(float(len(costs))), np.array(costs), errors, np.array(rewards), errors)


def test_landing_mixes_the_neighbours_of_what_is_wanted() -> None:
    curve = _curve([10.0, 6.0, 2.0, 1.0], [9.0, 8.0, 5.0, 3.0])
    by_cost = land_on(curve, "cost", 3.0)
    assert (by_cost.duals, by_cost.shares) == ((1.0, 2.0), (0.25, 0.75))
    assert (by_cost.cost, by_cost.reward) == (3.0, 5.75)
    by_reward = land_on(curve, "reward", 8.5)
    assert (by_reward.duals, by_reward.cost) == ((0.0, 1.0), 8.0)


def test_landing_outside_of_the_curve_takes_its_end() -> None:
    curve = _curve([10.0, 6.0], [9.0, 8.0])
    assert land_on(curve, "cost", 20.0).duals == (0.0,)
    assert land_on(curve, "cost", 1.0).duals == (1.0,)


def test_estimates_that_rise_with_the_price_are_made_to_fall() -> None:
    curve = _curve([10.0, 4.0, 6.0, 1.0], [9.0, 7.0, 8.0, 3.0])
    landing = land_on(curve, "cost", 3.0)  # between 5 (the mean of 4 and 6) and 1
    assert landing.duals == (2.0, 3.0)
    assert landing.shares == (0.5, 0.5)
