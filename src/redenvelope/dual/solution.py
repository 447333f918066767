"""The result of a dual search, for any number of budgets: an infeasible budget is a status, not an exception."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike

from redenvelope.arrays import FloatArray
from redenvelope.dual.oracle import Priced
from redenvelope.errors import UsageError

# Costs this close to their budgets, relatively, differ from them by the rounding of sums and of the master program.
_ROUNDING = 1e-9


class DualStatus(StrEnum):
    """How a search ended; if two apply, the earlier one is reported."""

    CONVERGED = "converged"
    """The plan spends the budget, and no plan within the budget earns more than the duality gap."""
    BUDGET_SLACK = "budget_slack"
    """The plan of greatest reward costs less than the budget: the dual is 0."""
    BUDGET_INFEASIBLE = "budget_infeasible"
    """Even the cheapest plan costs more than the budget."""
    BRACKET_NOT_FOUND = "bracket_not_found"
    """The cheapest plan fits the budget, but no finite dual that was tried does."""
    MAX_STEPS_REACHED = "max_steps_reached"
    """The search stopped at its limit; the plan is within the budget but a better one may exist."""


class BudgetStatus(StrEnum):
    """Whether one budget binds."""

    BINDING = "binding"
    """It is spent, and more of it would earn more."""
    SLACK = "slack"
    """More of it would earn nothing."""
    EXCEEDED = "exceeded"
    """It cannot be met together with the others: more of it would reduce the total excess."""


@dataclass(frozen=True, eq=False)
class DualSolution:
    """The plan that a search ended with: a mixture of plans, of which each user is assigned one for all steps.

    Costs and rewards are means per user. `budget`, `dual` and `cost` are those of the first budget.
    """

    status: DualStatus
    budgets: FloatArray
    """[budgets]"""
    duals: FloatArray
    """Shadow price of each budget: the reward that one more unit of it buys, [budgets]."""
    prices: FloatArray
    """Prices of the mixture's plans, [plans, budgets]: at most one more plan than there are budgets. With one budget
    they rise, so the dearer plan comes first."""
    shares: FloatArray
    """Share of the users who follow each plan, [plans]."""
    reward: float
    costs: FloatArray
    """[budgets]"""
    duality_gap: float
    """Bound on how much more than `reward` a plan within the budgets can earn. Exact for price functions without
    entropy and noise; infinity if the budgets are infeasible."""
    passes: int
    """Calls of the price function."""
    priced: Priced
    """Log of the search: every plan that was priced, in order."""

    @property
    def budget(self) -> float:
        """The first budget."""
        return float(self.budgets[0])

    @property
    def dual(self) -> float:
        """Shadow price of the first budget."""
        return float(self.duals[0])

    @property
    def cost(self) -> float:
        """Mean cost per user that counts against the first budget."""
        return float(self.costs[0])

    @property
    def statuses(self) -> tuple[BudgetStatus, ...]:
        """Status of each budget, [budgets]."""
        infeasible = self.status is DualStatus.BUDGET_INFEASIBLE
        bound = BudgetStatus.EXCEEDED if infeasible else BudgetStatus.BINDING
        return tuple(bound if dual > 0 else BudgetStatus.SLACK for dual in self.duals)

    @property
    def excess(self) -> FloatArray:
        """Excess of each cost over its budget, [budgets]: 0 unless the budgets are infeasible.

        This plan has the smallest total of excesses, each as a share of its budget: with one budget, its cost is the
        smallest feasible budget.
        """
        if self.status is not DualStatus.BUDGET_INFEASIBLE:
            return np.zeros(len(self.budgets))
        over = self.costs - self.budgets
        scale = np.maximum(np.maximum(np.abs(self.budgets), np.abs(self.costs)), 1e-300)
        return np.where(over > _ROUNDING * scale, over, 0.0)

    def message(self, names: Sequence[str] = ()) -> str:
        """The outcome in one sentence, with the budgets' names."""
        count = len(self.budgets)
        names = names or (["cost"] if count == 1 else [f"cost {number}" for number in range(1, count + 1)])
        spent = ", ".join(
            f"{name} {cost:.6g} of {limit:.6g}"
            for name, cost, limit in zip(names, self.costs, self.budgets, strict=True)
        )
        plan = f"earns {self.reward:.6g} per user ({spent})"
        if self.status is DualStatus.BUDGET_INFEASIBLE:
            over = [name for name, own in zip(names, self.statuses, strict=True) if own is BudgetStatus.EXCEEDED]
            together = " together" if len(over) > 1 else ""
            return f"No plan is within the budget of {' and '.join(over)}{together}: the nearest plan {plan}."
        if self.status is DualStatus.BRACKET_NOT_FOUND:
            return (
                f"No price tried is within the budget, but the cheapest plan is: it {plan} and is returned. The cost "
                "estimates may be too noisy."
            )
        if self.status is DualStatus.MAX_STEPS_REACHED:
            return (
                f"The search stopped after {self.passes} passes; the plan {plan}, but a better one may exist: allow "
                "more steps or use another solver."
            )
        return f"The plan {plan}; {'; '.join(map(_buys, names, self.duals))}."


def _buys(name: str, dual: float) -> str:
    if np.isinf(dual):
        return f"its {name} is the least that any plan has"
    return f"one more unit of {name} would earn about {dual:.4g}" if dual > 0 else f"more {name} would buy nothing"


def checked_budgets(budgets: ArrayLike) -> FloatArray:
    """Budgets as an array [budgets] of finite numbers."""
    limits = np.atleast_1d(np.asarray(budgets, dtype=np.float64))
    if limits.ndim != 1 or not len(limits) or not np.isfinite(limits).all():
        raise UsageError(f"a budget must be a number, the mean cost per user, not {limits.tolist()}")
    return limits
