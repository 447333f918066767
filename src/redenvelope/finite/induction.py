"""Exact backward induction for many prices at once, hard or with entropy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.errors import UsageError
from redenvelope.finite.expectation import Expectation, expectation
from redenvelope.finite.problem import FiniteProblem
from redenvelope.finite.ranking import Ranking
from redenvelope.prices import checked_prices

__all__ = ["ExactPlans", "FinitePolicy", "backward_induction", "exact_price", "exact_worth", "finite_policy"]

FloatArray = NDArray[np.float64]

# Numbers in one block of action values: larger blocks fall out of the cache and run no faster.
_BLOCK_NUMBERS = 2**21


@dataclass(frozen=True, eq=False)
class FinitePolicy:
    """A policy written out as a table."""

    table: FloatArray
    """Probability of each action, [steps, states, actions]."""

    def probabilities(self, states: NDArray[np.integer], steps_left: int) -> FloatArray:
        """Probability of each action for states given by index: [n] -> [n, actions]."""
        steps = self.table.shape[0]
        if not 1 <= steps_left <= steps:
            raise UsageError(f"steps_left must be between 1 and {steps}, not {steps_left}")
        return np.asarray(self.table[steps - steps_left][states])


@dataclass(frozen=True, eq=False)
class ExactPlans:
    """The best plan at each row of prices, written out."""

    prices: FloatArray
    """[prices, budgets]."""
    action_values: FloatArray
    """Penalised reward (and entropy bonus) to go, [prices, steps, states, actions]; −inf if ruled out. The reward
    alone where a price is infinite."""
    probabilities: FloatArray
    """[prices, steps, states, actions]."""
    outcomes: FloatArray
    """Mean reward a user, without entropy bonus, and mean costs, [outcomes, prices]."""

    def policy(self, position: int) -> FinitePolicy:
        """The policy of one row of prices."""
        return FinitePolicy(self.probabilities[position])


def backward_induction(
    problem: FiniteProblem, prices: ArrayLike, temperature: float = 0.0, lookahead: int | None = None
) -> ExactPlans:
    """Plan at every row of prices [prices, budgets] and keep everything; `exact_price` keeps only the outcomes.

    With one budget, prices may be a plain list. A price of infinity plans on that cost alone, then on the costs in
    the order of budgets, then on reward. Without entropy, equal action values (up to rounding) go to the action with
    the least costs to go, in the order of budgets, then to the greatest reward, then to the first.
    With `lookahead` the policy plans that many steps ahead again at every step; 1 is the bandit. Its
    outcomes are still those of all steps.
    """
    table = checked_prices(prices, problem.budgets)
    stages = list(_stages(problem, table, temperature, lookahead))[::-1]
    return ExactPlans(
        prices=table,
        action_values=np.stack([stage.action_values for stage in stages], axis=1),
        probabilities=np.stack([stage.decision.probabilities(problem.actions) for stage in stages], axis=1),
        outcomes=stages[0].to_go[: 1 + problem.budgets] @ problem.initial,
    )


def finite_policy(
    problem: FiniteProblem, price: ArrayLike, temperature: float = 0.0, lookahead: int | None = None
) -> FinitePolicy:
    """The policy that is best at one price, a number or [budgets]."""
    return backward_induction(problem, np.reshape(price, (1, -1)), temperature, lookahead).policy(0)


def exact_price(
    problem: FiniteProblem, temperature: float = 0.0, lookahead: int | None = None
) -> Callable[[FloatArray], FloatArray]:
    """The function from prices [prices, budgets] to the outcomes [outcomes, prices] of the plan at each row."""
    outcomes, expect = 1 + problem.budgets, expectation(problem)
    return lambda prices: _first_values(problem, prices, temperature, lookahead, expect)[:outcomes]


def exact_worth(problem: FiniteProblem, temperature: float) -> Callable[[FloatArray], FloatArray]:
    """The same for finite prices and plans with entropy, and one row more, the worth of each plan: its penalised
    reward with the entropy bonus, [outcomes and worth, prices]."""
    expect = expectation(problem)

    def price(prices: FloatArray) -> FloatArray:
        *outcomes, bonus = _first_values(problem, prices, temperature, None, expect)
        penalty = (np.asarray(prices).T * outcomes[1:]).sum(axis=0)
        return np.stack([*outcomes, outcomes[0] - penalty + bonus])

    return price


def _first_values(
    problem: FiniteProblem, prices: FloatArray, temperature: float, lookahead: int | None, expect: Expectation
) -> FloatArray:
    """Means over first states of outcomes to go, and of the entropy bonus if there is entropy, [… , prices]."""
    table = checked_prices(prices, problem.budgets)
    block = max(1, _BLOCK_NUMBERS // (problem.states * problem.actions))
    values = np.empty((1 + problem.budgets + (temperature > 0), len(table)))
    for start in range(0, len(table), block):
        part = slice(start, start + block)
        for stage in _stages(problem, table[part], temperature, lookahead, expect):
            last = stage.to_go
        values[:, part] = last @ problem.initial
    return values


class _Choices(NamedTuple):
    """One action for each state: [prices, states]."""

    choices: NDArray[np.intp]

    def average(self, values: FloatArray) -> FloatArray:
        """[..., prices, states, actions] -> [..., prices, states]."""
        index = np.broadcast_to(self.choices[..., None], (*values.shape[:-1], 1))
        return np.asarray(np.take_along_axis(values, index, axis=-1)[..., 0])

    def probabilities(self, actions: int) -> FloatArray:
        """[prices, states, actions]."""
        return np.asarray(self.choices[..., None] == np.arange(actions), dtype=np.float64)

    def entropy(self) -> FloatArray:
        """[prices, states]."""
        return np.zeros(self.choices.shape)


class _Shares(NamedTuple):
    """A probability for each action: [prices, states, actions]."""

    shares: FloatArray

    def average(self, values: FloatArray) -> FloatArray:
        """[..., prices, states, actions] -> [..., prices, states]."""
        return np.asarray(np.einsum("...psa,psa->...ps", values, self.shares))

    def probabilities(self, actions: int) -> FloatArray:
        """[prices, states, actions]."""
        return self.shares

    def entropy(self) -> FloatArray:
        """[prices, states]."""
        logarithms = np.log(self.shares, where=self.shares > 0, out=np.zeros_like(self.shares))
        return -np.asarray((self.shares * logarithms).sum(axis=-1))


class _Stage(NamedTuple):
    """One step of the recursion."""

    action_values: FloatArray
    """[prices, states, actions]."""
    decision: _Choices | _Shares
    to_go: FloatArray
    """Outcomes to go, and the entropy bonus if there is entropy: [outcomes (and one), prices, states]."""


def _stages(
    problem: FiniteProblem,
    prices: FloatArray,
    temperature: float,
    lookahead: int | None,
    expect: Expectation | None = None,
) -> Iterator[_Stage]:
    """The stages of the recursion, from the last step to the first."""
    if not (np.isfinite(temperature) and temperature >= 0):
        raise UsageError(f"temperature must be zero or a positive number, not {temperature}")
    if lookahead is not None and lookahead < 1:
        raise UsageError(f"lookahead must be at least 1 step, not {lookahead}")
    expect = expect or expectation(problem)
    ranking = Ranking.at(problem, prices)
    outcomes = problem.outcomes
    if temperature > 0:
        outcomes = np.concatenate([outcomes, np.zeros((1, *outcomes.shape[1:]))])
    to_go = np.zeros((len(outcomes), len(prices), problem.states))
    for depth in range(1, problem.steps + 1):
        ahead = outcomes[:, None] + (expect(to_go) if depth > 1 else 0.0)
        ahead = np.broadcast_to(ahead, (*to_go.shape, problem.actions))
        # Deeper than the lookahead the policy stays the one just planned: only what it earns goes on.
        if lookahead is None or depth <= lookahead:
            scores = ranking.scores(ahead)
            decision: _Choices | _Shares = (
                _soft(scores, temperature) if temperature > 0 else _Choices(ranking.choices(scores, ahead))
            )
        to_go = decision.average(ahead)
        if temperature > 0:
            to_go[-1] += temperature * decision.entropy()
        yield _Stage(scores, decision, to_go)


def _soft(scores: FloatArray, temperature: float) -> _Shares:
    best = scores.max(axis=-1, keepdims=True)
    weights = np.exp((scores - best) / temperature)
    return _Shares(weights / weights.sum(axis=-1, keepdims=True))
