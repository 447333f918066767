"""What an action takes from the budgets, and what is drawn when not every action can be paid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from redenvelope.chance import draw
from redenvelope.errors import UsageError
from redenvelope.ledger.records import THOUSANDTHS, Charge, Choice
from redenvelope.plan.plan import Plan
from redenvelope.serve.settings import ServeSettings

__all__ = ["Tariff", "choose", "face_values", "tariff_of"]

FloatArray = NDArray[np.float64]
_ROUNDING = 1e-4  # of a minor unit: amounts come out of single precision


@dataclass(frozen=True, eq=False)
class Tariff:
    """What each action can cost each budget at most, in minor units."""

    labels: tuple[str, ...]
    budgets: tuple[str, ...]
    ceilings: NDArray[np.int64]
    """[budgets, actions]"""
    minor_units: int
    mode: str
    margin: float

    def charges(self, action: int, expected: FloatArray) -> tuple[Charge, ...]:
        """What an action takes, given what it is expected to cost each budget [budgets], in units of currency."""
        found = []
        for place, budget in enumerate(self.budgets):
            ceiling = int(self.ceilings[place, action])
            if ceiling == 0:
                continue
            amount = min(max(float(expected[place]) * self.minor_units, 0.0), float(ceiling))
            held = ceiling if self.mode == "strict" else min(ceiling, math.ceil(amount * (1 + self.margin)))
            found.append(Charge(budget, held, ceiling, round(amount * THOUSANDTHS)))
        return tuple(found)


def choose(
    tariff: Tariff,
    probabilities: FloatArray,
    expected: FloatArray,
    eligible: NDArray[np.bool_] | None,
    uniform: float,
    left: Mapping[str, int],
) -> Choice | None:
    """Draw an action by probabilities [actions] from those that can be paid; None where none can.

    `expected` [budgets, actions] is what each is expected to cost. Probabilities of what can be paid are scaled to sum
    to one, and that is what the propensity says. A plan that would give nothing of it gives the cheapest of it.
    """
    places = range(len(tariff.labels)) if eligible is None else np.flatnonzero(eligible).tolist()
    offers = {place: tariff.charges(place, expected[:, place]) for place in places}
    payable = [place for place, charges in offers.items() if all(one.held <= left[one.budget] for one in charges)]
    if not payable:
        return None
    shares = np.zeros(len(tariff.labels))
    shares[payable] = np.maximum(probabilities[payable], 0.0)
    total = shares.sum()
    if total <= 0:
        shares[_cheapest(payable, offers)] = total = 1.0
    shares /= total
    action = int(draw(shares, uniform))
    if shares[action] <= 0:  # rounding at the edge of the draw
        action = int(shares.argmax())
    by_label = dict(zip(tariff.labels, shares.tolist(), strict=True))
    said = msgspec.json.encode(by_label).decode()
    return Choice(tariff.labels[action], min(1.0, float(shares[action])), said, offers[action])


def _cheapest(places: Sequence[int], offers: Mapping[int, tuple[Charge, ...]]) -> int:
    return min(places, key=lambda place: (sum(one.ceiling for one in offers[place]), place))


def tariff_of(
    plan: Plan, budgets: Sequence[str], amounts: Mapping[str, float] | None, settings: ServeSettings
) -> Tariff:
    """The tariff of a plan; `amounts` by label, in units of currency, where the plan does not know them itself."""
    labels = plan.catalogue.labels
    if plan.policy.pricing.budgets > len(budgets):
        raise UsageError(
            f"the plan keeps {plan.policy.pricing.budgets} budgets and the service {len(budgets)}: the others would "
            "not be held; serve a plan of one budget, or decide by redenvelope allocate"
        )
    if amounts is None:
        values = face_values(plan)
        if values is None:
            raise UsageError(
                "the plan's log had costs that vary, so that what an action costs at most is not known; say it with "
                f"--amounts, in units of currency: {', '.join(f'{label}=…' for label in labels[:3])}"
            )
    else:
        values = _given(labels, amounts)
    minor = [math.ceil(value * settings.minor_units - _ROUNDING) for value in values]
    ceilings = np.array([minor] * len(budgets), dtype=np.int64)
    return Tariff(labels, tuple(budgets), ceilings, settings.minor_units, settings.mode, settings.overbook_margin)


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


def face_values(plan: Plan) -> list[float] | None:
    """What each action costs when it is consumed, where the log showed one amount for each; else None."""
    source = plan.policy.source
    targets = getattr(getattr(source, "model", None), "targets", None)
    costing = targets.costs[0] if targets is not None else getattr(getattr(source, "values", None), "immediate", None)
    costing = getattr(costing, "costing", costing)
    amounts = getattr(costing, "amounts", None)
    return None if amounts is None else [float(amount) for amount in np.asarray(amounts)]
