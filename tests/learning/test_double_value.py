"""What states are worth by values that judge each other, against closed forms."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from redenvelope.learning.soft_q import double_value
from redenvelope.prices import outcome_weights

DUALS = np.array([0.0, 0.7, np.inf])
WEIGHTS = jnp.asarray(outcome_weights(DUALS[:, None]).astype(np.float32))


def random_values(components: int, folds: int = 1, actions: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(folds, 6, len(DUALS), components, actions)).astype(np.float32)


def found_values(values: np.ndarray, temperature: float, allowed: np.ndarray) -> np.ndarray:
    return np.asarray(double_value(jnp.asarray(values), WEIGHTS, jnp.asarray(temperature), jnp.asarray(allowed)).value)


def test_soft_value_of_one_fold_is_the_log_sum_exp() -> None:
    values, temperature, allowed = random_values(3), 0.4, np.ones((6, 5), dtype=bool)
    allowed[0, :3] = False
    found = found_values(values, temperature, allowed)[:, :2]
    total = found[..., 0] - DUALS[:2] * found[..., 1] + found[..., 2]
    score = values[0, :, :2, 0] - DUALS[:2, None] * values[0, :, :2, 1] + values[0, :, :2, 2]
    score = np.where(allowed[:, None], score, -np.inf)
    assert np.allclose(total, temperature * np.log(np.exp(score / temperature).sum(axis=-1)), atol=1e-5)


def test_hard_value_of_one_fold_is_that_of_the_best_allowed_action() -> None:
    values, allowed = random_values(2), np.ones((6, 5), dtype=bool)
    allowed[:, 1] = False
    found = found_values(values, 0.0, allowed)
    score = np.where(allowed, values[0, :, 1, 0] - 0.7 * values[0, :, 1, 1], -np.inf)
    assert np.allclose(found[:, 1, 0], values[0, np.arange(6), 1, 0, score.argmax(axis=1)])
    cheapest = np.where(allowed, values[0, :, 2, 1], np.inf).min(axis=1)
    assert np.allclose(found[:, 2, 1], cheapest)


def test_two_folds_judge_each_others_choices() -> None:
    values = random_values(2, folds=2)
    found = found_values(values, 0.0, np.ones((6, 5), dtype=bool))[:, 0, 0]
    rewards, users = values[:, :, 0, 0], np.arange(6)
    crossed = [rewards[1 - fold, users, rewards[fold].argmax(axis=1)] for fold in range(2)]
    assert np.allclose(found, np.mean(crossed, axis=0))
