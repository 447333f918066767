"""Fitted Q evaluation against the exact values of given policies."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope.errors import UsageError
from redenvelope.finite.problem import FiniteProblem
from redenvelope.learning.fitted_evaluation import evaluate_policies
from redenvelope.policies.fixed import CheapestPolicy, UniformPolicy
from redenvelope.simulate.finite import random_problem
from tests.learning.conftest import make_world, prepared


def exact_to_go(problem: FiniteProblem, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Reward and cost to go of each action and a policy [states, actions] ever after, [steps, states, actions] each."""
    results = []
    for outcome in problem.outcomes:
        value, found = np.zeros(problem.states), []
        for _ in range(problem.steps):
            found.append(outcome + problem.transitions @ value)
            value = (found[-1] * table).sum(axis=1)
        results.append(np.stack(found[::-1]))
    return results[0], results[1]


# Nothing is random but the logged actions: only the error of training is left.
def test_values_of_given_policies_are_exact() -> None:
    problem = random_problem(1, states=5, steps=3, deterministic=True)
    world = make_world(problem, users=2_000, seed=1)
    learner = prepared(world)
    policies = (UniformPolicy(4), CheapestPolicy(4))
    found = evaluate_policies(learner, policies)
    states, step, state = world.every_state()
    reward, cost = found.to_go(states, 3 - step)
    for place, policy in enumerate(policies):
        table = policy.probabilities(np.zeros((5, 1)), 1)
        exact_reward, exact_cost = exact_to_go(problem, table)
        assert np.abs(reward[:, place] - exact_reward[step, state]).max() < 0.05
        assert np.abs(cost[:, place] - exact_cost[step, state]).max() < 0.05
    with pytest.raises(UsageError, match="at least one policy"):
        evaluate_policies(learner, [])
    with pytest.raises(UsageError, match="4 actions"):
        evaluate_policies(learner, [UniformPolicy(3)])
