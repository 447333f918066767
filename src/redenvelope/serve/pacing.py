"""Pacing: the prices solved again from what is left, read off the plan's own ladder, moved no faster than is stated.

What is left per user, (total − spent − expected of open holds) / users still to come, is what the plan should now cost.
The plan's belief of its cost is held against what was spent, so that a world that spends faster or slower than the log
said asks for a place on the ladder that much lower or higher. With several budgets each has a target of its own, and
the prices are those of the best mixture of the ladder's plans that keeps all targets.
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
    """How far a campaign is."""

    balances: tuple[Balance, ...]
    """Of the plan's budgets, in its order."""
    decided: tuple[int, ...]
    """Decisions at each step, [steps]."""


@dataclass(frozen=True)
class Belief:
    """What pacing believes of a budget, and why it did what it did; amounts are in units of currency."""

    users_to_come: float
    """Whole users, those at a later step in part."""
    free: float
    """Total, less what was spent and what is expected of open holds."""
    cost_ratio: float
    """What users really cost beside what the plan's ladder says they do, lately."""
    wanted: float | None
    """What a user to come may cost."""
    target: float
    """Mean cost per user that the plan is asked for, by its own estimate; it moves towards wanted / cost_ratio."""
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
    """Keeps the prices of a running campaign. Ask `solve` every so many decisions."""

    def __init__(self, plan: Plan, settings: PacingSettings, audience: int, minor_units: Sequence[int]) -> None:
        self._settings, self._audience = settings, audience
        self._budgets = [Paced(plan, place, units, settings) for place, units in enumerate(minor_units)]
        self._own, self._steps = plan.policy.pricing, plan.policy.specification.steps
        self._mixer = PriceMixer(plan.ladder, plan.record.priced)
        self.pricing = plan.policy.pricing
        self.beliefs: tuple[Belief, ...] = ()
        """Of every budget, in the plan's order."""

    @property
    def every(self) -> int:
        """Decisions between two solutions."""
        return self._settings.every or max(20, self._audience * self._steps // 500)

    @property
    def rows(self) -> int:
        """Rows of prices that it may mix, at most."""
        return max(len(self._own.shares), self._mixer.rows)

    def solve(self, progress: Progress) -> bool:
        """Look at the money again; whether the prices changed."""
        looks = [
            one.look(balance, progress.decided, self._audience)
            for one, balance in zip(self._budgets, progress.balances, strict=True)
        ]
        if all(look.to_come <= 0 for look in looks):
            return self._keep(looks, ["nobody is expected any more"] * len(looks))
        if any(one.target is None for one in self._budgets):
            return self._begin(looks)
        band = self._settings.dead_band
        if all(one.is_within(look, band) for one, look in zip(self._budgets, looks, strict=True)):
            return self._keep(looks, [f"the target is within {band:.0%} of what it should be"] * len(looks))
        return self._move(looks, [one.move(look) for one, look in zip(self._budgets, looks, strict=True)])

    def _begin(self, looks: Sequence[Look]) -> bool:
        """The first price: the plan's own where that is what the money is for, else the place that costs so much."""
        near = 2 * self._settings.dead_band + 0.05
        if all(one.suits(look, near) for one, look in zip(self._budgets, looks, strict=True)):
            for one in self._budgets:
                one.target = one.own_cost
            return self._keep(looks, ["the plan's own price"] * len(looks))
        return self._move(looks, [one.begin(look) for one, look in zip(self._budgets, looks, strict=True)])

    def _move(self, looks: Sequence[Look], why: Sequence[str]) -> bool:
        before = self.pricing
        self.pricing = self._mixer.at(np.array([one.target for one in self._budgets]))
        self._keep(looks, why)
        return self.pricing != before

    def _keep(self, looks: Sequence[Look], why: Sequence[str]) -> bool:
        self.beliefs = tuple(
            Belief(look.to_come, look.free, look.ratio, look.wanted, one.aim, said)
            for one, look, said in zip(self._budgets, looks, why, strict=True)
        )
        return False


class Look(NamedTuple):
    """What one look at a budget shows; amounts are in units of currency."""

    to_come: float
    free: float
    ratio: float
    wanted: float | None
    """What a user to come may cost; None where nobody comes."""
    asked: float
    """What the plan should be asked to cost, by its own belief."""


def users_to_come(audience: int, decided: Sequence[int], weights: FloatArray) -> float:
    """How many users' worth of decisions is still to come: of each step [steps], by what it costs the plan."""
    left = np.maximum(audience - np.asarray(decided, dtype=np.float64), 0.0)
    return float((left * weights).sum())


class Paced:
    """A budget of a running campaign."""

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
        """Mean cost per user that the plan is asked for; None before the first look."""

    @property
    def aim(self) -> float:
        """The target, or what the plan costs by itself."""
        return self.own_cost if self.target is None else self.target

    def look(self, balance: Balance, decided: Sequence[int], audience: int) -> Look:
        """What is left for whom, and what that asks of the plan."""
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
        """Whether the plan's own price is right for what is left; more than a slack budget needs is right too."""
        if self.own_cost <= 0:
            return self._slack
        change = look.asked / self.own_cost - 1
        return abs(change) <= near or (self._slack and change > 0)

    def is_within(self, look: Look, band: float) -> bool:
        """Whether the target is near enough to what it should be."""
        return abs(self._change(look)) <= band

    def begin(self, look: Look) -> str:
        """Take what is asked at once; why."""
        self.target = look.asked
        return f"{look.wanted or 0.0:.4g} per user is left to spend; the plan was made for {self.own_cost:.4g}"

    def move(self, look: Look) -> str:
        """Move towards what is asked, by a bounded step; why."""
        before, step = self.aim, self._settings.largest_step
        if self.is_within(look, self._settings.dead_band):
            return f"the target is within {self._settings.dead_band:.0%} of what it should be"
        least = self._range[1] * 1e-3  # from a target of nothing, a share of it would never get away
        self.target = min(max(look.asked, before * (1 - step)), max(before * (1 + step), least))
        bounded = "" if self.target == look.asked else f", moved by at most {step:.0%} at once"
        costs = before * look.ratio
        return f"{look.wanted or 0.0:.4g} per user is left to spend; the plan at this price costs {costs:.4g}{bounded}"

    def _change(self, look: Look) -> float:
        return look.asked / self.aim - 1 if self.aim > 0 else float(look.asked > 0)

    def _ratios(self, balance: Balance, decided: Sequence[int]) -> tuple[float, float]:
        """What closed decisions cost beside what was expected of them, and what is expected of decisions beside what
        the ladder says of the target: the ladder was measured on other users than those who come."""
        memory = max(self._settings.memory_share * balance.total, 1.0)
        prior = max(self._settings.prior_share * balance.total, 1.0)
        counts = balance.measure == COUNTED
        closed = balance.spent if counts else balance.closed_thousandths / THOUSANDTHS
        # What is counted costs what it counts: there is nothing to be wrong about.
        costing = 1.0 if counts else self._costing.seen(balance.spent, closed, memory, prior)
        now = np.asarray(decided, dtype=np.float64)
        planned = float(((now - self._seen_decided) * self._weights).sum()) * self.aim * self._minor_units
        self._seen_decided = now
        expected = closed + balance.expected_thousandths / THOUSANDTHS
        return costing, self._planning.seen(expected, self._planning.before[1] + planned, memory, prior)


class _Ratio:
    """Two sums that grow, and their ratio lately: older growth is forgotten, and a prior says 1."""

    def __init__(self) -> None:
        self.before = (0.0, 0.0)
        self._sums = (0.0, 0.0)

    def seen(self, one: float, other: float, memory: float, prior: float) -> float:
        """The ratio of one to the other now; both are given as they stand."""
        growth = (one - self.before[0], other - self.before[1])
        self.before = (one, other)
        decay = float(np.exp(-max(growth[1], 0.0) / memory))
        self._sums = (decay * self._sums[0] + growth[0], decay * self._sums[1] + growth[1])
        return float(np.clip((self._sums[0] + prior) / (self._sums[1] + prior), 0.1, 10.0))


def _step_weights(plan: Plan, place: int) -> FloatArray:
    """Share of a user's cost of a budget that each step has, by the plan, [steps].

    Equal shares of the steps in which it counts, where that was not looked at.
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


# A penalty, in spreads of the reward for a budget's unit, that keeps mixtures within the targets wherever plans can.
_FINE = 1e4
_LEAST_SHARE = 1e-6


class PriceMixer:
    """From what a plan should cost to the prices that it then pays.

    The rungs of a ladder stand in the order of one budget's cost: there a target is a place on the ladder. Several
    costs have no such order. Their targets are met by the mixture of greatest reward among the plans that were priced
    for tighter and wider budgets, all together and each alone, so that every budget's price moves by itself; of a plan
    that does not know them, the rungs are mixed.
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
        """Rows of prices that are mixed, at most: one more plan than there are budgets."""
        return len(self._plans.outcomes) * max(len(column) for column in self._columns)

    def at(self, costs: FloatArray) -> Pricing:
        """The prices at which a user costs each budget so much, [budgets]."""
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
    """The place on a ladder whose plan costs so much a user, mixed of two rungs; its ends where it is beyond them."""
    costs = np.maximum.accumulate(ladder.means[1 + budget])
    if cost <= costs[0]:
        return Place(0)
    if cost >= costs[-1]:
        return Place(int(np.argmax(costs >= costs[-1])))
    rung = int(np.searchsorted(costs, cost, side="right")) - 1
    share = float((cost - costs[rung]) / (costs[rung + 1] - costs[rung]))
    return Place(rung, share)
