"""`solve_dual`: from a price function and one budget to the optimal price (the dual): 0 if the budget is slack, or
found by one of the searches in `solvers`.

`fit` does not search: it checks a grid of prices (`fitting.price_grid`), and `plan.fixed_sequence_test` chooses one.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from redenvelope.arrays import FloatArray
from redenvelope.dual.oracle import Point, PriceFunction, RecordedPrice
from redenvelope.dual.solution import DualSolution, DualStatus, checked_budgets
from redenvelope.dual.solvers import Bracket, Newton, SearchEnd

# Costs this close to the budget, relatively, differ from it by the rounding of long sums.
_ROUNDING = 1e-12


class DualSolver(Protocol):
    """A search that narrows a bracket of prices until its plans meet the budget.

    A solver is a small class with one method. It gets what `solve_dual` has already found: a plan that costs too much
    and one that fits. Each `price.at(dual)` or `price.points([dual, …])` is one pass over all users, so a good solver
    makes few of them.

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

        The bracket's upper dual is infinite at first; `finite_bracket` finds a finite one. The result names one plan,
        or none, and then the bracket's ends are mixed so that they spend the budget exactly.
        """
        ...


def solve_dual(price: PriceFunction, budget: float, solver: DualSolver | None = None) -> DualSolution:
    """The price (dual) at which the plan spends `budget`, the mean cost per user.

    `Newton` (the default) suits plans with entropy, `Secant` plans without. The first pass evaluates prices 0 and
    infinity: if the plan that ignores cost fits the budget, the budget is slack; if the cheapest plan does not fit, it
    is infeasible.
    """
    limits = checked_budgets(budget)
    budget = float(limits[0])
    recorded = RecordedPrice(price)
    unconstrained, cheapest = recorded.points([0.0, np.inf])
    scale = abs(budget) or max(abs(unconstrained.cost), abs(cheapest.cost)) or 1.0
    room = budget + _ROUNDING * scale
    if unconstrained.cost <= room:
        spent = budget - unconstrained.cost <= _ROUNDING * scale
        status = DualStatus.CONVERGED if spent else DualStatus.BUDGET_SLACK
        return _single(status, unconstrained, limits, recorded)
    if cheapest.cost > room:
        return _single(DualStatus.BUDGET_INFEASIBLE, cheapest, limits, recorded)
    if cheapest.cost >= budget - _ROUNDING * scale:
        return _single(DualStatus.CONVERGED, cheapest, limits, recorded)
    end = (solver or Newton()).search(recorded, Bracket(unconstrained, cheapest, budget), scale)
    if end.point is not None:
        return _single(end.status, end.point, limits, recorded)
    return _mixed(end, limits, recorded)


def _single(status: DualStatus, point: Point, limits: FloatArray, recorded: RecordedPrice) -> DualSolution:
    """The solution in which all users follow the plan at one price."""
    plans = recorded.plans
    # The unspent budget times the dual bounds what another plan could add.
    unspent = float(limits[0]) - point.cost
    gap = point.dual * unspent if point.dual > 0 and unspent > 0 else 0.0
    if status is DualStatus.BUDGET_INFEASIBLE:
        gap = np.inf
    elif np.isinf(point.dual):
        gap = max(0.0, float(plans.rewards[0]) - point.reward) if unspent > 0 else 0.0
    return DualSolution(
        status=status,
        budgets=limits,
        duals=np.array([point.dual]),
        prices=np.array([[point.dual]]),
        shares=np.ones(1),
        reward=point.reward,
        costs=np.array([point.cost]),
        duality_gap=gap,
        passes=recorded.passes,
        priced=plans,
    )


def _mixed(end: SearchEnd, limits: FloatArray, recorded: RecordedPrice) -> DualSolution:
    """The solution that mixes the bracket's two ends so that the budget is spent exactly."""
    low, high, share = end.bracket.low, end.bracket.high, end.bracket.low_share
    plans, reward = recorded.plans, share * low.reward + (1 - share) * high.reward
    return DualSolution(
        status=end.status,
        budgets=limits,
        duals=np.array([end.dual]),
        prices=np.array([[low.dual], [high.dual]]),
        shares=np.array([share, 1 - share]),
        reward=reward,
        costs=np.array([share * low.cost + (1 - share) * high.cost]),
        duality_gap=float(plans.bounds(limits).min()) - reward,
        passes=recorded.passes,
        priced=plans,
    )
