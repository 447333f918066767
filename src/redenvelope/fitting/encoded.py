"""A fold with its states, encoded once for all passes over it, and the features that state ratios are regressed on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import Float32Array, KeyArray
from redenvelope.evaluation.item_groups import FEWEST_ITEMS
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.encoding.history import HistoryEncoding
from redenvelope.log.encoding.layout import StateLayout
from redenvelope.log.log import ActionCatalogue, Log
from redenvelope.models.past_effects import PastEffects, lagged
from redenvelope.plan.policy import DeployedPolicy
from redenvelope.policies.eligibility_state import EligibilityState, allowed, eligibility_of_log
from redenvelope.policies.rules import RuleConstraint
from redenvelope.randomness import fraction, member_of

_PAST_ROWS = 80_000  # rows used to estimate effects of the past, which have many columns
_USERS_PER_BATCH = 2_048  # bounds the memory of trees and of arrays over all actions


@dataclass(frozen=True, eq=False)
class EncodedLog:
    """Logged rows with their states and eligibility."""

    log: Log
    states: NDArray[np.float32]
    """[rows, width]"""
    steps_left: NDArray[np.int64]
    """Decisions left, this one included, [rows]."""
    layout: StateLayout
    """The columns of a state."""
    eligibility: EligibilityState | None = None
    """The rules' eligibility state of each row; None if there are no rules."""
    counted: NDArray[np.float32] | None = None
    """The counters of rules that count actions, [rows, columns]; None if no rule counts."""

    @property
    def features(self) -> NDArray[np.float32]:
        """What state ratios are regressed on, [rows, features]: nested sets of columns, `feature_blocks` wide."""
        made = RatioFeatures(self.layout).of(self.states)
        return made if self.counted is None else np.concatenate([self.counted, made], axis=1)

    @property
    def feature_blocks(self) -> tuple[int, ...]:
        """Widths of the nested sets, increasing."""
        further = 0 if self.counted is None else self.counted.shape[1]
        return tuple(width + further for width in RatioFeatures(self.layout).blocks)

    def first_states(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """States of every user's first row, [users, width], and the steps left there, [users]."""
        first = self.log.starts[:-1]
        return self.states[first], self.steps_left[first]

    def first_eligibility(self) -> EligibilityState | None:
        """The rules' eligibility state of every user's first row."""
        return None if self.eligibility is None else self.eligibility[self.log.starts[:-1]]

    def eligible(self, rules: RuleConstraint | None) -> NDArray[np.bool_] | None:
        """The eligible actions of each row, [rows, actions]; None where there are no rules."""
        return None if self.eligibility is None else allowed(self.eligibility, rules, self.states, self.steps_left)

    def select(self, chosen: NDArray[np.bool_]) -> EncodedLog:
        """The users selected by the mask `chosen`, [users]."""
        rows = np.repeat(chosen, self.log.lengths)
        return self._part(self.log.select(chosen), rows)

    @property
    def row_keys(self) -> KeyArray:
        """The key of each row's user, or cluster, [rows]."""
        return np.repeat(self.log.keys, self.log.lengths)

    def by_member(self, policy: DeployedPolicy) -> Iterator[tuple[DeployedPolicy, EncodedLog]]:
        """Yield each member of a policy with the users who follow it; all users if there is one member."""
        member = member_of(self.log.keys, len(policy.members))
        for number, own in enumerate(policy.members):
            if len(policy.members) == 1:
                yield own, self
            elif (chosen := member == number).any():
                yield own, self.select(chosen)

    # The name of a stream decides which users it selects: another name would give other plans.

    def pilot_users(self, users: int, seed: int) -> EncodedLog:
        """At most `users` users, for choosing temperature and prices."""
        return self.sample(users, "scouts", seed)

    def sample(self, users: int, stream: str, seed: int) -> EncodedLog:
        """At most `users` users, selected by hashes of their ids in a named random stream."""
        return self if len(self.log.users) <= users else self.select(sampled(self.log, users, stream, seed))

    def batches(self) -> Iterator[EncodedLog]:
        """Yield a few thousand users at a time, as views of the arrays."""
        first = 0
        for part in self.log.batches(_USERS_PER_BATCH):
            rows = slice(first, first + len(part))
            yield self._part(part, rows)
            first += len(part)

    def _part(self, log: Log, rows: slice | NDArray[np.bool_]) -> EncodedLog:
        eligibility = None if self.eligibility is None else self.eligibility[rows]
        counted = None if self.counted is None else self.counted[rows]
        return EncodedLog(log, self.states[rows], self.steps_left[rows], self.layout, eligibility, counted)


def sampled(log: Log, users: int, stream: str, seed: int) -> NDArray[np.bool_]:
    """A mask of at most `users` users, selected by hashes of their ids in a named random stream, [users]."""
    order = np.argsort(fraction(log.keys, stream, seed), kind="stable")
    chosen = np.zeros(len(log.users), dtype=bool)
    chosen[order[:users]] = True
    return chosen


def encode(log: Log, encoder: Encoder, steps: int, rules: RuleConstraint | None = None) -> EncodedLog:
    """A log with its states, in a campaign of `steps` steps with these rules."""
    steps_left = np.asarray(encoder.first_step + steps - log.step, dtype=np.int64)
    eligibility = eligibility_of_log(rules, log)
    counted = None
    if rules is not None and rules.counts and eligibility is not None:
        counted = rules.told(eligibility.memory)
    return EncodedLog(log, encoder.encode(log), steps_left, encoder.layout, eligibility, counted)


_CLASSES = 8


def _in_classes(log: Log) -> Log:
    """A log with many actions as one of the cheapest action and a few classes of the others, by cost: the columns of a
    history of hundreds of actions would leave too few rows for each."""
    actions = len(log.catalogue)
    if actions < FEWEST_ITEMS:
        return log
    of_action = np.where(np.arange(actions) == 0, 0, 1 + (np.arange(actions) - 1) * _CLASSES // (actions - 1))
    labels = tuple(f"class {place}" for place in range(_CLASSES + 1))
    return replace(log, action=of_action.astype(np.int32)[log.action], catalogue=ActionCatalogue(labels, False))


def past_effects(log: Log, encoder: Encoder, users: int, seed: int) -> PastEffects | None:
    """Effects of the past beyond the state, estimated on at most `users` users; None if no user has a second step.

    The past is the history, unless states contain it, and what happened two and three steps before.
    """
    share = min(users / len(log.users), _PAST_ROWS / len(log))
    if share < 1:
        log = log.select(fraction(log.keys, "past", seed) < share)
    if log.lengths.max(initial=0) < 2:
        return None
    states, classed = encoder.encode(log), _in_classes(log)
    known = [HistoryEncoding.fit(classed).columns(classed)] if encoder.history is None else []
    return PastEffects.of(log, states, encoder.layout, np.concatenate([*known, lagged(log)], axis=1))


MOST_COLUMNS = 72
"""Most columns, products included: 30,000 users, five steps and 64 prices then take seconds."""
MOST_CODES = 12
"""Static categories with more codes get no indicators, because each code would have too few users."""


@dataclass(frozen=True)
class RatioFeatures:
    """The features that state ratios are regressed on: the state, and its products with the user's static columns.

    A plan that treats groups differently leads them to different states, so a state's ratio depends on group *and*
    state, in interaction. A static column alone has no effect, because no plan changes it, but its products with
    dynamic columns (the history included) do. The columns form nested sets, from the plain state to all products; the
    regression chooses among them on held-out users.
    """

    layout: StateLayout

    @property
    def plain(self) -> slice:
        """Numeric columns of a state: static ones, the step, dynamic ones."""
        return slice(len(self.layout.static_categories), self.layout.width)

    @property
    def dynamic(self) -> slice:
        """Dynamic columns without the step, which hardly varies where ratios are regressed."""
        return slice(self.layout.step + 1, self.layout.width)

    @cached_property
    def _codes(self) -> tuple[tuple[int, int], ...]:
        """Column and code of each indicator, small categories first, as many as fit with their products."""
        sizes = self.layout.static_categories
        order = sorted(range(len(sizes)), key=lambda column: sizes[column])
        wanted = [(column, code) for column in order if sizes[column] <= MOST_CODES for code in range(sizes[column])]
        return tuple(wanted[: self._room // (1 + self._changing)])

    @cached_property
    def _scaled(self) -> int:
        """Number of static numeric columns that get products, in the room that indicators leave."""
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
