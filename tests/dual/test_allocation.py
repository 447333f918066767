"""One-step allocation against HiGHS."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import linprog

from redenvelope import ProblemError, UsageError, allocate_one_step
from redenvelope.dual import one_step as allocation
from redenvelope.dual.one_step import OneStepAllocation
from redenvelope.dual.solution import DualStatus

MANY = 10_000
"""Users, of whom a sample is asked first."""


def linear_optimum(rewards: np.ndarray, costs: np.ndarray, budget: float) -> float:
    users, actions = rewards.shape
    result = linprog(
        -rewards.reshape(-1) / users,
        A_ub=sparse.csr_array(costs.reshape(1, -1) / users),
        b_ub=[budget],
        A_eq=sparse.kron(sparse.eye_array(users), np.ones((1, actions)), format="csr"),
        b_eq=np.ones(users),
        method="highs-ds" if users < 500 else "highs-ipm",
    )
    assert result.status == 0
    return -float(result.fun)


def random_offers(seed: int, users: int, actions: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.normal(size=(users, actions)), generator.uniform(0, 2, size=(users, actions))


def check_is_what_it_says(found: OneStepAllocation, rewards: np.ndarray, costs: np.ndarray) -> None:
    """Costs and rewards again from the choices; the choices alone keep to the budget."""
    users = np.arange(len(rewards))
    cost, reward = costs[users, found.choices].sum(), rewards[users, found.choices].sum()
    assert cost <= len(users) * found.budget * (1 + 1e-12) + 1e-12
    if found.marginal_user is not None:
        user, dearer, cheaper = found.marginal_user, found.marginal_choice, found.choices[found.marginal_user]
        assert 0 < found.marginal_share <= 1
        cost += found.marginal_share * (costs[user, dearer] - costs[user, cheaper])
        reward += found.marginal_share * (rewards[user, dearer] - rewards[user, cheaper])
    assert found.cost == pytest.approx(cost / len(users), rel=1e-12)
    assert found.reward == pytest.approx(reward / len(users), rel=1e-12)


@pytest.mark.parametrize("seed", range(40))
def test_equals_the_linear_program(seed: int) -> None:
    generator = np.random.default_rng([5, seed])
    users, actions = int(generator.integers(1, 80)), int(generator.integers(2, 8))
    rewards, costs = random_offers(seed, users, actions)
    if seed % 4 == 0:
        # Whole numbers: ties everywhere.
        rewards, costs = np.round(rewards * 2), np.round(costs * 2)
    least = costs.min(axis=1).mean()
    budget = float(least + generator.uniform(0.01, 0.9) * (costs.mean() - least))
    found = allocate_one_step(rewards, costs, budget)
    check_is_what_it_says(found, rewards, costs)
    assert found.reward == pytest.approx(linear_optimum(rewards, costs, budget), rel=1e-8, abs=1e-9)
    if found.status is DualStatus.CONVERGED:
        assert found.cost == pytest.approx(budget, abs=1e-12)


def test_a_larger_audience_equals_the_interior_point() -> None:
    rewards, costs = random_offers(1, 2000, 6)
    found = allocate_one_step(rewards, costs, 0.7)
    check_is_what_it_says(found, rewards, costs)
    assert found.reward == pytest.approx(linear_optimum(rewards, costs, 0.7), rel=1e-6)


def check_is_optimal(found: OneStepAllocation, rewards: np.ndarray, costs: np.ndarray) -> None:
    """No allocation earns more than the dual bound at any price; this one earns it."""
    check_is_what_it_says(found, rewards, costs)
    bound = (rewards - found.dual * costs).max(axis=1).mean() + found.dual * found.budget
    assert found.reward == pytest.approx(bound, rel=1e-12)


@pytest.mark.parametrize("budget", [0.5, 0.6, 0.7])
def test_many_users_start_from_a_sample_of_them(budget: float) -> None:
    rewards, costs = random_offers(2, MANY, 5)
    # Sorted users: a sample of the first ones would mislead.
    order = np.argsort(costs.mean(axis=1))
    rewards, costs = rewards[order], costs[order]
    assert allocation._guess(rewards, costs, budget) is not None
    check_is_optimal(allocate_one_step(rewards, costs, budget), rewards, costs)


def test_a_misleading_sample_costs_only_time() -> None:
    rewards, costs = random_offers(3, MANY, 5)
    sample = np.random.default_rng(0).integers(0, MANY, MANY // 16)
    costs[sample] *= 1.5  # all whom it asks are dearer than the others
    assert allocation._guess(rewards, costs, 0.7) is None
    check_is_optimal(allocate_one_step(rewards, costs, 0.7), rewards, costs)


def test_slack_takes_the_cheapest_of_the_best() -> None:
    found = allocate_one_step([[1.0, 5.0, 5.0]], [[0.0, 3.0, 2.0]], 2.5)
    assert found.status is DualStatus.BUDGET_SLACK
    assert (found.choices.tolist(), found.cost, found.reward, found.dual) == ([2], 2.0, 5.0, 0.0)
    assert "more budget would buy nothing" in found.message


def test_infeasible_takes_the_best_of_the_cheapest() -> None:
    found = allocate_one_step([[1.0, 2.0, 9.0], [0.0, 0.0, 1.0]], [[1.0, 1.0, 2.0], [3.0, 4.0, 5.0]], 1.5)
    assert found.status is DualStatus.BUDGET_INFEASIBLE
    assert (found.choices.tolist(), found.least_budget) == ([1, 0], 2.0)
    assert "the cheapest one costs 2, which is the least budget that would do" in found.message


def test_the_marginal_user_is_drawn_for() -> None:
    # Gains per cost: user 0 earns 4 a unit, user 1 earns 2 a unit; the budget of 1.5 each pays 1 for user 0
    # and two thirds of the 3 that user 1 would cost.
    found = allocate_one_step([[0.0, 4.0], [0.0, 6.0]], [[0.0, 1.0], [0.0, 3.0]], 1.5)
    assert (found.choices.tolist(), found.marginal_user, found.marginal_choice) == ([1, 0], 1, 1)
    assert found.marginal_share == pytest.approx(2 / 3)
    assert found.dual == pytest.approx(2.0)
    assert found.reward == pytest.approx(4.0)


def test_nobody_is_drawn_for_when_whole_users_fit() -> None:
    # Two users who are worth the same, and money for one of them.
    found = allocate_one_step([[0.0, 2.0]] * 2, [[0.0, 1.0]] * 2, 0.5)
    assert (sorted(found.choices.tolist()), found.marginal_user, found.cost) == ([0, 1], None, 0.5)


def test_one_action_and_constant_cost() -> None:
    assert allocate_one_step([[1.0], [2.0]], [[1.0], [3.0]], 2.0).status is DualStatus.BUDGET_SLACK
    assert allocate_one_step([[1.0], [2.0]], [[1.0], [3.0]], 1.9).least_budget == 2.0
    constant = allocate_one_step([[1.0, 7.0]], [[2.0, 2.0]], 2.0)
    assert (constant.status, constant.reward) == (DualStatus.BUDGET_SLACK, 7.0)


@pytest.mark.parametrize(
    ("rewards", "costs", "budget", "error", "message"),
    [
        ([[1.0, 2.0]], [[1.0]], 1.0, ProblemError, "must both be"),
        ([[1.0, np.nan]], [[1.0, 1.0]], 1.0, ProblemError, "rewards of user 0 and action 1 is not"),
        ([[1.0, 1.0]], [[np.inf, 1.0]], 1.0, ProblemError, "costs of user 0 and action 0 is not"),
        ([[1.0]], [[1.0]], np.nan, UsageError, "the budget must be a number"),
    ],
)
def test_what_makes_no_sense_is_refused(
    rewards: list, costs: list, budget: float, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        allocate_one_step(rewards, costs, budget)
