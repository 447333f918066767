from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from redenvelope.errors import ModelError, UsageError
from redenvelope.planning.planner import TreePlanner
from redenvelope.policies.action_values import Valuer
from tests.planning.backing_up import backup, grown
from tests.planning.exact import induction


@pytest.mark.parametrize("temperature", [0.0, 0.1])
def test_ragged_steps_left(table_world, every_state, temperature):
    model, problem = table_world(0, steps=4)
    planner = TreePlanner(model, horizon=4, temperature=temperature, steps=4)
    duals = [0.5, np.inf, 0.0]
    states = np.tile(every_state(problem), (4, 1))
    left = np.repeat([3, 1, 4, 2], problem.states)
    plan = planner.values(states, left, duals)
    exact = induction(problem, duals, temperature).probabilities  # [steps, prices, states, actions]
    for row in range(len(states)):
        expected = exact[left[row] - 1, :, int(states[row, 0])]
        np.testing.assert_allclose(plan.probabilities[row], expected, rtol=1e-5, atol=1e-5)


def test_short_horizon_is_lookahead(table_world, every_state):
    model, problem = table_world(1, steps=5)
    planner = TreePlanner(model, horizon=2, temperature=0.2, steps=5)
    exact = induction(problem, [0.7], 0.2, lookahead=2).probabilities
    for left in (5, 3, 2, 1):
        plan = planner.values(every_state(problem), left, [0.7])
        np.testing.assert_allclose(plan.probabilities[:, 0], exact[left - 1, 0], rtol=1e-5, atol=1e-5)


def test_it_is_a_valuer(table_world, every_state):
    model, problem = table_world(0, budgets=3)
    planner: Valuer = TreePlanner(model, horizon=2, temperature=0.1, steps=4)
    assert (planner.actions, planner.budgets, planner.depth, planner.notes) == (4, 3, 2, ())
    outcomes = planner.outcomes(every_state(problem))
    assert outcomes.dtype == np.float64
    np.testing.assert_allclose(outcomes, problem.outcomes, rtol=1e-6)


def test_what_is_expected_is_the_mean_of_the_plan(network_world):
    model, states = network_world(0, users=50)
    planner = TreePlanner(model, horizon=3, temperature=0.1, steps=3)
    plan = planner.values(states, 3, [0.2, 1.0, np.inf])
    expected = planner.expected(states, 3, [0.2, 1.0, np.inf])
    assert expected.dtype == np.float64
    np.testing.assert_allclose(expected, (plan.probabilities * plan.to_go).sum(axis=3), rtol=1e-5)


def test_eligible_reaches_each_users_own_tree(network_world):
    model, states = network_world(4, users=30)
    mask = np.random.default_rng(0).uniform(size=(30, 5)) < 0.6
    mask[:, 0] = True
    planner = TreePlanner(model, horizon=3, temperature=0.0, steps=3)
    plan = planner.values(states, 3, [0.3], mask)
    direct = backup(grown(model, states, 3, mask), [0.3], 0.0)
    np.testing.assert_allclose(plan.to_go, direct.to_go, rtol=1e-4, atol=1e-5)
    assert np.all(plan.probabilities[:, 0][~mask] == 0)


def test_no_users_is_an_empty_plan(network_world):
    model, states = network_world(0)
    planner = TreePlanner(model, horizon=2, temperature=0.1, steps=2)
    empty = planner.values(states[:0], 2, [0.0, 1.0])
    assert empty.q.shape == empty.probabilities.shape == (0, 2, 5)
    assert empty.to_go.shape == (2, 0, 2, 5)
    assert planner.expected(states[:0], 2, [0.0, 1.0]).shape == (2, 0, 2)
    assert planner.outcomes(states[:0]).shape == (2, 0, 5)


def test_not_a_number_is_named(network_world):
    model, states = network_world(0)
    states = states.copy()
    states[7, 2] = np.nan
    named = TreePlanner(model, 2, 0.0, 2, columns=("age", "visits", "balance", "a", "b", "c"))
    with pytest.raises(ModelError, match="row 7 of the states holds nan in column 'balance'"):
        named.values(states, 2, [1.0])
    states[9, 4] = np.inf
    unnamed = TreePlanner(model, 2, 0.0, 2)
    with pytest.raises(ModelError, match=r"row 7 .* column 2, and 1 more"):
        unnamed.values(states, 2, [1.0])


def test_a_model_that_diverged_is_named(table_world):
    model, _ = table_world(0)
    broken = type(model)(model.tables.at[0, 3, 1].set(jnp.nan), model.following)
    with pytest.raises(ModelError, match="row 1 of the states are not finite"):
        TreePlanner(broken, 1, 0.0, 1).values([[0.0], [3.0]], 1, [1.0])


def test_horizon_past_the_campaign_is_clipped_and_said(table_world, every_state):
    model, problem = table_world(2, steps=3)
    long = TreePlanner(model, horizon=9, temperature=0.0, steps=3)
    assert long.depth == 3
    assert "longer than the campaign" in long.notes[0]
    exact = TreePlanner(model, horizon=3, temperature=0.0, steps=3)
    assert exact.notes == ()
    for mine, other in zip(
        long.values(every_state(problem), 3, [0.5]), exact.values(every_state(problem), 3, [0.5]), strict=True
    ):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize(
    ("steps_left", "message"),
    [(0, "between 1 and the campaign's 3"), (4, "between 1"), (1.5, "whole number"), ([1, 2], "one for each")],
)
def test_steps_left_out_of_range(network_world, steps_left, message):
    model, states = network_world(0)
    with pytest.raises(UsageError, match=message):
        TreePlanner(model, 2, 0.0, 3).values(states, steps_left, [1.0])


def test_a_user_without_an_action_is_named(network_world):
    model, states = network_world(0)
    mask = np.ones((len(states), 5), dtype=bool)
    mask[4] = False
    with pytest.raises(UsageError, match="row 4 has no eligible action"):
        TreePlanner(model, 2, 0.0, 3).values(states, 2, [1.0], mask)


@pytest.mark.parametrize("wrong", [{"horizon": 0}, {"steps": 0}, {"temperature": -1.0}, {"discount": 0.0}])
def test_settings_that_make_no_sense(network_world, wrong):
    model, _ = network_world(0)
    settings = {"horizon": 1, "temperature": 0.0, "steps": 1} | wrong
    with pytest.raises(UsageError, match=next(iter(wrong))):
        TreePlanner(model, **settings)
