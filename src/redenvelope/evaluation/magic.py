"""MAGIC: how far to believe the baseline, step by step, chosen from the data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import ndtri

from redenvelope.evaluation.doubly_robust import weighted_doubly_robust
from redenvelope.evaluation.estimator import Estimator, Prepared
from redenvelope.evaluation.partitions import Partitions
from redenvelope.evaluation.terms import Moments

__all__ = ["Magic", "magic_shares"]

FloatArray = NDArray[np.float64]

# Of the interval within which a shorter return is not called biased (Thomas and Brunskill use 10 %).
_MAGIC_CONFIDENCE = 0.1


class Magic(Estimator):
    """Weighted doubly robust for the first steps and the baseline for the rest, blended over all numbers of first
    steps so that squared bias plus variance is least."""

    name = "magic"

    def prepare(self, users: Partitions, discount: float) -> Prepared:
        """See Estimator."""
        return Prepared(weighted_doubly_robust)

    def shares(self, moments: Moments) -> FloatArray:
        """See Estimator."""
        return magic_shares(moments)


def magic_shares(moments: Moments) -> FloatArray:
    """How much each step of a weighted doubly robust estimate should count, [outcomes, parts, prices]."""
    outcomes, parts, prices = moments.shares.shape
    shares = np.ones((outcomes, parts, prices))
    if moments.users < 2 or not parts:
        return shares
    steps = np.tri(parts + 1, parts, -1)  # the return that trusts the log for j steps adds up j parts
    margin = ndtri(0.5 + _MAGIC_CONFIDENCE / 2)
    for outcome in range(outcomes):
        for price in range(prices):
            covariance = _return_covariance(moments, outcome, price, steps)
            returns = steps @ moments.ratios[outcome, :, price]
            if not (np.isfinite(returns).all() and np.isfinite(covariance).all()):
                continue
            reach = float(margin) * np.sqrt(max(covariance[-1, -1], 0.0))
            gap = returns - returns[-1]
            bias = np.sign(gap) * np.maximum(np.abs(gap) - reach, 0.0)
            shares[outcome, :, price] = _simplex_minimum(covariance + np.outer(bias, bias)) @ steps
    return shares


def _return_covariance(moments: Moments, outcome: int, price: int, steps: FloatArray) -> FloatArray:
    """Covariance of the returns that trust the log for 0, 1, … steps, [parts + 1, parts + 1]."""
    outcomes, parts, _ = moments.shares.shape
    mean = np.where(moments.mean_weights[:, price] > 0, moments.mean_weights[:, price], np.nan)
    numerators = outcomes + outcome * parts
    weights = outcomes * (1 + parts)
    gradient = np.zeros((parts + 1, moments.means.shape[0]))
    gradient[:, outcome] = 1.0
    gradient[:, numerators : numerators + parts] = steps / mean
    gradient[:, weights:] = -steps * moments.ratios[outcome, :, price] / mean
    spread = gradient @ moments.products[price] @ gradient.T
    return np.asarray(spread / (moments.users * (moments.users - 1)))


def _simplex_minimum(matrix: FloatArray) -> FloatArray:
    """The shares x ≥ 0 that sum to 1 and make x' matrix x least.

    Least squares with x ≥ 0 of [root; 1'] x against [0; 1] has the same direction: along any direction of shares it
    attains m / (1 + m), where m is the form's value there.
    """
    scale = float(np.trace(matrix))
    if not scale > 0:
        return np.asarray(np.eye(len(matrix))[-1])
    roots, vectors = np.linalg.eigh(matrix / scale)
    root = np.sqrt(np.maximum(roots, 0.0))[:, None] * vectors.T
    system = np.vstack([root, np.ones(len(matrix))])
    found, _ = nnls(system, np.append(np.zeros(len(matrix)), 1.0))
    return np.asarray(found / found.sum())
