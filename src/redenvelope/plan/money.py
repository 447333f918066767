"""Means per user as totals for an audience, and money in words: `47,000 of 200,000 EUR`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import floor, inf, isfinite, log10
from typing import TYPE_CHECKING

from redenvelope.errors import UsageError

if TYPE_CHECKING:
    from redenvelope.plan.certificate import Certificate


_CODE = re.compile(r"[A-Za-z]{3}|\S{1,3}")
_FIGURES = 4  # of a total: more would claim to know it better than the bounds do


@dataclass(frozen=True)
class Money:
    """What sums are counted in, and how many users they are for."""

    currency: str = ""
    """EUR, or a sign; empty where unknown."""
    audience: int | None = None
    """Users that the plan is for; None where only means are known."""
    value_per_reward: float | None = None
    """What a unit of reward is worth in it; None where unknown."""

    def __post_init__(self) -> None:
        if self.currency and not _CODE.fullmatch(self.currency):
            raise UsageError(f"a currency is a code such as EUR, or a sign, not {self.currency!r}")
        if self.audience is not None and self.audience < 1:
            raise UsageError(f"an audience is 1 user or more, not {self.audience}")
        if self.value_per_reward is not None and not 0 < self.value_per_reward < inf:
            raise UsageError(f"the value of a unit of reward is a number above 0, not {self.value_per_reward}")

    def told(self, currency: str | None, audience: int | None, value_per_reward: float | None) -> Money:
        """What was said anew, and of the others what was known before."""
        return Money(
            self.currency if currency is None else currency,
            audience or self.audience,
            self.value_per_reward if value_per_reward is None else value_per_reward,
        )


def money(value: float, currency: str = "", figures: int | None = None) -> str:
    """A sum in words: 1234567.8 -> `1,234,568 EUR`, 3.4567 -> `3.46 EUR`.

    Cents are shown below a thousand, smaller parts below one; with `figures`, so many leading digits are kept and the
    others are zeros.
    """
    if not isfinite(value):
        return str(value)
    if figures is not None and value:
        value = round(value, figures - 1 - floor(log10(abs(value))))
    size = abs(value)
    decimals = 0 if size >= 1_000 or size == 0 else 2
    # Below one, leading digits are told where cents would change the sum by more than half a percent.
    if 0 < size < 1 and abs(round(value, 2) - value) > 0.005 * size:
        decimals = 1 - floor(log10(size)) + (size >= 0.01)
    shown = f"{value:,.{decimals}f}"
    return f"{shown} {currency}" if currency else shown


@dataclass(frozen=True)
class Totals:
    """What a plan costs and earns for all users that it is for; expectations, in the currency's own unit."""

    audience: int
    currency: str
    budget: float
    cost: float
    """Expected."""
    cost_upper: float
    """The certificate's bound."""
    unspent: float
    """The budget less the expected cost; below 0 where the plan costs more."""
    reward: float
    logged_cost: float
    """What was logged, for as many users."""
    logged_reward: float

    def sentence(self) -> str:
        """The totals in words."""
        name = self.currency
        spent = f"{money(self.cost, figures=_FIGURES)} of {money(self.budget, name)}"
        if self.unspent >= 0:
            left = f"about {money(self.unspent, name, _FIGURES)} stay unspent"
        else:
            left = f"{money(-self.unspent, name, _FIGURES)} more than there is"
        return (
            f"For {self.audience:,} users: about {spent} (at most {money(self.cost_upper, name, _FIGURES)}), {left}; "
            f"reward about {money(self.reward, figures=_FIGURES)}; as logged, it was "
            f"{money(self.logged_reward, figures=_FIGURES)}."
        )


def totals(certificate: Certificate, asked: Money) -> Totals | None:
    """A certificate's means times the audience; None without one."""
    if asked.audience is None:
        return None
    users = asked.audience
    return Totals(
        audience=users,
        currency=asked.currency,
        budget=certificate.budget * users,
        cost=certificate.cost.estimate * users,
        cost_upper=certificate.cost.upper * users,
        unspent=(certificate.budget - certificate.cost.estimate) * users,
        reward=certificate.reward.estimate * users,
        logged_cost=certificate.logged["cost"] * users,
        logged_reward=certificate.logged["reward"] * users,
    )
