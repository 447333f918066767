"""A fold, encoded once: every pass over it works on the same states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.chance import fraction
from redenvelope.fitting.ratio_features import RatioFeatures
from redenvelope.log.encoding import Encoder
from redenvelope.log.history import HistoryEncoding
from redenvelope.log.layout import StateLayout
from redenvelope.log.log import Log
from redenvelope.policies.rule_constraint import RuleConstraint
from redenvelope.policies.standing import Standing
from redenvelope.policies.standing_rows import standing_of_log

__all__ = ["EncodedLog", "encode"]

_USERS_PER_BATCH = 2_048  # trees and tables of all actions are large; of so many users they fit in memory


@dataclass(frozen=True, eq=False)
class EncodedLog:
    """Logged rows with their states."""

    log: Log
    states: NDArray[np.float32]
    """[rows, width]"""
    steps_left: NDArray[np.int64]
    """Decisions left, this one included, [rows]."""
    layout: StateLayout
    """Where each part of a state stands."""
    past: NDArray[np.float32] | None = None
    """What happened before, where the states do not tell it, [rows, columns]: estimates are checked against it."""
    standing: Standing | None = None
    """What rows may get by the rules; None where nothing is ruled out."""
    counted: NDArray[np.float32] | None = None
    """What rules that count know of rows, [rows, columns]; None where none counts."""

    @property
    def codes(self) -> int:
        """Leading columns of a state that hold codes of static categories: no numbers to regress on."""
        return len(self.layout.static_categories)

    @property
    def features(self) -> NDArray[np.float32]:
        """What ratios of states are regressed on, [rows, features]: nested sets of columns, `feature_blocks` wide."""
        made = RatioFeatures(self.layout).of(self.states)
        return made if self.counted is None else np.concatenate([self.counted, made], axis=1)

    @property
    def feature_blocks(self) -> tuple[int, ...]:
        """Widths of the nested sets, rising."""
        further = 0 if self.counted is None else self.counted.shape[1]
        return tuple(width + further for width in RatioFeatures(self.layout).blocks)

    def first_states(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """States of every user's first row [users, width], and the steps left there [users]."""
        first = self.log.starts[:-1]
        return self.states[first], self.steps_left[first]

    def first_standing(self) -> Standing | None:
        """Where every user's first row stands."""
        return None if self.standing is None else self.standing[self.log.starts[:-1]]

    def select(self, chosen: NDArray[np.bool_]) -> EncodedLog:
        """Some users: chosen [users]."""
        rows = np.repeat(chosen, self.log.lengths)
        return self._part(self.log.select(chosen), rows)

    def some_users(self, users: int, stream: str, seed: int) -> EncodedLog:
        """At most so many users, chosen by a stream of their own: always the same ones."""
        if len(self.log.users) <= users:
            return self
        order = np.argsort(fraction(self.log.keys, stream, seed), kind="stable")
        chosen = np.zeros(len(self.log.users), dtype=bool)
        chosen[order[:users]] = True
        return self.select(chosen)

    def batches(self) -> Iterator[EncodedLog]:
        """A few thousand users at a time, as views."""
        first = 0
        for part in self.log.batches(_USERS_PER_BATCH):
            rows = slice(first, first + len(part))
            yield self._part(part, rows)
            first += len(part)

    def _part(self, log: Log, rows: slice | NDArray[np.bool_]) -> EncodedLog:
        past = None if self.past is None else self.past[rows]
        standing = None if self.standing is None else self.standing[rows]
        counted = None if self.counted is None else self.counted[rows]
        return EncodedLog(log, self.states[rows], self.steps_left[rows], self.layout, past, standing, counted)


def encode(log: Log, encoder: Encoder, steps: int, rules: RuleConstraint | None = None) -> EncodedLog:
    """A log with its states, in a campaign of so many steps with these rules."""
    steps_left = np.asarray(encoder.first_step + steps - log.step, dtype=np.int64)
    past = HistoryEncoding.fit(log).columns(log) if encoder.history is None and log.lengths.max() > 1 else None
    standing = standing_of_log(rules, log)
    counted = None
    if rules is not None and rules.counts and standing is not None:
        counted = rules.told(standing.memory)
    return EncodedLog(log, encoder.encode(log), steps_left, encoder.layout, past, standing, counted)
