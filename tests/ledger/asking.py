"""Short ways to ask a ledger, for tests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from redenvelope import Ledger
from redenvelope.ledger.records import Charge, Choice, Fund, Hold, Settle

__all__ = ["NOW", "TTL", "fund", "hold", "rows", "settle"]

NOW = 1_700_000_000_000
TTL = 60_000


def fund(total: int, budget: str = "money", user_cap: int | None = None) -> Fund:
    return Fund(budget, total, NOW, user_cap)


def hold(
    request: str,
    user: str | None = None,
    amount: int | Mapping[str, int] = 10,
    step: int = 0,
    at: int = NOW,
    ceiling: int | None = None,
    expected: int = 0,
) -> Hold:
    """Wants these amounts (of one budget, or by budget) or nothing; with `ceiling`, it may cost more later."""
    amounts = {"money": amount} if isinstance(amount, int) else dict(amount)

    def choose(left: Mapping[str, int]) -> Choice | None:
        if any(left[budget] < wanted for budget, wanted in amounts.items()):
            return None
        charges = tuple(
            Charge(budget, wanted, wanted if ceiling is None else ceiling, expected)
            for budget, wanted in amounts.items()
        )
        return Choice(f"give {sum(amounts.values())}", 0.5, '{"a": 0.5}', charges)

    fingerprint = hashlib.sha256(repr((user, sorted(amounts.items()), step)).encode()).hexdigest()
    return Hold(request, fingerprint, user or request, step, choose, "[0.25]", "plan", '{"x": 1}', at, at + TTL)


def settle(decision: int, amount: int | Mapping[str, int], reward: float = 1.0, at: int = NOW + 1) -> Settle:
    return Settle(decision, reward, {"money": amount} if isinstance(amount, int) else dict(amount), at)


def rows(ledger: Ledger, statement: str) -> list[tuple[Any, ...]]:
    """The rows of a query, past all that the ledger itself answers."""
    with ledger.database.reading() as session:
        return session.rows(statement)
