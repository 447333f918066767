import json
from collections.abc import Callable

import jax
import numpy as np
import pytest

from redenvelope.errors import ModelError
from redenvelope.models.examples import Examples
from redenvelope.models.fit import NeuralFit
from redenvelope.models.neural import NeuralModel

Draw = Callable[[int, int], Examples]

successors = jax.jit(NeuralModel.successors)
outcomes = jax.jit(NeuralModel.outcomes)
member_outcomes = jax.jit(NeuralModel.member_outcomes)


def test_outcomes_are_the_mean_over_members(learned: NeuralFit, draw: Draw) -> None:
    states = draw(200, 9).states
    rewards, costs = outcomes(learned.model, states)
    by_member = member_outcomes(learned.model, states)
    assert rewards.shape == costs.shape == (len(states), 4)
    np.testing.assert_allclose(rewards, np.mean(by_member[0], axis=0), rtol=1e-5)
    np.testing.assert_allclose(costs, np.mean(by_member[1], axis=0), rtol=1e-5)


def test_monotone_rewards_never_fall(learned: NeuralFit, draw: Draw) -> None:
    rewards, _ = learned.model.predict(draw(500, 9).states)
    assert (np.diff(rewards, axis=1) >= -1e-6).all()


def test_what_is_known_of_the_next_state_is_exact(learned: NeuralFit, draw: Draw) -> None:
    states = draw(200, 9).states
    followed = np.asarray(successors(learned.model, states))
    assert followed.shape == (len(states), 4, 8)
    np.testing.assert_array_equal(followed[..., :2], np.repeat(states[:, None, :2], 4, axis=1))
    np.testing.assert_array_equal(followed[..., 2], np.repeat(states[:, None, 2] + np.float32(0.5), 4, axis=1))


def test_predicted_binaries_and_categories_are_chances(learned: NeuralFit, draw: Draw) -> None:
    followed = np.asarray(successors(learned.model, draw(200, 9).states))
    assert ((followed[..., 4] >= 0) & (followed[..., 4] <= 1)).all()
    np.testing.assert_allclose(followed[..., 5:8].sum(axis=-1), 1.0, atol=1e-5)


def test_a_model_is_an_argument_of_a_compiled_function(learned: NeuralFit, draw: Draw) -> None:
    states = draw(20, 9).states
    compiled = jax.jit(lambda model, rows: model.outcomes(rows))(learned.model, states)
    np.testing.assert_allclose(compiled[0], learned.model.predict(states)[0], rtol=1e-5)


def test_roll_out_follows_successors(learned: NeuralFit, draw: Draw) -> None:
    model, states = learned.model, draw(200, 9).states
    actions = np.tile(np.array([[1, 3]], dtype=np.int32), (len(states), 1))
    followed, rewards, costs = model.roll_out(states, actions)
    one = np.asarray(successors(model, states))[:, 1]
    np.testing.assert_allclose(followed[0], one, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(followed[1], np.asarray(successors(model, one))[:, 3], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(rewards[1], np.asarray(outcomes(model, one)[0])[:, 3], rtol=1e-4)
    np.testing.assert_allclose(costs[0], np.asarray(outcomes(model, states)[1])[:, 1], rtol=1e-4)


def test_the_model_of_a_member_says_what_the_member_says(learned: NeuralFit, draw: Draw) -> None:
    states = draw(50, 9).states
    rewards, costs = member_outcomes(learned.model, states)
    for member in (0, 1):
        predicted = learned.model.of_member(member).predict(states)
        np.testing.assert_allclose(predicted[0], rewards[member], rtol=1e-5)
        np.testing.assert_allclose(predicted[1], costs[member], rtol=1e-5)


def test_members_disagree_but_little(learned: NeuralFit) -> None:
    assert 0 < learned.disagreement["reward"] < 0.05
    assert 0 < learned.disagreement["cost"] < 0.2


def test_state_round_trip(learned: NeuralFit, draw: Draw) -> None:
    config, arrays = learned.model.state()
    again = NeuralModel.from_state(json.loads(json.dumps(config)), arrays)
    states = draw(50, 9).states
    np.testing.assert_array_equal(again.predict(states)[0], learned.model.predict(states)[0])
    np.testing.assert_array_equal(again.predict(states)[1], learned.model.predict(states)[1])
    np.testing.assert_array_equal(successors(again, states), successors(learned.model, states))


def test_weights_that_do_not_fit_are_named(learned: NeuralFit) -> None:
    config, arrays = learned.model.state()
    name = next(iter(arrays))
    with pytest.raises(ModelError, match="missing or too much"):
        NeuralModel.from_state(config, {key: value for key, value in arrays.items() if key != name})
    with pytest.raises(ModelError, match="has shape"):
        NeuralModel.from_state(config, arrays | {name: arrays[name][:1]})


def test_not_a_number_is_refused_in_words(learned: NeuralFit, draw: Draw) -> None:
    states = draw(5, 9).states.copy()
    states[4, 3] = np.inf
    with pytest.raises(ModelError, match="row 4 holds a value that is not a number"):
        learned.model.predict(states)
    with pytest.raises(ModelError, match="not a number"):
        learned.model.roll_out(states, np.zeros((len(states), 1), np.int32))
