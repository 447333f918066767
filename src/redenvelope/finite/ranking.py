"""Which actions are best at given prices: their scores, and who wins a tie."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from redenvelope.finite.problem import FiniteProblem
from redenvelope.prices import outcome_weights

__all__ = ["Ranking"]

FloatArray = NDArray[np.float64]
Mask = NDArray[np.bool_]

# Two action values this many roundings apart are the same number, added up in another order.
_TIE_ROUNDINGS = 16.0


class Ranking(NamedTuple):
    """The order of actions at some prices: by value, then by the costs in the order of budgets, then by reward.

    A row with an infinite price looks at those costs alone, then at all costs in the order of budgets; what is left
    is ranked by reward, with entropy too, as it is in the limit of ever higher prices.
    """

    weights: FloatArray
    """What each cost counts in a score, [budgets, prices, 1, 1]; 0 where a price is infinite."""
    alone: NDArray[np.intp]
    """The rows with an infinite price, [rows]."""
    alone_weights: FloatArray
    """What each cost counts there, [budgets, rows, 1, 1]: 1 where the price is infinite."""
    allowed: Mask | None
    """[states, actions]; None allows all."""
    roundings: FloatArray
    """How far apart equal outcomes to go may come out, [outcomes]."""
    score_rounding: FloatArray
    """How far apart equal scores may come out, [prices, 1, 1]; grows with the price, so that an action which lost a tie
    against a cheaper one does not win it back at a higher price."""

    @classmethod
    def at(cls, problem: FiniteProblem, prices: FloatArray) -> Ranking:
        """The ranking at prices [prices, budgets]."""
        weights = outcome_weights(prices)
        alone = weights[0] == 0
        scored = np.where(alone, 0.0, weights[1:])
        unit = _TIE_ROUNDINGS * np.finfo(float).eps * problem.steps
        roundings = unit * np.abs(problem.outcomes).max(axis=(1, 2))
        return cls(
            weights=scored[:, :, None, None],
            alone=np.flatnonzero(alone),
            alone_weights=-weights[1:, alone, None, None],
            allowed=problem.eligible,
            roundings=roundings,
            score_rounding=(roundings[0] - roundings[1:] @ scored)[:, None, None],
        )

    def scores(self, to_go: FloatArray) -> FloatArray:
        """Penalised reward of outcomes to go [outcomes or more, prices, states, actions], [prices, states, actions].

        What comes after the outcomes is added as it is. −inf is an action that is not allowed, or that an infinite
        price finds too dear.
        """
        outcomes = len(self.roundings)
        scores = np.asarray(to_go[0] + self.weights[0] * to_go[1])
        for weight, cost in zip(self.weights[1:], to_go[2:outcomes], strict=True):
            scores += weight * cost
        for bonus in to_go[outcomes:]:
            scores += bonus
        if self.allowed is not None:
            scores = np.where(self.allowed, scores, -np.inf)
        if len(self.alone):
            left = self._cheapest(to_go[:, self.alone])
            scores[self.alone] = np.where(left, scores[self.alone], -np.inf)
        return scores

    def choices(self, scores: FloatArray, to_go: FloatArray) -> NDArray[np.intp]:
        """The best action by scores [prices, states, actions], ties decided by the outcomes to go, [prices, states]."""
        ties = scores >= scores.max(axis=-1, keepdims=True) - self.score_rounding
        choices = ties.argmax(axis=-1)
        # Few actions tie, if any: only their rows are looked at again.
        if np.count_nonzero(ties) > choices.size:
            rows = np.nonzero(np.count_nonzero(ties, axis=-1) > 1)
            choices[rows] = self._among_equals(ties[rows], to_go[:, rows[0], rows[1]])
        return np.asarray(choices)

    def _cheapest(self, to_go: FloatArray) -> Mask:
        """What an infinite price leaves: [outcomes, rows, states, actions] -> [rows, states, actions]."""
        dear = np.asarray((self.alone_weights * to_go[1 : len(self.roundings)]).sum(axis=0))
        rounding = (self.roundings[1:, None, None, None] * self.alone_weights).sum(axis=0)
        every = np.ones(dear.shape, dtype=bool) if self.allowed is None else np.broadcast_to(self.allowed, dear.shape)
        return self._least_costs(_least(dear, every, rounding), to_go)

    def _among_equals(self, candidates: Mask, to_go: FloatArray) -> NDArray[np.intp]:
        """The winner among candidates [rows, actions] with outcomes to go [outcomes, rows, actions], [rows]."""
        candidates = self._least_costs(candidates, to_go)
        candidates = _least(-to_go[0], candidates, self.roundings[0])
        return np.asarray(np.where(candidates, to_go[1], np.inf).argmin(axis=-1))

    def _least_costs(self, candidates: Mask, to_go: FloatArray) -> Mask:
        """The candidates [..., actions] with the least costs, budget after budget."""
        for cost, rounding in zip(to_go[1 : len(self.roundings)], self.roundings[1:], strict=True):
            candidates = _least(cost, candidates, rounding)
        return candidates


def _least(values: FloatArray, candidates: Mask, rounding: FloatArray) -> Mask:
    """The candidates with the least value, up to rounding, [..., actions]."""
    of_candidates = np.where(candidates, values, np.inf)
    return np.asarray(of_candidates <= of_candidates.min(axis=-1, keepdims=True) + rounding)
