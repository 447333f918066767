"""Money: totals for an audience from means per user, and amounts in words such as `47,000 of 200,000 EUR`.

`Money` holds the currency, the audience and the value of a unit of reward; `totals` applies them to a certificate.
These are expectations (floats); the integer amounts of minor units belong to the ledger.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import floor, inf, isfinite, log10
from typing import TYPE_CHECKING

from redenvelope.errors import UsageError, require_whole

if TYPE_CHECKING:
    from redenvelope.plan.certificate import Certificate


_CODE = re.compile(r"[A-Za-z]{3}|\S{1,3}")
_FIGURES = 4  # significant digits of a total; more would claim more precision than the bounds have


@dataclass(frozen=True)
class Money:
    """The currency, the audience, and the value of a unit of reward."""

    currency: str = ""
    """A code such as EUR, or a symbol; empty where unknown."""
    audience: int | None = None
    """Number of users that the plan is for; None where only means per user are known."""
    value_per_reward: float | None = None
    """Value of a unit of reward in the currency; None where unknown."""

    def __post_init__(self) -> None:
        if self.currency and not _CODE.fullmatch(self.currency):
            raise UsageError(f"a currency is a code such as EUR, or a sign, not {self.currency!r}")
        if self.audience is not None:
            require_whole("an audience", self.audience)
        if self.value_per_reward is not None and not 0 < self.value_per_reward < inf:
            raise UsageError(f"the value of a unit of reward is a number above 0, not {self.value_per_reward}")

    def told(self, currency: str | None, audience: int | None, value_per_reward: float | None) -> Money:
        """A copy in which the arguments that are not None replace the own values."""
        return Money(
            self.currency if currency is None else currency,
            self.audience if audience is None else audience,
            self.value_per_reward if value_per_reward is None else value_per_reward,
        )


def money(value: float, currency: str = "", figures: int | None = None) -> str:
    """A sum in words: 1234567.8 -> `1,234,568 EUR`, 3.4567 -> `3.46 EUR`.

    Two decimals are shown below a thousand, and more below ten cents where needed. With `figures`, the sum is rounded
    to that many significant digits.
    """
    if not isfinite(value):
        return str(value)
    if figures is not None and value:
        value = round(value, figures - 1 - floor(log10(abs(value))))
    size = abs(value)
    decimals = 0 if size >= 1_000 or size == 0 else 2
    # Below ten cents, two or three significant digits are shown where rounding to cents would change the sum by more
    # than half a percent.
    if 0 < size < 0.1 and abs(round(value, 2) - value) > 0.005 * size:
        decimals = 1 - floor(log10(size)) + (size >= 0.01)
    shown = f"{value:,.{decimals}f}"
    return f"{shown} {currency}" if currency else shown


@dataclass(frozen=True)
class Totals:
    """Expected cost and reward of a plan for its whole audience, in units of the currency."""

    audience: int
    currency: str
    budget: float
    cost: float
    """Expected."""
    cost_upper: float
    """The certificate's bound."""
    unspent: float
    """The budget minus the expected cost; negative where the plan costs more."""
    reward: float
    logged_cost: float
    """The logged mean cost, scaled to the same number of users."""
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
    """A certificate's means times the audience; None if the audience is unknown."""
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
