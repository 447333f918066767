"""Pacing: the prices solved again from what is left, read off the plan's own ladder, moved no faster than is stated.

What is left a user, (total − spent − expected of open holds) / users still to come, is what the plan should now cost.
The plan's belief of its cost is held against what was spent, so that a world that spends faster or slower than the log
said asks for a place on the ladder that much lower or higher. With several budgets each has a target of its own, and
the prices are those of the best mixture of the ladder's plans that keeps all targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redenvelope.ledger.records import Balance
from redenvelope.plan.plan import Plan
from redenvelope.serve.mixing import prices_of
from redenvelope.serve.paced import Look, Paced
from redenvelope.serve.settings import PacingSettings

__all__ = ["Belief", "Pacer", "Progress"]

FloatArray = NDArray[np.float64]


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


class Pacer:
    """Keeps the prices of a running campaign. Ask `solve` every so many decisions."""

    def __init__(self, plan: Plan, settings: PacingSettings, audience: int, minor_units: Sequence[int]) -> None:
        self._settings, self._audience = settings, audience
        self._budgets = [Paced(plan, place, units, settings) for place, units in enumerate(minor_units)]
        self._own, self._steps = plan.policy.pricing, plan.policy.specification.steps
        self._prices = prices_of(plan)
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
        return max(len(self._own.shares), self._prices.rows)

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
        several = len(looks) > 1
        if all(one.suits(look, near, several) for one, look in zip(self._budgets, looks, strict=True)):
            for one in self._budgets:
                one.target = one.own_cost
            return self._keep(looks, ["the plan's own price"] * len(looks))
        return self._move(looks, [one.begin(look) for one, look in zip(self._budgets, looks, strict=True)])

    def _move(self, looks: Sequence[Look], why: Sequence[str]) -> bool:
        before = self.pricing
        self.pricing = self._prices.at(np.array([one.target for one in self._budgets]))
        self._keep(looks, why)
        return len(looks) == 1 or self.pricing != before

    def _keep(self, looks: Sequence[Look], why: Sequence[str]) -> bool:
        self.beliefs = tuple(
            Belief(look.to_come, look.free, look.ratio, look.wanted, one.aim, said)
            for one, look, said in zip(self._budgets, looks, why, strict=True)
        )
        return False
