"""What an action takes from the budgets, and what is drawn when not every action can be paid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from redenvelope.ledger.records import THOUSANDTHS, Charge, Choice
from redenvelope.serve.funds import Kept

__all__ = ["Tariff", "choose"]

Rows = Sequence[Sequence[float]]


@dataclass(frozen=True, eq=False)
class Tariff:
    """What each action can cost each budget at most, in minor units."""

    labels: tuple[str, ...]
    kept: tuple[Kept, ...]
    """The budgets, as the ledger calls them."""
    ceilings: NDArray[np.int64]
    """[budgets, actions]"""
    mode: str
    margin: float
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
    return Choice(tariff.labels[action], min(1.0, shares[action]), said, tuple(charges))


def _drawn(shares: Sequence[float], uniform: float) -> int:
    """As `redenvelope.chance.draw` draws, for one row of plain numbers that sum to one; never what has no share."""
    reach, edge = uniform * sum(shares), 0.0
    for action, share in enumerate(shares):
        edge += share
        if reach < edge:
            return action
    return max(range(len(shares)), key=shares.__getitem__)  # rounding at the edge of the draw


def _cheapest(tariff: Tariff, places: Sequence[int]) -> int:
    """The cheapest by the first budget, then by the next."""
    return min(places, key=lambda place: (tariff.ceilings[:, place].tolist(), place))
