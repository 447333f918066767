"""What a dual search returns: an outcome is data, not an exception."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from redenvelope.dual.price import Point

__all__ = ["DualSolution", "DualStatus", "Mixture"]


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
