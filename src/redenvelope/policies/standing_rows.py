"""Where rows stand: of a log, of a table of users to decide for, and of one user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.campaign.rows import FrameRows, OneRow, TableRows
from redenvelope.log.eligible import ELIGIBLE, listed_actions
from redenvelope.log.encoding import Encoder
from redenvelope.log.ids import read_steps
from redenvelope.log.log import ActionCatalogue, Log
from redenvelope.log.past import action_index, past_of_frame, past_of_row
from redenvelope.log.relative import with_relative, with_relative_row
from redenvelope.policies.constraints import Memory
from redenvelope.policies.rule_constraint import RuleConstraint
from redenvelope.policies.standing import Standing

__all__ = ["StandingRows", "is_feature", "standing_of_frame", "standing_of_log", "standing_of_row"]

BoolArray = NDArray[np.bool_]


class StandingRows(NamedTuple):
    """Where the users of a table stand."""

    standing: Standing | None
    """None where nothing is ruled out."""
    nothing: BoolArray
    """Whether the rules and the table leave nothing, so that the cheapest action is given, [rows]."""


def standing_of_log(constraint: RuleConstraint | None, log: Log) -> Standing | None:
    """Where logged rows stand; None where nothing is ruled out."""
    if constraint is None:
        none = np.zeros((len(log), 0), np.int16)
        return None if log.eligible is None else Standing(_some(log.eligible), none)
    counters = constraint.counters(log.starts, log.action)
    memory = constraint.remembered(TableRows(log.features, log.step), counters)
    return _joined(constraint, log.eligible, memory).standing


def standing_of_frame(
    constraint: RuleConstraint | None,
    encoder: Encoder,
    catalogue: ActionCatalogue,
    frame: pl.DataFrame,
    past: pl.DataFrame | None,
) -> StandingRows:
    """Where the users of a table stand; `past` are their earlier steps, which caps count."""
    listed = None
    if ELIGIBLE in frame.columns and not is_feature(ELIGIBLE, encoder):
        listed = listed_actions(frame[ELIGIBLE], catalogue)
    if constraint is None:
        if listed is None:
            return StandingRows(None, np.zeros(len(frame), dtype=bool))
        none = np.zeros((len(frame), 0), np.int16)
        return StandingRows(Standing(_some(listed), none), _empty(listed))
    counters = np.zeros((len(frame), constraint.counters_wide), np.int16)
    if constraint.counts:
        steps = read_steps(frame["step"]).cast(pl.Int32).to_numpy()
        before = past_of_frame(constraint.past, frame, steps, past, encoder.first_step)
        counters = constraint.counters_after(before.starts, before.action)
    known = with_relative(frame, encoder.of_dates)
    return _joined(constraint, listed, constraint.remembered(FrameRows(known, constraint.texts), counters))


def standing_of_row(
    constraint: RuleConstraint | None,
    encoder: Encoder,
    row: Mapping[str, Any],
    step: int,
    past: Sequence[Mapping[str, Any]] | None,
    listed: BoolArray | None,
) -> StandingRows:
    """Where one user stands; `listed` [actions] is what the user may get besides."""
    mask = None if listed is None else listed[None]
    if constraint is None:
        standing = None if mask is None else Standing(_some(mask), np.zeros((1, 0), np.int16))
        return StandingRows(standing, np.array([mask is not None and not mask.any()]))
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


def _joined(constraint: RuleConstraint, listed: BoolArray | None, memory: Memory) -> StandingRows:
    """What rules remember, and a list [rows, actions] of what each row may get.

    What the rules themselves forbid now may be missing from the list for that reason alone: it is not missed later on.
    """
    rows, actions = len(memory), len(constraint.catalogue)
    by_rules = constraint.eligible(np.zeros((rows, 0), np.float32), np.zeros(rows, np.intp), memory)
    if listed is None:
        always = np.ones((rows, actions), dtype=bool)
        return StandingRows(Standing(always, memory), _empty(by_rules))
    always, nothing = listed | ~by_rules, _empty(listed & by_rules)
    always[nothing, 0] = True
    return StandingRows(Standing(always, memory), nothing)


def _empty(mask: BoolArray) -> BoolArray:
    return np.asarray(~mask.any(axis=1))


def _some(listed: BoolArray) -> BoolArray:
    """A list without anything holds the cheapest action."""
    if listed.any(axis=1).all():
        return listed
    some = listed.copy()
    some[~listed.any(axis=1), 0] = True
    return some
