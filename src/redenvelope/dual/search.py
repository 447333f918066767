"""From a price function and a budget to the dual: slack, infeasible, or searched and verified."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from redenvelope.dual.oracle import Point, PriceFunction, RecordedPrice
from redenvelope.dual.solution import DualSolution, DualStatus, Mixture
from redenvelope.dual.solvers import Bracket, Newton, SearchEnd
from redenvelope.errors import UsageError

# Costs this close to the budget, relatively, differ from it by the rounding of long sums.
_ROUNDING = 1e-12


class DualSolver(Protocol):
    """A way to narrow a bracket of prices until its plans land on the budget.

    A solver is a small class with one method, in a file of its own; a line in `SOLVERS` (dual/solvers.py) gives it a
    name. It is handed what `solve_dual` has already found out: a plan that costs too much and one that fits. Each
    `price([dual, …])` is one pass over all users, which is what a solver saves on.

        class Halving:
            def search(self, price, bracket, scale):
                bracket = finite_bracket(price, bracket) or bracket
                for _ in range(50):
                    middle = price.at((bracket.low.dual + bracket.high.dual) / 2)
                    bracket = bracket.narrowed([middle])
                return SearchEnd(DualStatus.CONVERGED, bracket, None, bracket.high.dual)
    """

    def search(self, price: RecordedPrice, bracket: Bracket, scale: float) -> SearchEnd:
        """Narrow a bracket; `scale` is the cost that a tolerance is a share of.

        The bracket's upper dual is infinite at first: `finite_bracket` finds one that is not. The end names one plan,
        or none to have the bracket's ends mixed so that they spend the budget exactly.
        """
        ...


def solve_dual(price: PriceFunction, budget: float, solver: DualSolver | None = None) -> DualSolution:
    """The dual at which the plan spends `budget`, the mean cost a user.

    `Newton` (the default) suits plans with entropy, `Secant` plans without. The first pass prices the duals
    0 and infinity: if the plan that ignores cost fits the budget there is nothing to search, and if the
    cheapest plan does not fit there is nothing to find.
    """
    if not np.isfinite(budget):
        raise UsageError(f"the budget must be a number (the mean cost a user), not {budget}")
    budget = float(budget)
    recorded = RecordedPrice(price)
    unconstrained, cheapest = recorded([0.0, np.inf])
    scale = abs(budget) or max(abs(unconstrained.cost), abs(cheapest.cost)) or 1.0
    room = budget + _ROUNDING * scale
    if unconstrained.cost <= room:
        spent = budget - unconstrained.cost <= _ROUNDING * scale
        status = DualStatus.CONVERGED if spent else DualStatus.BUDGET_SLACK
        return _single(status, unconstrained, budget, recorded)
    if cheapest.cost > room:
        return _single(DualStatus.BUDGET_INFEASIBLE, cheapest, budget, recorded)
    if cheapest.cost >= budget - _ROUNDING * scale:
        return _single(DualStatus.CONVERGED, cheapest, budget, recorded)
    end = (solver or Newton()).search(recorded, Bracket(unconstrained, cheapest, budget), scale)
    if end.point is not None:
        return _single(end.status, end.point, budget, recorded)
    return _mixed(end, budget, recorded)


def _single(status: DualStatus, point: Point, budget: float, recorded: RecordedPrice) -> DualSolution:
    infeasible = status is DualStatus.BUDGET_INFEASIBLE
    # What a plan leaves unspent, priced at its dual, bounds what another plan could add.
    unspent = budget - point.cost
    gap = point.dual * unspent if point.dual > 0 and unspent > 0 else 0.0
    if np.isinf(point.dual) and not infeasible:
        gap = max(0.0, recorded.points[0].reward - point.reward) if unspent > 0 else 0.0
    return DualSolution(
        status=status,
        budget=budget,
        dual=point.dual,
        cost=point.cost,
        reward=point.reward,
        mixture=None,
        duality_gap=np.inf if infeasible else gap,
        least_budget=point.cost if infeasible else None,
        steps=tuple(recorded.points),
        passes=recorded.passes,
        message=_message(status, point, budget, recorded),
    )


def _mixed(end: SearchEnd, budget: float, recorded: RecordedPrice) -> DualSolution:
    low, high, share = end.bracket.low, end.bracket.high, end.bracket.low_share
    point = Point(
        dual=end.dual,
        cost=share * low.cost + (1 - share) * high.cost,
        reward=share * low.reward + (1 - share) * high.reward,
    )
    # Every finite dual that was priced bounds the optimum from above; the least bound counts.
    worths = [step.reward - step.dual * (step.cost - budget) for step in recorded.points if step.dual < np.inf]
    return DualSolution(
        status=end.status,
        budget=budget,
        dual=end.dual,
        cost=point.cost,
        reward=point.reward,
        mixture=Mixture(low.dual, high.dual, share),
        duality_gap=min(worths) - point.reward,
        least_budget=None,
        steps=tuple(recorded.points),
        passes=recorded.passes,
        message=_message(end.status, point, budget, recorded),
    )


def _message(status: DualStatus, point: Point, budget: float, recorded: RecordedPrice) -> str:
    if status is DualStatus.BUDGET_SLACK:
        return (
            f"The budget of {budget:.6g} a user is more than the best plan can use: it earns "
            f"{point.reward:.6g} for {point.cost:.6g}, and more budget would buy nothing."
        )
    if status is DualStatus.BUDGET_INFEASIBLE:
        return (
            f"No plan is as cheap as {budget:.6g} a user: the cheapest one costs {point.cost:.6g}, "
            "which is the least budget that would do."
        )
    if status is DualStatus.BRACKET_NOT_FOUND:
        return (
            f"No price tried brought the cost down to {budget:.6g} a user, though the cheapest plan costs "
            f"only {point.cost:.6g}; the cheapest plan is returned. The cost estimates may be too noisy."
        )
    if status is DualStatus.MAX_STEPS_REACHED:
        return (
            f"The search stopped after {recorded.passes} passes; the plan costs {point.cost:.6g} of "
            f"{budget:.6g} a user, but a better one may exist: allow more steps or use another solver."
        )
    if np.isinf(point.dual):
        return (
            f"The budget of {budget:.6g} a user is just enough for the cheapest plan, which earns {point.reward:.6g}."
        )
    return (
        f"The plan spends {point.cost:.6g} of {budget:.6g} a user and earns {point.reward:.6g}; "
        f"one more unit of budget would earn about {point.dual:.4g} more."
    )
