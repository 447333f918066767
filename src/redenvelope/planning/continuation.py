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

from redenvelope.arrays import Float32Array, FloatArray
from redenvelope.errors import UsageError
from redenvelope.models.environment import apply_steps
from redenvelope.planning.planner import TreePlanner, checked_states
from redenvelope.policies.action_values import ActionValues
from redenvelope.policies.eligibility_state import EligibilityState, Eligible, eligibility_state
from redenvelope.policies.policy import checked_steps_left, normalised
from redenvelope.prices import checked_prices
from redenvelope.randomness import draw, fraction

Features = Callable[[Float32Array], NDArray[np.floating]]
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
        standing = eligibility_state(eligible, len(rows), planner.actions, planner.constraint)
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

    outcomes: Float32Array
    """Of the step, [outcomes, n, actions]."""
    inputs: Float32Array
    """Of the regression: the state that follows and the outcomes of this one, [n, actions, inputs]."""
    onward: Float32Array
    """What the future counts: discounted, and less where users leave, [n or 1, 1, actions or 1]."""

    def rows(self, part: slice) -> _Ahead:
        onward = self.onward if len(self.onward) == 1 else self.onward[part]
        return _Ahead(self.outcomes[:, part], self.inputs[part], onward)

    def after(self, to_go: Float32Array) -> Float32Array:
        """What the tree says of the steps after this one, for those who stay, of its values to go; both
        [outcomes, n, prices, actions]."""
        return np.asarray((to_go - self.outcomes[:, :, None]) / self.onward)

    def complete(self, to_go: Float32Array, tail: Tail) -> Float32Array:
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
    states: Float32Array,
    left: NDArray[np.intp],
    prices: FloatArray,
    features: Features,
    seed: int,
    standing: EligibilityState | None,
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


def _look_ahead(planner: TreePlanner, states: Float32Array, features: Features) -> _Ahead:
    """From states [n, width]."""
    return _ahead(planner, *apply_steps(planner.model, states), features)


def _ahead(
    planner: TreePlanner,
    outcomes: Float32Array,
    staying: Float32Array | None,
    successors: Float32Array,
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


def _as_they_are(states: Float32Array) -> Float32Array:
    return states


# A tail: what a tree leaves out, as a regression on the state that follows and on what the tree itself says.


# Small enough to change nothing that the data can tell, and large enough for columns that repeat each other.
_RIDGE = 1e-6


@dataclass(frozen=True, eq=False)
class Tail:
    """Linear in inputs and in the tree's own outcomes, for every outcome and price; never beyond what was seen."""

    constant: Float32Array
    """[outcomes, prices]."""
    slopes: Float32Array
    """Of the inputs, [inputs, outcomes, prices]."""
    tree_slopes: Float32Array
    """Of the tree's outcomes, [outcomes, tree outcomes, prices]."""
    least: Float32Array
    """[outcomes, prices]."""
    greatest: Float32Array
    """[outcomes, prices]."""

    def predict(self, inputs: Float32Array, tree: Float32Array) -> Float32Array:
        """[n, actions, inputs], [outcomes, n, prices, actions] -> [outcomes, n, prices, actions]."""
        n, actions, width = inputs.shape
        outcomes, prices = self.constant.shape
        linear = inputs.reshape(-1, width) @ self.slopes.reshape(width, -1)
        result = np.empty((outcomes, n, prices, actions), dtype=np.float32)
        for place, part in enumerate(np.moveaxis(linear.reshape(n, actions, outcomes, prices), 2, 0)):
            found = result[place]
            found[...] = part.transpose(0, 2, 1)
            found += self.constant[place][:, None]
            for source, slope in zip(tree, self.tree_slopes[place], strict=True):
                found += source * slope[:, None]
            np.clip(found, self.least[place][:, None], self.greatest[place][:, None], out=found)
        return result


def fit_tail(inputs: FloatArray, tree: FloatArray, targets: FloatArray, weights: FloatArray) -> Tail:
    """Regress targets [outcomes, n, prices] on inputs [n, inputs] and the tree's own outcomes, of the same shape as the
    targets, price by price.

    `weights` [n, prices] say how much each counts.
    """
    count, _, prices = targets.shape
    width = inputs.shape[1]
    slopes = np.empty((width + len(tree), count, prices))
    constant = np.empty((count, prices))
    for price in range(prices):
        design = np.column_stack([inputs, *tree[:, :, price]])
        slopes[:, :, price], constant[:, price] = _ridge(design, targets[:, :, price].T, weights[:, price])
    return Tail(
        constant=constant.astype(np.float32),
        slopes=slopes[:width].astype(np.float32),
        tree_slopes=np.moveaxis(slopes[width:], 1, 0).astype(np.float32),
        least=targets.min(axis=1).astype(np.float32),
        greatest=targets.max(axis=1).astype(np.float32),
    )


def _ridge(design: FloatArray, outcome: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Slopes [columns, outcomes] and constants [outcomes] of [n, columns], [n, outcomes] and [n]."""
    shares = weights / weights.sum()
    centre, mean = shares @ design, shares @ outcome
    columns = design - centre
    scale = np.sqrt(shares @ columns**2)
    # A column that does not vary says nothing: its slope is left at zero.
    scale[scale <= 1e-6 * np.maximum(np.abs(centre), 1.0)] = np.inf
    columns /= scale
    weighted = (columns * shares[:, None]).T
    gram = weighted @ columns + _RIDGE * np.eye(design.shape[1])
    slopes = np.linalg.solve(gram, weighted @ (outcome - mean)) / scale[:, None]
    return slopes, mean - centre @ slopes
