"""Funded budgets: their totals, what each action may charge them, and the draw among the actions that can be paid.

An action is charged at most its ceiling, in minor units. `strict` mode holds the ceiling, so that every offer can be
honoured; `overbook` mode holds the expected cost plus a margin. `choose` runs inside the ledger's transaction: it drops
the actions that cannot be paid and rescales the rest, which gives the propensities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation, Overflow
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from redenvelope.campaign.conditions import Condition, holds
from redenvelope.campaign.records import Budget
from redenvelope.campaign.rows import OneRow
from redenvelope.errors import UsageError
from redenvelope.ledger.records import COUNTED, LARGEST_AMOUNT, THOUSANDTHS, Charge, Choice, Fund
from redenvelope.plan.plan import Plan
from redenvelope.plan.policy import Source
from redenvelope.serve.settings import ServeSettings

ONLY = "budget"
"""The ledger's name of the only budget, if it has no name of its own."""
_COST = "cost"


@dataclass(frozen=True, eq=False)
class FundedBudget:
    """A budget of a plan as the ledger accounts for it."""

    name: str
    measure: str
    """The column of the log that it sums; empty if it counts actions."""
    minor_units: int
    counted: tuple[int, ...] = ()
    """Indices of the actions that it counts."""
    steps: tuple[int, ...] | None = None
    """The steps in which it counts; None: all."""
    condition: Condition | None = None
    """It counts only in rows where this is true."""
    texts: frozenset[str] = frozenset()
    """Features that are text in the log."""

    @property
    def counts(self) -> bool:
        """Whether it counts actions instead of summing a column."""
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


def funded_budgets(plan: Plan, minor_units: int) -> tuple[FundedBudget, ...]:
    """The budgets of a plan, in its order. Counts have no minor units; amounts have those of the currency."""
    named = plan.certificate.budgets
    defined = {budget.name: budget for budget in plan.record.budgets}
    texts = frozenset(category.name for category in getattr(plan.policy.encoder, "categories", ()))
    if len(named) < 2 and not defined:
        return (FundedBudget(named[0].name if named else ONLY, _COST, minor_units),)
    return tuple(_funded(plan, defined[one.name], minor_units, texts) for one in named)


def _funded(plan: Plan, budget: Budget, minor_units: int, texts: frozenset[str]) -> FundedBudget:
    charges = plan.policy.source.charges
    charge = None if charges is None else next(one for one in charges.budgets if one.name == budget.name)
    return FundedBudget(
        name=budget.name,
        measure=COUNTED if budget.count is not None else str(budget.summed),
        minor_units=1 if budget.count is not None else minor_units,
        counted=() if charge is None else charge.counted,
        steps=budget.steps,
        condition=budget.condition,
        texts=texts,
    )


def served_funds(budgets: Sequence[FundedBudget], given: Sequence[Fund]) -> list[Fund]:
    """The funds in the order of the plan's budgets and with their measures; each budget needs one fund of its name."""
    if len(budgets) == 1 and len(given) == 1:
        return [replace(given[0], measure=budgets[0].measure, minor_units=budgets[0].minor_units)]
    by_name = {fund.budget: fund for fund in given}
    names = [one.name for one in budgets]
    if sorted(by_name) != sorted(names) or len(by_name) != len(given):
        raise UsageError(
            f"the plan has {len(names)} budgets ({', '.join(map(repr, names))}), but totals are given for "
            f"{', '.join(map(repr, by_name))}; give each a total: --budget-total NAME=AMOUNT"
        )
    return [replace(by_name[one.name], measure=one.measure, minor_units=one.minor_units) for one in budgets]


def funds_for(
    budgets: Sequence[FundedBudget], totals: Mapping[str, str], caps: Mapping[str, str], at: int
) -> list[Fund]:
    """Funds from amounts in units of currency, as text by budget; the name "" is that of the only budget."""
    if len(budgets) == 1:
        only = budgets[0]
        unknown = sorted({*totals, *caps} - {"", only.name})
        if unknown:
            raise UsageError(f"the plan has no budget {unknown[0]!r}; its only budget is {only.name!r}")
        # With its name or without, it is the same budget.
        wanted = [(ONLY, only, totals.get(only.name, totals.get("")), caps.get(only.name, caps.get("")))]
    else:
        for option, given in (("--budget-total", totals), ("--user-cap", caps)):
            _require_names(option, given, [one.name for one in budgets])
        missing = [one.name for one in budgets if one.name not in totals]
        if missing:
            raise UsageError(f"the plan has {len(budgets)} budgets; also give --budget-total {missing[0]}=AMOUNT")
        wanted = [(one.name, one, totals[one.name], caps.get(one.name)) for one in budgets]
    found = []
    for name, one, total, cap in wanted:
        if total is None:
            raise UsageError("--budget-total is missing; give --budget-total AMOUNT, the most that may be spent")
        limit = None if cap is None else minor_amount(cap, one.minor_units, "--user-cap")
        amount = minor_amount(total, one.minor_units, "--budget-total")
        found.append(Fund(name, amount, at, limit, one.measure, one.minor_units))
    return found


def _require_names(option: str, given: Mapping[str, str], names: Sequence[str]) -> None:
    for name in given:
        if name not in names:
            wrong = f"the plan has no budget {name!r}" if name else f"{given[name]!r} names no budget"
            raise UsageError(f"{option}: {wrong}; write NAME=AMOUNT, with one of {', '.join(map(repr, names))}")


def minor_amount(text: str, minor_units: int, option: str) -> int:
    """An amount of currency in minor units, exactly."""
    shown = repr(text if len(text) <= 60 else f"{text[:60]}…")
    try:
        amount = Decimal(text) * minor_units
    except (InvalidOperation, Overflow):
        raise UsageError(f"{option}: {shown} is not an amount; write a number such as 2500 or 2500.50") from None
    if not amount.is_finite() or amount != amount.to_integral_value() or not 0 <= amount < LARGEST_AMOUNT:
        most, digits = LARGEST_AMOUNT // minor_units, math.log10(minor_units)
        raise UsageError(f"{option}: {shown} must be at least 0 and below {most:,}, with at most {digits:g} decimals")
    return int(amount)


Rows = Sequence[Sequence[float]]


@dataclass(frozen=True, eq=False)
class ChargeTable:
    """What each action may charge each budget, in minor units."""

    labels: tuple[str, ...]
    budgets: tuple[FundedBudget, ...]
    """With their names in the ledger."""
    ceilings: NDArray[np.int64]
    """The most that each action can cost each budget, [budgets, actions]."""
    mode: str
    margin: float
    numeric: bool = False
    """Whether the labels are numbers."""
    offers: tuple[tuple[tuple[int, int], ...], ...] = field(init=False)
    """Per action: the budgets (by index) that it is charged to, with its ceiling."""
    _elsewhere: dict[tuple[bool, ...], ChargeTable] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        rows = self.ceilings.T.tolist()
        offers = tuple(tuple((place, most) for place, most in enumerate(row) if most) for row in rows)
        object.__setattr__(self, "offers", offers)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the budgets in the ledger."""
        return tuple(one.name for one in self.budgets)

    def at(self, features: Mapping[str, Any], step: int) -> ChargeTable:
        """The table for a user at a step: budgets that do not count there are charged nothing."""
        if all(one.is_everywhere for one in self.budgets):
            return self
        here = tuple(one.is_at(features, step) for one in self.budgets)
        found = self._elsewhere.get(here)
        if found is None:
            found = self._elsewhere[here] = replace(self, ceilings=self.ceilings * np.array(here)[:, None])
        return found

    def held(self, action: int, expected: Rows) -> list[tuple[int, int, int, int]]:
        """Charges of an action: budget (by index), amount held, ceiling, and expected cost in thousandths.

        `expected` [budgets][actions] is in units of currency.
        """
        found = []
        for place, ceiling in self.offers[action]:
            one = self.budgets[place]
            amount = min(max(expected[place][action] * one.minor_units, 0.0), float(ceiling))
            strict = self.mode == "strict" or one.counts
            held = ceiling if strict else min(ceiling, math.ceil(amount * (1 + self.margin)))
            found.append((place, held, ceiling, round(amount * THOUSANDTHS)))
        return found


def choose(
    table: ChargeTable,
    probabilities: Sequence[float],
    expected: Rows,
    eligible: Sequence[bool] | None,
    uniform: float,
    left: Mapping[str, int],
    short: Callable[[], None] | None = None,
) -> Choice | None:
    """Draw an action by probabilities [actions] from those that can be paid; None if none can.

    `expected` [budgets][actions] are expected costs in units of currency. The probabilities of the actions that can be
    paid are rescaled to sum to one; these are the propensities. If all of them are 0, the cheapest action is given.
    `short` is called if an action with positive probability cannot be paid. Plain numbers instead of arrays, because
    this runs once per decision inside a transaction.
    """
    free = [left[one.name] for one in table.budgets]
    shares = [0.0] * len(table.labels)
    payable, is_short = [], False
    for action in range(len(shares)):
        if eligible is not None and not eligible[action]:
            continue
        if table.mode == "strict":
            fits = all(most <= free[place] for place, most in table.offers[action])
        else:
            fits = all(held <= free[place] for place, held, _, _ in table.held(action, expected))
        if fits:
            payable.append(action)
            shares[action] = max(probabilities[action], 0.0)
        elif probabilities[action] > 0:
            is_short = True
    if is_short and short is not None:
        short()
    if not payable:
        return None
    total = sum(shares)
    if total <= 0:
        shares[_cheapest(table, payable)] = total = 1.0
    shares = [share / total for share in shares]
    action = _drawn(shares, uniform)
    drawn_from = msgspec.json.encode(dict(zip(table.labels, shares, strict=True))).decode()
    charges = tuple(Charge(table.budgets[place].name, *amounts) for place, *amounts in table.held(action, expected))
    could = "" if len(payable) == len(shares) else msgspec.json.encode([table.labels[one] for one in payable]).decode()
    return Choice(table.labels[action], min(1.0, shares[action]), drawn_from, charges, table.numeric, could)


def _drawn(shares: Sequence[float], uniform: float) -> int:
    """`redenvelope.randomness.draw` for one row of plain numbers; never draws an action without probability."""
    reach, edge = uniform * sum(shares), 0.0
    for action, share in enumerate(shares):
        edge += share
        if reach < edge:
            return action
    return max(range(len(shares)), key=shares.__getitem__)  # rounding at the edge of the draw


def _cheapest(table: ChargeTable, places: Sequence[int]) -> int:
    """The cheapest action by the first budget's ceiling; ties go to the next budget, then to the first action."""
    return min(places, key=lambda place: (table.ceilings[:, place].tolist(), place))


Amounts = Mapping[str, Mapping[str, float]]
"""The most that actions can cost, in units of currency, by budget ("" for all unnamed budgets) and action label."""
_ROUNDING = 1e-4  # of a minor unit, because amounts come from single precision


def charge_table_of(plan: Plan, names: Sequence[str], amounts: Amounts | None, settings: ServeSettings) -> ChargeTable:
    """The charges of a plan. `names` are the ledger's names of its budgets; `amounts` override the costs in its log."""
    budgets = funded_budgets(plan, settings.minor_units)
    own = [one.name for one in budgets]
    if len(own) != len(names) or (len(own) > 1 and own != list(names)):
        raise UsageError(
            f"the plan has {len(own)} budgets ({', '.join(own)}) and the service {len(names)} ({', '.join(names)}); "
            "serve a plan with all of its budgets, by their names"
        )
    unknown = sorted(set(amounts or ()) - {"", *own, *names})
    if unknown:
        raise UsageError(
            f"--amounts: the plan has no budget {unknown[0]!r}, but {', '.join(map(repr, names))}; before an action "
            "whose name contains a colon write another colon: :ACTION=AMOUNT"
        )
    named = tuple(replace(one, name=name) for one, name in zip(budgets, names, strict=True))
    rows = [_ceilings(plan, place, one, amounts or {}) for place, one in enumerate(named)]
    ceilings, catalogue = np.array(rows, dtype=np.int64), plan.policy.offered
    return ChargeTable(catalogue.labels, named, ceilings, settings.mode, settings.overbook_margin, catalogue.numeric)


def _ceilings(plan: Plan, place: int, one: FundedBudget, amounts: Amounts) -> list[int]:
    """The most that each action can cost a budget, in minor units."""
    labels, new = plan.catalogue.labels, {each.label: each.charges[place] for each in plan.policy.new}
    if one.counts:
        return [*(int(action in one.counted) for action in range(len(labels))), *map(int, new.values())]
    given = amounts.get(one.name, amounts.get(""))
    if given is not None:  # what new actions cost is known, and part of the promise
        given = {label: value for label, value in given.items() if label not in new}
    values = face_values(plan, place) if given is None else _given(labels, given)
    if values is None:
        named = "" if len(plan.certificate.budgets) < 2 else f"{one.name}:"
        raise UsageError(
            f"costs vary in the plan's log, so the most that an action can cost {one.name!r} is unknown; give it with "
            f"--amounts, in units of currency: {named}{', '.join(f'{label}=…' for label in labels[:3])}"
        )
    values, labels = [*values, *new.values()], plan.policy.offered.labels
    found = [math.ceil(value * one.minor_units - _ROUNDING) for value in values]
    dearest = max(range(len(found)), key=found.__getitem__)
    if found[dearest] >= LARGEST_AMOUNT:
        raise UsageError(
            f"action {labels[dearest]!r} can cost {values[dearest]:g}, which is more than a ledger counts in minor "
            "units; give smaller --amounts or fewer --minor-units"
        )
    return found


def _given(labels: Sequence[str], amounts: Mapping[str, float]) -> list[float]:
    unknown = [label for label in amounts if label not in labels]
    if unknown:
        raise UsageError(f"--amounts: {unknown[0]!r} is not an action of the plan; its actions are {', '.join(labels)}")
    missing = [label for label in labels if label not in amounts]
    if missing:
        raise UsageError(
            f"--amounts: {missing[0]!r} is missing; give the most that every action can cost, 0 if nothing"
        )
    if any(not 0 <= value < 1e12 for value in amounts.values()):
        raise UsageError("--amounts: every amount must be a number of at least 0")
    return [float(amounts[label]) for label in labels]


def face_values(plan: Plan, budget: int = 0) -> list[float] | None:
    """The face value of each action, which is its constant cost in the log; None if costs vary."""
    found = [_face_values(member.source, budget) for member in plan.policy.members]
    if found[0] is not None:
        return found[0] if all(each == found[0] for each in found) else None
    return constant_costs(plan) if plan.policy.source.charges is None else None


_FEWEST_ROWS = 200
"""Rows of an action; with fewer, a constant cost of 0 may only mean that nobody redeemed it."""


def constant_costs(plan: Plan) -> list[float] | None:
    """The cost of each action if every action always cost the same, else None."""
    effects = plan.record.audit.actions
    firm = all(one.rows >= _FEWEST_ROWS for one in effects)
    same = firm and all(one.cost.standard_error <= 1e-9 * abs(one.cost.estimate) for one in effects)
    return [float(f"{one.cost.estimate:.9g}") for one in effects] if same else None


def _face_values(source: Source, budget: int) -> list[float] | None:
    measured = 1
    if source.charges is not None:
        measured = source.charges.budgets[budget].measured or 0
    if measured == 0:  # the reward, which no face value bounds
        return None
    targets: Any = getattr(getattr(source, "model", None), "targets", None)
    if targets is not None:
        costing = targets.costs[measured - 1]
    else:
        costing = getattr(getattr(source, "values", None), "immediate", None) if measured == 1 else None
    costing = getattr(costing, "costing", costing)
    amounts = getattr(costing, "amounts", None)
    return None if amounts is None else [float(amount) for amount in np.asarray(amounts)]
