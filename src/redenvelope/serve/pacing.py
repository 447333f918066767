"""Pacing: the price is solved again from what is left of the budget, on the plan's own ladder, in bounded steps.

What is left per user, (total − spent − expected cost of open holds) / users still to come, is what the plan should now
cost. The cost that the plan predicts is compared with what was spent; if users cost more or less than the log said, the
target on the ladder is lowered or raised by that ratio. With several budgets each has its own target, and the prices
are those of the mixture of the ladder's plans that has the greatest reward within all targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from redenvelope.arrays import FloatArray
from redenvelope.dual.column_generation import best_mixture
from redenvelope.dual.oracle import Priced
from redenvelope.ledger.records import COUNTED, THOUSANDTHS, Balance
from redenvelope.plan.ladder import Ladder, Place, PriceShare
from redenvelope.plan.plan import Plan
from redenvelope.plan.record import PricedPlan
from redenvelope.policies.pricing import Pricing
from redenvelope.serve.settings import PacingSettings


@dataclass(frozen=True)
class Progress:
    """The state of a running campaign that pacing needs."""

    balances: tuple[Balance, ...]
    """Of the plan's budgets, in its order."""
    decided: tuple[int, ...]
    """Decisions at each step, [steps]."""


@dataclass(frozen=True)
class Belief:
    """The state of pacing for one budget, and the reason for its last step; amounts are in units of currency."""

    users_to_come: float
    """Whole users; users who have some decisions behind them count in part."""
    free: float
    """Total, minus what was spent and the expected cost of open holds."""
    cost_ratio: float
    """Recent actual cost of users divided by the cost that the ladder predicts."""
    wanted: float | None
    """What a user still to come may cost."""
    target: float
    """Mean cost per user asked of the plan, in its own estimate; it moves towards wanted / cost_ratio."""
    why: str

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "users_to_come": round(self.users_to_come, 2),
            "free": round(self.free, 2),
            "cost_ratio": round(self.cost_ratio, 4),
            "wanted_cost_a_user": self.wanted,
            "target_cost_a_user": self.target,
            "why": self.why,
        }


class Pacer:
    """Updates the prices of a running campaign; call `solve` after every `every` decisions."""

    def __init__(self, plan: Plan, settings: PacingSettings, audience: int, minor_units: Sequence[int]) -> None:
        self._settings, self._audience = settings, audience
        self._budgets = [Paced(plan, place, units, settings) for place, units in enumerate(minor_units)]
        self._own, self._steps = plan.policy.pricing, plan.policy.specification.steps
        self._mixer = PriceMixer(plan.ladder, plan.record.priced)
        self.pricing = plan.policy.pricing
        self.beliefs: tuple[Belief, ...] = ()
        """One per budget, in the plan's order."""

    @property
    def every(self) -> int:
        """Decisions between two updates of the prices."""
        return self._settings.every or max(20, self._audience * self._steps // 500)

    @property
    def rows(self) -> int:
        """The most rows of prices that it may mix."""
        return max(len(self._own.shares), self._mixer.rows)

    def solve(self, progress: Progress) -> bool:
        """Update the beliefs, and the prices if the targets moved; returns whether the prices changed."""
        looks = [
            one.look(balance, progress.decided, self._audience)
            for one, balance in zip(self._budgets, progress.balances, strict=True)
        ]
        if all(look.to_come <= 0 for look in looks):
            self._note(looks, ["nobody is expected any more"] * len(looks))
            return False
        if any(one.target is None for one in self._budgets):
            return self._begin(looks)
        band = self._settings.dead_band
        if all(one.is_within(look, band) for one, look in zip(self._budgets, looks, strict=True)):
            self._note(looks, [f"the target is within {band:.0%} of what it should be"] * len(looks))
            return False
        return self._move(looks, [one.move(look) for one, look in zip(self._budgets, looks, strict=True)])

    def _begin(self, looks: Sequence[Look]) -> bool:
        """The first price: the plan's own if that fits what is left per user, else the ladder's place that does."""
        near = 2 * self._settings.dead_band + 0.05
        if all(one.suits(look, near) for one, look in zip(self._budgets, looks, strict=True)):
            for one in self._budgets:
                one.target = one.own_cost
            self._note(looks, ["the plan's own price"] * len(looks))
            return False
        return self._move(looks, [one.begin(look) for one, look in zip(self._budgets, looks, strict=True)])

    def _move(self, looks: Sequence[Look], why: Sequence[str]) -> bool:
        before = self.pricing
        self.pricing = self._mixer.at(np.array([one.target for one in self._budgets]))
        self._note(looks, why)
        return self.pricing != before

    def _note(self, looks: Sequence[Look], why: Sequence[str]) -> None:
        self.beliefs = tuple(
            Belief(look.to_come, look.free, look.ratio, look.wanted, one.aim, said)
            for one, look, said in zip(self._budgets, looks, why, strict=True)
        )


class Look(NamedTuple):
    """One reading of a budget; amounts are in units of currency."""

    to_come: float
    free: float
    ratio: float
    wanted: float | None
    """What a user still to come may cost; None if nobody is to come."""
    asked: float
    """What the plan should cost per user, in its own estimate."""


def users_to_come(audience: int, decided: Sequence[int], weights: FloatArray) -> float:
    """How many users' worth of decisions is still to come; `weights` [steps] are the steps' shares of the cost."""
    left = np.maximum(audience - np.asarray(decided, dtype=np.float64), 0.0)
    return float((left * weights).sum())


class Paced:
    """Pacing of one budget: its target, and how actual costs compare with predicted ones."""

    def __init__(self, plan: Plan, place: int, minor_units: int, settings: PacingSettings) -> None:
        self._settings, self._minor_units = settings, minor_units
        figure = plan.certificate.budgets[place]
        self.own_cost, self._slack = float(figure.cost.estimate), figure.dual == 0
        costs = plan.ladder.means[1 + place]
        self._range = (float(costs.min()), float(costs.max()))
        self._weights = _step_weights(plan, place)
        self._seen_decided = np.zeros(len(self._weights))
        self._costing, self._planning = _Ratio(), _Ratio()
        self.target: float | None = None
        """Mean cost per user asked of the plan; None before the first look."""

    @property
    def aim(self) -> float:
        """The target, or before there is one the plan's own cost."""
        return self.own_cost if self.target is None else self.target

    def look(self, balance: Balance, decided: Sequence[int], audience: int) -> Look:
        """What is left, how many users it is for, and what the plan should therefore cost."""
        costing, planning = self._ratios(balance, decided)
        ratio = costing * planning
        expected = balance.expected_thousandths / THOUSANDTHS * costing
        free = (balance.total - balance.spent - expected) / self._minor_units
        to_come = users_to_come(audience, decided, self._weights)
        if to_come <= 0:
            return Look(to_come, free, ratio, None, self.aim)
        wanted = max(free, 0.0) / to_come
        return Look(to_come, free, ratio, wanted, min(max(wanted / ratio, self._range[0]), self._range[1]))

    def suits(self, look: Look, near: float) -> bool:
        """Whether the plan's own price fits what is left; with a slack budget, more money than needed fits too."""
        if self.own_cost <= 0:
            return self._slack
        change = look.asked / self.own_cost - 1
        return abs(change) <= near or (self._slack and change > 0)

    def is_within(self, look: Look, band: float) -> bool:
        """Whether the target is within `band` of what it should be."""
        return abs(self._change(look)) <= band

    def begin(self, look: Look) -> str:
        """Set the target to what is asked; returns the reason."""
        self.target = look.asked
        return f"{look.wanted or 0.0:.4g} per user is left to spend; the plan expects to spend {self.own_cost:.4g}"

    def move(self, look: Look) -> str:
        """Move the target towards what is asked, by a bounded step; returns the reason."""
        before, step = self.aim, self._settings.largest_step
        if self.is_within(look, self._settings.dead_band):
            return f"the target is within {self._settings.dead_band:.0%} of what it should be"
        least = self._range[1] * 1e-3  # from a target of 0, a relative step would stay at 0
        self.target = min(max(look.asked, before * (1 - step)), max(before * (1 + step), least))
        bounded = "" if self.target == look.asked else f", moved by at most {step:.0%} at once"
        costs = before * look.ratio
        return f"{look.wanted or 0.0:.4g} per user is left to spend; the plan at this price costs {costs:.4g}{bounded}"

    def _change(self, look: Look) -> float:
        return look.asked / self.aim - 1 if self.aim > 0 else float(look.asked > 0)

    def _ratios(self, balance: Balance, decided: Sequence[int]) -> tuple[float, float]:
        """Actual over expected cost of closed decisions, and expected cost of decisions over the ladder's cost at the
        target. The second differs from 1 because the ladder was measured on other users than those who come."""
        memory = max(self._settings.memory_share * balance.total, 1.0)
        prior = max(self._settings.prior_share * balance.total, 1.0)
        counts = balance.measure == COUNTED
        closed = balance.spent if counts else balance.closed_thousandths / THOUSANDTHS
        # The cost of a counted action is known exactly.
        costing = 1.0 if counts else self._costing.seen(balance.spent, closed, memory, prior)
        now = np.asarray(decided, dtype=np.float64)
        planned = float(((now - self._seen_decided) * self._weights).sum()) * self.aim * self._minor_units
        self._seen_decided = now
        expected = closed + balance.expected_thousandths / THOUSANDTHS
        return costing, self._planning.seen(expected, self._planning.before[1] + planned, memory, prior)


class _Ratio:
    """The ratio of the recent growth of two sums: older growth decays exponentially, and a prior pulls it towards 1."""

    def __init__(self) -> None:
        self.before = (0.0, 0.0)
        self._sums = (0.0, 0.0)

    def seen(self, one: float, other: float, memory: float, prior: float) -> float:
        """The current ratio of one to the other; both are given as running totals."""
        growth = (one - self.before[0], other - self.before[1])
        self.before = (one, other)
        decay = float(np.exp(-max(growth[1], 0.0) / memory))
        self._sums = (decay * self._sums[0] + growth[0], decay * self._sums[1] + growth[1])
        return float(np.clip((self._sums[0] + prior) / (self._sums[1] + prior), 0.1, 10.0))


def _step_weights(plan: Plan, place: int) -> FloatArray:
    """Share of each step in a user's cost of a budget, by the plan, [steps].

    Without a record of costs by step: equal shares for the steps in which the budget counts.
    """
    steps, first = plan.policy.specification.steps, plan.policy.encoder.first_step
    charges = plan.policy.source.charges
    charge = None if charges is None else charges.budgets[place]
    counts = np.ones(steps)
    if charge is not None and charge.steps is not None:
        counts = np.isin(np.arange(steps), charge.steps).astype(np.float64)
    costs = np.zeros(steps)
    for one in () if plan.record.shares is None else plan.record.shares.by_step:
        if 0 <= one.step - first < steps:
            if charge is not None and charge.measured is None:
                costs[one.step - first] = one.rows * sum(one.probabilities[action] for action in charge.counted)
            elif charge is None or charge.measured == 1:
                costs[one.step - first] = one.cost
    costs *= counts
    if costs.sum() > 0 and (costs >= 0).all():
        return np.asarray(costs / costs.sum())
    return np.asarray(counts / counts.sum()) if counts.any() else np.full(steps, 1 / steps)


# The penalty for exceeding a target, in spreads of the reward per unit of budget: it keeps mixtures within the targets
# wherever plans can.
_FINE = 1e4
_LEAST_SHARE = 1e-6


class PriceMixer:
    """Turns target costs into the prices at which the plan has those costs.

    The rungs of a ladder are ordered by the cost of one budget, so one target is a place on the ladder. Several costs
    have no such order: their targets are met by the mixture of greatest reward among the plans that were priced for
    tighter and wider budgets, all together and each alone, so that the price of each budget can move by itself. A plan
    without such a record mixes the rungs instead.
    """

    def __init__(self, ladder: Ladder, priced: Sequence[PricedPlan] = ()) -> None:
        self._ladder = ladder
        self._columns: list[tuple[PriceShare, ...]] = [(PriceShare(one.prices, 1.0),) for one in priced]
        outcomes = np.array([one.mean for one in priced]).T
        if not priced:
            self._columns, outcomes = [rung.price_shares for rung in ladder.rungs], ladder.means
        self._plans = Priced(np.array([each[0].prices for each in self._columns]), outcomes)

    @property
    def rows(self) -> int:
        """The most rows of prices in a mixture, which has at most one more plan than there are budgets."""
        return len(self._plans.outcomes) * max(len(column) for column in self._columns)

    def at(self, costs: FloatArray) -> Pricing:
        """The prices at which the mean cost per user of each budget is `costs` [budgets]."""
        if len(costs) == 1:
            return self._ladder.pricing(place_for(self._ladder, float(costs[0])))
        most, rewards = np.abs(self._plans.costs).max(axis=1), self._plans.rewards
        units = np.where(costs > 0, costs, np.where(most > 0, most, 1.0))
        shares = best_mixture(self._plans, costs, units, _FINE * (float(np.ptp(rewards)) or 1.0)).shares
        rows: dict[tuple[float, ...], float] = {}
        for column in np.flatnonzero(shares > _LEAST_SHARE):
            for each in self._columns[column]:
                rows[each.prices] = rows.get(each.prices, 0.0) + float(shares[column]) * each.share
        total = sum(rows.values())
        return Pricing(tuple(rows), tuple(share / total for share in rows.values()))


def place_for(ladder: Ladder, cost: float, budget: int = 0) -> Place:
    """The place on a ladder, between two rungs, whose plan costs `cost` per user; an end of the ladder if beyond it."""
    costs = np.maximum.accumulate(ladder.means[1 + budget])
    if cost <= costs[0]:
        return Place(0)
    if cost >= costs[-1]:
        return Place(int(np.argmax(costs >= costs[-1])))
    rung = int(np.searchsorted(costs, cost, side="right")) - 1
    share = float((cost - costs[rung]) / (costs[rung + 1] - costs[rung]))
    return Place(rung, share)
