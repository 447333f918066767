"""Exact backward induction in float64 for any number of costs: what trees are compared with."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from redenvelope.prices import checked_prices, outcome_weights


class World(NamedTuple):
    """A problem written out; every action leads to one next state."""

    outcomes: np.ndarray
    """[outcomes, states, actions]"""
    following: np.ndarray
    """[states, actions]"""
    steps: int
    staying: np.ndarray | None = None
    """Chance of a next step, [states, actions]; None keeps everybody."""

    @property
    def onward(self) -> np.ndarray:
        return np.ones((self.states, self.actions)) if self.staying is None else self.staying

    @property
    def states(self) -> int:
        return self.outcomes.shape[1]

    @property
    def actions(self) -> int:
        return self.outcomes.shape[2]

    @property
    def budgets(self) -> int:
        return len(self.outcomes) - 1

    @property
    def rewards(self) -> np.ndarray:
        return self.outcomes[0]

    @property
    def costs(self) -> np.ndarray:
        """The first budget's."""
        return self.outcomes[1]


class Exact(NamedTuple):
    """By steps left, less one."""

    q: np.ndarray
    """Penalised reward and entropy bonus as far as the plan looks, [steps, prices, states, actions]."""
    probabilities: np.ndarray
    """[steps, prices, states, actions]"""
    to_go: np.ndarray
    """Outcomes of an action, and of the policy to the campaign's end, [steps, outcomes, prices, states, actions]."""

    def expected(self) -> np.ndarray:
        """Mean outcomes of the whole campaign over all states, [outcomes, prices]."""
        return (self.to_go[-1] * self.probabilities[-1]).sum(axis=-1).mean(axis=-1)


def induction(
    world: World,
    prices: ArrayLike,
    temperature: float,
    lookahead: int | None = None,
    discount: float = 1.0,
    allowed: np.ndarray | None = None,
) -> Exact:
    """Plan so many steps ahead at every step; None looks to the end.

    `allowed` [steps, states, actions], by steps left less one, rules actions out.
    """
    table = checked_prices(prices, world.budgets)
    weights = outcome_weights(table)
    mask = np.ones((world.steps, world.states, world.actions), dtype=bool) if allowed is None else allowed
    plans, campaign = [], []
    after = np.zeros((len(world.outcomes), len(table), world.states))
    for left in range(1, world.steps + 1):
        first = left - min(left, lookahead or left)
        q, probabilities = _plan(world, table, weights, temperature, discount, mask[first:left])
        plans.append((q, probabilities))
        to_go = world.outcomes[:, None] + discount * world.onward * after[:, :, world.following]
        campaign.append(to_go)
        after = (to_go * probabilities).sum(axis=-1)
    return Exact(*(np.stack(arrays) for arrays in zip(*plans, strict=True)), np.stack(campaign))


def _plan(
    world: World, table: np.ndarray, weights: np.ndarray, temperature: float, discount: float, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Values and probabilities [prices, states, actions] of the first of some steps, allowed as `mask`, last first."""
    value = np.zeros((len(table), world.states))
    after = np.zeros((len(world.outcomes), len(table), world.states))
    soft = np.isfinite(table).all(axis=1) & (temperature > 0)
    for own in mask:
        to_go = world.outcomes[:, None] + discount * world.onward * after[:, :, world.following]
        q = np.einsum("op,osa->psa", weights, world.outcomes) + discount * world.onward * value[:, world.following]
        q = np.where(own, q, -np.inf)
        probabilities = np.where(soft[:, None, None], _softmax(q, temperature or 1.0), _best(q, to_go))
        value = _value(q, temperature, soft)
        after = (to_go * probabilities).sum(axis=-1)
    return q, probabilities


def _softmax(q: np.ndarray, temperature: float) -> np.ndarray:
    weight = np.exp((q - q.max(axis=-1, keepdims=True)) / temperature)
    return weight / weight.sum(axis=-1, keepdims=True)


def _best(q: np.ndarray, to_go: np.ndarray) -> np.ndarray:
    """The best value, then the least costs in the order of budgets, then the greatest reward, but for rounding."""
    ranks = (-q, *to_go[1:], -to_go[0])
    left = np.ones(q.shape, dtype=bool)
    for rank in ranks:
        least = np.where(left, rank, np.inf).min(axis=-1, keepdims=True)
        left &= rank <= least + 1e-12 * np.maximum(1, np.abs(least))
    return np.eye(q.shape[-1])[left.argmax(axis=-1)]


def _value(q: np.ndarray, temperature: float, soft: np.ndarray) -> np.ndarray:
    best = q.max(axis=-1)
    if not temperature:
        return best
    bonus = temperature * np.log(np.exp((q - best[..., None]) / temperature).sum(axis=-1))
    return best + np.where(soft[:, None], bonus, 0.0)
