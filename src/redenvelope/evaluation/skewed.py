"""One-sided bounds of means of skewed money, from moments alone.

A normal bound of a mean of skewed numbers covers too rarely on one side: few dear users are missing from most samples.
Hall's transformation (1992) of the studentised mean takes the skewness out to second order, and its inverse is closed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

__all__ = ["skewed_bounds"]

FloatArray = NDArray[np.float64]

# Below, the transformation is a straight line to rounding.
_LEAST_SKEWNESS = 1e-6


def skewed_bounds(
    means: FloatArray, squares: FloatArray, cubes: FloatArray, users: int, confidence: float
) -> tuple[FloatArray, FloatArray]:
    """Lower and upper bounds of means, each with the whole confidence.

    Squares and cubes are means of deviations' powers; all arrays of one shape. Infinite where one user alone is known.
    """
    if users < 2:
        return np.full_like(means, -np.inf), np.full_like(means, np.inf)
    spread = np.sqrt(np.maximum(squares * users / (users - 1), 0.0))
    skewness = np.divide(cubes, spread**3, out=np.zeros_like(means), where=spread > 0)
    reach = float(ndtri(confidence)) / np.sqrt(users)
    return means - spread * _back(reach, skewness, users), means - spread * _back(-reach, skewness, users)


def _back(transformed: float, skewness: FloatArray, users: int) -> FloatArray:
    """The studentised mean, over the root of the number of users, that is transformed to a number."""
    straight = np.abs(skewness) < _LEAST_SKEWNESS
    own = np.where(straight, 1.0, skewness)
    bent = 3.0 / own * (np.cbrt(1.0 + own * (transformed - own / (6.0 * users))) - 1.0)
    return np.where(straight, transformed, bent)
