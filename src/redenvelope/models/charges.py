"""What counts against each budget at any state: known from the step, the state and the action, and never learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from redenvelope.campaign.conditions import Condition
from redenvelope.campaign.expressions import parse_condition
from redenvelope.campaign.records import Budget
from redenvelope.campaign.rows import places_of
from redenvelope.errors import ModelError
from redenvelope.log.encoding import Encoder
from redenvelope.log.log import ActionCatalogue
from redenvelope.models.decoded import Decoding, decoding_for

__all__ = ["Charge", "Charges", "new_charges"]


@dataclass(frozen=True)
class Charge:
    """What counts against one budget."""

    name: str
    measured: int | None
    """Which of the measured outcomes is summed; None where actions are counted."""
    counted: tuple[int, ...] = ()
    """The actions that are counted."""
    steps: tuple[int, ...] | None = None
    """The steps from 0 in which it counts; None is all."""
    where: str | None = None
    """The condition under which it counts."""

    @cached_property
    def condition(self) -> Condition | None:
        """The same, read."""
        return None if self.where is None else parse_condition(self.where)


@dataclass(frozen=True)
class Charges:
    """From what a model measures to what budgets are charged."""

    budgets: tuple[Charge, ...]
    measured: int
    """Outcomes that are measured, the reward included."""
    actions: int
    decoding: Decoding

    def __post_init__(self) -> None:
        for charge in self.budgets:
            summed = charge.measured is None or 0 <= charge.measured < self.measured
            if not summed or any(not 0 <= action < self.actions for action in charge.counted):
                raise ModelError(f"the budget {charge.name[:40]!r} is of an outcome or action that there is not")

    @property
    def names(self) -> tuple[str, ...]:
        """[budgets]"""
        return tuple(charge.name for charge in self.budgets)

    @property
    def look_at_states(self) -> bool:
        """Whether more of a state than its step matters."""
        return any(charge.where is not None for charge in self.budgets)

    def outcomes(self, measured: Sequence[Any], states: Any, library: Any = np) -> tuple[Any, ...]:
        """The reward, then the cost of each budget, from what is measured: arrays [actions, rows] each.

        States are [rows, width]; of numpy, or of another library inside of a compiled program.
        """
        found = [measured[0]]
        for charge in self.budgets:
            weight = self._weight(charge, states, library)
            if charge.measured is None:
                counted = np.isin(np.arange(self.actions), charge.counted).astype(np.float32)[:, None]
                cost = library.broadcast_to(library.asarray(counted), measured[0].shape)
            else:
                cost = measured[charge.measured]
            found.append(cost if weight is None else cost * weight)
        return tuple(found)

    def _weight(self, charge: Charge, states: Any, library: Any) -> Any | None:
        """1 where a budget counts, else 0, [rows]; None where it always does."""
        weight = None
        if charge.steps is not None:
            steps = self.decoding.steps(states, library)
            weight = steps == -1  # which none is
            for step in charge.steps:
                weight = weight | (steps == step)
        if charge.condition is not None:
            holds = self.decoding.holds(charge.condition, states, library)
            weight = holds if weight is None else weight & holds
        return None if weight is None else weight.astype(np.float32)


def new_charges(
    budgets: Sequence[Budget], measured: Sequence[str], catalogue: ActionCatalogue, encoder: Encoder
) -> Charges:
    """The charges of budgets, given the names of what is measured."""
    charges = []
    for budget in budgets:
        places = places_of(budget.count or (), catalogue.labels, catalogue.numeric)
        charges.append(
            Charge(
                name=budget.name,
                measured=None if budget.summed is None else list(measured).index(budget.summed),
                counted=tuple(place for place in places if place is not None),
                steps=None if budget.steps is None else tuple(step - encoder.first_step for step in budget.steps),
                where=budget.where,
            )
        )
    conditions = tuple(charge.condition for charge in charges if charge.condition is not None)
    return Charges(tuple(charges), len(measured), len(catalogue), decoding_for(encoder, conditions))
