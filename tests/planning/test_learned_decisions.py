"""Decisions from learned values, against closed forms."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from redenvelope.planning.q_values import action_scores, choose, supported
from redenvelope.prices import outcome_weights

DUALS = np.array([0.0, 0.7, np.inf])
WEIGHTS = jnp.asarray(outcome_weights(DUALS[:, None]).astype(np.float32))


def random_values(components: int, actions: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(6, len(DUALS), components, actions)).astype(np.float32)


def test_score_is_reward_minus_priced_cost_and_cost_alone_at_an_infinite_price() -> None:
    values = random_values(2)
    scores = np.asarray(action_scores(jnp.asarray(values), WEIGHTS))
    assert np.allclose(scores[:, 1], values[:, 1, 0] - 0.7 * values[:, 1, 1], atol=1e-6)
    assert np.allclose(scores[:, 2], -values[:, 2, 1])


def test_an_infinite_price_is_never_soft() -> None:
    chosen = np.asarray(choose(jnp.asarray(random_values(3)), WEIGHTS, jnp.asarray(0.4), jnp.ones((6, 5), bool)))
    assert set(np.unique(chosen[:, 2])) == {0.0, 1.0}
    assert (chosen[:, :2] > 0).all()
    score = np.asarray(action_scores(jnp.asarray(random_values(3)), WEIGHTS))[:, :2] / 0.4
    assert np.allclose(chosen[:, :2], np.exp(score) / np.exp(score).sum(axis=-1, keepdims=True), atol=1e-6)


def test_ties_go_to_the_cheapest_and_then_to_the_best_rewarded() -> None:
    rewards = np.array([1.0, 3.0, 2.0, 3.0, 3.0])
    costs = np.array([0.0, 4.0, 0.0, 2.0, 2.0])
    values = np.tile(np.stack([rewards, costs]), (1, 3, 1, 1)).astype(np.float32)
    everything = jnp.ones((1, 5), bool)
    chosen = np.asarray(choose(jnp.asarray(values), WEIGHTS, jnp.asarray(0.0), everything))[0].argmax(axis=1)
    # Free: three earn 3, two of them at a cost of 2. At 0.7 the third is best alone; without regard to reward two cost
    # nothing.
    assert chosen.tolist() == [3, 2, 2]
    barred = everything.at[0, 2].set(False).at[0, 3].set(False)
    chosen = np.asarray(choose(jnp.asarray(values), WEIGHTS, jnp.asarray(0.0), barred))[0].argmax(axis=1)
    assert chosen.tolist() == [4, 4, 0]


def test_guard_leaves_out_the_rare_and_gives_way_when_nothing_else_is_left() -> None:
    chances = np.array([[0.5, 0.499, 0.001], [0.5, 0.499, 0.001]])
    eligible = np.array([[True, True, True], [False, False, True]])
    allowed = np.asarray(supported(chances >= 0.01, eligible))
    assert allowed.tolist() == [[True, True, False], [False, False, True]]
