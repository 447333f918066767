import json
from collections.abc import Callable

import jax
import numpy as np
import pytest

from redenvelope import ModelError
from redenvelope.models.dataset import Examples
from redenvelope.models.environment import AppliedModel
from redenvelope.models.fit import NeuralFit
from redenvelope.models.networks import OutcomeNetwork
from redenvelope.models.neural_model import NeuralModel

Draw = Callable[[int, int], Examples]

successors = jax.jit(NeuralModel.successors)
outcomes = jax.jit(NeuralModel.outcomes)


def test_outcomes_are_the_mean_over_members(learned: NeuralFit, draw: Draw) -> None:
    states = draw(200, 9).states
    found = outcomes(learned.model, states)
    by_member = [outcomes(learned.model.of_member(member), states) for member in (0, 1)]
    assert found.shape == (2, len(states), 4)
    assert np.abs(by_member[0] - by_member[1]).max() > 1e-3
    np.testing.assert_allclose(found, np.mean(by_member, axis=0), rtol=1e-5)


def test_a_fixed_part_once_a_user_gives_what_whole_states_give(learned: NeuralFit, draw: Draw) -> None:
    """Nodes that share what never changes: the same numbers as states written out, up to rounding."""
    model, generator = learned.model, np.random.default_rng(0)
    states = np.repeat(draw(40, 9).states[::3][:, None], 5, axis=1)
    states[..., 3:] += generator.normal(0, 0.3, states[..., 3:].shape)
    applied = AppliedModel(model)
    fixed = applied.fixed_parts(states[:, 0])
    found, changed = applied.node_steps(fixed, states[..., model.fixed_width :])
    whole = states.reshape(-1, states.shape[2])
    np.testing.assert_allclose(np.swapaxes(found, 1, 2), reference(model, whole)[0], atol=1e-5)
    followed = np.asarray(reference(model, whole)[1])
    np.testing.assert_allclose(changed, followed[..., model.fixed_width :], atol=1e-5)
    np.testing.assert_array_equal(applied.node_outcomes(fixed[0], states[..., model.fixed_width :]), found)


def reference(model: NeuralModel, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Outcomes and successors of states, the networks applied to whole states as training applies them."""
    by_member = [
        jax.jit(OutcomeNetwork.expected)(
            jax.tree.map(lambda array, m=m: array[m], model.outcome), states, model.targets
        )
        for m in (0, 1)
    ]
    return np.mean(by_member, axis=0).swapaxes(1, 2), successors(model, states)


def test_monotone_rewards_never_fall(learned: NeuralFit, draw: Draw) -> None:
    rewards = learned.model.predict(draw(500, 9).states)[0]
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
    np.testing.assert_allclose(compiled, learned.model.predict(states), rtol=1e-5)


def test_roll_out_follows_successors(learned: NeuralFit, draw: Draw) -> None:
    model, states = learned.model, draw(200, 9).states
    actions = np.tile(np.array([[1, 3]], dtype=np.int32), (len(states), 1))
    followed, (rewards, costs) = model.roll_out(states, actions)
    one = np.asarray(successors(model, states))[:, 1]
    np.testing.assert_allclose(followed[0], one, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(followed[1], np.asarray(successors(model, one))[:, 3], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(rewards[1], np.asarray(outcomes(model, one)[0])[:, 3], rtol=1e-4)
    np.testing.assert_allclose(costs[0], np.asarray(outcomes(model, states)[1])[:, 1], rtol=1e-4)


def test_the_model_of_a_member_says_what_the_member_says(learned: NeuralFit, draw: Draw) -> None:
    states = draw(50, 9).states
    for member in (0, 1):
        network = jax.tree.map(lambda array, member=member: array[member], learned.model.outcome)
        expected = jax.jit(OutcomeNetwork.expected)(network, states, learned.model.targets)
        predicted = learned.model.of_member(member).predict(states)
        np.testing.assert_allclose(predicted.swapaxes(1, 2), expected, rtol=1e-5, atol=1e-6)


def test_members_disagree_but_little(learned: NeuralFit) -> None:
    assert 0 < learned.disagreement["reward"] < 0.05
    assert 0 < learned.disagreement["cost"] < 0.2


def test_state_round_trip(learned: NeuralFit, draw: Draw) -> None:
    config, arrays = learned.model.state()
    again = NeuralModel.from_state(json.loads(json.dumps(config)), arrays)
    states = draw(50, 9).states
    np.testing.assert_array_equal(again.predict(states), learned.model.predict(states))
    np.testing.assert_array_equal(successors(again, states), successors(learned.model, states))


def test_weights_that_do_not_fit_are_named(learned: NeuralFit) -> None:
    config, arrays = learned.model.state()
    name = next(iter(arrays))
    with pytest.raises(ModelError, match="missing or unexpected"):
        NeuralModel.from_state(config, {key: value for key, value in arrays.items() if key != name})
    with pytest.raises(ModelError, match="of shape"):
        NeuralModel.from_state(config, arrays | {name: arrays[name][:1]})


def test_not_a_number_is_refused_in_words(learned: NeuralFit, draw: Draw) -> None:
    states = draw(5, 9).states.copy()
    states[4, 3] = np.inf
    with pytest.raises(ModelError, match="row 4 contains a value that is not a number"):
        learned.model.predict(states)
    with pytest.raises(ModelError, match="not a number"):
        learned.model.roll_out(states, np.zeros((len(states), 1), np.int32))
