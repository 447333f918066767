"""One user's values, backed up in plain arrays: few prices, few nodes, no compiled program.

Actions stand before nodes, so that a maximum or a sum over actions runs along the nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import ModelError
from redenvelope.policies.values import ActionValues
from redenvelope.prices import outcome_weights

__all__ = ["Priced", "SingleDecision", "Terms", "back_up", "choose", "gathered", "new_terms"]

FloatArray = NDArray[np.float64]


class SingleDecision(NamedTuple):
    """What one user's actions are worth, and what they bring at once."""

    values: ActionValues
    """Of one user."""
    outcomes: FloatArray
    """Of this step alone, [outcomes, actions]."""


class Terms(NamedTuple):
    """Prices that are decided alike: softly, or by the best."""

    places: NDArray[np.intp]
    """Which of all prices, [prices]."""
    weights: FloatArray
    """What the outcomes count in q, and then in each outcome, [1 + outcomes, prices, outcomes]."""
    temperature: float
    """0 takes the best."""
    explore: float = 0.0
    """Share of the decisions that is drawn evenly among what is allowed."""
    finite: bool = True


class Priced(NamedTuple):
    """Actions of some nodes at some prices."""

    worth: FloatArray
    """q, and then the outcomes to go, [1 + outcomes, prices, actions, nodes]."""
    probabilities: FloatArray
    """[prices, actions, nodes]."""


def new_terms(prices: FloatArray, temperature: float, explore: float = 0.0) -> tuple[Terms, ...]:
    """Prices [prices, budgets] in one or two groups: the finite ones, softly decided with a temperature, and others."""
    finite = np.isfinite(prices).all(axis=1)
    each = np.repeat(np.eye(1 + prices.shape[1])[:, None], len(prices), axis=1)
    weights = np.concatenate([outcome_weights(prices).T[None], each])
    groups = ((np.flatnonzero(finite), temperature, True), (np.flatnonzero(~finite), 0.0, False))
    return tuple(
        Terms(places, weights[:, places], warmth, explore, kind) for places, warmth, kind in groups if len(places)
    )


def back_up(
    levels: Sequence[FloatArray],
    shares: FloatArray | None,
    terms: Terms,
    barred: Sequence[FloatArray] | None,
    discount: float,
    survival: Sequence[FloatArray] | None = None,
) -> Priced:
    """The root of a tree of outcomes [outcomes, actions, nodes], one for each level.

    Past the first step an action's future is made of `shares` [actions, branches] of the branches; None is a branch
    for each. `barred` [actions, nodes or 1], one for each level, is −inf for what may not be chosen, else 0.
    `survival` [actions, nodes], one for each level but the last, is the chance of a next step; None is 1.
    """
    below: FloatArray | None = None
    for level in range(len(levels) - 1, -1, -1):
        count, actions, nodes = levels[level].shape
        worth = (terms.weights @ levels[level].reshape(count, -1)).reshape(1 + count, -1, actions, nodes)
        if below is not None:
            future = _future(below, nodes, shares if level else None, discount)
            worth += future if survival is None else survival[level] * future
        if barred is not None:
            worth[0] += barred[level]
        below = _nodes(worth, terms) if level else None
    return Priced(worth, choose(worth, terms)[0])


def _nodes(worth: FloatArray, terms: Terms) -> FloatArray:
    """Values and outcomes of nodes, [1 + outcomes, prices, nodes], from those of their actions."""
    probabilities, value = choose(worth, terms)
    found = np.empty((len(worth), *value.shape))
    found[0] = value
    np.add.reduce(probabilities * worth[1:], axis=2, out=found[1:])
    return found


def _future(below: FloatArray, nodes: int, shares: FloatArray | None, discount: float) -> FloatArray:
    """What follows actions at nodes, [..., actions, nodes], given the nodes below, [..., nodes · branches]."""
    branches = below.reshape(*below.shape[:2], nodes, -1).swapaxes(2, 3)
    if shares is not None:
        branches = shares @ branches
    return branches if discount == 1.0 else discount * branches


def choose(worth: FloatArray, terms: Terms) -> tuple[FloatArray, FloatArray]:
    """Probabilities [prices, actions, nodes] and values [prices, nodes] of [1 + outcomes, prices, actions, nodes]."""
    probabilities, value = _chosen(worth, terms)
    if not terms.explore:
        return probabilities, value
    allowed = worth[0] > -np.inf
    even = allowed / np.add.reduce(allowed, axis=1, keepdims=True)
    mean = np.add.reduce(even * np.where(allowed, worth[0], 0.0), axis=1)
    share = terms.explore
    return (1 - share) * probabilities + share * even, (1 - share) * value + share * mean


def _chosen(worth: FloatArray, terms: Terms) -> tuple[FloatArray, FloatArray]:
    """The same without exploration."""
    q = worth[0]
    best = np.maximum.reduce(q, axis=1)
    temperature = terms.temperature
    if not temperature:
        return _best(worth, best, terms.finite), best
    weights = q - best[:, None]
    weights *= 1.0 / temperature
    np.exp(weights, out=weights)
    total = np.add.reduce(weights, axis=1)
    weights /= total[:, None]
    value = np.log(total, out=total)
    value *= temperature
    value += best
    return weights, value


def _best(worth: FloatArray, best: FloatArray, finite: bool) -> FloatArray:
    """1 for the best action of each node, 0 for the others: among equals who spends least in all; where prices are
    not finite the least costs, in the order of budgets, then the greatest reward."""
    equal = worth[0] == best[:, None]
    if np.count_nonzero(equal) > best.size:
        for outcome in (worth[2:].sum(axis=0),) if finite else (*worth[2:], -worth[1]):
            least = np.where(equal, outcome, np.inf)
            equal = least == least.min(axis=1, keepdims=True)
        # Who is equal in everything: the first.
        equal &= np.cumsum(equal, axis=1) == 1
    return np.asarray(equal, dtype=np.float64)


def gathered(terms: Sequence[Terms], roots: Sequence[Priced]) -> ActionValues:
    """Values of one user from the roots [.., 1 node] of each group of prices, in the order of all prices."""
    worth, probabilities = roots[0].worth[..., 0], roots[0].probabilities[..., 0]
    if len(roots) > 1:
        order = np.argsort(np.concatenate([group.places for group in terms]))
        worth = np.concatenate([root.worth[..., 0] for root in roots], axis=1)[:, order]
        probabilities = np.concatenate([root.probabilities[..., 0] for root in roots])[order]
    to_go = worth[1:, None]
    if not math.isfinite(np.add.reduce(to_go, axis=None)):
        raise ModelError(
            "the model's predictions for this user are not finite numbers, although the state is; the model may have "
            "diverged in training, or the state lies far outside its data"
        )
    return ActionValues(worth[:1], probabilities[None], to_go)
