"""Find the price on users the model did not see: one pass for all duals, made monotone, then searched."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression
from scipy.special import ndtri

from redenvelope.dual.solution import DualSolution
from redenvelope.dual.solve import DualSolver, solve_dual
from redenvelope.evaluation.estimate import Evaluation

__all__ = ["MonotonePrice", "OffPolicyCurve", "SearchResult", "off_policy_curve", "search_price"]

FloatArray = NDArray[np.float64]

# Where the certificate should pass: its chance when the safety margin is on.
_PASSING_CHANCE = 0.9


@dataclass(frozen=True, eq=False)
class OffPolicyCurve:
    """Cost and reward at a grid of duals, estimated on users the models did not see."""

    duals: FloatArray
    """[points], rising, from 0 to infinity."""
    costs: FloatArray
    """[points], as estimated."""
    cost_errors: FloatArray
    rewards: FloatArray
    reward_errors: FloatArray
    users: int

    @property
    def monotone_costs(self) -> FloatArray:
        """The nearest costs that never rise with the dual, [points]: the truth cannot rise either."""
        return _falling(self.costs, self.cost_errors)

    @property
    def monotone_rewards(self) -> FloatArray:
        """The nearest rewards that never rise with the dual, [points]."""
        return _falling(self.rewards, self.reward_errors)

    @property
    def mended(self) -> float:
        """The most that a cost was moved to make the curve monotone."""
        return float(np.abs(self.monotone_costs - self.costs).max())

    def frame(self, confidence: float) -> pl.DataFrame:
        """The curve as a table with two-sided bounds."""
        reach = float(ndtri((1 + confidence) / 2))
        return pl.DataFrame(
            {
                "dual": self.duals,
                "cost": self.monotone_costs,
                "reward": self.monotone_rewards,
                "cost_lower": self.costs - reach * self.cost_errors,
                "cost_upper": self.costs + reach * self.cost_errors,
                "reward_lower": self.rewards - reach * self.reward_errors,
                "reward_upper": self.rewards + reach * self.reward_errors,
            }
        )


@dataclass(frozen=True, eq=False)
class MonotonePrice:
    """A price function through the points of a curve: straight between neighbouring duals."""

    duals: FloatArray
    """[points], rising, from 0 to infinity."""
    costs: FloatArray
    """[points], never rising."""
    rewards: FloatArray
    """[points]."""

    def __call__(self, duals: FloatArray, /) -> tuple[FloatArray, FloatArray]:
        """[duals] -> costs and rewards, both [duals]."""
        places, asked = self._places(self.duals), self._places(np.asarray(duals, dtype=np.float64))
        return np.interp(asked, places, self.costs), np.interp(asked, places, self.rewards)

    def _places(self, duals: FloatArray) -> FloatArray:
        """Duals from 0 to infinity as places from 0 to 1, without a unit."""
        finite = self.duals[np.isfinite(self.duals) & (self.duals > 0)]
        unit = float(np.median(finite)) if len(finite) else 1.0
        return np.where(np.isinf(duals), 1.0, np.where(np.isinf(duals), 0.0, duals) / (duals + unit))


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The price that was found, and how."""

    solution: DualSolution
    curve: OffPolicyCurve
    target: float
    """The budget that was aimed at, less than the budget where a safety margin was taken."""


def off_policy_curve(duals: FloatArray, evaluation: Evaluation) -> OffPolicyCurve:
    """The curve of an evaluation at duals [points]."""
    reward, cost = (evaluation.targets.index(target) for target in ("reward", "cost"))
    value, error = evaluation.value, evaluation.standard_error
    return OffPolicyCurve(duals, value[cost], error[cost], value[reward], error[reward], evaluation.users)


def search_price(
    curve: OffPolicyCurve, budget: float, solver: DualSolver, confidence: float, certify_users: int | None
) -> SearchResult:
    """The dual whose cost lands on the budget; with `certify_users`, so far below it that a certificate on so many
    users will most likely pass."""
    costs = curve.monotone_costs
    if certify_users is not None:
        margin = _margin(confidence, curve.users, certify_users)
        padded = _falling(curve.costs + margin * curve.cost_errors, curve.cost_errors)
        solution = solve_dual(MonotonePrice(curve.duals, padded, curve.monotone_rewards), budget, solver)
        aimed = MonotonePrice(curve.duals, costs, curve.monotone_rewards)(np.array([solution.dual]))[0]
        return SearchResult(solution, curve, float(min(aimed[0], budget)))
    solution = solve_dual(MonotonePrice(curve.duals, costs, curve.monotone_rewards), budget, solver)
    return SearchResult(solution, curve, budget)


def _margin(confidence: float, search_users: int, certify_users: int) -> float:
    """Standard errors of the search fold to stay below the budget.

    The certificate adds its own standard errors to an estimate that differs from the search fold's by both folds'
    noise; the certify fold's error is that of the search fold times the root of the ratio of users.
    """
    ratio = search_users / certify_users
    return float(ndtri(confidence) * np.sqrt(ratio) + ndtri(_PASSING_CHANCE) * np.sqrt(1 + ratio))


def _falling(values: FloatArray, errors: FloatArray) -> FloatArray:
    weights = 1.0 / np.maximum(errors, 1e-6 * max(float(errors.max()), 1e-12)) ** 2
    return np.asarray(isotonic_regression(values, weights=weights, increasing=False).x)
