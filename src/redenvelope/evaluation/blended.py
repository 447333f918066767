"""Estimates that choose, from the data, how far to believe the baseline: MAGIC and more robust doubly robust."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import ndtri

from redenvelope.errors import UsageError
from redenvelope.evaluation.doubly_robust import weighted_doubly_robust
from redenvelope.evaluation.evidence import Evidence
from redenvelope.evaluation.folds import user_folds
from redenvelope.evaluation.importance import per_decision
from redenvelope.evaluation.terms import Moments, Terms

__all__ = ["magic", "magic_shares", "more_robust", "more_robust_with"]

FloatArray = NDArray[np.float64]

# Of the interval within which a shorter return is not called biased (Thomas and Brunskill use 10 %).
_MAGIC_CONFIDENCE = 0.1
# Columns of the regression that are rounding next to the largest are left out.
_RANK_TOLERANCE = 1e-10


def magic(evidence: Evidence, discount: float = 1.0) -> Terms:
    """MAGIC: weighted doubly robust for the first steps and the baseline for the rest, blended over all numbers of
    first steps so that squared bias plus variance is least."""
    terms = weighted_doubly_robust(evidence, discount)
    return replace(terms, shares=magic_shares(terms.moments))


def magic_shares(moments: Moments) -> FloatArray:
    """How much each step of a weighted doubly robust estimate should count, [targets, parts, duals]."""
    targets, parts, duals = moments.shares.shape
    shares = np.ones((targets, parts, duals))
    if moments.users < 2 or not parts:
        return shares
    steps = np.tri(parts + 1, parts, -1)  # the return that trusts the log for j steps adds up j parts
    margin = ndtri(0.5 + _MAGIC_CONFIDENCE / 2)
    for target in range(targets):
        for dual in range(duals):
            covariance = _return_covariance(moments, target, dual, steps)
            returns = steps @ moments.ratios[target, :, dual]
            if not (np.isfinite(returns).all() and np.isfinite(covariance).all()):
                continue
            reach = float(margin) * np.sqrt(max(covariance[-1, -1], 0.0))
            gap = returns - returns[-1]
            bias = np.sign(gap) * np.maximum(np.abs(gap) - reach, 0.0)
            shares[target, :, dual] = _simplex_minimum(covariance + np.outer(bias, bias)) @ steps
    return shares


def more_robust(evidence: Evidence, discount: float = 1.0) -> Terms:
    """More robust doubly robust: the baseline scaled, step by step, so that the estimate's own variance is least.

    A bad baseline is scaled to nothing and does no harm; the scales come from other users than those they are
    applied to, so the estimate stays unbiased.
    """
    values, action_values = evidence.baseline()
    shape = (len(evidence.targets), evidence.users, len(evidence.positions), evidence.duals)
    columns = np.zeros(shape)
    weight = np.ones((evidence.users, evidence.duals))
    for position, (users, rows) in enumerate(evidence.positions):
        before = weight[users].copy()
        weight[users] *= evidence.ratio[rows]
        change = before * values[:, rows] - weight[users] * action_values[:, rows]
        columns[:, users, position] = change * discount**position
    return more_robust_with(evidence, columns, discount)


def more_robust_with(
    evidence: Evidence, columns: FloatArray, discount: float = 1.0, folds: int = 5, seed: int = 0
) -> Terms:
    """Per-decision importance sampling less the mix of columns [targets, users, columns, duals] that explains it best.

    Every column must have mean 0 when the propensities are right: what a linear baseline adds to the doubly robust
    estimate, one column a coefficient. Coefficients are fitted on the other folds' users.
    """
    plain = per_decision(evidence, discount).plain.copy()
    if columns.shape[:2] != plain.shape[:2] or columns.shape[3] != plain.shape[2]:
        raise UsageError(f"columns must be [targets, users, columns, duals], not of shape {columns.shape}")
    fold = user_folds(evidence.users, folds, seed)
    observed = plain.copy()
    for number in np.unique(fold):
        inside, outside = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        for target in range(len(plain)):
            for dual in range(plain.shape[2]):
                part = columns[target, :, :, dual]
                scale = _least_variance(observed[target, outside, dual], part[outside])
                plain[target, inside, dual] += part[inside] @ scale
    return Terms.mean(plain)


def _least_variance(outcome: FloatArray, columns: FloatArray) -> FloatArray:
    """The scales that make the variance of outcome + columns @ scales least."""
    centred = columns - columns.mean(axis=0)
    return np.asarray(-np.linalg.lstsq(centred, outcome - outcome.mean(), rcond=_RANK_TOLERANCE)[0])


def _return_covariance(moments: Moments, target: int, dual: int, steps: FloatArray) -> FloatArray:
    """Covariance of the returns that trust the log for 0, 1, … steps, [parts + 1, parts + 1]."""
    targets, parts, _ = moments.shares.shape
    mean = np.where(moments.mean_weights[:, dual] > 0, moments.mean_weights[:, dual], np.nan)
    numerators = targets + target * parts
    weights = targets * (1 + parts)
    gradient = np.zeros((parts + 1, moments.means.shape[0]))
    gradient[:, target] = 1.0
    gradient[:, numerators : numerators + parts] = steps / mean
    gradient[:, weights:] = -steps * moments.ratios[target, :, dual] / mean
    spread = gradient @ moments.products[dual] @ gradient.T
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
