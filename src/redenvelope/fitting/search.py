"""Find the price on users the model did not see: one pass for all prices, made monotone, then read off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import ndtri

from redenvelope.dual.curve import Landing, MonotoneCurve
from redenvelope.dual.frontier import Frontier
from redenvelope.dual.solution import DualStatus
from redenvelope.evaluation.estimator import Estimator
from redenvelope.evaluation.evaluate import evaluate_partitions
from redenvelope.fitting.contenders import contender, evidence_of
from redenvelope.fitting.encoded import EncodedLog
from redenvelope.fitting.scouting import grid_of_prices
from redenvelope.fitting.settings import SearchSettings
from redenvelope.plan.policy import DeployedPolicy
from redenvelope.plan.record import PricePoint, SearchRecord
from redenvelope.policies.pricing import Pricing

__all__ = ["Search", "Searched", "curve_table", "land", "safety_margin"]

FloatArray = NDArray[np.float64]

_SHOWN = 5  # prices on either side of the one found that the record keeps


@dataclass(frozen=True, eq=False)
class Searched:
    """The price that was found, and how."""

    budget: float
    """That was asked for, or that the reward takes."""
    landing: Landing
    """On the costs with their margin."""
    target: float
    """The cost that the plan aims at: less than the budget where a safety margin was taken."""
    curve: MonotoneCurve
    """As estimated, without any margin."""
    padded: MonotoneCurve
    """With the margin."""
    message: str
    users: int

    @property
    def pricing(self) -> Pricing:
        """What the plan pays."""
        return Pricing(tuple((price,) for price in self.landing.prices), self.landing.shares)

    def record(self) -> SearchRecord:
        """What a plan remembers of it."""
        place = int(np.searchsorted(self.padded.prices, self.landing.price))
        near = slice(max(place - _SHOWN, 0), place + _SHOWN)
        rewards, costs = self.padded.monotone[:, near]
        rows = zip(self.padded.prices[near], costs, rewards, strict=True)
        return SearchRecord(
            status=self.landing.status.value,
            message=self.message,
            target=self.target,
            made_monotone_by=self.curve.mended,
            users=self.users,
            points=tuple(PricePoint(*map(float, row)) for row in rows),
        )


@dataclass(frozen=True, eq=False)
class Search:
    """Looks for prices on one sample of users."""

    sample: EncodedLog
    scouts: EncodedLog
    walkers: EncodedLog
    estimator: Estimator
    settings: SearchSettings
    margin: float
    """Standard errors to stay below a budget, or above a reward."""

    def for_budget(self, policy: DeployedPolicy, budget: float) -> Searched:
        """The price whose cost lands on the budget, less the margin."""
        curve = self._first_curve(policy)
        return land(curve, self._estimate(policy), budget, self.margin, self.settings, len(self.sample.log.users))

    def for_reward(self, policy: DeployedPolicy, reward: float) -> Searched:
        """The cheapest price whose reward reaches a target, and the margin: the cost it takes is aimed at as it is."""
        curve = self._first_curve(policy)
        lowered = _padded(curve, -self.margin, 0.0).monotone[0]
        budget = Frontier(curve.prices, curve.monotone[1], lowered).cost_for(reward)
        return land(curve, self._estimate(policy), budget, 0.0, self.settings, len(self.sample.log.users))

    def for_comparison(self) -> Search:
        """A quicker search, which aims at the budget itself."""
        return replace(self, margin=0.0, settings=replace(self.settings, prices=self.settings.compared_prices))

    def _first_curve(self, policy: DeployedPolicy) -> MonotoneCurve:
        return self._estimate(policy)(grid_of_prices(policy, self.scouts, self.settings))

    def _estimate(self, policy: DeployedPolicy) -> Callable[[FloatArray], MonotoneCurve]:
        def estimate(prices: FloatArray) -> MonotoneCurve:
            own = contender(policy, prices, self.walkers)
            whole = self.sample.log
            evidence = [evidence_of(batch, [own.values(batch)], whole) for batch in self.sample.batches()]
            found = evaluate_partitions(evidence, [self.estimator])[self.estimator.name]
            return MonotoneCurve(prices, found.value, found.standard_error)

        return estimate


def safety_margin(confidence: float, search_users: int, certify_users: int, passing_chance: float) -> float:
    """Standard errors of the search sample to stay below the budget, so that a certificate will most likely pass.

    The certificate adds its own standard errors to an estimate that differs from the search sample's by both folds'
    noise; the certify fold's error is that of the search sample times the root of the ratio of users.
    """
    ratio = search_users / certify_users
    return float(ndtri(confidence) * np.sqrt(ratio) + ndtri(passing_chance) * np.sqrt(1 + ratio))


def land(
    curve: MonotoneCurve,
    estimate: Callable[[FloatArray], MonotoneCurve],
    budget: float,
    margin: float,
    settings: SearchSettings,
    users: int,
) -> Searched:
    """The price, or the mixture of two, whose cost with `margin` standard errors added is the budget.

    `estimate` gives the curve at further prices, where this one jumps across the budget.
    """
    for _ in range(settings.refinements):
        gap = _jump(_padded(curve, 0.0, margin), budget, settings.largest_jump)
        if gap is None:
            break
        curve = curve.merge(estimate(_between(curve.prices, gap, settings.further_prices)))
    padded = _padded(curve, 0.0, margin)
    landing = padded.price_for(budget, settings.largest_jump)
    costs = [curve.cost_at(price) for price in landing.prices]
    target = float(np.dot(landing.shares, costs))
    return Searched(budget, landing, target, curve, padded, _message(landing, budget, target, margin), users)


def curve_table(curve: MonotoneCurve, confidence: float) -> pl.DataFrame:
    """The curve as a table with two-sided bounds, by rising price."""
    reach = float(ndtri((1 + confidence) / 2)) * curve.errors
    (reward, cost), (low_reward, low_cost), (high_reward, high_cost) = (
        curve.monotone,
        curve.outcomes - reach,
        curve.outcomes + reach,
    )
    columns = {"dual": curve.prices, "cost": cost, "reward": reward, "cost_lower": low_cost, "cost_upper": high_cost}
    return pl.DataFrame(columns | {"reward_lower": low_reward, "reward_upper": high_reward})


def _padded(curve: MonotoneCurve, reward_margin: float, cost_margin: float) -> MonotoneCurve:
    """The curve with so many standard errors added to rewards and to costs."""
    margins = np.array([[reward_margin], [cost_margin]])
    return MonotoneCurve(curve.prices, curve.outcomes + margins * curve.errors, curve.errors)


def _jump(curve: MonotoneCurve, budget: float, largest: float) -> int | None:
    """Where the curve jumps across the budget: the place of the last cost above it; None where it does not."""
    costs = curve.monotone[1]
    above = int(np.count_nonzero(costs > budget))
    if above in (0, len(costs)) or costs[above - 1] - costs[above] <= largest * abs(budget):
        return None
    return above - 1


def _between(prices: FloatArray, left: int, count: int) -> FloatArray:
    """Prices inside of a gap, evenly; past the last finite one, ever larger."""
    low, high = float(prices[left]), float(prices[left + 1])
    if np.isfinite(high):
        return np.linspace(low, high, count + 2)[1:-1]
    finite = prices[np.isfinite(prices) & (prices > 0)]
    unit = low if low > 0 else float(finite.min()) if len(finite) else 1.0
    return np.asarray(unit * 2.0 ** np.arange(1, count + 1))


def _message(landing: Landing, budget: float, target: float, margin: float) -> str:
    if landing.status is DualStatus.BUDGET_SLACK:
        return (
            f"The budget of {budget:.6g} a user is more than the best plan can use: it earns {landing.reward:.6g} for "
            f"{target:.6g}, and more budget would buy nothing."
        )
    if landing.status is DualStatus.BUDGET_INFEASIBLE:
        doubt = ", its uncertainty included" if margin > 0 else ""
        return (
            f"No plan is as cheap as {budget:.6g} a user: the cheapest one costs {landing.cost:.6g}{doubt}, which is "
            "the least budget that would do."
        )
    below = ", below the budget by what the uncertainty of the estimates asks for" if margin > 0 else ""
    return (
        f"The plan aims at {target:.4g} of {budget:.4g} a user{below}; one more unit of budget would earn about "
        f"{landing.price:.4g} more."
    )
