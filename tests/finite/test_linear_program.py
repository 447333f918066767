"""The linear program, against enumeration, a second method and random policies."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest

from redenvelope import FiniteProblem, UsageError, linear_program
from redenvelope.finite.linear_program import least_costs
from redenvelope.finite.problem import evaluate
from redenvelope.simulate.finite import random_problem, two_step_problem


def deterministic_values(problem: FiniteProblem) -> np.ndarray:
    """(cost, reward) of every policy without chance, step-dependent, [policies, 2]."""
    choices = [np.flatnonzero(row) for row in problem.allowed]
    rows = np.eye(problem.actions)
    tables = product(*(choices * problem.steps))
    shape = (problem.steps, problem.states, problem.actions)
    values = [evaluate(problem, rows[list(table)].reshape(shape)) for table in tables]
    return np.array([(value.cost, value.reward) for value in values])


def best_mixture(points: np.ndarray, budget: float) -> float:
    """The greatest reward of a mixture of two points within the budget: every pair is tried."""
    cheap, dear = points[points[:, 0] <= budget], points[points[:, 0] > budget]
    best = cheap[:, 1].max()
    for cost, reward in dear:
        share = (budget - cheap[:, 0]) / (cost - cheap[:, 0])
        best = max(best, (cheap[:, 1] + share * (reward - cheap[:, 1])).max())
    return float(best)


def middling_budget(problem: FiniteProblem) -> float:
    """Half-way from the least cost to that of the greatest reward."""
    return (least_costs(problem)[0] + linear_program(problem, np.inf).cost) / 2


def test_two_step_problem_to_four_decimals() -> None:
    solution = linear_program(two_step_problem(), 2.9295)
    assert solution.status == "converged"
    assert round(solution.reward, 4) == 4.5093
    assert solution.cost == pytest.approx(2.9295, rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_equals_the_best_mixture_of_all_deterministic_policies(seed: int) -> None:
    problem = random_problem(seed, states=3, actions=3, steps=2, leaving=0.1, ineligible=0.2)
    points = deterministic_values(problem)
    assert least_costs(problem)[0] == pytest.approx(points[:, 0].min(), rel=1e-12)
    budget = middling_budget(problem)
    solution = linear_program(problem, budget)
    assert solution.reward == pytest.approx(best_mixture(points, budget), rel=1e-9)
    assert solution.cost <= budget + 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_interior_point_and_simplex_agree(seed: int) -> None:
    problem = random_problem(seed, states=20, actions=4, steps=5, leaving=0.05, ineligible=0.2)
    budget = middling_budget(problem)
    inner, simplex = (linear_program(problem, budget, method) for method in ("highs-ipm", "highs-ds"))
    assert inner.reward == pytest.approx(simplex.reward, rel=1e-9)
    assert inner.cost == pytest.approx(budget, rel=1e-9)
    assert inner.occupancy.sum(axis=2)[0] == pytest.approx(problem.initial, abs=1e-12)
    assert not (inner.policy * ~problem.allowed).any()
    assert inner.policy.sum(axis=2) == pytest.approx(np.ones((5, 20)), abs=1e-9)


def test_dual_is_the_slope_of_reward_in_the_budget() -> None:
    problem = random_problem(3, states=8, steps=4)
    budget = middling_budget(problem)
    solution = linear_program(problem, budget)
    above, below = (linear_program(problem, budget + change).reward for change in (1e-6, -1e-6))
    assert above - solution.reward == pytest.approx(solution.dual * 1e-6, rel=1e-2)
    assert solution.reward - below == pytest.approx(solution.dual * 1e-6, rel=1e-2)


def test_no_random_policy_lies_above_the_price_of_the_optimum() -> None:
    problem = random_problem(4, states=6, steps=4, ineligible=0.2)
    budget = middling_budget(problem)
    solution = linear_program(problem, budget)
    generator = np.random.default_rng(0)
    for _ in range(300):
        weights = generator.exponential(size=(4, 6, 4)) ** 3 * problem.allowed
        value = evaluate(problem, weights / weights.sum(axis=2, keepdims=True))
        assert value.reward <= solution.reward + solution.dual * (value.cost - budget) + 1e-9


def test_reward_rises_with_the_budget_and_concavely() -> None:
    problem = random_problem(5, states=8, steps=4)
    budgets = np.linspace(least_costs(problem)[0], linear_program(problem, np.inf).cost, 12)
    rewards = [linear_program(problem, budget).reward for budget in budgets]
    slopes = [later - earlier for earlier, later in pairwise(rewards)]
    assert min(slopes) > 0
    assert all(later <= earlier + 1e-9 for earlier, later in pairwise(slopes))


def test_a_slack_budget_has_no_price() -> None:
    problem = random_problem(6)
    solution = linear_program(problem, 100.0)
    assert (solution.status, solution.dual) == ("budget_slack", 0.0)
    assert solution.reward == pytest.approx(linear_program(problem, 1e6).reward, rel=1e-12)
    # All actions earn the same: the dear first choice of the plan must not hide that cheap ones fit.
    indifferent = replace(problem, rewards=np.zeros_like(problem.rewards), costs=problem.costs[..., ::-1])
    solution = linear_program(indifferent, least_costs(indifferent) * 1.05)
    assert (solution.status, solution.dual) == ("budget_slack", 0.0)


def test_too_small_a_budget_is_data_and_names_the_least_one() -> None:
    problem = random_problem(7)
    least = least_costs(problem)[0]
    refused = linear_program(problem, least * 0.99)
    assert refused.status == "budget_infeasible"
    assert refused.cost == pytest.approx(least, rel=1e-12)
    assert refused.dual == np.inf
    accepted = linear_program(problem, refused.cost)
    assert accepted.status == "converged"
    assert accepted.cost == pytest.approx(least, rel=1e-9)


def test_cheapest_policy_looks_ahead() -> None:
    """Saving 1 now leads to a state that costs 10: greedy pays 10, planning 1."""
    problem = FiniteProblem(
        rewards=np.zeros((3, 2)),
        costs=np.array([[0.0, 1.0], [10.0, 10.0], [0.0, 0.0]]),
        transitions=np.array([[[0, 1, 0], [0, 0, 1]], [[0, 1, 0]] * 2, [[0, 0, 1]] * 2], dtype=float),
        initial=np.array([1.0, 0.0, 0.0]),
        steps=2,
    )
    assert least_costs(problem) == [1.0]


def test_a_budget_that_is_no_number_is_refused() -> None:
    with pytest.raises(UsageError, match="budget"):
        linear_program(two_step_problem(), float("nan"))
