"""Multinomial logistic regression by ridge-penalised maximum likelihood."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

__all__ = ["fit_logistic", "log_probabilities"]

_RIDGE = 1e-4
_ACCURACY = 1e-8  # of the mean log-likelihood, relative
# Products of matrices smaller than this start no threads, and what goes into them fits into a core's own cache.
_PRODUCT = 200_000


def log_probabilities(design: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log-probability of every action: regressors [width, rows] and weights [width, actions] -> [actions, rows]."""
    logits = weights.T @ design
    logits -= logits.max(axis=0)
    logits -= np.log(np.exp(logits).sum(axis=0))
    return np.asarray(logits)


def fit_logistic(design: NDArray[np.float64], action: NDArray[np.int32], actions: int) -> NDArray[np.float64]:
    """The weights [width, actions] under which the actions [rows] are likeliest; design [width, rows].

    The first regressor is the constant.
    """
    from scipy.optimize import minimize

    width, rows = design.shape
    shares = np.bincount(action, minlength=actions) / rows
    turn = _even_coordinates(design, float((shares * (1 - shares)).mean()))
    blocks = [(np.ascontiguousarray(design[:, block]), action[block]) for block in _blocks(rows, width * actions)]

    def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights = turn.T @ flat.reshape(width, actions)
        likelihood, gradient = 0.0, np.zeros((width, actions))
        for regressors, chosen in blocks:
            logs = log_probabilities(regressors, weights)
            places = np.arange(len(chosen))
            likelihood += float(logs[chosen, places].sum())
            excess = np.exp(logs, out=logs)
            excess[chosen, places] -= 1.0
            gradient += regressors @ excess.T
        gradient = gradient / rows + 2 * _RIDGE * weights
        return float(_RIDGE * (weights**2).sum()) - likelihood / rows, (turn @ gradient).ravel()

    start = np.zeros((width, actions))
    start[0] = np.log(np.maximum(shares, 1e-6))
    start[0] -= start[0].mean()  # the same for all actions changes no probability, and the penalty wants it gone
    result = minimize(
        loss,
        np.linalg.solve(turn.T, start).ravel(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 200, "ftol": _ACCURACY, "gtol": 1e-6},
    )
    weights: NDArray[np.float64] = turn.T @ result.x.reshape(width, actions)
    return weights


def _even_coordinates(design: NDArray[np.float64], uncertainty: float) -> NDArray[np.float64]:
    """The matrix [width, width] that turns gradients so that the loss curves about alike in every direction.

    Then a few steps are enough. Near the plain shares of the actions the curvature is that of the regressors'
    squares, times how uncertain an action is on average, and that of the penalty.
    """
    width, rows = design.shape
    squares = np.zeros((width, width))
    for block in _blocks(rows, width**2):
        squares += design[:, block] @ design[:, block].T
    root = np.linalg.cholesky(uncertainty / rows * squares + 2 * _RIDGE * np.eye(width))
    return np.linalg.inv(root)


def _blocks(rows: int, cells: int) -> Iterator[slice]:
    """The rows, so many at a time that a product with so many cells a row is small."""
    size = max(_PRODUCT // cells, 32)
    return (slice(first, first + size) for first in range(0, rows, size))
