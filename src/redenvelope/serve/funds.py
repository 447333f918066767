"""The budgets of a plan as the ledger keeps them: what each is charged, in which units, and where it counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from redenvelope.campaign.conditions import Condition, holds
from redenvelope.campaign.records import Budget
from redenvelope.campaign.rows import OneRow
from redenvelope.errors import UsageError
from redenvelope.ledger.records import COUNTED, THOUSANDTHS, Charge, Choice, Fund
from redenvelope.plan.plan import Plan
from redenvelope.serve.settings import ServeSettings

ONLY = "budget"
"""What the only budget is called in the ledger where nobody named it."""
_COST = "cost"


@dataclass(frozen=True, eq=False)
class FundedBudget:
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


def funded_budgets(plan: Plan, minor_units: int) -> tuple[FundedBudget, ...]:
    """The budgets of a plan, in its order. What is counted has no fractions; all else has the currency's."""
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


def served_funds(kept: Sequence[FundedBudget], given: Sequence[Fund]) -> list[Fund]:
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


def funds_for(kept: Sequence[FundedBudget], totals: Mapping[str, str], caps: Mapping[str, str], at: int) -> list[Fund]:
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


# What an action takes from the budgets, and what is drawn when not every action can be paid.


Rows = Sequence[Sequence[float]]


@dataclass(frozen=True, eq=False)
class Tariff:
    """What each action can cost each budget at most, in minor units."""

    labels: tuple[str, ...]
    kept: tuple[FundedBudget, ...]
    """The budgets, as the ledger calls them."""
    ceilings: NDArray[np.int64]
    """[budgets, actions]"""
    mode: str
    margin: float
    numeric: bool = False
    """Whether the labels are numbers."""
    offers: tuple[tuple[tuple[int, int], ...], ...] = field(init=False)
    """Of each action, the budgets (by place) that it is charged to, and its ceiling there."""
    _elsewhere: dict[tuple[bool, ...], Tariff] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        rows = self.ceilings.T.tolist()
        offers = tuple(tuple((place, most) for place, most in enumerate(row) if most) for row in rows)
        object.__setattr__(self, "offers", offers)

    @property
    def budgets(self) -> tuple[str, ...]:
        """Their names in the ledger."""
        return tuple(one.name for one in self.kept)

    def at(self, features: Mapping[str, Any], step: int) -> Tariff:
        """The tariff of a user at a step: budgets that do not count there are charged nothing."""
        if all(one.is_everywhere for one in self.kept):
            return self
        here = tuple(one.is_at(features, step) for one in self.kept)
        found = self._elsewhere.get(here)
        if found is None:
            found = self._elsewhere[here] = replace(self, ceilings=self.ceilings * np.array(here)[:, None])
        return found

    def held(self, action: int, expected: Rows) -> list[tuple[int, int, int, int]]:
        """Budget (by place), held, ceiling and expected thousandths of an action.

        `expected` [budgets][actions] is what each is expected to cost, in units of currency.
        """
        found = []
        for place, ceiling in self.offers[action]:
            one = self.kept[place]
            amount = min(max(expected[place][action] * one.minor_units, 0.0), float(ceiling))
            strict = self.mode == "strict" or one.counts
            held = ceiling if strict else min(ceiling, math.ceil(amount * (1 + self.margin)))
            found.append((place, held, ceiling, round(amount * THOUSANDTHS)))
        return found


def choose(
    tariff: Tariff,
    probabilities: Sequence[float],
    expected: Rows,
    eligible: Sequence[bool] | None,
    uniform: float,
    left: Mapping[str, int],
) -> Choice | None:
    """Draw an action by probabilities [actions] from those that can be paid; None where none can.

    `expected` [budgets][actions] is what each is expected to cost. Probabilities of what can be paid are scaled to sum
    to one, and that is what the propensity says. A plan that would give nothing of it gives the cheapest of it.
    Plain numbers, not arrays: this runs once a decision, while others wait for the books.
    """
    free = [left[one.name] for one in tariff.kept]
    shares = [0.0] * len(tariff.labels)
    payable = []
    for action in range(len(shares)):
        if eligible is not None and not eligible[action]:
            continue
        if tariff.mode == "strict":
            fits = all(most <= free[place] for place, most in tariff.offers[action])
        else:
            fits = all(held <= free[place] for place, held, _, _ in tariff.held(action, expected))
        if fits:
            payable.append(action)
            shares[action] = max(probabilities[action], 0.0)
    if not payable:
        return None
    total = sum(shares)
    if total <= 0:
        shares[_cheapest(tariff, payable)] = total = 1.0
    shares = [share / total for share in shares]
    action = _drawn(shares, uniform)
    said = msgspec.json.encode(dict(zip(tariff.labels, shares, strict=True))).decode()
    charges = [Charge(tariff.kept[place].name, *amounts) for place, *amounts in tariff.held(action, expected)]
    return Choice(tariff.labels[action], min(1.0, shares[action]), said, tuple(charges), tariff.numeric)


def _drawn(shares: Sequence[float], uniform: float) -> int:
    """As `redenvelope.randomness.draw` draws, for one row of plain numbers that sum to one; never what has no share."""
    reach, edge = uniform * sum(shares), 0.0
    for action, share in enumerate(shares):
        edge += share
        if reach < edge:
            return action
    return max(range(len(shares)), key=shares.__getitem__)  # rounding at the edge of the draw


def _cheapest(tariff: Tariff, places: Sequence[int]) -> int:
    """The cheapest by the first budget, then by the next."""
    return min(places, key=lambda place: (tariff.ceilings[:, place].tolist(), place))


# The tariff of a plan: what its actions can cost, from its log or by hand.


Amounts = Mapping[str, Mapping[str, float]]
"""The most that actions cost, in units of currency: by budget (that under "" of those not named) and label."""
_ROUNDING = 1e-4  # of a minor unit: amounts come out of single precision


def tariff_of(plan: Plan, budgets: Sequence[str], amounts: Amounts | None, settings: ServeSettings) -> Tariff:
    """The tariff of a plan; `budgets` are their names in the ledger, `amounts` what the plan does not know itself."""
    kept = funded_budgets(plan, settings.minor_units)
    if len(kept) != len(budgets) or (len(kept) > 1 and [one.name for one in kept] != list(budgets)):
        raise UsageError(
            f"the plan keeps {len(kept)} budgets ({', '.join(one.name for one in kept)}) and the service holds "
            f"{len(budgets)} ({', '.join(budgets)}): a plan is served with all of its budgets, by their names"
        )
    unknown = sorted(set(amounts or ()) - {"", *(one.name for one in kept), *budgets})
    if unknown:
        said = f"--amounts names the budget {unknown[0]!r}, and the plan has {', '.join(map(repr, budgets))}"
        raise UsageError(f"{said}; where the name of an action has a colon, begin with one: :ACTION=AMOUNT")
    named = tuple(replace(one, name=name) for one, name in zip(kept, budgets, strict=True))
    rows = [_ceilings(plan, place, one, amounts or {}) for place, one in enumerate(named)]
    ceilings, catalogue = np.array(rows, dtype=np.int64), plan.catalogue
    return Tariff(catalogue.labels, named, ceilings, settings.mode, settings.overbook_margin, catalogue.numeric)


def _ceilings(plan: Plan, place: int, one: FundedBudget, amounts: Amounts) -> list[int]:
    """The most that each action can cost a budget, in minor units."""
    labels = plan.catalogue.labels
    if one.counts:
        return [int(action in one.counted) for action in range(len(labels))]
    given = amounts.get(one.name, amounts.get(""))
    values = face_values(plan, place) if given is None else _given(labels, given)
    if values is None:
        named = "" if len(plan.certificate.budgets) < 2 else f"{one.name}:"
        raise UsageError(
            f"the plan's log had costs that vary, so that what an action costs {one.name!r} at most is not known; say "
            f"it with --amounts, in units of currency: {named}{', '.join(f'{label}=…' for label in labels[:3])}"
        )
    return [math.ceil(value * one.minor_units - _ROUNDING) for value in values]


def _given(labels: Sequence[str], amounts: Mapping[str, float]) -> list[float]:
    unknown = [label for label in amounts if label not in labels]
    if unknown:
        raise UsageError(f"--amounts names {unknown[0]!r}, which is no action of the plan; it has {', '.join(labels)}")
    missing = [label for label in labels if label not in amounts]
    if missing:
        raise UsageError(
            f"--amounts says nothing of {missing[0]!r}; give what every action costs at most, 0 if nothing"
        )
    if any(not 0 <= value < 1e12 for value in amounts.values()):
        raise UsageError("--amounts must be numbers of at least 0")
    return [float(amounts[label]) for label in labels]


def face_values(plan: Plan, budget: int = 0) -> list[float] | None:
    """What each action costs a budget when it is consumed, where the log showed one amount for each; else None."""
    source, measured = plan.policy.source, 1
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
