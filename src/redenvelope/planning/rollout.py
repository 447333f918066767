"""What a planner's policy costs and earns in its own model, as sums that batches of users add up to.

A tree that reaches the last step knows its policy's outcomes. One that does not is planned anew at
every step: its policy is followed through the model until the last tree reaches the end. Actions on the
way are drawn with the same random number for every price, so that the differences between prices are not
noise; what a step costs and earns is averaged over the draw. Without entropy nothing is random, and the
result is exact for the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.arrays import FloatArray
from redenvelope.models.environment import apply_steps
from redenvelope.planning.planner import TreePlanner, checked_states
from redenvelope.policies.eligibility_state import EligibilityState, Eligible, eligibility_state
from redenvelope.policies.policy import checked_steps_left
from redenvelope.prices import checked_prices
from redenvelope.randomness import draw, fraction

# Users times prices followed at once: each may have come to a state of its own, with a tree of its own.
_PATHS_AT_ONCE = 2**14


@dataclass(frozen=True, eq=False)
class PriceSums:
    """Sums over users, of float64; those of disjoint sets of users merge into those of their union."""

    users: int
    outcomes: FloatArray
    """[outcomes, prices]."""
    squares: FloatArray
    """Of the users' outcomes, [outcomes, prices]."""

    def merge(self, other: PriceSums) -> PriceSums:
        """The sums over both sets of users."""
        return PriceSums(self.users + other.users, self.outcomes + other.outcomes, self.squares + other.squares)

    def means(self) -> FloatArray:
        """Mean outcomes a user, [outcomes, prices]."""
        return self.outcomes / self.users

    def standard_errors(self) -> FloatArray:
        """Of the means as estimates for the population, [outcomes, prices]."""
        spread = np.maximum(self.squares - self.outcomes**2 / self.users, 0.0) / max(self.users - 1, 1)
        return np.asarray(np.sqrt(spread / self.users))


@dataclass(frozen=True, eq=False)
class ModelPrice:
    """A price function: the mean outcomes, in the model, of a planner's policy at each price."""

    planner: TreePlanner
    states: NDArray[np.float32]
    """First states, [users, width]."""
    steps_left: NDArray[np.intp] | int | None = None
    """Steps left at those states, one number or [users]; None is the whole campaign."""
    eligible: EligibilityState | NDArray[np.bool_] | None = None
    """Where users stand, or a mask [users, actions]; None allows all."""
    seed: int = 0
    """Of the actions drawn on the way; matters only with entropy and a horizon short of the campaign."""

    def __call__(self, prices: ArrayLike, /) -> FloatArray:
        """Mean outcomes [outcomes, prices] at prices [prices, budgets]."""
        return self.sums(prices).means()

    def sums(self, prices: ArrayLike, users: slice = slice(None)) -> PriceSums:
        """The sums of some of the users; merged over parts they are those of all."""
        left = self.planner.steps if self.steps_left is None else self.steps_left
        names = np.arange(len(self.states))[users]
        mask = None if self.eligible is None else self.eligible[users]
        left = np.broadcast_to(left, (len(self.states),))[users]
        return price_sums(self.planner, self.states[users], left, prices, mask, names, self.seed)


def price_sums(
    planner: TreePlanner,
    states: ArrayLike,
    steps_left: ArrayLike,
    prices: ArrayLike,
    eligible: Eligible = None,
    users: NDArray[np.integer] | None = None,
    seed: int = 0,
) -> PriceSums:
    """Follow the policy at each of prices [prices, budgets] from states [users, width] to the campaign's end.

    `users` [users] are whole numbers that name the users: a user draws the same actions in any batch.
    """
    rows = checked_states(states, planner.columns)
    left = checked_steps_left(steps_left, len(rows), planner.steps)
    standing = None
    if eligible is not None or planner.constraint is not None:
        standing = eligibility_state(eligible, len(rows), planner.actions, planner.constraint)
    names = np.arange(len(rows)) if users is None else np.asarray(users)
    table = checked_prices(prices, planner.budgets)
    zero = np.zeros((1 + planner.budgets, len(table)))
    parts = [PriceSums(0, zero, zero)]
    for steps in np.unique(left):
        alike = np.flatnonzero(left == steps)
        size = max(1, _PATHS_AT_ONCE // len(table)) if steps > planner.depth else max(1, len(alike))
        for start in range(0, len(alike), size):
            part = alike[start : start + size]
            own = None if standing is None else standing[part]
            outcomes = _follow(planner, rows[part], int(steps), table, own, names[part], seed)
            parts.append(PriceSums(len(part), outcomes.sum(axis=1), (outcomes**2).sum(axis=1)))
    return reduce(PriceSums.merge, parts)


def _follow(
    planner: TreePlanner,
    states: NDArray[np.float32],
    steps_left: int,
    prices: FloatArray,
    standing: EligibilityState | None,
    names: NDArray[np.integer],
    seed: int,
) -> FloatArray:
    """Outcomes to go of every user at every price, [outcomes, users, prices]."""
    users, columns = len(states), np.arange(len(prices))
    outcomes = np.zeros((1 + planner.budgets, users, len(prices)))
    # Prices under which a user was sent the same are in the same state: one tree serves them all.
    place = np.repeat(np.arange(users)[:, None], len(prices), axis=1)  # [users, prices]
    # What a step counts: discounted, and less where a user may have left, [users, prices].
    weight = np.ones(place.shape)
    for left in range(steps_left, planner.depth, -1):
        probabilities = planner.values(states, left, prices, standing).probabilities
        taken = np.asarray(probabilities, dtype=np.float64)[place, columns]
        step, staying, successors = apply_steps(planner.model, states)
        outcomes += weight * np.einsum("upa,oupa->oup", taken, step[:, place])
        weight *= planner.discount
        actions = draw(taken, fraction(names.astype(np.uint64), "roll-out", seed, left)[:, None])
        if staying is not None:
            weight *= staying[place, actions]
        moves, place = np.unique(place * planner.actions + actions, return_inverse=True)
        place = place.reshape(users, len(prices))
        parents, moved = np.divmod(moves, planner.actions)
        states = successors[parents, moved]
        standing = None if standing is None else standing[parents].after(planner.constraint, moved)
    last = planner.expected(states, min(steps_left, planner.depth), prices, standing)
    return np.asarray(outcomes + weight * last[:, place, columns])
