"""What a planner's policy costs and earns in its own model, as sums that batches of users add up to.

A tree that reaches the last step knows its policy's cost and reward. One that does not is planned anew at
every step: its policy is followed through the model until the last tree reaches the end. Actions on the
way are drawn with the same random number for every dual, so that the differences between duals are not
noise; what a step costs and earns is averaged over the draw. Without entropy nothing is random, and the
result is exact for the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.chance import draw, fraction
from redenvelope.models.apply import apply_steps
from redenvelope.planning.backup import checked_duals
from redenvelope.planning.checks import checked_states
from redenvelope.planning.tree import TreePlanner
from redenvelope.policies.checks import checked_eligible, checked_steps_left
from redenvelope.prices import checked_prices

__all__ = ["ModelPrice", "PriceSums", "price_sums"]

FloatArray = NDArray[np.float64]

# Users times duals followed at once: each may have come to a state of its own, with a tree of its own.
_PATHS_AT_ONCE = 2**14


@dataclass(frozen=True, eq=False)
class PriceSums:
    """Sums over users, of float64; those of disjoint sets of users merge into those of their union."""

    users: int
    costs: FloatArray
    """[duals]."""
    squared_costs: FloatArray
    """[duals]."""
    rewards: FloatArray
    """[duals]."""
    squared_rewards: FloatArray
    """[duals]."""

    def merge(self, other: PriceSums) -> PriceSums:
        """The sums over both sets of users."""
        return PriceSums(
            self.users + other.users,
            self.costs + other.costs,
            self.squared_costs + other.squared_costs,
            self.rewards + other.rewards,
            self.squared_rewards + other.squared_rewards,
        )

    def means(self) -> tuple[FloatArray, FloatArray]:
        """Mean cost and mean reward a user, both [duals]."""
        return self.costs / self.users, self.rewards / self.users

    def standard_errors(self) -> tuple[FloatArray, FloatArray]:
        """Of the mean cost and the mean reward as estimates for the population, both [duals]."""
        return (
            _standard_error(self.users, self.costs, self.squared_costs),
            _standard_error(self.users, self.rewards, self.squared_rewards),
        )


@dataclass(frozen=True, eq=False)
class ModelPrice:
    """A price function: the mean reward and cost, in the model, of a planner's policy at each price."""

    planner: TreePlanner
    states: NDArray[np.float32]
    """First states, [users, width]."""
    steps_left: NDArray[np.intp] | int | None = None
    """Steps left at those states, one number or [users]; None is the whole campaign."""
    eligible: NDArray[np.bool_] | None = None
    """[users, actions]; None allows all."""
    seed: int = 0
    """Of the actions drawn on the way; matters only with entropy and a horizon short of the campaign."""

    def __call__(self, prices: FloatArray, /) -> FloatArray:
        """Prices [prices, budgets] -> mean reward and cost, [outcomes, prices]."""
        costs, rewards = self.sums(checked_prices(prices)[:, 0]).means()
        return np.stack([rewards, costs])

    def sums(self, duals: ArrayLike, users: slice = slice(None)) -> PriceSums:
        """The sums of some of the users; merged over parts they are those of all."""
        left = self.planner.steps if self.steps_left is None else self.steps_left
        names = np.arange(len(self.states))[users]
        mask = None if self.eligible is None else self.eligible[users]
        left = np.broadcast_to(left, (len(self.states),))[users]
        return price_sums(self.planner, self.states[users], left, duals, mask, names, self.seed)


def price_sums(
    planner: TreePlanner,
    states: ArrayLike,
    steps_left: ArrayLike,
    duals: ArrayLike,
    eligible: ArrayLike | None = None,
    users: NDArray[np.integer] | None = None,
    seed: int = 0,
) -> PriceSums:
    """Follow the policy at each dual [duals] from states [users, width] to the campaign's end.

    `users` [users] are whole numbers that name the users: a user draws the same actions in any batch.
    """
    rows = checked_states(states, planner.columns)
    left = checked_steps_left(steps_left, len(rows), planner.steps)
    mask = checked_eligible(eligible, len(rows), planner.model.actions)
    names = np.arange(len(rows)) if users is None else np.asarray(users)
    prices = checked_duals(duals)
    zero = np.zeros(len(prices))
    parts = [PriceSums(0, zero, zero, zero, zero)]
    for steps in np.unique(left):
        alike = np.flatnonzero(left == steps)
        size = max(1, _PATHS_AT_ONCE // len(prices)) if steps > planner.depth else max(1, len(alike))
        for start in range(0, len(alike), size):
            part = alike[start : start + size]
            allowed = None if mask is None else mask[part]
            costs, rewards = _follow(planner, rows[part], int(steps), prices, allowed, names[part], seed)
            parts.append(_sums(costs, rewards))
    return reduce(PriceSums.merge, parts)


def _follow(
    planner: TreePlanner,
    states: NDArray[np.float32],
    steps_left: int,
    duals: NDArray[np.float32],
    eligible: NDArray[np.bool_] | None,
    names: NDArray[np.integer],
    seed: int,
) -> tuple[FloatArray, FloatArray]:
    """Cost and reward to go of every user at every dual, both [users, duals]."""
    users, columns = len(states), np.arange(len(duals))
    costs, rewards = np.zeros((users, len(duals))), np.zeros((users, len(duals)))
    # Duals under which a user was sent the same are in the same state: one tree serves them all.
    owner = np.arange(users)  # [places]
    place = np.repeat(owner[:, None], len(duals), axis=1)  # [users, duals]
    weight = 1.0
    for left in range(steps_left, planner.depth, -1):
        allowed = None if eligible is None else eligible[owner]
        probabilities = planner.plan(states, left, duals, allowed).probabilities
        taken = np.asarray(probabilities, dtype=np.float64)[place, columns]
        step_rewards, step_costs, successors = apply_steps(planner.model, states)
        rewards += weight * (taken * step_rewards[place]).sum(axis=2)
        costs += weight * (taken * step_costs[place]).sum(axis=2)
        weight *= planner.discount
        actions = draw(taken, fraction(names.astype(np.uint64), "roll-out", seed, left)[:, None])
        moves, place = np.unique(place * planner.model.actions + actions, return_inverse=True)
        place = place.reshape(users, len(duals))
        parents, moved = np.divmod(moves, planner.model.actions)
        states, owner = successors[parents, moved], owner[parents]
    allowed = None if eligible is None else eligible[owner]
    last_costs, last_rewards = planner.worth(states, min(steps_left, planner.depth), duals, allowed)
    return costs + weight * last_costs[place, columns], rewards + weight * last_rewards[place, columns]


def _sums(costs: FloatArray, rewards: FloatArray) -> PriceSums:
    """Over the users of [users, duals]."""
    return PriceSums(
        len(costs), costs.sum(axis=0), (costs**2).sum(axis=0), rewards.sum(axis=0), (rewards**2).sum(axis=0)
    )


def _standard_error(users: int, sums: FloatArray, squares: FloatArray) -> FloatArray:
    spread = np.maximum(squares - sums**2 / users, 0.0) / max(users - 1, 1)
    return np.asarray(np.sqrt(spread / users))
