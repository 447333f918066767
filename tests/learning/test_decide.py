"""Decisions from values, against closed forms."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from redenvelope.learning.decide import action_scores, choose, double_value, supported

DUALS = np.array([0.0, 0.7, np.inf], dtype=np.float32)


def random_values(components: int, folds: int = 1, actions: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(folds, 6, len(DUALS), components, actions)).astype(np.float32)


def test_score_is_reward_minus_priced_cost_and_cost_alone_at_an_infinite_dual() -> None:
    values = random_values(2)
    scores = np.asarray(action_scores(jnp.asarray(values), jnp.asarray(DUALS)))
    assert np.allclose(scores[:, :, 1], values[:, :, 1, 0] - 0.7 * values[:, :, 1, 1], atol=1e-6)
    assert np.allclose(scores[:, :, 2], -values[:, :, 2, 1])


def test_soft_value_of_one_fold_is_the_log_sum_exp() -> None:
    values, temperature, allowed = random_values(3), 0.4, np.ones((6, 5), dtype=bool)
    allowed[0, :3] = False
    found = np.asarray(double_value(jnp.asarray(values), jnp.asarray(DUALS), jnp.asarray(temperature), allowed))[:, :2]
    total = found[..., 0] - DUALS[:2] * found[..., 1] + found[..., 2]
    score = values[0, :, :2, 0] - DUALS[:2, None] * values[0, :, :2, 1] + values[0, :, :2, 2]
    score = np.where(allowed[:, None], score, -np.inf)
    assert np.allclose(total, temperature * np.log(np.exp(score / temperature).sum(axis=-1)), atol=1e-5)


def test_hard_value_of_one_fold_is_that_of_the_best_allowed_action() -> None:
    values, allowed = random_values(2), np.ones((6, 5), dtype=bool)
    allowed[:, 1] = False
    found = np.asarray(double_value(jnp.asarray(values), jnp.asarray(DUALS), jnp.asarray(0.0), allowed))
    score = np.where(allowed, values[0, :, 1, 0] - 0.7 * values[0, :, 1, 1], -np.inf)
    assert np.allclose(found[:, 1, 0], values[0, np.arange(6), 1, 0, score.argmax(axis=1)])
    cheapest = np.where(allowed, values[0, :, 2, 1], np.inf).min(axis=1)
    assert np.allclose(found[:, 2, 1], cheapest)


def test_two_folds_judge_each_others_choices() -> None:
    values, everything = random_values(2, folds=2), np.ones((6, 5), dtype=bool)
    found = np.asarray(double_value(jnp.asarray(values), jnp.asarray(DUALS), jnp.asarray(0.0), everything))[:, 0, 0]
    rewards, users = values[:, :, 0, 0], np.arange(6)
    crossed = [rewards[1 - fold, users, rewards[fold].argmax(axis=1)] for fold in range(2)]
    assert np.allclose(found, np.mean(crossed, axis=0))


def test_an_infinite_dual_is_never_soft() -> None:
    chosen = np.asarray(
        choose(jnp.asarray(random_values(3)), jnp.asarray(DUALS), jnp.asarray(0.4), jnp.ones((6, 5), bool))
    )
    assert set(np.unique(chosen[:, :, 2])) == {0.0, 1.0}
    assert (chosen[:, :, :2] > 0).all()


def test_guard_leaves_out_the_rare_and_gives_way_when_nothing_else_is_left() -> None:
    chances = np.array([[0.5, 0.499, 0.001], [0.5, 0.499, 0.001]])
    eligible = np.array([[True, True, True], [False, False, True]])
    allowed = np.asarray(supported(chances >= 0.01, eligible))
    assert allowed.tolist() == [[True, True, False], [False, False, True]]
