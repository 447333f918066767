"""A fold, encoded once: every pass over it works on the same states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import Float32Array
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.encoding.history import HistoryEncoding
from redenvelope.log.encoding.layout import StateLayout
from redenvelope.log.log import Log
from redenvelope.policies.eligibility_state import EligibilityState, eligibility_of_log
from redenvelope.policies.rules import RuleConstraint
from redenvelope.randomness import fraction

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
    standing: EligibilityState | None = None
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

    def first_standing(self) -> EligibilityState | None:
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
    standing = eligibility_of_log(rules, log)
    counted = None
    if rules is not None and rules.counts and standing is not None:
        counted = rules.told(standing.memory)
    return EncodedLog(log, encoder.encode(log), steps_left, encoder.layout, past, standing, counted)


# What ratios of states are regressed on: the state, and its products with what never changes about a user.
#
# A plan that treats groups differently takes them to different states, so the ratio of a state depends on the group
# *and* the state: no sum of their effects describes it. Alone, a static column says nothing (no plan changes who is
# in it), but its products with dynamic columns, those of the history among them, do. The columns are nested sets,
# from the plain state to all products; the regression chooses among them on held-out users.


MOST_COLUMNS = 72
"""Columns of the largest set, as far as products go: 30,000 users, five steps and 64 prices then take seconds."""
MOST_CODES = 12
"""Codes of a static category that gets columns of its own; of larger ones, no code has enough users to tell."""


@dataclass(frozen=True)
class RatioFeatures:
    """Columns made of states [rows, width] of one layout."""

    layout: StateLayout

    @property
    def plain(self) -> slice:
        """Columns of a state that are numbers: static, the step, dynamic."""
        return slice(len(self.layout.static_categories), self.layout.width)

    @property
    def dynamic(self) -> slice:
        """Columns that change, without the step: at one position of users it is hardly a column."""
        return slice(self.layout.step + 1, self.layout.width)

    @cached_property
    def _codes(self) -> tuple[tuple[int, int], ...]:
        """Column and code of each indicator, small categories first, as far as they and their products fit in."""
        sizes = self.layout.static_categories
        order = sorted(range(len(sizes)), key=lambda column: sizes[column])
        wanted = [(column, code) for column in order if sizes[column] <= MOST_CODES for code in range(sizes[column])]
        return tuple(wanted[: self._room // (1 + self._changing)])

    @cached_property
    def _scaled(self) -> int:
        """How many static numbers get products, in what room indicators leave."""
        left = self._room - len(self._codes) * (1 + self._changing)
        return min(self.layout.static_numbers, left // max(self._changing, 1)) if self._changing else 0

    @property
    def _changing(self) -> int:
        return self.layout.width - self.layout.step - 1

    @property
    def _numbers(self) -> int:
        return self.layout.width - len(self.layout.static_categories)

    @property
    def _room(self) -> int:
        return max(MOST_COLUMNS - self._numbers, 0)

    @cached_property
    def blocks(self) -> tuple[int, ...]:
        """Widths of the nested sets: the state; with indicators and their products; with products of numbers."""
        parts = (
            self._numbers,
            len(self._codes) * (1 + self._changing),
            self._scaled * self._changing,
        )
        return tuple(dict.fromkeys(accumulate(parts)))

    def of(self, states: Float32Array) -> Float32Array:
        """The columns of the largest set, [rows, width] -> [rows, blocks[-1]]."""
        plain, changing = states[:, self.plain], states[:, self.dynamic]
        if len(self.blocks) == 1:
            return plain
        columns = np.array([column for column, _ in self._codes], dtype=np.intp)
        codes = np.array([code for _, code in self._codes], dtype=np.float32)
        is_code = (states[:, columns] == codes).astype(np.float32)
        numbers = states[:, len(self.layout.static_categories) :][:, : self._scaled]
        made = [plain, is_code, _products(is_code, changing), _products(numbers, changing)]
        return np.concatenate(made, axis=1)


def _products(static: Float32Array, changing: Float32Array) -> Float32Array:
    """All products of columns, [rows, first] and [rows, second] -> [rows, first · second]."""
    return np.asarray((static[:, :, None] * changing[:, None, :]).reshape(len(static), -1))
