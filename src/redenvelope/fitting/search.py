"""Find the price on users the model did not see: one pass for all duals, made monotone, then searched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression
from scipy.special import ndtri

from redenvelope.dual.frontier import Frontier
from redenvelope.dual.solution import DualSolution, DualStatus, Mixture
from redenvelope.dual.solve import DualSolver, solve_dual
from redenvelope.evaluation.estimate import Evaluation

__all__ = ["MonotonePrice", "OffPolicyCurve", "SearchResult", "budget_for", "off_policy_curve", "search_price"]

FloatArray = NDArray[np.float64]

# Where the certificate should pass: its chance when the safety margin is on.
_PASSING_CHANCE = 0.9
# Neighbouring costs around the budget should differ by no more than this share of it; if they do, further duals are
# estimated in between, so many times.
_STEP, _ROUNDS, _FURTHER_DUALS = 0.02, 2, 63


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

    def padded(self, margin: float) -> FloatArray:
        """Costs with a margin of so many standard errors, never rising, [points]."""
        return _falling(self.costs + margin * self.cost_errors, self.cost_errors)

    def merge(self, other: OffPolicyCurve) -> OffPolicyCurve:
        """The points of both curves, by rising dual."""
        order = np.argsort(np.concatenate([self.duals, other.duals]), kind="stable")

        def both(first: FloatArray, second: FloatArray) -> FloatArray:
            return np.concatenate([first, second])[order]

        return OffPolicyCurve(
            duals=both(self.duals, other.duals),
            costs=both(self.costs, other.costs),
            cost_errors=both(self.cost_errors, other.cost_errors),
            rewards=both(self.rewards, other.rewards),
            reward_errors=both(self.reward_errors, other.reward_errors),
            users=self.users,
        )

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
    reward, cost = (evaluation.place(outcome) for outcome in ("reward", "cost"))
    value, error = evaluation.value, evaluation.standard_error
    return OffPolicyCurve(duals, value[cost], error[cost], value[reward], error[reward], evaluation.users)


def search_price(
    curve: OffPolicyCurve,
    estimate: Callable[[FloatArray], OffPolicyCurve],
    budget: float,
    solver: DualSolver,
    confidence: float,
    certify_users: int | None,
) -> SearchResult:
    """The dual whose cost lands on the budget; with `certify_users`, so far below it that a certificate on so many
    users will most likely pass. `estimate` gives the curve at further duals, where this one has a gap."""
    margin = 0.0 if certify_users is None else _margin(confidence, curve.users, certify_users)
    curve = _refined(curve, estimate, budget, margin)
    padded = curve.padded(margin)
    solution = solve_dual(MonotonePrice(curve.duals, padded, curve.monotone_rewards), budget, solver)
    left = _bracket(padded, budget)
    if left is not None and padded[left] - padded[left + 1] > _STEP * budget:
        # A jump that further duals did not fill: no price in between spends what lies in between, but a mixture does.
        share = float((budget - padded[left + 1]) / (padded[left] - padded[left + 1]))
        mixture = Mixture(float(curve.duals[left]), float(curve.duals[left + 1]), share)
        solution = replace(solution, mixture=mixture, dual=mixture.high_dual)
        aimed = share * curve.monotone_costs[left] + (1 - share) * curve.monotone_costs[left + 1]
    else:
        solution = replace(solution, mixture=None)
        price = MonotonePrice(curve.duals, curve.monotone_costs, curve.monotone_rewards)
        aimed = price(np.array([solution.dual]))[0][0]
    target = float(min(aimed, budget))
    return SearchResult(solution if certify_users is None else _told(solution, target), curve, target)


def budget_for(curve: OffPolicyCurve, reward: float, confidence: float, certify_users: int | None) -> float:
    """The least cost whose reward reaches a target; with `certify_users`, by so much that a certificate on so many
    users will most likely confirm it."""
    margin = 0.0 if certify_users is None else _margin(confidence, curve.users, certify_users)
    rewards = _falling(curve.rewards - margin * curve.reward_errors, curve.reward_errors)
    return Frontier(curve.duals, curve.monotone_costs, rewards).cost_for(reward)


def _bracket(costs: FloatArray, budget: float) -> int | None:
    """The place of the last cost above the budget, if the next ones are within it; costs [points] fall."""
    within = np.flatnonzero(costs <= budget)
    return int(within[0]) - 1 if len(within) and within[0] > 0 else None


def _refined(
    curve: OffPolicyCurve, estimate: Callable[[FloatArray], OffPolicyCurve], budget: float, margin: float
) -> OffPolicyCurve:
    """The curve with further duals around the budget, until neighbours differ by little."""
    for _ in range(_ROUNDS):
        costs = curve.padded(margin)
        left = _bracket(costs, budget)
        if left is None or costs[left] - costs[left + 1] <= _STEP * budget:
            break
        curve = curve.merge(estimate(_between(curve.duals, left)))
    return curve


def _between(duals: FloatArray, left: int) -> FloatArray:
    """Duals inside of a gap, evenly; past the last finite one, ever larger."""
    low, high = float(duals[left]), float(duals[left + 1])
    if np.isfinite(high):
        return np.linspace(low, high, _FURTHER_DUALS + 2)[1:-1]
    finite = duals[np.isfinite(duals) & (duals > 0)]
    unit = low if low > 0 else float(finite.min()) if len(finite) else 1.0
    return np.asarray(unit * 2.0 ** np.arange(1, _FURTHER_DUALS + 1))


def _told(solution: DualSolution, aimed: float) -> DualSolution:
    """The solution with a message of what the plan really aims at: the search itself saw costs with a margin."""
    if solution.status is not DualStatus.CONVERGED:
        return solution
    message = (
        f"The plan aims at {aimed:.4g} of {solution.budget:.4g} a user, below the budget by what the uncertainty of "
        f"the estimates asks for; one more unit of budget would earn about {solution.dual:.4g} more."
    )
    return replace(solution, message=message)


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
