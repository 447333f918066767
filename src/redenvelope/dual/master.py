"""The master program of column generation: the best mixture of the plans priced so far."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from redenvelope.dual.several import Priced
from redenvelope.errors import ProblemError

__all__ = ["Mixed", "best_mixture"]

FloatArray = NDArray[np.float64]

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
