"""The logistic model against what is known of its optimum, and against a plain optimiser."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

from redenvelope.log.propensity import fit_logistic, log_probabilities

RIDGE = 1e-4


def problem(rows: int = 2_000) -> tuple[np.ndarray, np.ndarray]:
    """Regressors of very different scales [4, rows] and actions [rows] that depend on them."""
    chance = np.random.default_rng(3)
    design = np.stack(
        [np.ones(rows), chance.normal(size=rows), chance.normal(size=rows) * 0.05, chance.random(rows) < 0.1]
    )
    truth = np.array([[0.5, 0.0, -0.5], [1.0, 0.0, -1.0], [0.0, 3.0, -3.0], [0.0, 2.0, 0.0]])
    probabilities = np.exp(log_probabilities(design, truth))
    return design, (probabilities.cumsum(axis=0) < chance.random(rows)).sum(axis=0).astype(np.int32)


def loss(flat: np.ndarray, design: np.ndarray, action: np.ndarray, actions: int) -> float:
    weights = flat.reshape(len(design), actions)
    return RIDGE * (weights**2).sum() - log_probabilities(design, weights)[action, np.arange(len(action))].mean()


def test_probabilities_sum_to_one() -> None:
    design, _ = problem(50)
    logs = log_probabilities(design, np.random.default_rng(0).normal(size=(4, 3)) * 300)
    np.testing.assert_allclose(np.exp(logs).sum(axis=0), 1.0, rtol=1e-12)


def test_a_constant_alone_gives_the_shares() -> None:
    action = np.repeat([0, 1, 2], [500, 300, 200]).astype(np.int32)
    weights = fit_logistic(np.ones((1, 1_000)), action, 3)
    # The penalty of 1e-4 pulls log-shares of about 1 by some 1e-4 · 2 / 0.2.
    np.testing.assert_allclose(np.exp(log_probabilities(np.ones((1, 1)), weights))[:, 0], [0.5, 0.3, 0.2], atol=1e-3)


def test_the_optimum_is_that_of_a_plain_optimiser() -> None:
    design, action = problem()
    weights = fit_logistic(design, action, 3)
    plain = minimize(
        loss, np.zeros(12), (design, action, 3), method="BFGS", options={"gtol": 1e-7}
    )  # derivatives by differences are good to 1e-8
    assert loss(weights.ravel(), design, action, 3) <= plain.fun + 1e-7
    np.testing.assert_allclose(
        np.exp(log_probabilities(design, weights)),
        np.exp(log_probabilities(design, plain.x.reshape(4, 3))),
        atol=2e-3,  # where the loss differs by 1e-8 and curves by 1e-2 at least
    )


def test_an_action_nobody_got_and_regressors_that_repeat_are_no_trouble() -> None:
    design, action = problem(300)
    weights = fit_logistic(np.concatenate([design, design]), action, 4)
    assert np.isfinite(weights).all()
    assert np.exp(log_probabilities(np.concatenate([design, design]), weights))[3].max() < 1e-3
