import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from redenvelope import UsageError
from redenvelope.models.responses import MONOTONE, STRUCTURES, TRIAL, new_response, tried_structures

ACTIONS = 5
RISING = np.array([-1.0, -0.6, -0.5, 0.2, 0.9])


def random_raw(outputs: int) -> jnp.ndarray:
    return jnp.asarray(np.random.default_rng(0).normal(0, 2, (outputs, 200)), jnp.float32)


@pytest.mark.parametrize("name", STRUCTURES)
def test_every_structure_maps_its_outputs_to_a_score_an_action(name: str) -> None:
    response = new_response(name, ACTIONS)
    assert response(random_raw(response.outputs)).shape == (ACTIONS, 200)


@pytest.mark.parametrize("name", STRUCTURES)
def test_starts_from_the_scores_it_is_given(name: str) -> None:
    response = new_response(name, ACTIONS).start(RISING)
    scores = response(jnp.zeros((response.outputs, 3)))
    np.testing.assert_allclose(scores, np.tile(RISING, (3, 1)).T, atol=1e-5)


@pytest.mark.parametrize("name", sorted(MONOTONE))
def test_monotone_structures_never_fall(name: str) -> None:
    response = new_response(name, ACTIONS).start(RISING)
    scores = np.asarray(response(random_raw(response.outputs)))
    # Steps far below the scores' own size vanish in float32.
    assert (np.diff(scores, axis=0) >= -1e-6).all()
    assert (np.diff(scores, axis=0) > 0).mean() > 0.9


@pytest.mark.parametrize("name", sorted(MONOTONE))
def test_a_monotone_structure_starts_flat_where_the_scores_fall(name: str) -> None:
    response = new_response(name, 3).start(np.array([1.0, 0.0, 2.0]))
    scores = np.asarray(response(jnp.zeros((response.outputs, 1))))[:, 0]
    # 1.0, then a least step, then up to 2 (and the least step more).
    np.testing.assert_allclose(scores, [1.0, 1.0, 2.0], atol=0.05)


def test_low_rank_is_of_low_rank() -> None:
    response = new_response("low_rank", 8)
    scores = np.asarray(response(random_raw(response.outputs)), np.float64)
    # A base and two shapes: three directions, whatever the number of actions.
    assert (np.linalg.svd(scores, compute_uv=False) > 1e-3).sum() == 3


def test_items_are_tried_where_there_are_many_or_their_attributes_are_known() -> None:
    assert "items" not in tried_structures(12, None)
    assert tried_structures(13, None) == tried_structures(3, np.ones((1, 3), np.float32)) == STRUCTURES


@pytest.mark.parametrize("place", range(len(STRUCTURES)))
def test_a_trial_is_its_structure_and_teaches_no_other(place: int) -> None:
    attributes = np.random.default_rng(0).normal(size=(2, ACTIONS)).astype(np.float32)
    alone = new_response(STRUCTURES[place], ACTIONS, attributes).start(RISING)
    trial = new_response(TRIAL, ACTIONS, attributes).start(RISING)
    trial = eqx.tree_at(lambda part: part.slot, trial, jnp.eye(len(STRUCTURES))[place])
    raw = random_raw(trial.outputs)
    np.testing.assert_allclose(trial(raw), alone(raw[: alone.outputs]), rtol=1e-6)
    gradient = jax.grad(lambda part: jnp.square(part(raw)).sum())(trial)
    moved = [any(np.any(leaf != 0) for leaf in jax.tree.leaves(part)) for part in gradient.responses]
    assert moved == [other == place for other in range(len(STRUCTURES))]
    assert not np.any(gradient.slot != 0)


@pytest.mark.parametrize("name", STRUCTURES)
def test_one_action_needs_no_structure(name: str) -> None:
    response = new_response(name, 1)
    assert response(jnp.zeros((response.outputs, 4))).shape == (1, 4)


@pytest.mark.parametrize("name", STRUCTURES)
def test_two_actions_are_enough(name: str) -> None:
    response = new_response(name, 2).start(np.array([0.0, 0.5]))
    np.testing.assert_allclose(response(jnp.zeros((response.outputs, 1))), [[0.0], [0.5]], atol=1e-5)


def test_an_unknown_structure_is_named() -> None:
    with pytest.raises(UsageError, match=r"'cubic'.*dose, cumulative"):
        new_response("cubic", 3)
