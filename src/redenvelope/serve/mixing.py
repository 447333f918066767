"""From what a plan should cost to the prices it then pays: a place on its ladder, or the best mixture of its plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from redenvelope.dual.master import best_mixture
from redenvelope.dual.several import Priced
from redenvelope.plan.ladder import Followed, Ladder, Place
from redenvelope.plan.plan import Plan
from redenvelope.plan.record import PricedPlan
from redenvelope.policies.pricing import Pricing

__all__ = ["OnePrice", "Prices", "SeveralPrices", "place_for", "prices_of"]

FloatArray = NDArray[np.float64]
# A fine, in spreads of the reward for a budget's unit, that keeps the targets wherever plans can.
_FINE = 1e4
_LEAST_SHARE = 1e-6


class Prices(Protocol):
    """Prices for what a plan should cost."""

    @property
    def rows(self) -> int:
        """Rows of prices that are mixed, at most."""
        ...

    def at(self, costs: FloatArray) -> Pricing:
        """The prices at which a user costs each budget so much, [budgets]."""
        ...


def prices_of(plan: Plan) -> Prices:
    """Prices of a plan."""
    if len(plan.ladder.rungs[0].prices) == 1:
        return OnePrice(plan.ladder)
    return SeveralPrices(plan.ladder, plan.record.priced)


def place_for(ladder: Ladder, cost: float, budget: int = 0) -> Place:
    """The place on a ladder whose plan costs so much a user, mixed of two rungs; its ends where it is beyond them."""
    costs = np.maximum.accumulate(ladder.means[1 + budget])
    if cost <= costs[0]:
        return Place(0)
    if cost >= costs[-1]:
        return Place(int(np.argmax(costs >= costs[-1])))
    rung = int(np.searchsorted(costs, cost, side="right")) - 1
    share = float((cost - costs[rung]) / (costs[rung + 1] - costs[rung]))
    return Place(rung, share)


class OnePrice:
    """Of one budget: a place on the ladder."""

    rows = 2

    def __init__(self, ladder: Ladder) -> None:
        self._ladder = ladder

    def at(self, costs: FloatArray) -> Pricing:
        """See Prices."""
        return self._ladder.pricing(place_for(self._ladder, float(costs[0])))


class SeveralPrices:
    """Of several budgets: the mixture of greatest reward among the plan's own plans that keeps what they should cost.

    Every budget's price moves by itself: the plans are those that were met for tighter and wider budgets, all together
    and each alone. Of a plan that does not know them, the rungs of its ladder are mixed.
    """

    def __init__(self, ladder: Ladder, priced: Sequence[PricedPlan] = ()) -> None:
        self._columns: list[tuple[Followed, ...]] = [(Followed(one.prices, 1.0),) for one in priced]
        outcomes = np.array([one.mean for one in priced]).T
        if not priced:
            self._columns, outcomes = [rung.followed for rung in ladder.rungs], ladder.means
        prices = np.array([each[0].prices for each in self._columns])
        self._plans = Priced(prices, outcomes)
        self._fine = _FINE * (float(np.ptp(outcomes[0])) or 1.0)
        self._most = np.abs(outcomes[1:]).max(axis=1)

    @property
    def rows(self) -> int:
        """See Prices: a corner of the program mixes one more plan than there are budgets."""
        return (len(self._most) + 1) * max(len(column) for column in self._columns)

    def at(self, costs: FloatArray) -> Pricing:
        """See Prices."""
        units = np.where(costs > 0, costs, np.where(self._most > 0, self._most, 1.0))
        shares = best_mixture(self._plans, costs, units, self._fine).shares
        rows: dict[tuple[float, ...], float] = {}
        for column in np.flatnonzero(shares > _LEAST_SHARE):
            for each in self._columns[column]:
                rows[each.prices] = rows.get(each.prices, 0.0) + float(shares[column]) * each.share
        whole = sum(rows.values())
        return Pricing(tuple(rows), tuple(share / whole for share in rows.values()))
