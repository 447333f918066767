"""Column generation (Dantzig–Wolfe) for plans without entropy: the exact optimum under any number of budgets.

The master program, a small linear program, finds the best mixture of the plans priced so far (`best_mixture`); its
duals are the prices of the next plans. `solve_budgets` is the entry point.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.arrays import FloatArray
from redenvelope.dual.oracle import Priced, PriceFunction, RecordedPrice
from redenvelope.dual.search import solve_dual
from redenvelope.dual.solution import DualSolution, DualStatus, checked_budgets
from redenvelope.dual.solvers import Secant
from redenvelope.errors import ProblemError

# Penalties on exceeding a budget, in spreads of the reward: raised while the mixture exceeds the budgets.
_FINES = (1e1, 1e3, 1e5, 1e7)
# An excess below this share of a budget is rounding of the master program.
_NO_EXCESS = 1e-10
# So is a price below this share of reward per unit of the budget.
_ROUNDING = 1e-9


def solve_budgets(price: PriceFunction, budgets: ArrayLike) -> DualSolution:
    """The best mixture of plans with mean costs per user of at most `budgets`, a number or [budgets].

    For plans without entropy it is exact, and mixes at most one plan more than there are budgets. With one budget, the
    secant finds the same corners of the envelope without a master program.
    """
    limits = checked_budgets(budgets)
    if len(limits) == 1:
        return solve_dual(price, float(limits[0]), Secant())
    return ColumnGeneration().solve(price, limits)


@dataclass(frozen=True)
class ColumnGeneration:
    """Mix the plans priced so far, price the mixture's duals next, and stop when no plan improves the mixture.

    Each pass also prices a point between the duals with the lowest bound so far and the new ones (stabilisation): with
    few plans the master program's duals jump, and their mean converges sooner.
    """

    precision: float = 1e-12
    """The search ends when no plan can add more than this share of the rewards' size."""
    companions: tuple[float, ...] = (0.5,)
    """Further points between the two that are priced in the same pass, as shares of the distance."""
    max_passes: int = 500

    def solve(self, price: PriceFunction, budgets: ArrayLike) -> DualSolution:
        """See `solve_budgets`; here even one budget is solved by the master program."""
        limits = checked_budgets(budgets)
        recorded = RecordedPrice(price, len(limits))
        alone = np.where(np.eye(len(limits), dtype=bool), np.inf, 0.0)
        first = recorded(np.concatenate([np.zeros((1, len(limits))), alone]))
        if (first[1:, 0] <= limits + self.precision * np.abs(limits)).all():
            free, nothing = np.ones(1), np.zeros(len(limits))
            return _solution(DualStatus.BUDGET_SLACK, limits, nothing, recorded.plans.only([0]), free, 0.0, recorded)
        units = budget_units(recorded.plans, limits)
        spread = float(np.ptp(first[0])) or float(np.abs(first[0]).max()) or 1.0
        for fine in _FINES:
            plans, mixed, ended = self._converged(recorded, limits, units, fine * spread)
            if mixed.excess <= _NO_EXCESS or not ended:
                break
        status = DualStatus.CONVERGED if ended else DualStatus.MAX_STEPS_REACHED
        if mixed.excess > _NO_EXCESS and ended:
            status = DualStatus.BUDGET_INFEASIBLE
        used = np.flatnonzero(mixed.shares)
        chosen, shares = plans.only(used), mixed.shares[used]
        gap = max(0.0, float(plans.bounds(limits).min()) - float(chosen.rewards @ shares))
        found = _solution(status, limits, mixed.duals, chosen, shares, gap, recorded)
        if status is DualStatus.CONVERGED and not found.duals.any():
            # Some mixture within the budgets earns as much as the plan that ignores cost.
            return replace(found, status=DualStatus.BUDGET_SLACK)
        return found

    def _converged(
        self, recorded: RecordedPrice, limits: FloatArray, units: FloatArray, fine: float
    ) -> tuple[Priced, Mixed, bool]:
        """All plans priced, their best mixture at a penalty `fine`, and whether no plan improves it."""
        while True:
            plans = recorded.plans
            mixed = best_mixture(plans, limits, units, fine)
            bounds = plans.bounds(limits)
            size = np.abs(plans.rewards).max() + (mixed.duals * np.abs(limits)).sum()
            best = int(bounds.argmin())
            if bounds[best] - mixed.objective <= self.precision * size:
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
                # No new prices: the rest of the gap is rounding.
                return plans, mixed, True


def budget_units(plans: Priced, budgets: FloatArray) -> FloatArray:
    """The size of each budget, or of its costs if it is 0, [budgets]: the units in which costs are compared.

    A budget may be 0 but for rounding, and HiGHS refuses costs that are huge in units of such a budget.
    """
    most, size = np.abs(plans.costs).max(axis=1), np.abs(budgets)
    return np.where(size > _ROUNDING * most, size, np.where(most > 0, most, 1.0))


def _solution(
    status: DualStatus,
    limits: FloatArray,
    duals: FloatArray,
    chosen: Priced,
    shares: FloatArray,
    gap: float,
    recorded: RecordedPrice,
) -> DualSolution:
    """The mixture of chosen plans as a solution; duals that are mere rounding become 0."""
    reward, *costs = (float(value) for value in chosen.outcomes @ shares)
    spent = np.array(costs)
    scale = np.maximum(np.abs(limits), np.abs(spent))
    # A price that is tiny compared with reward per unit of this budget is rounding.
    pays = duals * np.where(scale > 0, scale, 1.0) > _ROUNDING * max(abs(reward), 1e-300)
    return DualSolution(
        status=status,
        budgets=limits,
        duals=np.where(pays, duals, 0.0),
        prices=chosen.prices,
        shares=shares,
        reward=reward,
        costs=spent,
        duality_gap=np.inf if status is DualStatus.BUDGET_INFEASIBLE else gap,
        passes=recorded.passes,
        priced=recorded.plans,
    )


# HiGHS accepts no finer tolerance, and sometimes fails at the first: then the next combination is tried.
_WAYS = (("highs-ds", 1e-10), ("highs-ipm", 1e-10), ("highs-ds", 1e-9), ("highs-ds", 1e-7))
# A smaller share is the solver's rounding.
_LEAST_SHARE = 1e-11
# The shares of a corner, when solved exactly, may come out this far below 0.
_SLIPPED = 1e-9


class Mixed(NamedTuple):
    """A mixture of plans."""

    shares: FloatArray
    """[plans]"""
    duals: FloatArray
    """Shadow price of each budget, [budgets]; at most the penalty."""
    excess: float
    """Sum over budgets of the excess, each in its unit (see `budget_units`)."""
    objective: float
    """Reward minus the penalty on the excess."""


def best_mixture(plans: Priced, budgets: FloatArray, units: FloatArray, fine: float) -> Mixed:
    """The mixture of greatest reward minus a penalty of `fine` for every unit of excess over budgets [budgets].

    max Σ w·R − fine·Σ e  subject to  Σ w·C/unit − e ≤ budget/unit,  Σ w = 1, w ≥ 0, e ≥ 0. The program has one row per
    budget and one more, so that a corner mixes at most that many plans. If the penalty is large enough, there is no
    excess whenever some mixture is within the budgets.
    """
    from scipy.optimize import linprog  # costs more to import than the rest of the package

    count, limits = len(plans.rewards), budgets / units
    rewards, costs = plans.rewards, plans.costs / units[:, None]
    centre, spread = rewards.mean(), float(np.ptp(rewards)) or 1.0
    # Rewards are scaled by their spread, so that the solver's tolerance is small compared with their differences.
    objective = np.concatenate([-(rewards - centre) / spread, np.full(len(budgets), fine / spread)])
    rows = np.concatenate([costs, -np.eye(len(budgets))], axis=1)
    one = np.concatenate([np.ones(count), np.zeros(len(budgets))])[None]
    for method, tolerance in _WAYS:
        options = {"primal_feasibility_tolerance": tolerance, "dual_feasibility_tolerance": tolerance}
        found = linprog(objective, rows, limits, one, [1.0], method=method, options=options)
        if found.x is not None:
            break
    else:
        raise ProblemError(f"HiGHS found no mixture of plans ({found.message}); rescale rewards and costs")
    duals = np.clip(-found.ineqlin.marginals, 0.0, fine / spread) * spread / units
    shares = _corner(found.x[:count], costs, limits, duals > 0)
    excess = float(np.maximum(costs @ shares - limits, 0.0).sum())
    return Mixed(shares, duals, excess, float(rewards @ shares) - fine * excess)


def _corner(shares: FloatArray, costs: FloatArray, limits: FloatArray, binding: NDArray[np.bool_]) -> FloatArray:
    """The solver's shares [plans], solved again to the last digit if its corner spends the binding budgets exactly."""
    shares = np.where(shares > _LEAST_SHARE, shares, 0.0)
    shares = shares / shares.sum()
    used = np.flatnonzero(shares)
    rows = np.flatnonzero(binding & (np.abs(costs @ shares - limits) <= 1e-7 * np.maximum(1.0, np.abs(limits))))
    if len(used) != len(rows) + 1:
        return shares
    matrix = np.concatenate([np.ones((1, len(used))), costs[np.ix_(rows, used)]])
    try:
        solved = np.linalg.solve(matrix, np.concatenate([[1.0], limits[rows]]))
    except np.linalg.LinAlgError:
        return shares
    if not (solved >= -_SLIPPED).all():
        return shares
    exact = np.zeros(len(shares))
    exact[used] = np.maximum(solved, 0.0) / np.maximum(solved, 0.0).sum()
    return exact
