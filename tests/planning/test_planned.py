from __future__ import annotations

import numpy as np
import pytest

from redenvelope.errors import UsageError
from redenvelope.planning.planned import PlannedPolicy
from redenvelope.planning.tree import TreePlanner


def test_rows_sum_to_one_in_float64(network_world):
    model, states = network_world(0)
    policy = PlannedPolicy(TreePlanner(model, 3, 0.2, 3), 0.5)
    probabilities = policy.probabilities(states, 3)
    assert probabilities.dtype == np.float64
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-14)


def test_the_bandit_sees_one_step(table_world, every_state):
    model, problem = table_world(0, steps=4)
    policy = PlannedPolicy(TreePlanner(model, 1, 0.0, 4), 0.8)
    best = np.argmax(problem.rewards - 0.8 * problem.costs, axis=1)
    for left in (1, 4):
        np.testing.assert_array_equal(policy.probabilities(every_state(problem), left).argmax(axis=1), best)


def test_eligible_is_passed_on(network_world):
    model, states = network_world(1)
    mask = np.ones((len(states), 5), dtype=bool)
    mask[::2, 3:] = False
    probabilities = PlannedPolicy(TreePlanner(model, 2, 0.5, 2), 0.0).probabilities(states, 2, mask)
    assert (probabilities[~mask] == 0).all()


def test_one_price_for_each_budget(table_world, every_state):
    model, problem = table_world(0, steps=1, budgets=2)
    policy = PlannedPolicy(TreePlanner(model, 1, 0.0, 1), (0.8, 0.3))
    best = np.argmax(np.einsum("o,osa->sa", [1, -0.8, -0.3], problem.outcomes), axis=1)
    np.testing.assert_array_equal(policy.probabilities(every_state(problem), 1).argmax(axis=1), best)
    with pytest.raises(UsageError, match=r"2 budget\(s\)"):
        PlannedPolicy(TreePlanner(model, 1, 0.0, 1), 0.8)


def test_a_dual_that_is_no_price(network_world):
    model, _ = network_world(0)
    with pytest.raises(UsageError, match="at least 0"):
        PlannedPolicy(TreePlanner(model, 1, 0.0, 1), -0.1)
