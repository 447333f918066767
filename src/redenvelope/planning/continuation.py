"""What comes after the tree: values to go completed to the campaign's last step, for every price at once.

A tree that ends before the campaign says nothing of what follows, and its policy is planned anew at every step. What
the tree leaves out is learned by a walk through the model: some users are led to the step where a tree reaches the
end; on the way back, what a step's complete values have beyond the tree's is regressed on the state. Decisions are
not touched: only what estimators use as a baseline becomes complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.chance import draw, fraction
from redenvelope.errors import UsageError
from redenvelope.models.apply import apply_steps
from redenvelope.planning.checks import checked_states
from redenvelope.planning.tails import Tail, fit_tail
from redenvelope.planning.tree import TreePlanner
from redenvelope.policies.checks import checked_steps_left
from redenvelope.policies.policy import normalised
from redenvelope.policies.standing import Eligible, Standing, standing_of
from redenvelope.policies.values import ActionValues
from redenvelope.prices import checked_prices

__all__ = ["Continuation", "Features"]

FloatArray = NDArray[np.float64]
SingleArray = NDArray[np.float32]
Features = Callable[[SingleArray], NDArray[np.floating]]
"""States [n, width] -> what the future is regressed on, [n, features]."""

# Rows completed at once: their tables of actions and prices stay in the cache.
_ROWS_AT_ONCE = 256
# What an action that the policy never takes still counts in the regression, next to 1.
_LEAST_WEIGHT = 0.05
# A future that is hardly ever reached cannot be told from the values of its step; it hardly counts either.
_LEAST_CHANCE = np.float32(1e-3)


@dataclass(frozen=True, eq=False)
class Continuation:
    """What a planner's values leave out, by the number of steps left."""

    planner: TreePlanner
    prices: FloatArray
    """[prices, budgets]."""
    features: Features
    tails: Mapping[int, Tail]
    """By steps left, wherever that is more than the tree is deep."""

    @classmethod
    def fit(
        cls,
        planner: TreePlanner,
        states: ArrayLike,
        steps_left: ArrayLike,
        prices: ArrayLike,
        features: Features | None = None,
        seed: int = 0,
        eligible: Eligible = None,
    ) -> Continuation:
        """Learn from first states [users, width] with steps left, a number or [users], at prices [prices, budgets].

        Of users, only where they start is looked at, so an estimate with these baselines is as unbiased as without.
        A thousand users are plenty. `features` tell what to regress on; the states themselves if None. `eligible` is as
        a planner takes it.
        """
        rows = checked_states(states, planner.columns)
        left = checked_steps_left(steps_left, len(rows), planner.steps)
        table = checked_prices(prices, planner.budgets)
        chosen = features or _as_they_are
        tails: dict[int, Tail] = {}
        worth = np.empty((1 + planner.budgets, 0, len(table)))
        standing = standing_of(eligible, len(rows), planner.actions, planner.constraint)
        bound = eligible is not None or planner.constraint is not None
        for level in reversed(list(_walk(planner, rows, left, table, chosen, seed, standing if bound else None))):
            values = level.values
            if level.ahead is not None:
                tail = level.tail(worth)
                tails[level.steps_left] = tail
                values = values._replace(to_go=level.ahead.complete(values.to_go, tail))
            worth = values.expected()
        return cls(planner, table, chosen, tails)

    def extend(self, values: ActionValues, states: ArrayLike, steps_left: ArrayLike) -> ActionValues:
        """The planner's values of states [users, width] at the same prices, to go until the campaign's last step.

        With more steps left than any user had who was learned from, what is left out is taken to be as with the most.
        """
        rows = checked_states(states, self.planner.columns)
        left = checked_steps_left(steps_left, len(rows), self.planner.steps)
        if values.q.shape[:2] != (len(left), len(self.prices)):
            raise UsageError(
                f"the values must be of {len(left)} states at the {len(self.prices)} prices that the continuation was "
                f"learned for, not of shape {values.q.shape}"
            )
        if not self.tails:
            return values
        most = max(self.tails)
        result = values.to_go.copy()
        for steps in np.unique(left[left > self.planner.depth]):
            alike, tail = np.flatnonzero(left == steps), self.tails[min(int(steps), most)]
            ahead = _look_ahead(self.planner, rows[alike], self.features)
            for first in range(0, len(alike), _ROWS_AT_ONCE):
                here = slice(first, first + _ROWS_AT_ONCE)
                rows_here = alike[here]
                result[:, rows_here] = ahead.rows(here).complete(values.to_go[:, rows_here], tail)
        return values._replace(to_go=result)


@dataclass(frozen=True, eq=False)
class _Ahead:
    """What the model says of one step, for every action."""

    outcomes: SingleArray
    """Of the step, [outcomes, n, actions]."""
    inputs: SingleArray
    """Of the regression: the state that follows and the outcomes of this one, [n, actions, inputs]."""
    onward: SingleArray
    """What the future counts: discounted, and less where users leave, [n or 1, 1, actions or 1]."""

    def rows(self, part: slice) -> _Ahead:
        onward = self.onward if len(self.onward) == 1 else self.onward[part]
        return _Ahead(self.outcomes[:, part], self.inputs[part], onward)

    def after(self, to_go: SingleArray) -> SingleArray:
        """What the tree says of the steps after this one, for those who stay, of its values to go; both
        [outcomes, n, prices, actions]."""
        return np.asarray((to_go - self.outcomes[:, :, None]) / self.onward)

    def complete(self, to_go: SingleArray, tail: Tail) -> SingleArray:
        """The tree's values to go with the tail added, both [outcomes, n, prices, actions]."""
        return np.asarray(to_go + self.onward * tail.predict(self.inputs, self.after(to_go)))


@dataclass(frozen=True, eq=False)
class _Level:
    """Users on their walk, so many steps before the end."""

    steps_left: int
    values: ActionValues
    """The tree's, of n users."""
    ahead: _Ahead | None
    """None where the tree reaches the end."""
    action: NDArray[np.intp]
    """That each user was led on by, [n]; empty where the walk ends."""

    def tail(self, worth: FloatArray) -> Tail:
        """Learned from what the users were worth one step on, [outcomes, n or more, prices]."""
        assert self.ahead is not None
        everyone = np.arange(len(self.action))
        after = self.ahead.after(self.values.to_go)[:, everyone, :, self.action]  # [n, outcomes, prices]
        tree = np.moveaxis(after, 1, 0).astype(np.float64)
        inputs = self.ahead.inputs[everyone, self.action].astype(np.float64)
        # What the policy would rather do counts more: there the regression must be right.
        likely = self.values.probabilities[everyone, :, self.action].astype(np.float64)
        return fit_tail(inputs, tree, worth[:, : len(everyone)] - tree, likely + _LEAST_WEIGHT)


def _walk(
    planner: TreePlanner,
    states: SingleArray,
    left: NDArray[np.intp],
    prices: FloatArray,
    features: Features,
    seed: int,
    standing: Standing | None,
) -> Iterator[_Level]:
    """Lead users from first states [users, width] down to where a tree reaches the end.

    Half of the way by chance, among what is eligible, and half as the policy at one of the prices, another for each
    user, would.
    """
    if not (left > planner.depth).any():
        return
    now, names = states[:0], np.arange(0)
    here = None if standing is None else standing[:0]
    for steps in range(int(left.max()), planner.depth - 1, -1):
        joining = np.flatnonzero(left == steps)
        now, names = np.concatenate([now, states[joining]]), np.concatenate([names, joining])
        if standing is not None and here is not None:
            here = here.joined(standing[joining])
        values = planner.values(now, steps, prices, here)
        if steps == planner.depth:
            yield _Level(steps, values, None, np.empty(0, dtype=np.intp))
            return
        everyone = np.arange(len(now))
        own = values.probabilities[everyone, names % len(prices)]
        by_chance = normalised(np.isfinite(values.q[:, 0]))
        action = draw(0.5 * own + 0.5 * by_chance, fraction(names.astype(np.uint64), "continuation", seed, steps))
        outcomes, staying, successors = apply_steps(planner.model, now)
        yield _Level(steps, values, _ahead(planner, outcomes, staying, successors, features), action)
        now = successors[everyone, action]
        here = None if here is None else here.after(planner.constraint, action)


def _look_ahead(planner: TreePlanner, states: SingleArray, features: Features) -> _Ahead:
    """From states [n, width]."""
    return _ahead(planner, *apply_steps(planner.model, states), features)


def _ahead(
    planner: TreePlanner,
    outcomes: SingleArray,
    staying: SingleArray | None,
    successors: SingleArray,
    features: Features,
) -> _Ahead:
    """From outcomes [outcomes, n, actions], chances of a next step [n, actions] and successors [n, actions, width]."""
    n, actions, width = successors.shape
    described = np.asarray(features(successors.reshape(-1, width)), dtype=np.float32).reshape(n, actions, -1)
    # How a user responds now tells how the same user will respond later, in whatever state.
    response = np.concatenate(outcomes, axis=1)
    repeated = np.broadcast_to(response[:, None], (n, actions, response.shape[1]))
    onward = np.full((1, 1, 1), planner.discount, np.float32)
    if staying is not None:
        onward = onward * np.maximum(staying, _LEAST_CHANCE)[:, None]
    return _Ahead(outcomes, np.concatenate([described, repeated], axis=2), onward)


def _as_they_are(states: SingleArray) -> SingleArray:
    return states
