"""Users who leave bring nothing from then on: trees and roll-outs against exact induction."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from redenvelope.planning.planner import ModelPrice, TreePlanner
from tests.planning.backing_up import grown
from tests.planning.conftest import TableModel
from tests.planning.exact import World, induction
from tests.random_networks import random_model, random_states

DUALS = np.array([0.0, 0.4, 1.0, np.inf])
STATES, STEPS = 7, 4


class LeavingTable(TableModel):
    """A table whose users leave."""

    staying: jax.Array
    """[states, actions]"""
    leaves = True

    def survival(self, states: jax.Array) -> jax.Array:
        return self.staying[states[:, 0].astype(int)]


def leaving_world(seed: int) -> tuple[LeavingTable, World, np.ndarray]:
    generator = np.random.default_rng(seed)
    rewards = generator.normal(size=(STATES, 3)).astype(np.float32)
    costs = np.sort(generator.uniform(0, 2, size=(STATES, 3)), axis=1).astype(np.float32)
    following = generator.integers(STATES, size=(STATES, 3))
    staying = np.sort(generator.uniform(0.2, 1.0, size=(STATES, 3)), axis=1).astype(np.float32)
    tables = np.stack([rewards, costs])
    model = LeavingTable(jnp.asarray(tables), jnp.asarray(following), jnp.asarray(staying))
    world = World(tables.astype(np.float64), following, STEPS, staying.astype(np.float64))
    return model, world, np.arange(STATES, dtype=np.float32)[:, None]


@pytest.mark.parametrize("temperature", [0.0, 0.3])
def test_a_tree_is_exact(temperature: float) -> None:
    model, world, states = leaving_world(0)
    planner = TreePlanner(model, STEPS, temperature, STEPS, discount=0.9)
    exact = induction(world, DUALS, temperature, discount=0.9)
    kept = induction(world._replace(staying=None), DUALS, temperature, discount=0.9)
    for left in range(1, STEPS + 1):
        found = planner.values(states, left, DUALS)
        np.testing.assert_allclose(found.q, exact.q[left - 1].swapaxes(0, 1), atol=1e-5)
        np.testing.assert_allclose(found.probabilities, exact.probabilities[left - 1].swapaxes(0, 1), atol=1e-5)
        np.testing.assert_allclose(found.to_go, np.moveaxis(exact.to_go[left - 1], 1, 2), atol=1e-5)
        decided = planner.decided(states, left, DUALS)
        np.testing.assert_allclose(decided.probabilities, found.probabilities, atol=1e-5)
        np.testing.assert_allclose(decided.outcomes, world.outcomes, rtol=1e-6)
    assert np.abs(exact.q[-1] - kept.q[-1]).max() > 0.3


@pytest.mark.parametrize("temperature", [0.0, 0.3])
@pytest.mark.parametrize("horizon", [1, 2, STEPS])
def test_a_roll_out_is_exact(temperature: float, horizon: int) -> None:
    model, world, states = leaving_world(1)
    exact = induction(world, DUALS, temperature, horizon).expected()
    planner = TreePlanner(model, horizon, temperature, STEPS)
    copies = 1 if temperature == 0 or horizon == STEPS else 3_000
    price = ModelPrice(planner, np.repeat(states, copies, axis=0))
    # With entropy actions are drawn on the way: five standard errors.
    outcomes = price.by_user(DUALS)
    room = 1e-5 if copies == 1 else 5 * outcomes.std(axis=1).max() / np.sqrt(outcomes.shape[1])
    np.testing.assert_allclose(outcomes.mean(axis=1), exact, atol=room)


def test_nobody_leaves_where_the_model_does_not_say_so() -> None:
    model, _, states = leaving_world(4)
    assert grown(TableModel(model.tables, model.following), states, 3).survival is None


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_one_user_at_a_time_decides_as_in_batches(temperature: float) -> None:
    model = random_model(members=2, leaves=True)
    planner = TreePlanner(model, 3, temperature, 10)
    for left in (1, 2, 8):
        states = random_states(model.layout, 70, 10 - left, seed=left)
        batch = planner.decided(states, left, [0.2, np.inf])
        for user, state in enumerate(states[:3]):
            alone = planner.decided(state[None], left, [0.2, np.inf], waiting=True)
            np.testing.assert_allclose(alone.probabilities[0], batch.probabilities[user], atol=1e-5)
            np.testing.assert_allclose(alone.outcomes[:, 0], batch.outcomes[:, user], atol=1e-5)
