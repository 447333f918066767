"""Pacing: the price solved again from what is left, read off the plan's own ladder, moved no faster than is stated.

What is left a user, (total − spent − expected of open holds) / users still to come, is what the plan should now cost.
The plan's belief of its cost is held against what was spent, so that a world that spends faster or slower than the log
said asks for a place on the ladder that much lower or higher.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redenvelope.ledger.records import THOUSANDTHS, Balance
from redenvelope.plan.ladder import Ladder, Place
from redenvelope.plan.plan import Plan
from redenvelope.serve.settings import PacingSettings

__all__ = ["Belief", "Pacer", "Progress", "place_for", "users_to_come"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Progress:
    """How far a campaign is."""

    balance: Balance
    decided: tuple[int, ...]
    """Decisions at each step, [steps]."""


@dataclass(frozen=True)
class Belief:
    """What pacing believes, and why it did what it did; amounts are in units of currency."""

    users_to_come: float
    """Whole users, those at a later step in part."""
    free: float
    """Total, less what was spent and what is expected of open holds."""
    cost_ratio: float
    """What users really cost beside what the plan's ladder says they do, lately."""
    wanted: float | None
    """What a user to come may cost."""
    target: float
    """What the plan is asked to cost a user, by its own belief; it moves towards wanted / cost_ratio."""
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


def users_to_come(audience: int, decided: Sequence[int], weights: FloatArray) -> float:
    """How many users' worth of decisions is still to come: of each step [steps], by what it costs the plan."""
    left = np.maximum(audience - np.asarray(decided, dtype=np.float64), 0.0)
    return float((left * weights).sum())


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


class Pacer:
    """Keeps the price of a running campaign. Ask `solve` every so many decisions."""

    def __init__(self, plan: Plan, settings: PacingSettings, audience: int, minor_units: int) -> None:
        self._ladder, self._settings = plan.ladder, settings
        self._audience, self._minor_units = audience, minor_units
        self._weights = _step_weights(plan)
        self._own = plan.policy.pricing
        self._own_cost = float(plan.certificate.cost.estimate)
        costs = self._ladder.means[1]
        self._range = (float(costs.min()), float(costs.max()))
        self._target: float | None = None
        self._seen_decided = np.zeros(len(self._weights))
        self._costing = _Ratio()
        self._planning = _Ratio()
        self.pricing = plan.policy.pricing
        self.belief: Belief | None = None

    @property
    def every(self) -> int:
        """Decisions between two solutions."""
        return self._settings.every or max(20, self._audience * len(self._weights) // 500)

    def solve(self, progress: Progress) -> bool:
        """Look at the money again; whether the price changed."""
        balance = progress.balance
        costing, planning = self._ratios(progress)
        ratio = costing * planning
        expected = balance.expected_thousandths / THOUSANDTHS * costing
        free = (balance.total - balance.spent - expected) / self._minor_units
        to_come = users_to_come(self._audience, progress.decided, self._weights)
        if to_come <= 0:
            return self._keep(to_come, free, ratio, None, "nobody is expected any more")
        wanted = max(free, 0.0) / to_come
        asked = min(max(wanted / ratio, self._range[0]), self._range[1])
        if self._target is None:
            return self._begin(to_come, free, ratio, wanted, asked)
        change = asked / self._target - 1 if self._target > 0 else float(asked > 0)
        if abs(change) <= self._settings.dead_band:
            why = f"the target is within {self._settings.dead_band:.0%} of what it should be"
            return self._keep(to_come, free, ratio, wanted, why)
        step = self._settings.largest_step
        least = self._range[1] * 1e-3  # from a target of nothing, a share of it would never get away
        target = min(max(asked, self._target * (1 - step)), max(self._target * (1 + step), least))
        bounded = "" if target == asked else f", moved by at most {step:.0%} at once"
        why = f"{wanted:.4g} a user is left where the plan at this price costs {self._target * ratio:.4g}{bounded}"
        self._move(target)
        self.belief = Belief(to_come, free, ratio, wanted, target, why)
        return True

    def _begin(self, to_come: float, free: float, ratio: float, wanted: float, asked: float) -> bool:
        """The first price: the plan's own where that is what the money is for, else the place that costs so much."""
        if self._own_cost > 0 and abs(asked / self._own_cost - 1) <= 2 * self._settings.dead_band + 0.05:
            self._target, self.pricing = self._own_cost, self._own
            self.belief = Belief(to_come, free, ratio, wanted, self._own_cost, "the plan's own price")
            return False
        self._move(asked)
        why = f"{wanted:.4g} a user is there to be spent, where the plan was made for {self._own_cost:.4g}"
        self.belief = Belief(to_come, free, ratio, wanted, asked, why)
        return True

    def _move(self, target: float) -> None:
        self._target = target
        self.pricing = self._ladder.pricing(place_for(self._ladder, target))

    def _keep(self, to_come: float, free: float, ratio: float, wanted: float | None, why: str) -> bool:
        target = self._own_cost if self._target is None else self._target
        self.belief = Belief(to_come, free, ratio, wanted, target, why)
        return False

    def _ratios(self, progress: Progress) -> tuple[float, float]:
        """What closed decisions cost beside what was expected of them, and what is expected of decisions beside what
        the ladder says of the target: the ladder was measured on other users than those who come."""
        balance = progress.balance
        memory = max(self._settings.memory_share * balance.total, 1.0)
        prior = max(self._settings.prior_share * balance.total, 1.0)
        costing = self._costing.seen(balance.spent, balance.closed_thousandths / THOUSANDTHS, memory, prior)
        decided = np.asarray(progress.decided, dtype=np.float64)
        target = self._own_cost if self._target is None else self._target
        planned = float(((decided - self._seen_decided) * self._weights).sum()) * target * self._minor_units
        self._seen_decided = decided
        expected = (balance.closed_thousandths + balance.expected_thousandths) / THOUSANDTHS
        planning = self._planning.seen(expected, self._planning.before[1] + planned, memory, prior)
        return costing, planning


class _Ratio:
    """Two sums that grow, and their ratio lately: older growth is forgotten, and a prior says 1."""

    def __init__(self) -> None:
        self.before = (0.0, 0.0)
        self._sums = (0.0, 0.0)

    def seen(self, one: float, other: float, memory: float, prior: float) -> float:
        """The ratio of one to the other now; both are given as they stand."""
        growth = (one - self.before[0], other - self.before[1])
        self.before = (one, other)
        kept = float(np.exp(-max(growth[1], 0.0) / memory))
        self._sums = (kept * self._sums[0] + growth[0], kept * self._sums[1] + growth[1])
        return float(np.clip((self._sums[0] + prior) / (self._sums[1] + prior), 0.1, 10.0))


def _step_weights(plan: Plan) -> FloatArray:
    """Share of a user's cost that each step has, by the plan; equal shares where that was not looked at, [steps]."""
    steps = plan.policy.specification.steps
    shares = plan.record.shares
    by_step = {} if shares is None else {one.step: one.cost for one in shares.by_step}
    first = plan.policy.encoder.first_step
    costs = np.array([by_step.get(first + step, 0.0) for step in range(steps)])
    return costs / costs.sum() if costs.sum() > 0 and (costs >= 0).all() else np.full(steps, 1 / steps)
