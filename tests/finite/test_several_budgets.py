"""Induction with two and three budgets, against enumeration."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redenvelope import FiniteProblem, UsageError
from redenvelope.finite.problem import backward_induction, evaluate, exact_price, finite_policy
from redenvelope.simulate.finite import random_problem

PRICES = [0.0, 0.2, 1.0, 5.0, np.inf]


def every_policy(problem: FiniteProblem) -> np.ndarray:
    """Outcomes of every policy without chance, step-dependent, [outcomes, policies]."""
    choices = [np.flatnonzero(row) for row in problem.allowed] * problem.steps
    shape = (problem.steps, problem.states, problem.actions)
    tables = (np.eye(problem.actions)[list(table)].reshape(shape) for table in itertools.product(*choices))
    return np.array([evaluate(problem, table).outcomes for table in tables]).T


def whole_numbers(seed: int, budgets: int) -> FiniteProblem:
    """A problem full of ties that no rounding breaks: whole numbers, certain moves, halves and quarters of users."""
    generator = np.random.default_rng(seed)
    problem = random_problem(seed, states=2, actions=3, steps=3, deterministic=True, budgets=budgets)
    return replace(
        problem,
        rewards=generator.integers(0, 3, size=(2, 3)).astype(float),
        costs=generator.integers(0, 3, size=(budgets, 2, 3)).astype(float),
        initial=np.array([0.25, 0.75]),
    )


def best_of(outcomes: np.ndarray, prices: np.ndarray) -> np.ndarray:
    """The winner of outcomes [outcomes, policies] at prices [budgets] by value, costs in order, reward, [outcomes]."""
    infinite = np.isinf(prices)
    value = -outcomes[1:][infinite].sum(axis=0) if infinite.any() else outcomes[0] - prices @ outcomes[1:]
    return outcomes[:, np.lexsort((-outcomes[0], *outcomes[:0:-1], -value))[0]]


@pytest.mark.parametrize("budgets", [2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_plans_are_the_best_of_all_deterministic_policies(seed: int, budgets: int) -> None:
    problem = random_problem(seed, states=2, actions=3, steps=3, leaving=0.1, ineligible=0.2, budgets=budgets)
    every = every_policy(problem)
    prices = np.array(list(itertools.product(PRICES, repeat=budgets)))
    found = exact_price(problem)(prices)
    assert found.shape == (1 + budgets, len(prices))
    finite = np.isfinite(prices).all(axis=1)
    best = (every[0] - prices[finite] @ every[1:]).max(axis=1)
    np.testing.assert_allclose(found[0, finite] - (prices[finite].T * found[1:, finite]).sum(axis=0), best, rtol=1e-12)
    for row, outcomes in zip(prices[~finite], found[:, ~finite].T, strict=True):
        infinite = np.isinf(row)
        assert outcomes[1:][infinite].sum() == pytest.approx(every[1:][infinite].sum(axis=0).min(), rel=1e-12)


@pytest.mark.parametrize("budgets", [1, 2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_ties_go_to_the_least_costs_in_order_and_then_to_the_reward(seed: int, budgets: int) -> None:
    problem = whole_numbers(seed, budgets)
    every = every_policy(problem)
    prices = np.array(list(itertools.product([0.0, 0.5, 1.0, np.inf], repeat=budgets)))
    for row, outcomes in zip(prices, exact_price(problem)(prices).T, strict=True):
        np.testing.assert_array_equal(outcomes, best_of(every, row), err_msg=str(row))


@pytest.mark.parametrize("rewards", [[0.0, 0.2], [0.2, 0.0]])
def test_a_price_beyond_the_precision_of_rewards_still_takes_the_greater_reward(rewards: list[float]) -> None:
    # Values of -1e14 are known to 0.35 or so, in which rewards drown; the costs are equal.
    problem = FiniteProblem(np.array([rewards]), np.ones((1, 1, 2)), np.ones((1, 2, 1)), np.ones(1), steps=1)
    assert exact_price(problem)([1e14])[0, 0] == 0.2


@pytest.mark.parametrize("temperature", [0.0, 0.3])
@pytest.mark.parametrize("lookahead", [None, 1])
def test_outcomes_are_those_of_the_policy(temperature: float, lookahead: int | None) -> None:
    problem = random_problem(3, states=5, steps=4, ineligible=0.2, budgets=3)
    prices = np.array([[0.0, 0.0, 0.0], [0.3, 0.0, 1.0], [np.inf, 1.0, 0.0], [np.inf, 0.5, np.inf]])
    plans = backward_induction(problem, prices, temperature, lookahead)
    np.testing.assert_allclose(exact_price(problem, temperature, lookahead)(prices), plans.outcomes, rtol=1e-12)
    for place, row in enumerate(prices):
        table = plans.policy(place).table
        np.testing.assert_allclose(evaluate(problem, table).outcomes, plans.outcomes[:, place], rtol=1e-12)
        np.testing.assert_array_equal(finite_policy(problem, row, temperature, lookahead).table, table)


def test_slopes_of_the_soft_value_are_minus_the_costs() -> None:
    problem = random_problem(4, states=5, steps=3, budgets=3)
    temperature, prices, step = 0.2, np.array([0.5, 0.1, 0.3]), 1e-5

    def value(at: np.ndarray) -> float:
        action_values = backward_induction(problem, at[None], temperature).action_values[0, 0] / temperature
        return float(temperature * np.logaddexp.reduce(action_values, axis=1) @ problem.initial)

    costs = exact_price(problem, temperature)(prices[None])[1:, 0]
    for budget, direction in enumerate(step * np.eye(3)):
        slope = (value(prices + direction) - value(prices - direction)) / (2 * step)
        # Central differences err by step² and by rounding over step: both below 1e-8 here.
        assert slope == pytest.approx(-costs[budget], rel=1e-7)


def test_entropy_at_an_infinite_price_shares_what_is_cheapest_by_its_reward() -> None:
    # The first budget cannot tell the first three actions apart, the second rules one of them out.
    costs = np.array([[[1.0, 1.0, 1.0, 2.0]], [[3.0, 3.0, 4.0, 0.0]]])
    problem = FiniteProblem(np.array([[0.0, 1.0, 9.0, 9.0]]), costs, np.ones((1, 4, 1)), np.ones(1), steps=2)
    table = finite_policy(problem, [np.inf, 0.0], temperature=1.0).table[0, 0]
    np.testing.assert_allclose(table, [1 / (1 + np.e), np.e / (1 + np.e), 0, 0], atol=1e-12)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.integers(2, 3), st.floats(0, 4), st.data())
def test_the_same_cost_twice_is_one_budget_at_the_sum_of_the_prices(
    seed: int, budgets: int, price: float, data: st.DataObject
) -> None:
    problem = random_problem(seed, states=3, actions=3, steps=3)
    same = replace(problem, costs=np.repeat(problem.costs, budgets, axis=0))
    shares = np.array(data.draw(st.lists(st.floats(0.1, 1), min_size=budgets, max_size=budgets)))
    found = exact_price(same)((price * shares / shares.sum())[None])[:, 0]
    reward, cost = exact_price(problem)([price])[:, 0]
    # At a price where plans change, rounding of the sum may pick the other plan: the value is what is equal.
    assert found[0] - price * found[1] == pytest.approx(reward - price * cost, rel=1e-9, abs=1e-9)
    np.testing.assert_array_equal(found[1:], found[1])


def test_prices_must_be_one_for_each_budget() -> None:
    problem = random_problem(0, budgets=2)
    for prices in ([1.0, 2.0], [[1.0]], [[1.0, 2.0, 3.0]], [[-1.0, 0.0]], [[np.nan, 0.0]]):
        with pytest.raises(UsageError, match="prices must be"):
            exact_price(problem)(np.array(prices))
