"""One budget's curve from price to reward and cost: estimated at some prices, made monotone, and read in between."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from redenvelope.arrays import FloatArray
from redenvelope.dual.frontier import falling
from redenvelope.dual.solution import DualStatus
from redenvelope.errors import ProblemError, UsageError
from redenvelope.prices import checked_prices

# Neighbouring costs further apart than this share of what is wanted are a jump, and their plans are mixed.
_JUMP = 0.02
# A price in between must land this closely; where prices are too close together for that, their plans are mixed.
_PRECISION = 1e-12


@dataclass(frozen=True)
class Landing:
    """One price, or two that users are drawn to once each, and what they earn and cost by the curve's account."""

    status: DualStatus
    """converged; budget_slack or budget_infeasible where the curve ends before what is wanted, and its end is taken."""
    prices: tuple[float, ...]
    """Rising, [one or two]."""
    shares: tuple[float, ...]
    """Share of users at each of the prices, [one or two]."""
    reward: float
    cost: float

    @property
    def price(self) -> float:
        """The price of the cheaper plan."""
        return self.prices[-1]


@dataclass(frozen=True, eq=False)
class MonotoneCurve:
    """Reward and cost at a table of prices, estimated with errors. The truth never rises with the price, so the nearest
    table that never rises is used; between neighbouring prices it is straight on the scale λ / (λ + unit), which maps
    prices from 0 to infinity to [0, 1] whatever the unit of money.

    It is a price function.
    """

    prices: FloatArray
    """[points], rising; infinity may be the last."""
    outcomes: FloatArray
    """Reward and cost as estimated, [outcomes, points]."""
    errors: FloatArray
    """Standard errors, [outcomes, points]."""

    def __post_init__(self) -> None:
        for name in ("prices", "outcomes", "errors"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        points, rising = len(self.prices), (self.prices[1:] > self.prices[:-1]).all()
        if self.prices.ndim != 1 or not points or not (self.prices >= 0).all() or not rising:
            raise ProblemError("the prices of a curve must be numbers of at least 0, each above the one before")
        for name in ("outcomes", "errors"):
            if getattr(self, name).shape != (2, points) or not np.isfinite(getattr(self, name)).all():
                raise ProblemError(
                    f"the {name} of a curve must be finite numbers of shape {(2, points)}, rewards and then costs, "
                    f"not of shape {getattr(self, name).shape}"
                )

    @cached_property
    def monotone(self) -> FloatArray:
        """The nearest outcomes that never rise with the price, each weighted by its error, [outcomes, points]."""
        return np.stack([falling(*pair) for pair in zip(self.outcomes, self.errors, strict=True)])

    @property
    def mended(self) -> float:
        """The most that a cost was moved to make the curve fall."""
        return float(np.abs(self.monotone[1] - self.outcomes[1]).max())

    def merge(self, other: MonotoneCurve) -> MonotoneCurve:
        """The points of both curves; a price that both have keeps the estimate of this one."""
        prices = np.concatenate([self.prices, other.prices])
        kept = np.unique(prices, return_index=True)[1]
        outcomes = np.concatenate([self.outcomes, other.outcomes], axis=1)[:, kept]
        return MonotoneCurve(prices[kept], outcomes, np.concatenate([self.errors, other.errors], axis=1)[:, kept])

    def __call__(self, prices: FloatArray, /) -> FloatArray:
        """Prices [prices, 1] -> outcomes [outcomes, prices]; beyond its ends the curve stays as it is there."""
        asked = checked_prices(prices)[:, 0]
        left = np.clip(np.searchsorted(self.prices, asked, side="right") - 1, 0, max(len(self.prices) - 2, 0))
        right = np.minimum(left + 1, len(self.prices) - 1)
        place = _place(asked, self.prices[left], self.prices[right], self._unit)
        return np.asarray((1 - place) * self.monotone[:, left] + place * self.monotone[:, right])

    def reward_at(self, price: float) -> float:
        """The reward at a price."""
        return float(self(np.array([[price]]))[0, 0])

    def cost_at(self, price: float) -> float:
        """The cost at a price."""
        return float(self(np.array([[price]]))[1, 0])

    def price_for(self, cost: float, jump: float = _JUMP) -> Landing:
        """Where the cost is as wanted, and never more: the exact inverse of the curve.

        Where the neighbouring costs differ by more than `jump`, as a share of the cost wanted, no plan need lie
        between them, and the two are mixed instead. Below its least cost the curve has nothing to offer: the landing
        is then the last point, infeasible.
        """
        if np.isnan(cost):
            raise UsageError("the cost to land on is not a number; give the mean cost a user may have")
        costs = self.monotone[1]
        right = int(np.count_nonzero(costs > cost))
        if right == len(costs):
            return self._at(DualStatus.BUDGET_INFEASIBLE, right - 1)
        if right == 0 or costs[right] == cost:
            return self._at(DualStatus.BUDGET_SLACK if costs[right] < cost else DualStatus.CONVERGED, right)
        share = _share_for(cost, float(costs[right - 1]), float(costs[right]))
        if costs[right - 1] - costs[right] <= jump * abs(cost):
            price = self._price_within(cost, right, share)
            if 0 <= cost - self.cost_at(price) <= _PRECISION * abs(cost):
                return Landing(DualStatus.CONVERGED, (price,), (1.0,), self.reward_at(price), self.cost_at(price))
        return self._mixed(right, share)

    def price_for_reward(self, reward: float) -> Landing:
        """The mixture of neighbouring prices whose reward is as wanted, and never less.

        Slack is a reward that the cheapest point already earns, infeasible one that no point does.
        """
        if np.isnan(reward):
            raise UsageError("the reward to land on is not a number; give the mean reward a user should bring")
        rewards = self.monotone[0]
        right = int(np.count_nonzero(rewards >= reward))
        if right == 0:
            return self._at(DualStatus.BUDGET_INFEASIBLE, 0)
        if right == len(rewards) or rewards[right - 1] == reward:
            slack = rewards[right - 1] > reward
            return self._at(DualStatus.BUDGET_SLACK if slack else DualStatus.CONVERGED, right - 1)
        # Of minus the reward not a bit more: of the reward not a bit less.
        return self._mixed(right, _share_for(-reward, -float(rewards[right - 1]), -float(rewards[right])))

    def _price_within(self, cost: float, right: int, share: float) -> float:
        """The price between a point and the one before, `share` of the way back to that; rounding may not cost more."""
        low, high = float(self.prices[right - 1]), float(self.prices[right])
        place = (1 - share) * (1.0 if np.isinf(high) else (high - low) / (high + self._unit))
        price = low + place * (low + self._unit) / (1 - place) if place < 1 else high
        step = float(np.spacing(price))
        while price < high and self.cost_at(price) > cost:
            price, step = price + step, 2 * step
        return min(price, high)

    def _at(self, status: DualStatus, point: int) -> Landing:
        reward, cost = self.monotone[:, point].tolist()
        return Landing(status, (float(self.prices[point]),), (1.0,), reward, cost)

    def _mixed(self, right: int, share: float) -> Landing:
        """A point and the one before it, which gets the share."""
        (low_reward, reward), (low_cost, cost) = self.monotone[:, right - 1 : right + 1].tolist()
        return Landing(
            DualStatus.CONVERGED,
            (float(self.prices[right - 1]), float(self.prices[right])),
            (share, 1 - share),
            share * low_reward + (1 - share) * reward,
            share * low_cost + (1 - share) * cost,
        )

    @cached_property
    def _unit(self) -> float:
        finite = self.prices[np.isfinite(self.prices) & (self.prices > 0)]
        return float(np.median(finite)) if len(finite) else 1.0


def _share_for(wanted: float, first: float, second: float) -> float:
    """The share of the first in a mixture of two, around what is wanted, that comes to that, and not to a bit more."""
    share = (wanted - second) / (first - second)
    step = float(np.spacing(share)) * (1 if first < second else -1)
    while 0 < share < 1 and share * first + (1 - share) * second > wanted:
        share, step = min(1.0, max(0.0, share + step)), 2 * step
    return share


def _place(prices: FloatArray, low: FloatArray, high: FloatArray, unit: float) -> FloatArray:
    """How far prices are from low to high on the scale λ / (λ + unit), from 0 to 1, all [prices].

    Written with differences of prices: differences of two places would lose what neighbours differ by.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        way = np.where(np.isinf(prices), 1.0, (prices - low) / (prices + unit))
        whole = np.where(np.isinf(high), 1.0, (high - low) / (high + unit))
        return np.where(whole > 0, np.clip(way / whole, 0.0, 1.0), 0.0)
