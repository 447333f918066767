"""How sums are spoken of: in the plan's currency where it has one, a user and in all."""

from __future__ import annotations

from dataclasses import dataclass

from redenvelope.plan.amounts import money
from redenvelope.plan.plan import Plan
from redenvelope.report.markup import number

__all__ = ["Spoken"]

_FIGURES = 4  # of a total: more would claim to know it better than the bounds do


@dataclass(frozen=True)
class Spoken:
    """Words for costs and rewards."""

    currency: str = ""
    audience: int | None = None

    @classmethod
    def of(cls, plan: Plan) -> Spoken:
        """The words that suit a plan."""
        asked = plan.record.money
        return cls(asked.currency, asked.audience)

    def cost(self, value: float) -> str:
        """A cost: 3.46 EUR, or 3.456 where there is no currency."""
        if not self.currency:
            return number(value)
        return money(value, self.currency).replace("-", "−")

    def total_cost(self, mean: float) -> str:
        """A mean cost a user for all users: 173,000 EUR; empty where nobody said how many there are."""
        return "" if self.audience is None else self._total(mean, self.currency)

    def total_reward(self, mean: float) -> str:
        """A mean reward a user for all users; empty where nobody said how many there are."""
        return "" if self.audience is None else self._total(mean, "")

    def _total(self, mean: float, unit: str) -> str:
        assert self.audience is not None
        return money(mean * self.audience, unit, _FIGURES).replace("-", "−")

    @property
    def unit(self) -> str:
        """What one of a cost is called."""
        return f"1 {self.currency}" if self.currency else "one more unit of cost"

    @property
    def axis(self) -> str:
        """The title of an axis of costs."""
        return f"cost a user, {self.currency}" if self.currency else "cost a user"

    @property
    def everybody(self) -> str:
        """For so many users; empty where nobody said how many."""
        return "" if self.audience is None else f"for {self.audience:,} users"
