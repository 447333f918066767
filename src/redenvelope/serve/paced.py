"""One budget as pacing sees it: what is left of it, who is still to come, and what it really costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from redenvelope.ledger.records import COUNTED, THOUSANDTHS, Balance
from redenvelope.plan.plan import Plan
from redenvelope.serve.settings import PacingSettings

__all__ = ["Look", "Paced", "users_to_come"]

FloatArray = NDArray[np.float64]


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
        figures = plan.certificate.budgets
        self.own_cost = float(figures[place].cost.estimate if figures else plan.certificate.cost.estimate)
        self._slack = bool(figures) and figures[place].dual == 0
        costs = plan.ladder.means[1 + place]
        self._range = (float(costs.min()), float(costs.max()))
        self._weights = _step_weights(plan, place)
        self._seen_decided = np.zeros(len(self._weights))
        self._costing, self._planning = _Ratio(), _Ratio()
        self.target: float | None = None
        """What the plan is asked to cost a user; None before the first look."""

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

    def suits(self, look: Look, near: float, several: bool) -> bool:
        """Whether the plan's own price is right for what there is; beside others, more than a slack budget needs is."""
        if self.own_cost <= 0:
            return several and self._slack
        change = look.asked / self.own_cost - 1
        return abs(change) <= near or (several and self._slack and change > 0)

    def is_within(self, look: Look, band: float) -> bool:
        """Whether the target is near enough to what it should be."""
        return abs(self._change(look)) <= band

    def begin(self, look: Look) -> str:
        """Take what is asked at once; why."""
        self.target = look.asked
        return f"{look.wanted or 0.0:.4g} a user is there to be spent, where the plan was made for {self.own_cost:.4g}"

    def move(self, look: Look) -> str:
        """Move towards what is asked, by a bounded step; why."""
        before, step = self.aim, self._settings.largest_step
        if self.is_within(look, self._settings.dead_band):
            return f"the target is within {self._settings.dead_band:.0%} of what it should be"
        least = self._range[1] * 1e-3  # from a target of nothing, a share of it would never get away
        self.target = min(max(look.asked, before * (1 - step)), max(before * (1 + step), least))
        bounded = "" if self.target == look.asked else f", moved by at most {step:.0%} at once"
        costs = before * look.ratio
        return f"{look.wanted or 0.0:.4g} a user is left where the plan at this price costs {costs:.4g}{bounded}"

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
        kept = float(np.exp(-max(growth[1], 0.0) / memory))
        self._sums = (kept * self._sums[0] + growth[0], kept * self._sums[1] + growth[1])
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
