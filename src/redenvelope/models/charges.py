"""Charges: the cost of each budget at any state, computed from predicted outcomes, never learned.

A budget sums a measured cost or counts actions, in some steps or where a condition holds. `Decoding` evaluates the
conditions of `campaign.conditions` on encoded states, at the nodes of trees, in numpy or inside a compiled program. A
number is decoded with the rounding of its encoding, so values that close count as equal; an expected state between two
codes counts as the likelier one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from redenvelope.campaign.conditions import (
    Among,
    Column,
    Compare,
    Condition,
    Either,
    Leaf,
    Missing,
    Verdict,
    columns_of,
    judged,
    parse_condition,
)
from redenvelope.campaign.records import Budget
from redenvelope.campaign.rows import STEP, places_of
from redenvelope.errors import ModelError
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.encoding.layout import MISSING, StateLayout
from redenvelope.log.encoding.table import state_places
from redenvelope.log.log import ActionCatalogue
from redenvelope.models.neural_model import NeuralModel


@dataclass(frozen=True)
class Charge:
    """What one budget counts per row: a measured cost, or 1 for each counted action."""

    name: str
    measured: int | None
    """Index of the measured outcome that is summed; None if actions are counted."""
    counted: tuple[int, ...] = ()
    """The actions that are counted."""
    steps: tuple[int, ...] | None = None
    """The steps, from 0, in which it is charged; None is all."""
    where: str | None = None
    """The condition under which it is charged."""

    @cached_property
    def condition(self) -> Condition | None:
        """The parsed condition."""
        return None if self.where is None else parse_condition(self.where)


@dataclass(frozen=True)
class Charges:
    """The charges of all budgets."""

    budgets: tuple[Charge, ...]
    measured: int
    """Number of measured outcomes, including the reward."""
    actions: int
    decoding: Decoding

    def __post_init__(self) -> None:
        for charge in self.budgets:
            summed = charge.measured is None or 0 <= charge.measured < self.measured
            if not summed or any(not 0 <= action < self.actions for action in charge.counted):
                raise ModelError(f"the budget {charge.name[:40]!r} refers to an outcome or action that does not exist")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the budgets, [budgets]."""
        return tuple(charge.name for charge in self.budgets)

    @property
    def look_at_states(self) -> bool:
        """Whether charges depend on more of a state than its step."""
        return any(charge.where is not None for charge in self.budgets)

    def outcomes(self, measured: Sequence[Any], states: Any, library: Any = np) -> tuple[Any, ...]:
        """The reward, then the cost of each budget, from the measured outcomes: arrays [actions, rows] each.

        States are [rows, width]; `library` is numpy, or jax.numpy inside a compiled program.
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
        """1 if the budget is charged, else 0, [rows]; None if it always is."""
        weight = None
        if charge.steps is not None:
            steps = self.decoding.steps(states, library)
            weight = steps == -1  # nowhere
            for step in charge.steps:
                weight = weight | (steps == step)
        if charge.condition is not None:
            holds = self.decoding.holds(charge.condition, states, library)
            weight = holds if weight is None else weight & holds
        return None if weight is None else weight.astype(np.float32)


def new_charges(
    budgets: Sequence[Budget], measured: Sequence[str], catalogue: ActionCatalogue, encoder: Encoder
) -> Charges:
    """The charges of budgets, given the names of the measured outcomes."""
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


class ChargedModel(eqx.Module):
    """A model whose costs are the budgets' charges (see EnvironmentModel, LeavingModel and SplitModel)."""

    model: NeuralModel
    charges: Charges = eqx.field(static=True)

    @property
    def actions(self) -> int:
        """Number of actions, in the order of the action catalogue."""
        return self.model.actions

    @property
    def budgets(self) -> int:
        """Number of budgets."""
        return len(self.charges.budgets)

    @property
    def leaves(self) -> bool:
        """See LeavingModel."""
        return self.model.leaves

    @property
    def layout(self) -> StateLayout:
        """The columns of a state."""
        return self.model.layout

    @property
    def fixed_width(self) -> int:
        """See SplitModel."""
        return self.model.fixed_width

    def fixed_parts(self, states: jax.Array) -> tuple[Any, Any]:
        """See SplitModel; with the fixed columns that conditions may use, [users, fixed or 0]."""
        outcome, transition = self.model.fixed_parts(states)
        head = states[:, : self.fixed_width if self.charges.look_at_states else 0]
        return (outcome, head), (transition, head)

    def node_outcomes(self, fixed: Any, nodes: jax.Array) -> tuple[jax.Array, ...]:
        """See SplitModel."""
        own, head = fixed
        return self._charged(self.model.node_outcomes(own, nodes), head, nodes)

    def node_steps(self, fixed: tuple[Any, Any], nodes: jax.Array) -> tuple[tuple[jax.Array, ...], jax.Array]:
        """See SplitModel."""
        (outcome, head), (transition, _) = fixed
        responses, changed = self.model.node_steps((outcome, transition), nodes)
        measured = self.charges.measured
        return (*self._charged(responses[:measured], head, nodes), *responses[measured:]), changed

    def survival(self, states: jax.Array) -> jax.Array:
        """See LeavingModel."""
        return self.model.survival(states)

    def outcomes(self, states: jax.Array) -> jax.Array:
        """Mean reward, then one mean cost for each budget: [n, width] -> [outcomes, n, actions]."""
        now = jnp.asarray(states)
        found = self.node_outcomes(self.fixed_parts(now)[0], now[:, None, self.fixed_width :])
        return jnp.stack([outcome.T for outcome in found])

    def successors(self, states: jax.Array) -> jax.Array:
        """Expected next state after every action: [n, width] -> [n, actions, width]."""
        return self.model.successors(states)

    def _charged(self, measured: tuple[jax.Array, ...], head: jax.Array, nodes: jax.Array) -> tuple[jax.Array, ...]:
        """Charged outcomes of nodes [groups, size, changing] with fixed columns [groups, fixed or 0]."""
        groups, size, _ = nodes.shape
        # If only the step matters, the columns before it may be zero.
        missing = self.fixed_width - head.shape[1]
        fixed = jnp.concatenate([head, jnp.zeros((groups, missing), head.dtype)], axis=1)
        before = jnp.broadcast_to(fixed[:, None], (groups, size, self.fixed_width))
        states = jnp.concatenate([before, nodes], axis=2).reshape(groups * size, -1)
        return self.charges.outcomes(measured, states, jnp)


# Relative tolerance of comparisons: far above the rounding of a standardised 32-bit number, far below real differences.
_EQUAL = 1e-5


@dataclass(frozen=True)
class _Number:
    """How a number is decoded from a state."""

    name: str
    column: int
    mean: float
    scale: float
    indicator: int | None
    """The column that marks missing values."""
    binary: bool


@dataclass(frozen=True)
class _Category:
    """How a category is decoded from a state."""

    name: str
    column: int
    labels: tuple[str, ...]
    static: bool


@dataclass(frozen=True)
class Decoding:
    """How the columns that conditions use are decoded from states [rows, width]."""

    numbers: tuple[_Number, ...]
    categories: tuple[_Category, ...]
    step: int
    """The step's column."""
    step_change: float
    first_step: int

    def holds(self, condition: Condition, states: Any, library: Any = np) -> Any:
        """Where a condition is true for states [rows, width], [rows]."""
        return self.said(condition, states, library).true

    def steps(self, states: Any, library: Any = np) -> Any:
        """Steps from 0, [rows], as numbers."""
        return library.rint(states[:, self.step] / self.step_change)

    def said(self, condition: Condition, states: Any, library: Any = np) -> Verdict:
        """Where a condition is true for states [rows, width], and where it is false."""
        return judged(condition, lambda leaf: self._verdict(leaf, states, library))

    def _verdict(self, leaf: Leaf, states: Any, library: Any) -> Verdict:
        if isinstance(leaf, Missing):
            missing = self._missing(leaf.name, states, library)
            return Verdict(missing, ~missing)
        if isinstance(leaf, Among):
            return self._among(leaf.name, leaf.values, states, library)
        if isinstance(leaf, Column):
            return self._compared(leaf.name, "!=", 0.0, states, library)
        if isinstance(leaf.right, str):
            said = self._among(leaf.left, (leaf.right,), states, library)
            return said if leaf.sign == "==" else Verdict(said.false, said.true)
        return self._compared(leaf.left, leaf.sign, leaf.right, states, library)

    def _among(self, name: str, values: tuple[float, ...] | tuple[str, ...], states: Any, library: Any) -> Verdict:
        if not isinstance(values[0], str):
            either = Either(tuple(Compare(name, "==", float(value)) for value in values))
            return self.said(either, states, library)
        category = self._category(name)
        code = _code(category, states, library)
        places = [place for place, label in enumerate(category.labels, start=2) if label in values]
        is_one = code == -1  # nowhere
        for place in places:
            is_one = is_one | (code == place)
        known = code != MISSING
        return Verdict(known & is_one, known & ~is_one)

    def _compared(self, name: str, sign: str, right: float | Column, states: Any, library: Any) -> Verdict:
        left, known, size = self._value(name, states, library)
        other: Any = right
        if isinstance(right, Column):
            other, also, other_size = self._value(right.name, states, library)
            known, size = known & also, size + other_size
        close = _EQUAL * (library.abs(other) + size)
        equal = library.abs(left - other) <= close
        above = (left > other) & ~equal
        said = {"==": equal, "!=": ~equal, "<": ~equal & ~above, "<=": ~above, ">": above, ">=": above | equal}[sign]
        return Verdict(known & said, known & ~said)

    def _value(self, name: str, states: Any, library: Any) -> tuple[Any, Any, float]:
        """A number [rows], a mask of known values [rows], and the scale of its encoding, which sets the rounding."""
        if name == STEP:
            value = self.steps(states, library) + self.first_step
            return value, value == value, 0.0
        number = next((number for number in self.numbers if number.name == name), None)
        if number is None:
            raise ModelError(f"a condition uses {name!r}, which is not a numeric feature of the states")
        value = states[:, number.column] * number.scale + number.mean
        if number.binary:
            value = library.rint(value)
        known = value == value if number.indicator is None else states[:, number.indicator] < 0.5
        return value, known, abs(number.mean) + number.scale

    def _missing(self, name: str, states: Any, library: Any) -> Any:
        if any(category.name == name for category in self.categories):
            return _code(self._category(name), states, library) == MISSING
        return ~self._value(name, states, library)[1]

    def _category(self, name: str) -> _Category:
        category = next((category for category in self.categories if category.name == name), None)
        if category is None:
            raise ModelError(f"a condition uses {name!r}, which is not a category of the states")
        return category


def _code(category: _Category, states: Any, library: Any) -> Any:
    """The code of a category, [rows]."""
    if category.static:
        return library.rint(states[:, category.column])
    return states[:, category.column : category.column + len(category.labels) + 2].argmax(axis=1)


def decoding_for(encoder: Encoder, conditions: tuple[Condition, ...]) -> Decoding:
    """The decoding of the columns that these conditions use."""
    layout = encoder.layout
    places = state_places(encoder.numbers, encoder.categories, layout)
    watched = dict(zip(places.watched.tolist(), places.indicators.tolist(), strict=True))
    used = frozenset().union(*map(columns_of, conditions)) if conditions else frozenset()
    return Decoding(
        numbers=tuple(
            _Number(
                number.name, int(places.numbers[place]), number.mean, number.scale, watched.get(place), number.binary
            )
            for place, number in enumerate(encoder.numbers)
            if number.name in used
        ),
        categories=tuple(
            _Category(category.name, places.categories[place], category.labels, category.static)
            for place, category in enumerate(encoder.categories)
            if category.name in used
        ),
        step=layout.step,
        step_change=layout.step_change,
        first_step=encoder.first_step,
    )
