"""Column generation for plans without entropy: the exact optimum under several budgets, in a handful of passes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.dual.master import Mixed, best_mixture
from redenvelope.dual.price import PriceFunction
from redenvelope.dual.secant import Secant
from redenvelope.dual.several import BudgetsSolution, Priced, RecordedPlans, checked_budgets, settled, solution_of
from redenvelope.dual.solution import DualStatus
from redenvelope.dual.solve import solve_dual

__all__ = ["ColumnGeneration", "solve_budgets"]

FloatArray = NDArray[np.float64]

# The fine for an excess of one budget, in spreads of the reward: raised while it does not keep the budgets.
_FINES = (1e1, 1e3, 1e5, 1e7)
# An excess below this share of a budget is the rounding of the master program.
_KEPT = 1e-10


def solve_budgets(price: PriceFunction, budgets: ArrayLike) -> BudgetsSolution:
    """The best mixture of plans with mean costs a user of at most `budgets`, a number or [budgets].

    For plans without entropy: exact, and at most one plan more than there are budgets. With one budget the secant walks
    the same envelope without a master program.
    """
    limits = checked_budgets(budgets)
    if len(limits) == 1:
        return _of_one(price, limits)
    return ColumnGeneration().solve(price, limits)


@dataclass(frozen=True)
class ColumnGeneration:
    """Mix the plans priced so far, take the mixture's duals as next prices, and go on until no plan is worth more.

    Each pass also prices a place on the way from the duals with the least bound so far to the new ones: the duals of
    the master program jump while there are few plans, and their mean settles down sooner.
    """

    precision: float = 1e-12
    """It ends when no plan can add more than this share of the rewards' size."""
    companions: tuple[float, ...] = (0.5,)
    """Places on that way that are priced in the same pass, as shares of it."""
    max_passes: int = 500

    def solve(self, price: PriceFunction, budgets: ArrayLike) -> BudgetsSolution:
        """See `solve_budgets`; with one budget too it asks the master program."""
        limits = checked_budgets(budgets)
        recorded = RecordedPlans(price, len(limits))
        alone = np.where(np.eye(len(limits), dtype=bool), np.inf, 0.0)
        first = recorded(np.concatenate([np.zeros((1, len(limits))), alone]))
        if (first[1:, 0] <= limits + self.precision * np.abs(limits)).all():
            return settled(limits, recorded.plans, 0, recorded.passes)
        most = np.abs(first[1:]).max(axis=1)
        units = np.where(limits != 0, np.abs(limits), np.where(most > 0, most, 1.0))
        spread = float(np.ptp(first[0])) or float(np.abs(first[0]).max()) or 1.0
        for fine in _FINES:
            plans, mixed, ended = self._converged(recorded, limits, units, fine * spread)
            if mixed.excess <= _KEPT or not ended:
                break
        return self._solution(recorded, plans, mixed, limits, ended)

    def _converged(
        self, recorded: RecordedPlans, limits: FloatArray, units: FloatArray, fine: float
    ) -> tuple[Priced, Mixed, bool]:
        """The best mixture at a fine, the plans that it mixes, and whether no plan is worth more."""
        while True:
            plans = recorded.plans
            mixed = best_mixture(plans, limits, units, fine)
            bounds = plans.bounds(limits)
            size = np.abs(plans.rewards).max() + (mixed.duals * np.abs(limits)).sum()
            best = int(bounds.argmin())
            if bounds[best] - mixed.worth <= self.precision * size:
                return plans, mixed, True
            if recorded.passes >= self.max_passes:
                return plans, mixed, False
            rows = [mixed.duals]
            if np.isfinite(bounds[best]):
                start = plans.prices[best]
                rows += [start + share * (mixed.duals - start) for share in self.companions]
            known = len(np.unique(plans.prices, axis=0))
            recorded(np.unique(rows, axis=0))
            if len(np.unique(recorded.plans.prices, axis=0)) == known:
                # The same prices again: what is left of the gap is rounding.
                return plans, mixed, True

    def _solution(
        self, recorded: RecordedPlans, plans: Priced, mixed: Mixed, limits: FloatArray, ended: bool
    ) -> BudgetsSolution:
        status = DualStatus.CONVERGED if ended else DualStatus.MAX_STEPS_REACHED
        if mixed.excess > _KEPT and ended:
            status = DualStatus.BUDGET_INFEASIBLE
        used = np.flatnonzero(mixed.shares)
        chosen = Priced(plans.prices[used], plans.outcomes[:, used])
        gap = max(0.0, float(plans.bounds(limits).min()) - float(chosen.rewards @ mixed.shares[used]))
        found = solution_of(status, limits, mixed.duals, chosen, mixed.shares[used], gap, recorded.effort)
        if status is DualStatus.CONVERGED and not found.duals.any():
            # A mixture within the budgets earns as much as the plan that ignores cost.
            return replace(found, status=DualStatus.BUDGET_SLACK)
        return found


def _of_one(price: PriceFunction, limits: FloatArray) -> BudgetsSolution:
    """One budget: the secant's solution in the same words."""
    found = solve_dual(price, float(limits[0]), Secant())
    if found.mixture is None:
        duals, shares = [found.dual], [1.0]
    else:
        duals = [found.mixture.low_dual, found.mixture.high_dual]
        shares = [found.mixture.low_share, 1 - found.mixture.low_share]
    known = {step.dual: step for step in found.steps}
    outcomes = np.array([(known[dual].reward, known[dual].cost) for dual in duals]).T
    chosen = Priced(np.array(duals)[:, None], outcomes)
    effort = (found.passes, len(found.steps))
    return solution_of(
        found.status, limits, np.array([found.dual]), chosen, np.array(shares), found.duality_gap, effort
    )
