"""What can come of an action (nothing, a reward, a reward and a payment): it decides what the user becomes.

Telling the transition network what happened leaves it little to learn, and lets the next state use all that
the outcome networks know: the chance of each event is theirs.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from redenvelope.models.examples import Rows
from redenvelope.models.targets import BinaryReward, CostTarget, RewardedCost, RewardTarget

__all__ = ["event_chances", "event_count", "logged_events"]


def event_count(rewarding: RewardTarget, costing: CostTarget) -> int:
    """One event where the reward is a number, two where it is 0 or 1, three where only the rewarded pay."""
    if not isinstance(rewarding, BinaryReward):
        return 1
    return 3 if isinstance(costing, RewardedCost) else 2


def logged_events(rows: Rows, events: int) -> jax.Array:
    """Which event each row was, one-hot, [rows, events]."""
    rewarded = jnp.asarray(rows.reward) > 0
    paid = rewarded & (jnp.asarray(rows.cost) > 0)
    place = jnp.minimum(rewarded.astype(jnp.int32) + paid.astype(jnp.int32), events - 1)
    return jax.nn.one_hot(place, events)


def event_chances(rewards: jax.Array, costs: jax.Array, costing: CostTarget, events: int) -> jax.Array:
    """Chance of each event, given expected rewards and costs [n, actions] -> [n, actions, events]."""
    if events == 1:
        return jnp.ones((*rewards.shape, 1))
    if isinstance(costing, RewardedCost) and events == 3:
        amounts = costing.amounts
        paid = jnp.where(amounts > 0, costs / jnp.where(amounts > 0, amounts, 1.0), 0.0)
        return jnp.stack([1.0 - rewards, rewards - paid, paid], axis=-1)
    return jnp.stack([1.0 - rewards, rewards], axis=-1)
