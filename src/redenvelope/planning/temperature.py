"""The temperature (weight of the entropy bonus): its valid range, its default, and what entropy costs.

`suggest_temperature` picks the largest temperature at which the softmax policy loses at most a given share of the value
of targeting, so the default follows the scale of the action values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from redenvelope.arrays import FloatArray
from redenvelope.errors import UsageError

# Share of the value of targeting that entropy may cost.
DEFAULT_SHARE = 0.01

# Bisection steps on a bracket that spans a factor of 2^60: far finer than any difference that matters.
_HALVINGS = 60

# Values are divided by the temperature in float32, which holds numbers from 1e-38 to 1e38.
_COLDEST, _WARMEST = 1e-30, 1e30


def is_temperature(value: float) -> bool:
    """Whether a temperature is valid: zero, or a number that float32 values can be divided by."""
    return value == 0 or _COLDEST <= value <= _WARMEST


def suggest_temperature(q: ArrayLike, share: float = DEFAULT_SHARE) -> float:
    """The largest temperature whose randomness loses at most `share` of the value at stake.

    `q` [users, actions] are action values without entropy at a representative price, one near the budget:
    there the differences between actions are those that the plan will have to tell apart. The result
    scales with `q`; it is 0 if all actions are worth the same to every user.
    """
    if not 0 < share < 1:
        raise UsageError(f"share must be between 0 and 1, not {share}")
    values = _checked(q)
    allowed = share * value_at_stake(values)
    if allowed <= 0:
        return 0.0
    # The loss never decreases in the temperature. At temperature T it is at most (actions - 1) * T / e, from
    # x exp(-x) <= 1/e, so the answer lies above `low`; at `high` the policy is practically uniform.
    low = float(allowed) / values.shape[1]
    high = low * 2.0**_HALVINGS
    for _ in range(_HALVINGS):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if entropy_loss(values, middle) <= allowed else (low, middle)
    return float(low)


def value_at_stake(q: ArrayLike) -> float:
    """Value of targeting, per user: the gain of each user's best action over the best single action for all.

    `q` is [users, actions]. If users are all alike, it is the gain of the best action over a random one.
    """
    values = _checked(q)
    best = values.max(axis=1).mean()
    over_random = best - np.where(np.isfinite(values), values, 0.0).sum() / np.isfinite(values).sum()
    everyone = np.isfinite(values).all(axis=0)
    if not everyone.any():
        return float(over_random)
    over_single = best - values[:, everyone].mean(axis=0).max()
    # Below a thousandth, users differ by less than a model can resolve: they count as alike.
    return float(over_single if over_single > 1e-3 * over_random else over_random)


def entropy_loss(q: ArrayLike, temperature: float) -> float:
    """Mean value lost per user by drawing actions with probability ∝ exp(q / temperature); `q` [users, actions]."""
    values = _checked(q)
    behind = values.max(axis=1, keepdims=True) - values
    weights = np.exp(-behind / temperature)
    behind = np.where(np.isfinite(behind), behind, 0.0)
    return float(((weights * behind).sum(axis=1) / weights.sum(axis=1)).mean())


def entropy_cost(
    hard_costs: ArrayLike, hard_rewards: ArrayLike, soft_costs: ArrayLike, soft_rewards: ArrayLike
) -> FloatArray:
    """Reward that entropy costs at each soft point, [soft]: the hard frontier at equal cost minus the soft reward.

    Costs and rewards, [hard] at temperature 0 and [soft] above it, come from the same model over a grid of prices.
    Between two hard points the frontier is their mixture; beyond the costliest it stays level.
    """
    costs, rewards = np.asarray(hard_costs, dtype=np.float64), np.asarray(hard_rewards, dtype=np.float64)
    order = np.lexsort((rewards, costs))
    frontier = np.interp(np.asarray(soft_costs, dtype=np.float64), costs[order], rewards[order])
    return np.asarray(frontier - np.asarray(soft_rewards, dtype=np.float64))


def _checked(q: ArrayLike) -> FloatArray:
    values = np.asarray(q, dtype=np.float64)
    if values.ndim != 2 or values.shape[0] == 0:
        raise UsageError(f"q must be [users, actions] with at least one user, not of shape {values.shape}")
    return values
