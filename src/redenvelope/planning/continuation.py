"""What comes after the tree: values to go completed to the campaign's last step, for every dual at once.

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
from redenvelope.planning.tree import PlannedValues, TreePlanner
from redenvelope.policies.checks import checked_steps_left

__all__ = ["Continuation", "Features"]

FloatArray = NDArray[np.float64]
SingleArray = NDArray[np.float32]
Features = Callable[[SingleArray], NDArray[np.floating]]
"""States [n, width] -> what the future is regressed on, [n, features]."""

# Rows completed at once: their tables of actions and duals stay in the cache.
_ROWS_AT_ONCE = 256
# What an action that the policy never takes still counts in the regression, next to 1.
_LEAST_WEIGHT = 0.05


@dataclass(frozen=True, eq=False)
class Continuation:
    """What a planner's values leave out, by the number of steps left."""

    planner: TreePlanner
    duals: FloatArray
    """[duals]."""
    features: Features
    tails: Mapping[int, Tail]
    """By steps left, wherever that is more than the tree is deep."""

    @classmethod
    def fit(
        cls,
        planner: TreePlanner,
        states: ArrayLike,
        steps_left: ArrayLike,
        duals: ArrayLike,
        features: Features | None = None,
        seed: int = 0,
    ) -> Continuation:
        """Learn from first states [users, width] with steps left, a number or [users], at duals [duals].

        Of users, only where they start is looked at, so an estimate with these baselines is as unbiased as without.
        A thousand users are plenty. `features` tell what to regress on; the states themselves if None.
        """
        rows = checked_states(states, planner.columns)
        left = checked_steps_left(steps_left, len(rows), planner.steps)
        prices = np.atleast_1d(np.asarray(duals, dtype=np.float64))
        chosen = features or _as_they_are
        tails: dict[int, Tail] = {}
        worth = np.empty((2, 0, len(prices)))
        for level in reversed(list(_walk(planner, rows, left, prices, chosen, seed))):
            to_go = level.to_go
            if level.ahead is not None:
                tail = level.tail(worth)
                tails[level.steps_left] = tail
                to_go = level.ahead.complete(to_go, tail)
            worth = (level.probabilities * to_go).sum(axis=3, dtype=np.float64)
        return cls(planner, prices, chosen, tails)

    def extend(self, values: PlannedValues, states: ArrayLike, steps_left: ArrayLike) -> PlannedValues:
        """The planner's values of states [users, width] at the same duals, to go until the campaign's last step.

        With more steps left than any user had who was learned from, what is left out is taken to be as with the most.
        """
        rows = checked_states(states, self.planner.columns)
        left = checked_steps_left(steps_left, len(rows), self.planner.steps)
        if values.reward_to_go.shape[:2] != (len(left), len(self.duals)):
            raise UsageError(
                f"the values must be of {len(left)} states at the {len(self.duals)} duals that the continuation was "
                f"learned for, not of shape {values.reward_to_go.shape}"
            )
        if not self.tails:
            return values
        most = max(self.tails)
        results = values.reward_to_go.copy(), values.cost_to_go.copy()
        for steps in np.unique(left[left > self.planner.depth]):
            alike, tail = np.flatnonzero(left == steps), self.tails[min(int(steps), most)]
            ahead = _look_ahead(self.planner, rows[alike], self.features)
            for first in range(0, len(alike), _ROWS_AT_ONCE):
                here = slice(first, first + _ROWS_AT_ONCE)
                to_go = np.stack([values.reward_to_go[alike[here]], values.cost_to_go[alike[here]]])
                for result, complete in zip(results, ahead.rows(here).complete(to_go, tail), strict=True):
                    result[alike[here]] = complete
        return PlannedValues(values.q, values.probabilities, *results)


@dataclass(frozen=True, eq=False)
class _Ahead:
    """What the model says of one step, for every action."""

    outcomes: SingleArray
    """Rewards and costs of the step, [2, n, actions]."""
    inputs: SingleArray
    """Of the regression: the state that follows and the outcomes of this one, [n, actions, inputs]."""
    discount: float

    def rows(self, part: slice) -> _Ahead:
        return _Ahead(self.outcomes[:, part], self.inputs[part], self.discount)

    def after(self, to_go: SingleArray) -> SingleArray:
        """What the tree says of the steps after this one, of its values to go; both [2, n, duals, actions]."""
        return np.asarray((to_go - self.outcomes[:, :, None]) / np.float32(self.discount))

    def complete(self, to_go: SingleArray, tail: Tail) -> SingleArray:
        """The tree's values to go with the tail added, both [2, n, duals, actions]."""
        return np.asarray(to_go + np.float32(self.discount) * tail.predict(self.inputs, self.after(to_go)))


@dataclass(frozen=True, eq=False)
class _Level:
    """Users on their walk, so many steps before the end."""

    steps_left: int
    probabilities: SingleArray
    """[n, duals, actions]."""
    to_go: SingleArray
    """Reward and cost to go by the tree, [2, n, duals, actions]."""
    ahead: _Ahead | None
    """None where the tree reaches the end."""
    action: NDArray[np.intp]
    """That each user was led on by, [n]; empty where the walk ends."""

    def tail(self, worth: FloatArray) -> Tail:
        """Learned from what the users were worth one step on, [2, n or more, duals]."""
        assert self.ahead is not None
        everyone = np.arange(len(self.action))
        after = self.ahead.after(self.to_go)[:, everyone, :, self.action]  # [n, 2, duals]
        tree = np.moveaxis(after, 1, 0).astype(np.float64)
        inputs = self.ahead.inputs[everyone, self.action].astype(np.float64)
        # What the policy would rather do counts more: there the regression must be right.
        likely = self.probabilities[everyone, :, self.action].astype(np.float64)
        return fit_tail(inputs, tree, worth[:, : len(everyone)] - tree, likely + _LEAST_WEIGHT)


def _walk(
    planner: TreePlanner,
    states: SingleArray,
    left: NDArray[np.intp],
    duals: FloatArray,
    features: Features,
    seed: int,
) -> Iterator[_Level]:
    """Lead users from first states [users, width] down to where a tree reaches the end.

    Half of the way by chance and half as the policy at one of the duals, another for each user, would.
    """
    if not (left > planner.depth).any():
        return
    now, names = states[:0], np.arange(0)
    for steps in range(int(left.max()), planner.depth - 1, -1):
        joining = np.flatnonzero(left == steps)
        now, names = np.concatenate([now, states[joining]]), np.concatenate([names, joining])
        values = planner.plan(now, steps, duals)
        to_go = np.stack([values.reward_to_go, values.cost_to_go])
        if steps == planner.depth:
            yield _Level(steps, values.probabilities, to_go, None, np.empty(0, dtype=np.intp))
            return
        own = values.probabilities[np.arange(len(now)), names % len(duals)]
        mixed = 0.5 * own[:, None].astype(np.float64) + 0.5 / own.shape[1]
        action = draw(mixed[:, 0], fraction(names.astype(np.uint64), "continuation", seed, steps))
        rewards, costs, successors = apply_steps(planner.model, now)
        yield _Level(steps, values.probabilities, to_go, _ahead(planner, rewards, costs, successors, features), action)
        now = successors[np.arange(len(now)), action]


def _look_ahead(planner: TreePlanner, states: SingleArray, features: Features) -> _Ahead:
    """From states [n, width]."""
    return _ahead(planner, *apply_steps(planner.model, states), features)


def _ahead(
    planner: TreePlanner, rewards: SingleArray, costs: SingleArray, successors: SingleArray, features: Features
) -> _Ahead:
    """From rewards and costs [n, actions] and successors [n, actions, width]."""
    n, actions, width = successors.shape
    described = np.asarray(features(successors.reshape(-1, width)), dtype=np.float32).reshape(n, actions, -1)
    # How a user responds now tells how the same user will respond later, in whatever state.
    response = np.concatenate([rewards, costs], axis=1)
    repeated = np.broadcast_to(response[:, None], (n, actions, response.shape[1]))
    return _Ahead(np.stack([rewards, costs]), np.concatenate([described, repeated], axis=2), planner.discount)


def _as_they_are(states: SingleArray) -> SingleArray:
    return states
