"""Actions drawn on a walk through the model, by numbers that depend on the user and the step alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["draw_actions", "uniform_numbers"]

FloatArray = NDArray[np.float64]

# The odd constant of splitmix64; keeps a name or step of zero from mixing to zero.
_GOLDEN = 0x9E3779B97F4A7C15


def draw_actions(probabilities: FloatArray, uniforms: FloatArray) -> NDArray[np.intp]:
    """One action for each user and dual: [users, duals, actions], [users] -> [users, duals].

    A user's number is the same for all duals, so that a small change of the dual changes few draws.
    """
    cumulative = probabilities.cumsum(axis=2)
    # Divided by its last entry, so that rounding never leaves a number above the last action's share.
    cumulative /= cumulative[:, :, -1:]
    return np.asarray((cumulative <= uniforms[:, None, None]).sum(axis=2), dtype=np.intp)


def uniform_numbers(seed: int, names: NDArray[np.integer], step: int) -> FloatArray:
    """A number in [0, 1) for each user, [users], which depends on seed, user and step alone."""
    mixed = np.full(len(names), np.uint64(seed % 2**64))
    for part in (names.astype(np.uint64), np.uint64(step)):
        mixed = _mix(mixed ^ _mix(part + np.uint64(_GOLDEN)))
    return np.asarray((mixed >> np.uint64(11)) * 2.0**-53)


def _mix(words: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    """The finaliser of the splitmix64 generator: every bit of the input reaches every bit of the output."""
    mixed = np.atleast_1d(np.asarray(words, dtype=np.uint64))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))
