"""The budgets of a plan as the ledger keeps them: what each is charged, in which units, and where it counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any

from redenvelope.campaign.conditions import Condition, holds
from redenvelope.campaign.records import Budget
from redenvelope.campaign.rows import OneRow
from redenvelope.errors import UsageError
from redenvelope.ledger.records import COUNTED, Fund
from redenvelope.plan.plan import Plan

__all__ = ["ONLY", "Kept", "funds_for", "kept_budgets", "minor_amount", "served_funds"]

ONLY = "budget"
"""What the only budget is called in the ledger where nobody named it."""
_COST = "cost"


@dataclass(frozen=True, eq=False)
class Kept:
    """A budget of a plan, and how it is kept."""

    name: str
    measure: str
    """The column of the log that it sums; empty where it counts actions."""
    minor_units: int
    counted: tuple[int, ...] = ()
    """Places of the actions that it counts."""
    steps: tuple[int, ...] | None = None
    """The steps in which it counts; None is all."""
    condition: Condition | None = None
    """It counts only in rows where this is true."""
    texts: frozenset[str] = frozenset()
    """The features that are text in the log."""

    @property
    def counts(self) -> bool:
        """Whether it counts actions, where others sum a column."""
        return self.measure == COUNTED

    @property
    def is_everywhere(self) -> bool:
        """Whether it counts in every row."""
        return self.steps is None and self.condition is None

    def is_at(self, features: Mapping[str, Any], step: int) -> bool:
        """Whether it counts for a user with these features at a step."""
        if self.steps is not None and step not in self.steps:
            return False
        return self.condition is None or bool(holds(self.condition, OneRow({**features, "step": step}, self.texts))[0])


def kept_budgets(plan: Plan, minor_units: int) -> tuple[Kept, ...]:
    """The budgets of a plan, in its order. What is counted has no fractions; all else has the currency's."""
    named = plan.certificate.budgets
    defined = {budget.name: budget for budget in plan.record.budgets}
    texts = frozenset(category.name for category in getattr(plan.policy.encoder, "categories", ()))
    if len(named) < 2 and not defined:
        return (Kept(named[0].name if named else ONLY, _COST, minor_units),)
    return tuple(_kept(plan, defined[one.name], minor_units, texts) for one in named)


def _kept(plan: Plan, budget: Budget, minor_units: int, texts: frozenset[str]) -> Kept:
    charges = plan.policy.source.charges
    charge = None if charges is None else next(one for one in charges.budgets if one.name == budget.name)
    return Kept(
        name=budget.name,
        measure=COUNTED if budget.count is not None else str(budget.summed),
        minor_units=1 if budget.count is not None else minor_units,
        counted=() if charge is None else charge.counted,
        steps=budget.steps,
        condition=budget.condition,
        texts=texts,
    )


def served_funds(kept: Sequence[Kept], given: Sequence[Fund]) -> list[Fund]:
    """Funds in the plan's order, each with what it is charged; one for every budget, by its name."""
    if len(kept) == 1 and len(given) == 1:
        return [replace(given[0], measure=kept[0].measure, minor_units=kept[0].minor_units)]
    by_name = {fund.budget: fund for fund in given}
    names = [one.name for one in kept]
    if sorted(by_name) != sorted(names) or len(by_name) != len(given):
        raise UsageError(
            f"the plan keeps {len(names)} budgets ({', '.join(map(repr, names))}) and totals are there for "
            f"{', '.join(map(repr, by_name))}: give one for each, --budget-total NAME=AMOUNT"
        )
    return [replace(by_name[one.name], measure=one.measure, minor_units=one.minor_units) for one in kept]


def funds_for(kept: Sequence[Kept], totals: Mapping[str, str], caps: Mapping[str, str], at: int) -> list[Fund]:
    """Funds from amounts as somebody wrote them, in units and by names; the name "" is the only budget's."""
    if len(kept) == 1:
        only = kept[0]
        strangers = sorted({*totals, *caps} - {"", only.name})
        if strangers:
            raise UsageError(f"the plan has no budget {strangers[0]!r}; its only one is {only.name!r}")
        name = only.name if only.name in totals else ONLY
        wanted = [(name, only, totals.get(only.name, totals.get("")), caps.get(only.name, caps.get("")))]
    else:
        for option, given in (("--budget-total", totals), ("--user-cap", caps)):
            _require_names(option, given, [one.name for one in kept])
        missing = [one.name for one in kept if one.name not in totals]
        if missing:
            raise UsageError(f"the plan keeps {len(kept)} budgets: give --budget-total {missing[0]}=AMOUNT too")
        wanted = [(one.name, one, totals[one.name], caps.get(one.name)) for one in kept]
    found = []
    for name, one, total, cap in wanted:
        if total is None:
            raise UsageError("give --budget-total AMOUNT: what may be spent in all")
        limit = None if cap is None else minor_amount(cap, one.minor_units, "--user-cap")
        amount = minor_amount(total, one.minor_units, "--budget-total")
        found.append(Fund(name, amount, at, limit, one.measure, one.minor_units))
    return found


def _require_names(option: str, given: Mapping[str, str], names: Sequence[str]) -> None:
    for name in given:
        if name not in names:
            said = f"the plan has no budget {name!r}" if name else f"{given[name]!r} is of no budget"
            raise UsageError(f"{option}: {said}; it keeps {', '.join(map(repr, names))}: write NAME=AMOUNT")


def minor_amount(text: str, minor_units: int, option: str) -> int:
    """An amount of currency as minor units, exactly: no binary fraction on the way."""
    try:
        amount = Decimal(text) * minor_units
    except InvalidOperation:
        raise UsageError(f"{option}: {text!r} is no amount; write a number such as 2500 or 2500.50") from None
    if not amount.is_finite() or amount != amount.to_integral_value() or not 0 <= amount < 2**53:
        raise UsageError(f"{option}: {text!r} is no amount of at least 0 with {math.log10(minor_units):g} decimals")
    return int(amount)
