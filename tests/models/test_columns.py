"""Columns that tell nothing weigh little where they enter the networks; those that tell something keep their weight."""

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from redenvelope.log.encoding.layout import StateLayout
from redenvelope.models.dataset import Examples, column_weights
from redenvelope.models.networks import WideDeep, new_pieces

LEVEL, EFFECT, CODE, NOISE = 3, 4, 0, (1, 2, 5, 6, 7, 8)
"""Places of the columns that tell of the level, of effects alone, of both, and of nothing."""


def drawn(users: int, seed: int) -> Examples:
    """One step; the effect's column has the same mean reward in all bins, because effects of two actions cancel."""
    draw = np.random.default_rng(seed)
    layout = StateLayout((6, 20), 7, 0, 0, (), 1.0)
    states = draw.normal(size=(users, layout.width)).astype(np.float32)
    states[:, 0], states[:, 1] = draw.integers(0, 6, users), draw.integers(0, 20, users)
    states[:, layout.step] = 0
    action = draw.integers(0, 3, users).astype(np.int32)
    away = np.abs(states[:, EFFECT]) > 0.7
    reward = 0.4 * states[:, LEVEL] + 0.4 * (states[:, CODE] == 2) * (action > 0)
    reward = reward + 0.4 * (away - away.mean()) * np.array([0, 1, -1])[action] + draw.normal(size=users)
    outcomes = np.stack([reward, action * (draw.random(users) < 0.5)])
    starts = np.arange(users + 1)
    keys = draw.integers(0, 2**63, users).astype(np.uint64)
    known = np.full(users, 1 / 3), np.zeros(users, np.bool_)
    return Examples(states, action, outcomes, *known, starts, keys, layout, 3, 1)


def test_columns_that_tell_nothing_weigh_little() -> None:
    weights = np.stack([column_weights(drawn(6_000, seed), np.arange(6_000)) for seed in range(8)])
    assert weights[:, [LEVEL, EFFECT, CODE]].min() > 0.5
    noise = weights[:, NOISE]
    # The greatest of some eight dependent tests is above chance by a standard deviation in about half of the columns.
    assert noise.mean() < 0.35 and np.median(noise) < 0.3
    assert noise.min() == pytest.approx(0.1)
    assert (weights[:, 9] == 1).all()  # the step


def test_more_users_make_weak_columns_weigh_more() -> None:
    few, many = (column_weights(drawn(users, 3), np.arange(users))[LEVEL] for users in (150, 20_000))
    assert few < many and many > 0.97


def test_constant_outcomes_and_single_actions_say_nothing() -> None:
    examples = drawn(500, 0)
    same = replace(examples, outcomes=np.zeros((2, 500)), action=np.zeros(500, np.int32))
    weights = column_weights(same, np.arange(500))
    np.testing.assert_allclose(np.delete(weights, examples.layout.step), 0.1)


def test_a_weight_of_zero_hides_a_column() -> None:
    """Whatever it is made into: an embedding, a number, its pieces."""
    layout = StateLayout((6, 20), 2, 2, 0, (), 0.5)
    generator = np.random.default_rng(0)
    network = WideDeep(layout, (8,), 3, generator, (new_pieces((3, 2)), new_pieces((2, 4))))
    network = filled_by_chance(network, generator)
    states = generator.normal(size=(40, layout.width)).astype(np.float32)
    states[:, 0], states[:, 1] = generator.integers(0, 6, 40), generator.integers(0, 20, 40)
    states[:, layout.step] = 0.5
    for column in range(layout.width):
        if column == layout.step:
            continue
        other = states.copy()
        other[:, column] = np.roll(states[:, column], 1) if column < 2 else states[:, column] + 0.7
        weights = np.ones(layout.width, np.float32)
        np.testing.assert_array_equal(network.weighted(jnp.asarray(weights))(states), network(states))
        assert not np.allclose(network(other), network(states))
        weights[column] = 0.0
        hidden = network.weighted(jnp.asarray(weights))
        np.testing.assert_allclose(hidden(other), hidden(states), atol=1e-5)


def filled_by_chance(network: WideDeep, generator: np.random.Generator) -> WideDeep:
    """The network with weights of chance wherever it starts with zeros."""

    def parts(own: WideDeep) -> list:
        return [*own.wide_tables, own.wide_weights, own.deep_weights]

    filled = [jnp.asarray(generator.normal(size=part.shape), jnp.float32) for part in parts(network)]
    return eqx.tree_at(parts, network, filled)
