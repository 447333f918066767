"""The search for plans with entropy under several budgets, against the conditions that only the optimum meets."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope.dual.quasi_newton import QuasiNewton
from redenvelope.dual.solution import DualStatus
from redenvelope.dual.solve import solve_dual
from redenvelope.finite.induction import exact_price, exact_worth
from redenvelope.simulate.finite import random_problem


@pytest.mark.parametrize("budgets", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(8))
def test_costs_meet_the_budgets_that_have_a_price_and_keep_the_others(seed: int, budgets: int) -> None:
    # The dual function is convex: a plan that meets these conditions is the optimum, and there is one.
    problem = random_problem(seed, states=5, actions=4, steps=4, ineligible=0.2, budgets=budgets)
    price, worth = exact_price(problem, 0.3), exact_worth(problem, 0.3)
    free, dear = price(np.zeros((1, budgets)))[1:, 0], price(np.full((1, budgets), 50.0))[1:, 0]
    shares = np.random.default_rng(seed).uniform(0.3, 1.2, budgets)
    limits = dear + shares * (free - dear)
    found = QuasiNewton().solve(worth, limits)
    if found.status is DualStatus.BUDGET_SLACK:
        assert (free <= limits).all()
        return
    assert found.status is DualStatus.CONVERGED
    scale = np.abs(limits)
    assert ((found.costs - limits) / scale).max() <= 1e-6
    paid = found.duals > 0
    np.testing.assert_allclose(found.costs[paid], limits[paid], rtol=2e-4)
    np.testing.assert_allclose(price(found.prices)[:, 0], [found.reward, *found.costs], rtol=1e-12)
    if budgets == 1:
        assert found.duals[0] == pytest.approx(solve_dual(price, float(limits[0])).dual, rel=1e-3)


def test_worth_is_the_dual_function_whose_slope_is_minus_the_cost() -> None:
    problem, step = random_problem(4, states=5, steps=3, budgets=3), 1e-5
    worth, prices = exact_worth(problem, 0.2), np.array([[0.5, 0.1, 0.3]])
    for budget, direction in enumerate(step * np.eye(3)):
        slope = (worth(prices + direction)[-1, 0] - worth(prices - direction)[-1, 0]) / (2 * step)
        assert slope == pytest.approx(-worth(prices)[1 + budget, 0], rel=1e-7)


def test_budgets_in_conflict_are_infeasible() -> None:
    problem = random_problem(2, budgets=2)
    least = exact_price(problem)(np.array([[np.inf, 0.0], [0.0, np.inf]]))
    found = QuasiNewton().solve(exact_worth(problem, 0.1), [0.9 * least[1, 0], 0.9 * least[2, 1]])
    assert found.status is DualStatus.BUDGET_INFEASIBLE
    assert found.excess.max() > 0
