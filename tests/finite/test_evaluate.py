"""The exact value of a policy, against every path written out."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from redenvelope import FiniteProblem, UsageError
from redenvelope.finite.problem import evaluate, occupancy
from redenvelope.simulate.finite import random_problem


def random_policy(problem: FiniteProblem, seed: int) -> np.ndarray:
    """A random table [steps, states, actions] over the allowed actions."""
    shape = (problem.steps, problem.states, problem.actions)
    weights = np.random.default_rng(seed).exponential(size=shape) * problem.allowed
    return weights / weights.sum(axis=2, keepdims=True)


def path_sums(problem: FiniteProblem, policy: np.ndarray) -> np.ndarray:
    """Outcomes [outcomes] by adding up every path of states and actions."""
    sums = np.zeros(1 + problem.budgets)
    moves = list(product(range(problem.states), range(problem.actions)))
    for path in product(moves, repeat=problem.steps):
        probability = problem.initial[path[0][0]]
        for step, (state, action) in enumerate(path):
            probability *= policy[step, state, action]
            # A path counts what it earns step by step, so users who leave keep what they had earned.
            sums += probability * problem.outcomes[:, state, action] / len(moves) ** (problem.steps - 1 - step)
            if step + 1 < problem.steps:
                probability *= problem.transitions[state, action, path[step + 1][0]]
    return sums


@pytest.mark.parametrize("seed", range(4))
def test_value_equals_the_sum_over_all_paths(seed: int) -> None:
    problem = random_problem(seed, states=3, actions=2, steps=3, leaving=0.2, ineligible=0.3, budgets=1 + seed % 3)
    policy = random_policy(problem, seed)
    value = evaluate(problem, policy)
    assert value.outcomes == pytest.approx(path_sums(problem, policy), rel=1e-12)
    assert value.outcomes.tolist() == [value.reward, *value.costs]
    assert value.cost == value.costs[0]


def test_a_policy_without_steps_holds_at_every_step() -> None:
    problem = random_problem(0)
    policy = random_policy(problem, 0)[0]
    table = np.tile(policy, (problem.steps, 1, 1))
    np.testing.assert_array_equal(evaluate(problem, policy).outcomes, evaluate(problem, table).outcomes)


def test_occupancy_loses_only_the_users_who_leave() -> None:
    whole, leaky = random_problem(1), random_problem(1, leaving=0.2)
    policy = random_policy(whole, 1)
    assert occupancy(whole, policy).sum(axis=(1, 2)) == pytest.approx(np.ones(whole.steps))
    shares = occupancy(leaky, policy).sum(axis=(1, 2))
    assert shares[0] == pytest.approx(1)
    assert (np.diff(shares) < 0).all()


def test_policies_that_are_none_are_refused() -> None:
    problem = random_problem(2, ineligible=0.5)
    policy = random_policy(problem, 2)
    with pytest.raises(UsageError, match="shape"):
        evaluate(problem, policy[0, 0])
    with pytest.raises(UsageError, match="sum to 1"):
        evaluate(problem, policy * 0.9)
    with pytest.raises(UsageError, match="not a number"):
        evaluate(problem, policy * np.nan)
    forbidden = np.where(problem.allowed, 0.0, 1.0)
    with pytest.raises(UsageError, match="does not allow"):
        evaluate(problem, forbidden)
