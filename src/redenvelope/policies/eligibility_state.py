"""Eligibility states: the actions that each row may get at any step, and the constraint's memory (`EligibilityState`);
the mask of a step (`allowed`); and builders for a log, for a table of users to decide for, and for one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from redenvelope.arrays import BoolArray
from redenvelope.campaign.rows import FrameRows, OneRow, TableRows
from redenvelope.errors import UsageError
from redenvelope.log.cleaning.dates import with_relative, with_relative_row
from redenvelope.log.cleaning.ids import read_steps
from redenvelope.log.eligibility import ELIGIBLE, listed_actions
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.encoding.history import action_index, past_of_frame, past_of_row
from redenvelope.log.log import ActionCatalogue, Log
from redenvelope.policies.policy import Constraint, Memory, whole_mask
from redenvelope.policies.rules import RuleConstraint


@dataclass(frozen=True, eq=False)
class EligibilityState:
    """Eligibility of rows (users, or nodes of their trees), which their encoded states do not hold.

    Numpy arrays, or jax arrays inside a compiled program.
    """

    always: Any
    """Actions eligible at this and every later step, [rows, actions]; at least one per row."""
    memory: Any
    """The constraint's memory, [rows, columns]."""

    def __len__(self) -> int:
        return len(self.always)

    def __getitem__(self, rows: slice | NDArray[np.integer] | BoolArray) -> EligibilityState:
        """Some of the rows, in this order."""
        return EligibilityState(self.always[rows], self.memory[rows])

    def joined(self, other: EligibilityState) -> EligibilityState:
        """These rows followed by others."""
        pairs = ((self.always, other.always), (self.memory, other.memory))
        return EligibilityState(*map(np.concatenate, pairs))

    def after(self, constraint: Constraint | None, action: NDArray[np.integer]) -> EligibilityState:
        """The eligibility state one step later, after each row got an action [rows]."""
        if constraint is None or not constraint.remembers:
            return self
        return EligibilityState(self.always, constraint.after(self.memory, action.astype(np.intp)))


Eligible = ArrayLike | EligibilityState | None
"""Eligible actions: a mask [rows, actions] for this and every later step, or an eligibility state; None allows all."""


def eligibility_state(eligible: Eligible, rows: int, actions: int, constraint: Constraint | None) -> EligibilityState:
    """The eligibility state of rows; from a mask, or None, with an empty memory, as before anything has happened."""
    columns = 0 if constraint is None else constraint.remembers
    if not isinstance(eligible, EligibilityState):
        return EligibilityState(whole_mask(eligible, rows, actions), np.zeros((rows, columns), np.int16))
    whole_mask(eligible.always, rows, actions)
    if eligible.memory.shape != (rows, columns):
        raise UsageError(
            f"what the rules remember must be [rows, columns] = {(rows, columns)}, not {eligible.memory.shape}"
        )
    return eligible


def allowed(eligibility: EligibilityState, constraint: Constraint | None, states: Any, steps_left: Any) -> Any:
    """Actions that rows with states [rows, width] and steps left [rows] may get now, [rows, actions]; numpy arrays, or
    jax arrays inside a compiled program.

    If a constraint leaves a row nothing, its cheapest eligible action is allowed.
    """
    own = eligibility.always
    if constraint is None:
        return own
    said = constraint.eligible(states, steps_left, eligibility.memory)
    if said.shape != own.shape:
        raise UsageError(f"a constraint must answer with a mask of shape {own.shape}, not {said.shape}")
    both = own & said
    cheapest = np.arange(own.shape[1]) == own.argmax(axis=1)[:, None]
    return both | (cheapest & ~both.any(axis=1)[:, None])


# Builders: the eligibility state of a log, of a table of users to decide for, and of one user.


class EligibilityRows(NamedTuple):
    """The eligibility state of the users of a table."""

    eligibility: EligibilityState | None
    """None if nothing is ruled out."""
    nothing: BoolArray
    """Whether the rules and the table leave no action, so that the cheapest is given, [rows]."""


def eligibility_of_log(constraint: RuleConstraint | None, log: Log) -> EligibilityState | None:
    """The eligibility state of logged rows; None if nothing is ruled out."""
    if constraint is None:
        none = np.zeros((len(log), 0), np.int16)
        return None if log.eligible is None else EligibilityState(_some(log.eligible), none)
    counters = constraint.counters(log.starts, log.action)
    memory = constraint.remembered(TableRows(log.features, log.step), counters)
    return _joined(constraint, log.eligible, memory).eligibility


def eligibility_of_frame(
    constraint: RuleConstraint | None,
    encoder: Encoder,
    catalogue: ActionCatalogue,
    frame: pl.DataFrame,
    past: pl.DataFrame | None,
) -> EligibilityRows:
    """The eligibility state of the users of a table; `past` has their earlier steps, for rules that count."""
    listed = None
    if ELIGIBLE in frame.columns and not is_feature(ELIGIBLE, encoder):
        listed = listed_actions(frame[ELIGIBLE], catalogue)
    if constraint is None:
        if listed is None:
            return EligibilityRows(None, np.zeros(len(frame), dtype=bool))
        none = np.zeros((len(frame), 0), np.int16)
        return EligibilityRows(EligibilityState(_some(listed), none), _empty(listed))
    counters = np.zeros((len(frame), constraint.counters_wide), np.int16)
    if constraint.counts:
        steps = read_steps(frame["step"]).cast(pl.Int32).to_numpy()
        before = past_of_frame(constraint.past, frame, steps, past, encoder.first_step)
        counters = constraint.counters_after(before.starts, before.action)
    known = with_relative(frame, encoder.of_dates)
    return _joined(constraint, listed, constraint.remembered(FrameRows(known, constraint.texts), counters))


def eligibility_of_row(
    constraint: RuleConstraint | None,
    encoder: Encoder,
    row: Mapping[str, Any],
    step: int,
    past: Sequence[Mapping[str, Any]] | None,
    listed: BoolArray | None,
) -> EligibilityRows:
    """The eligibility state of one user; `listed` [actions] are the actions that the request allows."""
    mask = None if listed is None else listed[None]
    if constraint is None:
        eligibility = None if mask is None else EligibilityState(_some(mask), np.zeros((1, 0), np.int16))
        return EligibilityRows(eligibility, np.array([mask is not None and not mask.any()]))
    counters = np.zeros((1, constraint.counters_wide), np.int16)
    if constraint.counts:
        earlier = past_of_row(constraint.past, step, past, encoder.first_step)
        action = np.array([action_index(constraint.past, one.get("action")) for one in earlier], dtype=np.intp)
        counters = constraint.counters_after(np.array([0, len(action)]), action)
    known = with_relative_row(row, encoder.of_dates)
    return _joined(constraint, mask, constraint.remembered(OneRow(known, constraint.texts), counters))


def is_feature(name: str, encoder: Encoder) -> bool:
    """Whether a column is a feature of the log."""
    return name in {*(number.name for number in encoder.numbers), *(each.name for each in encoder.categories)}


def _joined(constraint: RuleConstraint, listed: BoolArray | None, memory: Memory) -> EligibilityRows:
    """Combine the rules' memory with a list [rows, actions] of what each row may get.

    An action that the rules forbid now may be missing from the list for that reason alone, so it stays eligible later.
    """
    rows, actions = len(memory), len(constraint.catalogue)
    by_rules = constraint.eligible(np.zeros((rows, 0), np.float32), np.zeros(rows, np.intp), memory)
    if listed is None:
        always = np.ones((rows, actions), dtype=bool)
        return EligibilityRows(EligibilityState(always, memory), _empty(by_rules))
    always, nothing = listed | ~by_rules, _empty(listed & by_rules)
    always[nothing, 0] = True
    return EligibilityRows(EligibilityState(always, memory), nothing)


def _empty(mask: BoolArray) -> BoolArray:
    return np.asarray(~mask.any(axis=1))


def _some(listed: BoolArray) -> BoolArray:
    """The mask `listed`, with the cheapest action in rows without any."""
    if listed.any(axis=1).all():
        return listed
    some = listed.copy()
    some[~listed.any(axis=1), 0] = True
    return some
