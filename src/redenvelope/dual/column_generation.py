"""Column generation for plans without entropy: the exact optimum under several budgets, in a handful of passes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.arrays import FloatArray
from redenvelope.dual.oracle import PriceFunction
from redenvelope.dual.search import solve_dual
from redenvelope.dual.solution import (
    BudgetsSolution,
    DualStatus,
    Priced,
    RecordedPlans,
    checked_budgets,
    settled,
    solution_of,
)
from redenvelope.dual.solvers import Secant
from redenvelope.errors import ProblemError

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


# The master program of column generation: the best mixture of the plans priced so far.


# HiGHS accepts no finer tolerance, and in some cases gives up at this one: then the next way is tried.
_WAYS = (("highs-ds", 1e-10), ("highs-ipm", 1e-10), ("highs-ds", 1e-9), ("highs-ds", 1e-7))
# A share smaller than this is the solver's rounding.
_LEAST_SHARE = 1e-11
# The shares of a corner, solved for anew, may come out this far below 0.
_SLIPPED = 1e-9


class Mixed(NamedTuple):
    """A mixture of plans."""

    shares: FloatArray
    """[plans]"""
    duals: FloatArray
    """What one more unit of each budget would add, [budgets]; at most the penalty."""
    excess: float
    """Sum over budgets of the excess, each as a share of its unit."""
    worth: float
    """Reward less what the excess is fined."""


def best_mixture(plans: Priced, budgets: FloatArray, units: FloatArray, fine: float) -> Mixed:
    """The mixture of greatest reward less `fine` for every unit of excess over budgets [budgets].

    max Σ w·R − fine·Σ e  where  Σ w·C/unit − e ≤ budget/unit,  Σ w = 1, w ≥ 0, e ≥ 0: a program of as many rows as
    budgets and one more, whose corners mix at most so many plans. With a fine that is large enough there is no excess
    wherever the plans can keep the budgets.
    """
    from scipy.optimize import linprog  # costs more to import than the rest of the package

    count, limits = len(plans.rewards), budgets / units
    rewards, costs = plans.rewards, plans.costs / units[:, None]
    centre, spread = rewards.mean(), float(np.ptp(rewards)) or 1.0
    # Rewards by their spread: what the solver calls zero has to be small beside the differences that matter.
    objective = np.concatenate([-(rewards - centre) / spread, np.full(len(budgets), fine / spread)])
    rows = np.concatenate([costs, -np.eye(len(budgets))], axis=1)
    whole = np.concatenate([np.ones(count), np.zeros(len(budgets))])[None]
    for method, tolerance in _WAYS:
        options = {"primal_feasibility_tolerance": tolerance, "dual_feasibility_tolerance": tolerance}
        found = linprog(objective, rows, limits, whole, [1.0], method=method, options=options)
        if found.x is not None:
            break
    else:
        raise ProblemError(f"HiGHS found no mixture of plans ({found.message}); rescale rewards and costs")
    duals = np.clip(-found.ineqlin.marginals, 0.0, fine / spread) * spread / units
    shares = _corner(found.x[:count], costs, limits, duals > 0)
    excess = float(np.maximum(costs @ shares - limits, 0.0).sum())
    return Mixed(shares, duals, excess, float(rewards @ shares) - fine * excess)


def _corner(shares: FloatArray, costs: FloatArray, limits: FloatArray, binding: NDArray[np.bool_]) -> FloatArray:
    """The solver's shares [plans] to the last digit, where its corner keeps the binding budgets exactly."""
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
