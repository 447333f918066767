"""What a dual search returns: an outcome is data, not an exception."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.arrays import FloatArray
from redenvelope.dual.oracle import Point, PriceFunction
from redenvelope.errors import ProblemError, UsageError
from redenvelope.prices import checked_prices


class DualStatus(StrEnum):
    """How a search ended; where two would fit, the earlier one is reported."""

    CONVERGED = "converged"
    """The plan spends the budget, and no plan within the budget earns more than the duality gap."""
    BUDGET_SLACK = "budget_slack"
    """The plan of greatest reward costs less than the budget: the dual is 0."""
    BUDGET_INFEASIBLE = "budget_infeasible"
    """Even the cheapest plan costs more than the budget."""
    BRACKET_NOT_FOUND = "bracket_not_found"
    """The cheapest plan fits the budget, but no finite dual that was tried does."""
    MAX_STEPS_REACHED = "max_steps_reached"
    """The search stopped at its limit; the plan keeps to the budget but a better one may exist."""


@dataclass(frozen=True)
class Mixture:
    """Two plans, one drawn once for each user (never again at each step)."""

    low_dual: float
    """Dual of the dearer plan."""
    high_dual: float
    """Dual of the cheaper plan; infinity is the cheapest plan of all."""
    low_share: float
    """Share of users who get the dearer plan."""


@dataclass(frozen=True)
class DualSolution:
    """The plan a search settled on; costs and rewards are means a user."""

    status: DualStatus
    budget: float
    dual: float
    """Shadow price: the reward that one more unit of budget buys."""
    cost: float
    reward: float
    mixture: Mixture | None
    """The two plans to draw from, or None when the plan at `dual` is used alone."""
    duality_gap: float
    """Reward that any plan within the budget can have above `reward`, at most. Exact for prices that plan
    without entropy and without noise; infinity when the budget is infeasible."""
    least_budget: float | None
    """The least budget that would do, when this one does not."""
    steps: tuple[Point, ...]
    """Log of the search: every evaluation, in order."""
    passes: int
    """Calls of the price function."""
    message: str
    """The outcome in a sentence."""


# Several budgets: what a search is handed and what it returns. An outcome is data, not an exception.


# Costs this close to their budgets, as a share, differ from them by the rounding of sums and of the master program.
_ROUNDING = 1e-9


class BudgetStatus(StrEnum):
    """What a budget does to the plan."""

    BINDING = "binding"
    """It is spent, and more of it would earn more."""
    SLACK = "slack"
    """More of it would earn nothing."""
    EXCEEDED = "exceeded"
    """It cannot be kept together with the others: more of it would bring the plan nearer to all of them."""


@dataclass(frozen=True, eq=False)
class BudgetsSolution:
    """The plan that a search for several budgets settled on; costs and rewards are means a user."""

    status: DualStatus
    """converged, budget_slack (no budget binds), budget_infeasible or max_steps_reached."""
    budgets: FloatArray
    """[budgets]"""
    duals: FloatArray
    """Shadow price of each budget: the reward that one more unit of it buys, [budgets]."""
    prices: FloatArray
    """Of the plans that users are drawn to, once each, [plans, budgets]: at most one more than there are budgets."""
    shares: FloatArray
    """Share of the users who follow each plan, [plans]."""
    reward: float
    costs: FloatArray
    """[budgets]"""
    states: tuple[BudgetStatus, ...]
    """[budgets]"""
    excess: FloatArray
    """By how much each cost is above its budget, [budgets]: 0 unless budgets cannot be kept together. Of all plans this
    one has the least total of excesses, each as a share of its budget."""
    duality_gap: float
    """Reward that any plan within the budgets can have above `reward`, at most; infinity where there is none."""
    passes: int
    """Calls of the price function."""
    plans: int
    """Rows of prices that were priced."""

    def message(self, names: Sequence[str] | None = None) -> str:
        """The outcome in a sentence; budgets by their names."""
        called = list(names or (f"budget {number}" for number in range(1, len(self.budgets) + 1)))
        if self.status is DualStatus.BUDGET_INFEASIBLE:
            over = [
                f"{name} is exceeded by {extra:.4g} of {limit:.4g}"
                for name, extra, limit in zip(called, self.excess, self.budgets, strict=True)
                if extra > 0
            ]
            conflict = [name for name, state in zip(called, self.states, strict=True) if state is BudgetStatus.EXCEEDED]
            return (
                f"No plan keeps {' and '.join(conflict)} together: of the plan that comes nearest, {'; '.join(over)}."
            )
        bound = [
            f"{name} ({dual:.4g} for one more)"
            for name, dual, state in zip(called, self.duals, self.states, strict=True)
            if state is BudgetStatus.BINDING
        ]
        loose = [name for name, state in zip(called, self.states, strict=True) if state is BudgetStatus.SLACK]
        parts = [f"The plan earns {self.reward:.6g} a user"]
        parts += [f"it is bound by {', '.join(bound)}"] if bound else []
        parts += [f"more of {', '.join(loose)} would buy nothing"] if loose else []
        return "; ".join(parts) + "."


@dataclass(frozen=True, eq=False)
class Priced:
    """Some plans: the row of prices of each, and what it earns and costs."""

    prices: FloatArray
    """[plans, budgets]"""
    outcomes: FloatArray
    """[outcomes, plans]"""

    @property
    def rewards(self) -> FloatArray:
        """[plans]"""
        return np.asarray(self.outcomes[0])

    @property
    def costs(self) -> FloatArray:
        """[budgets, plans]"""
        return self.outcomes[1:]

    @property
    def finite(self) -> NDArray[np.bool_]:
        """Which plans know the reward's price too, [plans]: only these bound the optimum."""
        return np.asarray(np.isfinite(self.prices).all(axis=1))

    def bounds(self, budgets: FloatArray) -> FloatArray:
        """What no plan within the budgets can earn more than, [plans]; infinity where a price is infinite."""
        finite = self.finite
        prices = np.where(finite[:, None], self.prices, 0.0)
        worth = self.rewards - (prices.T * (self.costs - budgets[:, None])).sum(axis=0)
        return np.where(finite, worth, np.inf)


@dataclass(eq=False)
class RecordedPlans:
    """A price function of several budgets that checks every answer and keeps all plans."""

    function: PriceFunction
    budgets: int
    passes: int = 0
    """Calls of the function."""
    _prices: list[FloatArray] = field(default_factory=list)
    _outcomes: list[FloatArray] = field(default_factory=list)

    def __call__(self, prices: ArrayLike) -> FloatArray:
        """Price rows [prices, budgets] in one pass: [outcomes, prices]."""
        table = checked_prices(prices, self.budgets)
        outcomes = np.asarray(self.function(table), dtype=np.float64)
        self.passes += 1
        wanted = (1 + self.budgets, len(table))
        if outcomes.shape != wanted:
            raise ProblemError(
                f"price was given prices of shape {table.shape} and returned outcomes of shape {outcomes.shape}; it "
                f"must return {wanted}: the rewards, then the costs of each budget, one number for each row of prices"
            )
        if not np.isfinite(outcomes).all():
            row = table[~np.isfinite(outcomes).all(axis=0)][0]
            raise ProblemError(f"price returned what is not a number at prices {row.tolist()}")
        self._prices.append(table)
        self._outcomes.append(outcomes)
        return outcomes

    @property
    def effort(self) -> tuple[int, int]:
        """Passes, and rows of prices that were priced."""
        return self.passes, sum(map(len, self._prices))

    @property
    def plans(self) -> Priced:
        """All of them, in order."""
        return Priced(np.concatenate(self._prices), np.concatenate(self._outcomes, axis=1))


def checked_budgets(budgets: ArrayLike) -> FloatArray:
    """Budgets as [budgets], all of them numbers."""
    limits = np.atleast_1d(np.asarray(budgets, dtype=np.float64))
    if limits.ndim != 1 or not len(limits) or not np.isfinite(limits).all():
        raise UsageError(f"budgets must be numbers, the mean cost a user of each, not {limits.tolist()}")
    return limits


def settled(limits: FloatArray, plans: Priced, place: int, passes: int) -> BudgetsSolution:
    """The plan that ignores all costs, where it keeps every budget."""
    return BudgetsSolution(
        status=DualStatus.BUDGET_SLACK,
        budgets=limits,
        duals=np.zeros(len(limits)),
        prices=plans.prices[[place]],
        shares=np.ones(1),
        reward=float(plans.rewards[place]),
        costs=plans.costs[:, place].copy(),
        states=(BudgetStatus.SLACK,) * len(limits),
        excess=np.zeros(len(limits)),
        duality_gap=0.0,
        passes=passes,
        plans=len(plans.prices),
    )


def solution_of(
    status: DualStatus,
    limits: FloatArray,
    duals: FloatArray,
    chosen: Priced,
    shares: FloatArray,
    gap: float,
    effort: tuple[int, int],
) -> BudgetsSolution:
    """The mixture of chosen plans, and what each budget does to it; `effort` are the passes and the plans priced."""
    reward, *costs = (float(value) for value in chosen.outcomes @ shares)
    spent = np.array(costs)
    scale = np.maximum(np.abs(limits), np.abs(spent))
    over = spent - limits
    excess = np.where(over > _ROUNDING * np.maximum(scale, 1e-300), over, 0.0)
    infeasible = status is DualStatus.BUDGET_INFEASIBLE
    # A price that is small beside what the reward and this budget could ever exchange at is rounding.
    pays = duals * np.where(scale > 0, scale, 1.0) > _ROUNDING * max(abs(reward), 1e-300)
    bound = BudgetStatus.EXCEEDED if infeasible else BudgetStatus.BINDING
    return BudgetsSolution(
        status=status,
        budgets=limits,
        duals=np.where(pays, duals, 0.0),
        prices=chosen.prices,
        shares=shares,
        reward=reward,
        costs=spent,
        states=tuple(bound if pay else BudgetStatus.SLACK for pay in pays),
        excess=excess if infeasible else np.zeros(len(limits)),
        duality_gap=np.inf if infeasible else gap,
        passes=effort[0],
        plans=effort[1],
    )
