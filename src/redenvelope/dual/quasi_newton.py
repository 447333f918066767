"""Quasi-Newton search for plans with entropy: several budgets, one plan, prices of at least 0."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.dual.price import PriceFunction
from redenvelope.dual.several import BudgetsSolution, Priced, RecordedPlans, checked_budgets, settled, solution_of
from redenvelope.dual.solution import DualStatus

__all__ = ["QuasiNewton"]

FloatArray = NDArray[np.float64]

# A price of more spreads of the reward for an excess of one budget is no price any more: the budgets are in conflict.
_DEAREST = 1e6


@dataclass(frozen=True)
class QuasiNewton:
    """Minimise the dual function by L-BFGS-B.

    With entropy the dual function, worth(prices) + prices·budgets, is smooth and convex, and its slope in a price is
    budget − cost. Its minimum is one plan whose costs meet the budgets that bind; the others have the price 0. The
    price function must give one row more than others do, the worth: what the plan's value is, entropy bonus included.
    """

    tolerance: float = 1e-6
    """Costs may be above their budgets by this share of them."""
    max_passes: int = 300

    def solve(self, price: PriceFunction, budgets: ArrayLike) -> BudgetsSolution:
        """The plan within budgets [budgets] by prices [prices, budgets] -> [outcomes and worth, prices]."""
        from scipy.optimize import minimize  # costs more to import than the rest of the package

        limits = checked_budgets(budgets)
        worths: list[float] = []

        def outcomes_of(prices: FloatArray) -> FloatArray:
            found = np.asarray(price(prices), dtype=np.float64)
            worths.extend(found[-1].tolist())
            return found[:-1]

        recorded = RecordedPlans(outcomes_of, len(limits))
        first = recorded(np.zeros((1, len(limits))))[:, 0]
        if (first[1:] <= limits).all():
            return settled(limits, recorded.plans, 0, recorded.passes)
        units = np.where(limits != 0, np.abs(limits), np.where(first[1:] != 0, np.abs(first[1:]), 1.0))
        spread = abs(float(first[0])) or 1.0

        # In spreads of the reward for a budget, prices have no unit and all of them count alike.
        def dual(places: FloatArray) -> tuple[float, FloatArray]:
            costs = recorded(np.maximum(places, 0.0)[None] * spread / units)[1:, 0]
            value = worths[-1] + float((places * spread / units) @ limits)
            return value / spread, (limits - costs) / units

        minimize(
            dual,
            np.full(len(limits), 0.1),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, _DEAREST)] * len(limits),
            options={"maxfun": self.max_passes, "gtol": self.tolerance / 10, "ftol": 1e-15, "maxcor": 2 * len(limits)},
        )
        return self._solution(recorded, limits, units, spread)

    def _solution(
        self, recorded: RecordedPlans, limits: FloatArray, units: FloatArray, spread: float
    ) -> BudgetsSolution:
        """The best plan that was priced: within the budgets if any is, else the one nearest to them."""
        plans = recorded.plans
        over = np.maximum((plans.costs - limits[:, None]) / units[:, None], 0.0)
        # What is left unspent of a budget that has a price is lost too.
        lost = np.abs(plans.prices.T * (limits[:, None] - plans.costs)).sum(axis=0) / spread
        kept = over.max(axis=0) <= self.tolerance
        best = int(np.argmin(np.where(kept, lost, np.inf))) if kept.any() else int(over.sum(axis=0).argmin())
        status = DualStatus.CONVERGED if kept.any() else DualStatus.BUDGET_INFEASIBLE
        if status is DualStatus.CONVERGED and lost[best] > 1e-3:
            status = DualStatus.MAX_STEPS_REACHED
        chosen = Priced(plans.prices[[best]], plans.outcomes[:, [best]])
        duals = plans.prices[best]
        found = solution_of(status, limits, duals, chosen, np.ones(1), float(lost[best]) * spread, recorded.effort)
        return replace(found, excess=np.where(over[:, best] > self.tolerance, over[:, best] * units, 0.0))
