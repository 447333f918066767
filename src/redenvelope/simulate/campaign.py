"""The protocol of simulated campaigns: logs, closed-loop runs, exact values, and optima within a budget, which
`climb_envelope` and `bisect_price` find from exact values; they share no code with the searches under test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray
from redenvelope.errors import UsageError
from redenvelope.finite.problem import Value
from redenvelope.randomness import draw

Decide = Callable[[pl.DataFrame], NDArray[np.floating]]
"""A deployed policy: from a frame of user, step and features to probabilities [rows, actions].

A mixture drawn once per user is two policies, and its value the mixture of their values.
"""

# A policy may come from float32 arithmetic, whose rows sum to one only this closely.
_PROBABILITY_TOLERANCE = 1e-4


@dataclass(frozen=True, eq=False)
class Run(Value):
    """Means over the users of one closed-loop run, with their standard errors."""

    errors: FloatArray
    """Standard errors, [outcomes]."""
    users: int
    totals: FloatArray
    """Sums over the campaign of each user, [outcomes, users]."""

    @property
    def reward_error(self) -> float:
        """Standard error of the reward."""
        return float(self.errors[0])

    @property
    def cost_error(self) -> float:
        """Standard error of the first budget's cost."""
        return float(self.errors[1])


@dataclass(frozen=True)
class Optimum:
    """The largest reward of a class of policies within a budget, including mixtures drawn once per user."""

    status: Literal["converged", "budget_slack", "budget_infeasible"]
    cost: float
    """Equal to the budget if converged; if infeasible, the smallest feasible budget."""
    reward: float
    dual: float
    """Shadow price: 0 if the budget is slack, infinite if it is infeasible."""


class Campaign(Protocol):
    """A campaign with known dynamics. All figures are means per user over the whole campaign."""

    @property
    def actions(self) -> tuple[str, ...]:
        """Labels of the actions, by increasing cost."""

    @property
    def steps(self) -> int:
        """Decisions per user; `step` counts from 0."""

    def log(self, users: int, seed: int) -> pl.DataFrame:
        """A log of `users` new users under the behaviour policy: the contract's columns, then the features."""

    def run(self, decide: Decide, users: int, seed: int) -> Run:
        """Let a policy act on `users` users drawn from the evaluation population."""

    def value(self, decide: Decide) -> Value:
        """The exact reward and cost of a policy on the evaluation population."""

    def optimum(self, budget: float) -> Optimum:
        """The most any policy can earn within the budget."""

    def bandit(self, budget: float) -> Optimum:
        """The constrained bandit with known dynamics: it maximises r − λc of each step alone."""

    def uniform(self) -> Value:
        """Every action equally likely."""

    def cheapest(self) -> Value:
        """Always the first action that is allowed."""

    def dearest(self) -> Value:
        """Always the last action that is allowed."""


def ask(decide: Decide, frame: pl.DataFrame, actions: int) -> FloatArray:
    """A policy's probabilities for a frame, checked and normalised: float64 [rows, actions]."""
    answer = np.asarray(decide(frame), dtype=np.float64)
    if answer.shape != (frame.height, actions):
        raise UsageError(f"a policy must answer probabilities of shape {(frame.height, actions)}, not {answer.shape}")
    totals = answer.sum(axis=1, keepdims=True)
    if not ((answer >= 0).all() and (np.abs(totals - 1) <= _PROBABILITY_TOLERANCE).all()):
        raise UsageError("a policy answered probabilities that are negative or do not sum to 1")
    probabilities: FloatArray = answer / totals
    return probabilities


def draw_actions(probabilities: FloatArray, generator: np.random.Generator) -> NDArray[np.intp]:
    """One action per row, [rows], drawn from probabilities [rows, actions]."""
    return draw(probabilities, generator.random(len(probabilities)))


def summarise_run(totals: FloatArray) -> Run:
    """Means and standard errors of totals per user, [outcomes, users]."""
    users = totals.shape[1]
    if users < 2:
        raise UsageError(f"a run needs at least 2 users to estimate its standard error, not {users}")
    return Run(totals.mean(axis=1), totals.std(axis=1, ddof=1) / np.sqrt(users), users, totals)


Price = Callable[[float], Value]
"""Reward and cost of the policy at a dual; 0 ignores cost and infinity minimises it."""

# Relative differences below this are rounding.
_RELATIVE_TOLERANCE = 1e-12
# A mixture loses at most the width of the bracket of duals times the jump in cost inside it.
_DUAL_TOLERANCE = 1e-8
_MAXIMUM_STEPS = 200


def climb_envelope(price: Price, budget: float) -> Optimum:
    """The optimum if policies maximise reward − dual · cost: a mixture of two neighbours on the envelope.

    The next dual is the slope between the two best points around the budget. Either its policy lies above
    their line and replaces one of them, or the line is an edge of the envelope and the mixture is optimal.
    """
    low, high = price(inf), price(0.0)
    dual = inf
    for _ in range(_MAXIMUM_STEPS):
        if not low.cost <= budget < high.cost:
            break
        dual = (high.reward - low.reward) / (high.cost - low.cost)
        middle = price(dual)
        gain = middle.reward - low.reward - dual * (middle.cost - low.cost)
        if gain <= _RELATIVE_TOLERANCE * max(1.0, abs(high.reward)):
            break
        low, high = (middle, high) if middle.cost <= budget else (low, middle)
    return _mix(low, high, budget, dual)


def bisect_price(price: Price, budget: float) -> Optimum:
    """The mixture of the two policies at the dual where the cost crosses the budget.

    For policies that do not maximise reward − dual · cost over the whole campaign, such as a bandit.
    """
    low, high = price(inf), price(0.0)
    cheap_dual, dear_dual = inf, 0.0
    if low.cost <= budget < high.cost:
        cheap_dual, low = _first_affordable(price, budget)
        while cheap_dual - dear_dual > _DUAL_TOLERANCE * cheap_dual:
            dual = (cheap_dual + dear_dual) / 2
            middle = price(dual)
            if middle.cost <= budget:
                low, cheap_dual = middle, dual
            else:
                high, dear_dual = middle, dual
    return _mix(low, high, budget, cheap_dual)


def _first_affordable(price: Price, budget: float) -> tuple[float, Value]:
    """The first power of two whose policy fits the budget, or else infinity, and the policy's value."""
    duals = [2.0**exponent for exponent in range(_MAXIMUM_STEPS)]
    prices = ((dual, price(dual)) for dual in [*duals, inf])
    return next((dual, value) for dual, value in prices if value.cost <= budget)


def _mix(low: Value, high: Value, budget: float, dual: float) -> Optimum:
    if high.cost <= budget:
        return Optimum("budget_slack", high.cost, high.reward, 0.0)
    if low.cost > budget:
        return Optimum("budget_infeasible", low.cost, low.reward, inf)
    share = (budget - low.cost) / (high.cost - low.cost)
    reward = low.reward + share * (high.reward - low.reward)
    return Optimum("converged", budget, reward, dual)
