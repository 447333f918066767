"""Who stays: the chance of a next step after every action, learned where users leave before the campaign ends.

It is a further response on the outcome networks: what makes users respond is what makes them stay, so the trunk is
shared, and a node of a tree still costs one pass.
"""

from __future__ import annotations

import equinox as eqx
import jax
import numpy as np
from numpy.typing import NDArray

__all__ = ["STRUCTURE", "UNKNOWN", "Survival", "starting_odds", "users_leave"]

STRUCTURE = "low_rank"
"""How the actions share strength: an envelope may also drive users away, so that nothing is taken to be monotone."""

UNKNOWN = -1.0
"""Where nobody can tell whether a user stayed: at the campaign's last step, and before a gap in the log."""

# A few lost rows are no habit of leaving, and a head for them would only slow every node down.
_LEAST_LEAVERS = 20
_LEAST_SHARE = 0.001
_PRIOR_ROWS = 2.0


class Survival(eqx.Module):
    """The chance of a next step: the score is its log odds, the loss logistic."""

    def mean(self, scores: jax.Array) -> jax.Array:
        """Chance of a next step: [actions, n] -> [actions, n]."""
        return jax.nn.sigmoid(scores)

    def loss(self, score: jax.Array, stayed: jax.Array) -> jax.Array:
        """Loss of the logged action's score, [n] -> [n]; what is unknown teaches nothing."""
        return (jax.nn.softplus(score) - stayed * score) * (stayed >= 0)


def users_leave(stays: NDArray[np.float32]) -> bool:
    """Whether users leave before the last step, given 1 for who stayed, 0 for who left, −1 for unknown, [rows]."""
    left, known = np.count_nonzero(stays == 0), np.count_nonzero(stays >= 0)
    return bool(left >= max(_LEAST_LEAVERS, _LEAST_SHARE * known))


def starting_odds(stays: NDArray[np.float32], action: NDArray[np.int32], actions: int) -> NDArray[np.float64]:
    """Log odds of staying after each action in the log, [actions], for networks to start from; columns [rows]."""
    known = stays >= 0
    count = np.bincount(action[known], minlength=actions)
    total = np.bincount(action[known], weights=stays[known], minlength=actions)
    # An action seen in few rows starts near the mean of all.
    mean = (total + _PRIOR_ROWS * stays[known].mean()) / (count + _PRIOR_ROWS)
    mean = np.clip(mean, 1e-4, 1 - 1e-4)
    return np.asarray(np.log(mean / (1 - mean)))
