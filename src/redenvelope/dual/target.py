"""The question turned round: the least cost that earns a reward of at least a target."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from redenvelope.dual.price import Point, PriceFunction
from redenvelope.dual.solution import DualSolution, DualStatus, Mixture
from redenvelope.dual.solve import DualSolver, solve_dual
from redenvelope.errors import UsageError

__all__ = ["least_cost_for"]

FloatArray = NDArray[np.float64]


def least_cost_for(price: PriceFunction, target: float, solver: DualSolver | None = None) -> DualSolution:
    """The cheapest plan whose mean reward a user is at least `target`.

    The solution's `budget` is the cost of that plan: the budget to ask for. Status budget_slack means that
    the cheapest plan of all earns the target; budget_infeasible that no plan does. The duality gap is in
    units of cost.
    """
    if not np.isfinite(target):
        raise UsageError(f"the target must be a number (the mean reward a user), not {target}")

    # Reward becomes what is spent (negatively), cost what is earned, and a dual λ the price 1/λ of reward:
    # maximising −cost + reward/λ is maximising reward − λ·cost.
    def turned(prices: FloatArray) -> FloatArray:
        return -np.asarray(price(_inverse(prices)))[::-1]

    found = solve_dual(turned, -target, solver)
    mixture = found.mixture and Mixture(
        low_dual=_inverse_of(found.mixture.high_dual),
        high_dual=_inverse_of(found.mixture.low_dual),
        low_share=1 - found.mixture.low_share,
    )
    turned_back = replace(
        found,
        budget=-found.reward,
        dual=_inverse_of(found.dual),
        cost=-found.reward,
        reward=-found.cost,
        mixture=mixture,
        least_budget=None,
        steps=tuple(Point(_inverse_of(step.dual), -step.reward, -step.cost) for step in found.steps),
    )
    return replace(turned_back, message=_message(turned_back, target))


def _inverse(values: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore"):
        return np.asarray(1.0 / values)


def _inverse_of(value: float) -> float:
    return float(_inverse(np.array([value]))[0])


def _message(solution: DualSolution, target: float) -> str:
    earned = f"earns {solution.reward:.6g} for {solution.cost:.6g} a user"
    if solution.status is DualStatus.BUDGET_SLACK:
        return f"The cheapest plan of all {earned}, which is already more than the target of {target:.6g}."
    if solution.status is DualStatus.BUDGET_INFEASIBLE:
        return f"No plan earns {target:.6g} a user: the one with the greatest reward {earned}."
    if solution.status is DualStatus.CONVERGED:
        return f"The cheapest plan for a reward of {target:.6g} {earned}."
    return f"The search for a reward of {target:.6g} stopped early; the plan it found {earned}."
