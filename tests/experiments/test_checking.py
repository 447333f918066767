"""Estimates against the truth."""

from __future__ import annotations

import numpy as np
import pytest
from experiments.checking import CheckedPrice, bisect_budget, bounds, estimated_curve
from experiments.methods import Counted, true_value
from experiments.tabular import fit_tabular

from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.log import split
from redenvelope.log.read import log_from_frame
from redenvelope.models.dataset import Examples
from redenvelope.simulate.finite import two_step

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
        assert (np.abs(curve.outcomes[:, place] - truth.outcomes) < 4 * curve.errors[:, place]).all()
        assert curve.errors[1, place] < 0.05
    lower, upper = bounds(curve)
    np.testing.assert_allclose(upper - lower, 2 * 1.959964 * curve.errors, rtol=1e-6)


def test_bisection_lands_on_the_budget_by_its_own_account_and_close_to_it_in_truth(price: CheckedPrice) -> None:
    landing = bisect_budget(price, BUDGET)
    assert landing.cost == pytest.approx(BUDGET, rel=2e-4)
    assert sum(landing.shares) == pytest.approx(1.0)
    truth = true_value(two_step(), price.method, price.encoder, landing.prices, landing.shares)
    # 4,000 users know a cost to 0.024 or so; four of that.
    assert truth.cost == pytest.approx(BUDGET, abs=0.1)
    # The counted model of 4,000 users orders all plans rightly, so at its cost nothing earns more.
    assert truth.reward == pytest.approx(two_step().optimum(truth.cost).reward, abs=0.005)
