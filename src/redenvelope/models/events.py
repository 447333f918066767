"""What can come of an action (nothing, a reward, a reward and a payment): it decides what the user becomes.

Telling the transition network what happened leaves it little to learn, and lets the next state use all that
the outcome networks know: the chance of each event is theirs. Where there are several costs, the first is the payment.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from redenvelope.models.examples import Rows
from redenvelope.models.targets import BinaryReward, OutcomeTargets, RewardedCost

__all__ = ["event_chances", "event_count", "logged_events"]


def event_count(targets: OutcomeTargets) -> int:
    """One event where the reward is a number, two where it is 0 or 1, three where only the rewarded pay."""
    if not isinstance(targets.reward, BinaryReward):
        return 1
    return 3 if isinstance(targets.costs[0], RewardedCost) else 2


def logged_events(rows: Rows, events: int) -> jax.Array:
    """Which event each row was, one-hot, [rows, events]."""
    outcomes = jnp.asarray(rows.outcomes)
    rewarded = outcomes[:, 0] > 0
    paid = rewarded & (outcomes[:, 1] > 0)
    place = jnp.minimum(rewarded.astype(jnp.int32) + paid.astype(jnp.int32), events - 1)
    return jax.nn.one_hot(place, events)


def event_chances(outcomes: Sequence[jax.Array], targets: OutcomeTargets, events: int) -> list[jax.Array]:
    """Chance of each event, given each of the expected outcomes; all [actions, n]."""
    rewards = outcomes[0]
    if events == 1:
        return [jnp.ones(rewards.shape)]
    paying = targets.costs[0]
    if isinstance(paying, RewardedCost) and events == 3:
        amounts = paying.amounts[:, None]
        paid = jnp.where(amounts > 0, outcomes[1] / jnp.where(amounts > 0, amounts, 1.0), 0.0)
        return [1.0 - rewards, rewards - paid, paid]
    return [1.0 - rewards, rewards]
