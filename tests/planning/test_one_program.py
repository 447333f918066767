"""Deciding in one program: the decisions of exact induction, for few users as for many."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from redenvelope.errors import ModelError
from redenvelope.planning.planner import TreePlanner
from tests.planning.exact import induction


@pytest.mark.parametrize("temperature", [0.0, 0.1])
def test_decisions_equal_exact_induction_at_every_step(table_world, every_state, temperature):
    model, problem = table_world(0, steps=4)
    planner = TreePlanner(model, horizon=4, temperature=temperature, steps=4)
    duals = [0.5, np.inf, 0.0]  # with entropy and without, in one table of prices
    states = np.tile(every_state(problem), (4, 1))
    left = np.repeat([3, 1, 4, 2], problem.states)
    decided = planner.decided(states, left, duals)
    exact = induction(problem, duals, temperature).probabilities  # [steps, prices, states, actions]
    for row in range(len(states)):
        expected = exact[left[row] - 1, :, int(states[row, 0])]
        np.testing.assert_allclose(decided.probabilities[row], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(decided.outcomes, np.tile(problem.outcomes, (1, 4, 1)), rtol=1e-6)


@pytest.mark.parametrize("temperature", [0.0, 0.1])
def test_many_users_in_several_calls_are_planned_for_as_few_are(network_world, temperature):
    """Blocks, calls and padding change nothing but rounding."""
    model, states = network_world(3, users=5_000)
    planner = TreePlanner(model, horizon=3, temperature=temperature, steps=3)
    left = np.random.default_rng(0).integers(1, 4, len(states))
    decided, values = planner.decided(states, left, [0.5, 2.0]), planner.values(states, left, [0.5, 2.0])
    np.testing.assert_allclose(decided.probabilities, values.probabilities, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(decided.outcomes, planner.outcomes(states), rtol=1e-5, atol=1e-6)
    for size in (1, 5, 40):
        few = planner.decided(states[:size], left[:size], [0.5, 2.0], waiting=True)
        np.testing.assert_allclose(few.probabilities, decided.probabilities[:size], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(few.outcomes, decided.outcomes[:, :size], rtol=1e-5, atol=1e-6)


def test_who_stands_beside_a_user_does_not_matter(network_world):
    model, states = network_world(5, users=700)
    planner = TreePlanner(model, horizon=3, temperature=0.05, steps=3)
    order = np.random.default_rng(0).permutation(700)
    whole, shuffled = planner.decided(states, 3, [0.4]), planner.decided(states[order], 3, [0.4])
    assert np.array_equal(whole.probabilities[order], shuffled.probabilities)
    alone = planner.decided(states[123:124], 3, [0.4])
    assert np.array_equal(alone.probabilities[0], whole.probabilities[123])


def test_trees_that_are_kept_are_those_of_the_same_states_alone(network_world):
    """The same bits at other prices, and nothing of one user's trees for another."""
    model, states = network_world(6, users=90)
    planner = TreePlanner(model, horizon=2, temperature=0.05, steps=3)
    keeping, left = replace(planner, trees={}), np.arange(90) % 3 + 1
    for some in (states, states[::-1].copy(), states):
        for prices in ([0.4], [0.0, 2.0]):
            kept, plain = keeping.values(some, left, prices), planner.values(some, left, prices)
            assert all(np.array_equal(one, other) for one, other in zip(kept, plain, strict=True))
    assert keeping.trees is not None
    assert len(keeping.trees) == 2 * 2  # of two arrays, one for each depth of trees


def test_eligible_actions_are_respected(network_world):
    model, states = network_world(4, users=30)
    mask = np.random.default_rng(0).uniform(size=(30, 5)) < 0.6
    mask[:, 0] = True
    planner = TreePlanner(model, horizon=3, temperature=0.0, steps=3)
    decided = planner.decided(states, 3, [0.3], mask)
    assert np.all(decided.probabilities[:, 0][~mask] == 0)
    np.testing.assert_array_equal(decided.probabilities, planner.values(states, 3, [0.3], mask).probabilities)


class Diverging(eqx.Module):
    """The actions are worth nothing, and after the last of them nothing is a number."""

    budgets: int = eqx.field(static=True, default=1)
    actions: int = eqx.field(static=True, default=2)

    def outcomes(self, states):
        known = jnp.where(states[:, :1] > 0.5, jnp.nan, 0.0)
        return jnp.stack([jnp.repeat(known, 2, axis=1)] * 2)

    def successors(self, states):
        return states[:, None] + jnp.arange(2.0)[:, None]


def test_predictions_deep_in_a_tree_that_are_no_numbers_are_refused():
    planner = TreePlanner(Diverging(), horizon=2, temperature=0.0, steps=2)
    states = np.array([[-9.0], [-9.0], [0.0]], np.float32)
    with pytest.raises(ModelError, match="row 2 of the states are not finite numbers"):
        planner.decided(states, 2, [0.3])
    assert planner.decided(states[:2], 2, [0.3]).probabilities.shape == (2, 1, 2)
