"""A campaign's money by the documentation alone: what a service must answer, and what must be in its books.

It shares no code with the ledger. Balances are added up from all decisions whenever they are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Books", "Budget", "Distribution", "Row"]


@dataclass
class Budget:
    total: int
    cap: int | None
    most: tuple[int, ...]
    """The most that each action can cost it."""
    counts: bool = False
    """Whether it counts actions, where others pay money."""


@dataclass(frozen=True)
class Distribution:
    """What the plan would do: the probability of each action, its expected costs by budget, and the draw."""

    shares: Sequence[float]
    costs: Mapping[str, Sequence[float]]
    """In minor units."""
    uniform: float


@dataclass
class Row:
    """A decision."""

    asked: tuple[Any, ...]
    user: str
    step: int
    action: int
    shares: list[float]
    plan: str
    ends: int
    held: dict[str, int]
    """When it was decided."""
    open: dict[str, int]
    """Still held."""
    spent: dict[str, int]
    status: str = "open"
    reward: float | None = None


@dataclass
class Books:
    """Every method gives what it changed, or the code of the refusal."""

    budgets: dict[str, Budget]
    mode: str
    steps: int
    margin: float = 0.25
    rows: dict[str, Row] = field(default_factory=dict)
    """By request, in the order of decisions."""

    def spent(self, budget: str, user: str | None = None) -> int:
        return sum(row.spent.get(budget, 0) for row in self.rows.values() if user in (None, row.user))

    def held(self, budget: str, user: str | None = None) -> int:
        return sum(row.open.get(budget, 0) for row in self.rows.values() if user in (None, row.user))

    def left(self, budget: str, user: str) -> int:
        one = self.budgets[budget]
        left = one.total - self.spent(budget) - self.held(budget)
        own = math.inf if one.cap is None else one.cap - self.spent(budget, user) - self.held(budget, user)
        return max(0, int(min(left, own)))

    def next_step(self, user: str) -> int:
        return max((row.step for row in self.rows.values() if row.user == user), default=-1) + 1

    def decide(
        self,
        request: str,
        asked: tuple[Any, ...],
        step: int | None,
        eligible: Sequence[int] | None,
        plan: tuple[str, Distribution],
        ends: int,
    ) -> Row | str:
        """`asked` is all of the request's content, beginning with the user."""
        user = asked[0]
        if request in self.rows:
            return self.rows[request] if self.rows[request].asked == asked else "request_differs"
        place = self.next_step(user) if step is None else step
        if place >= self.steps:
            return "campaign_over" if step is None else "invalid_request"
        if any((row.user, row.step) == (user, place) for row in self.rows.values()):
            return "step_taken"
        chances = plan[1]
        holds = [self.holds(action, chances) for action in range(len(chances.shares))]
        left = {name: self.left(name, user) for name in self.budgets}
        payable = [
            action
            for action in (range(len(holds)) if eligible is None else eligible)
            if all(amount <= left[name] for name, amount in holds[action].items())
        ]
        if not payable:
            return "nothing_left"
        shares = [share if action in payable else 0.0 for action, share in enumerate(chances.shares)]
        if not sum(shares):  # the cheapest, where the plan gives none of them
            shares[min(payable, key=lambda one: [budget.most[one] for budget in self.budgets.values()])] = 1.0
        shares = [share / sum(shares) for share in shares]
        action = next(
            (one for one in range(len(shares)) if chances.uniform * sum(shares) < sum(shares[: one + 1])), payable[-1]
        )
        counted = {name for name in holds[action] if self.budgets[name].counts}
        still = {name: 0 if name in counted else amount for name, amount in holds[action].items()}
        spent = {name: amount if name in counted else 0 for name, amount in holds[action].items()}
        row = Row(asked, user, place, action, shares, plan[0], ends, holds[action], still, spent)
        self.rows[request] = row
        return row

    def holds(self, action: int, chances: Distribution) -> dict[str, int]:
        """What an action holds of each budget that it can cost something."""
        found = {}
        for name, budget in self.budgets.items():
            if most := budget.most[action]:
                booked = min(most, math.ceil(min(max(chances.costs[name][action], 0.0), most) * (1 + self.margin)))
                found[name] = most if self.mode == "strict" or budget.counts else booked
        return found

    def settle(self, request: str, reward: float, amounts: Mapping[str, int], corrects: bool = False) -> Row | str:
        row = self.rows[request]
        wanted = {
            name: amounts.get(name, row.spent[name] if self.budgets[name].counts else 0) for name in row.spent
        } | {name: amount for name, amount in amounts.items() if amount and name not in row.spent}
        is_known = row.status in ("settled", "released")
        if is_known and not corrects:
            same = (row.reward, row.spent) == (reward, wanted)
            return row if same else "outcome_differs"
        if corrects and not is_known:
            return "no_outcome"
        refused = next(filter(None, (self.unpaid(row, name, amount) for name, amount in wanted.items())), None)
        if refused is not None:
            row.reward = row.reward if corrects else reward  # of an outcome whose money is refused, it is kept
            return refused
        paid = any(amount for name, amount in wanted.items() if not self.budgets[name].counts)
        row.status, row.reward, row.spent = "settled" if paid else "released", reward, wanted
        row.open = dict.fromkeys(row.open, 0)
        return row

    def unpaid(self, row: Row, budget: str, amount: int) -> str | None:
        if amount > (self.budgets[budget].most[row.action] if budget in row.spent else 0):
            return "above_ceiling"
        more = amount - row.spent[budget] - row.open[budget] if budget in row.spent else 0
        return "nothing_left" if more > 0 and more > self.left(budget, row.user) else None

    def expire(self, now: int) -> None:
        for row in self.rows.values():
            if row.status == "open" and row.ends <= now:
                row.status, row.open = "expired", dict.fromkeys(row.open, 0)

    def forget(self, user: str, name: str) -> None:
        """Their decisions are those of somebody else from now on, whom no request names."""
        self.rows = {f"{name}: {key}" if row.user == user else key: row for key, row in self.rows.items()}
        for row in self.rows.values():
            row.user = name if row.user == user else row.user

    def change(self, budget: str, total: int, cap: int | None) -> str | None:
        if total < self.spent(budget) + self.held(budget):
            return "below_committed"
        self.budgets[budget].total, self.budgets[budget].cap = total, cap
        return None
