from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from redenvelope.log.encoding.layout import StateLayout
from redenvelope.models.dataset import Examples, Rows
from redenvelope.models.networks import TailScale, TransitionNetwork, tail_scale

Draw = Callable[[int, int], Examples]


def random_network(layout: StateLayout, actions: int) -> TransitionNetwork:
    generator = np.random.default_rng(0)
    network = TransitionNetwork(layout, actions, 3, (8,), generator)
    weights = jnp.asarray(generator.normal(size=network.network.deep_weights.shape), jnp.float32)
    changed: TransitionNetwork = eqx.tree_at(lambda part: part.network.deep_weights, network, weights)
    return changed


def follow(network: TransitionNetwork, states: jnp.ndarray, chances: np.ndarray, scale: TailScale) -> np.ndarray:
    """What follows the step's column in the next states, [n, actions, tail], given chances [n, actions, events]."""
    fixed = network.network.fixed_part(states)
    nodes, by_event = states[:, None, network.layout.step :], jnp.asarray(chances).transpose(2, 1, 0)
    tail = eqx.filter_jit(TransitionNetwork.expected_tail)(network, fixed, nodes, list(by_event), scale)
    return np.asarray(tail).transpose(2, 0, 1)


def test_one_action_scores_as_it_does_among_all(draw: Draw) -> None:
    examples = draw(30, 0)
    network = random_network(examples.layout, 4)
    states, everyone = jnp.asarray(examples.states), np.arange(len(examples))
    event = np.random.default_rng(1).integers(0, 3, len(examples))
    scale = TailScale(*(jnp.asarray([value]) for value in (0.1, -9.0, 9.0)))
    scores = np.asarray(
        eqx.filter_jit(TransitionNetwork.of_action)(
            network, states, jnp.asarray(examples.action), jnp.asarray(np.eye(3)[event])
        )
    )
    certain = np.repeat(np.eye(3)[event][:, None, :], 4, axis=1).astype(np.float32)
    followed = follow(network, states, certain, scale)[everyone, examples.action]
    moods = np.exp(scores[:, 2:]) / np.exp(scores[:, 2:]).sum(axis=1, keepdims=True)
    expected = [examples.states[:, 3] + 0.1 * scores[:, 0], 1 / (1 + np.exp(-scores[:, 1])), *moods.T]
    np.testing.assert_allclose(followed, np.stack(expected, axis=1), rtol=1e-4, atol=1e-5)


def test_the_next_state_is_the_mean_over_events(draw: Draw) -> None:
    examples = draw(30, 0)
    network, states = random_network(examples.layout, 4), jnp.asarray(examples.states)
    scale = TailScale(*(jnp.asarray([value]) for value in (0.1, -9.0, 9.0)))
    chances = np.random.default_rng(1).dirichlet(np.ones(3), size=(90, 4)).astype(np.float32)
    after = [follow(network, states, np.tile(np.eye(3)[event], (90, 4, 1)), scale) for event in range(3)]
    mean = sum(chances[..., event, None] * after[event] for event in range(3))
    np.testing.assert_allclose(follow(network, states, chances, scale), mean, rtol=1e-4, atol=1e-5)


def test_numbers_stay_within_what_was_seen(draw: Draw) -> None:
    examples = draw(30, 0)
    network = random_network(examples.layout, 4)
    scale = TailScale(*(jnp.asarray([value]) for value in (5.0, -1.0, 2.0)))
    followed = follow(network, jnp.asarray(examples.states), np.tile(np.eye(3)[0], (90, 4, 1)), scale)
    numbers = followed[..., 0]
    assert numbers.min() == -1.0 and numbers.max() == 2.0


def test_scale_is_measured_on_the_rows_given(draw: Draw) -> None:
    examples = draw(500, 0)
    rows = np.arange(900)
    scale = tail_scale(examples, rows)
    moving = rows[examples.continues[rows]]
    change = examples.states[moving + 1, 3] - examples.states[moving, 3]
    np.testing.assert_allclose(scale.change, [change.std()], rtol=1e-5)
    np.testing.assert_allclose(scale.low, [examples.states[rows, 3].min()])
    np.testing.assert_allclose(scale.high, [examples.states[rows, 3].max()])


def test_without_dynamic_features_only_the_step_moves() -> None:
    layout = StateLayout((), 2, 0, 0, (), step_change=0.5)
    network = TransitionNetwork(layout, 3, 1, (4,), np.random.default_rng(0))
    nothing = jnp.zeros(0)
    states = jnp.asarray([[1.0, 2.0, 0.0]])
    scale = TailScale(nothing, nothing, nothing)
    assert follow(network, states, np.ones((1, 3, 1)), scale).shape == (1, 3, 0)
    rows = Rows(states, jnp.asarray([1]), jnp.ones((1, 2)), jnp.zeros((1, 0)), jnp.ones(1))
    np.testing.assert_array_equal(eqx.filter_jit(TransitionNetwork.loss)(network, rows, scale), [0.0])
