from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from redenvelope.planning.planner import ModelPrice, TreePlanner
from tests.planning.exact import induction

DUALS = np.array([0.0, 0.4, 1.0, np.inf])


@pytest.mark.parametrize("temperature", [0.0, 0.3])
def test_a_tree_to_the_end_is_exact(table_world, every_state, temperature):
    model, problem = table_world(0, steps=4)
    outcomes = ModelPrice(TreePlanner(model, 4, temperature, 4), every_state(problem))(DUALS)
    assert outcomes.dtype == np.float64
    np.testing.assert_allclose(outcomes, induction(problem, DUALS, temperature).expected(), rtol=1e-5)


@pytest.mark.parametrize("horizon", [1, 2, 3])
def test_hard_short_horizon_is_exact(table_world, every_state, horizon):
    model, problem = table_world(1, steps=5)
    outcomes = ModelPrice(TreePlanner(model, horizon, 0.0, 5), every_state(problem))(DUALS)
    np.testing.assert_allclose(outcomes, induction(problem, DUALS, 0.0, horizon).expected(), rtol=1e-5)


@pytest.mark.parametrize("horizon", [1, 3])
@pytest.mark.parametrize("budgets", [2, 3])
def test_several_costs_are_followed_alike(table_world, every_state, horizon, budgets):
    model, problem = table_world(4, steps=3, budgets=budgets)
    prices = np.random.default_rng(0).exponential(0.5, (6, budgets))
    prices[0, 0] = np.inf
    outcomes = ModelPrice(TreePlanner(model, horizon, 0.0, 3), every_state(problem))(prices)
    assert outcomes.shape == (1 + budgets, 6)
    np.testing.assert_allclose(outcomes, induction(problem, prices, 0.0, horizon).expected(), rtol=1e-5)


def test_soft_short_horizon_is_unbiased(table_world, every_state):
    model, problem = table_world(2, steps=5)
    states = np.repeat(every_state(problem), 1500, axis=0)
    price = ModelPrice(TreePlanner(model, 2, 0.5, 5), states, seed=3)
    outcomes = price.by_user(DUALS)
    truth = induction(problem, DUALS, 0.5, lookahead=2).expected()
    # First states are not drawn here, so the standard error is an upper bound; 4 of them is beyond chance.
    errors = outcomes.std(axis=1) / np.sqrt(len(states))
    assert (np.abs(outcomes.mean(axis=1) - truth) < 4 * errors + 1e-5).all()


def test_a_user_is_followed_alike_among_any_others(network_world):
    model, states = network_world(0, users=60)
    left = np.random.default_rng(0).integers(1, 6, size=60)
    price = ModelPrice(TreePlanner(model, 2, 0.1, 5), states, left, seed=1)
    parts = replace(price, paths_at_once=20)
    np.testing.assert_allclose(parts.by_user(DUALS), price.by_user(DUALS), rtol=1e-5, atol=1e-6)


def test_discount_is_the_same_near_and_far(table_world, every_state):
    # Horizon 1 in a one-state world: five times the same step, discounted.
    model, problem = table_world(0, states=1, steps=5)
    _, costs = ModelPrice(TreePlanner(model, 1, 0.0, 5, discount=0.5), every_state(problem))([1.0])
    best = np.argmax(problem.rewards[0] - problem.costs[0])
    assert costs[0] == pytest.approx(problem.costs[0, best] * (1 - 0.5**5) / 0.5, rel=1e-5)


def test_eligible_is_kept_on_the_way(network_world):
    model, states = network_world(1, users=20)
    mask = np.zeros((20, 5), dtype=bool)
    mask[:, 0] = True  # costs nothing and earns nothing
    rewards, costs = ModelPrice(TreePlanner(model, 1, 0.1, 4), states, eligible=mask)([0.0])
    assert costs[0] == pytest.approx(0, abs=1e-6)
    assert rewards[0] == pytest.approx(0, abs=1e-6)


def test_common_numbers_make_close_duals_agree(network_world):
    model, states = network_world(2, users=200)
    price = ModelPrice(TreePlanner(model, 1, 0.3, 4), states)
    _, costs = price([0.5, 0.5001])
    assert abs(costs[0] - costs[1]) < 2e-3
