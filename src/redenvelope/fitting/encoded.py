"""A fold, encoded once: every pass over it works on the same states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.chance import fraction
from redenvelope.log.encoding import Encoder
from redenvelope.log.log import Log

__all__ = ["EncodedLog", "encode", "some_users"]

_USERS_PER_BATCH = 2_048  # trees and tables of all actions are large; of so many users they fit in memory


@dataclass(frozen=True, eq=False)
class EncodedLog:
    """Logged rows with their states."""

    log: Log
    states: NDArray[np.float32]
    """[rows, width]"""
    steps_left: NDArray[np.int64]
    """Decisions left, this one included, [rows]."""
    codes: int
    """Leading columns of a state that hold codes of static categories: no numbers to regress on."""

    @property
    def features(self) -> NDArray[np.float32]:
        """What ratios of states are regressed on, [rows, features]: no policy changes who is in a static category."""
        return self.states[:, self.codes :]

    def first_states(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """States of every user's first row [users, width], and the steps left there [users]."""
        first = self.log.starts[:-1]
        return self.states[first], self.steps_left[first]

    def batches(self) -> Iterator[EncodedLog]:
        """A few thousand users at a time, as views."""
        first = 0
        for part in self.log.batches(_USERS_PER_BATCH):
            rows = slice(first, first + len(part))
            yield EncodedLog(part, self.states[rows], self.steps_left[rows], self.codes)
            first += len(part)


def encode(log: Log, encoder: Encoder, steps: int) -> EncodedLog:
    """A log with its states, in a campaign of so many steps."""
    steps_left = np.asarray(encoder.first_step + steps - log.step, dtype=np.int64)
    return EncodedLog(log, encoder.encode(log), steps_left, len(encoder.layout.static_categories))


def some_users(log: Log, users: int, stream: str, seed: int) -> Log:
    """At most so many users of a log, chosen by a stream of their own: always the same ones."""
    if len(log.users) <= users:
        return log
    order = np.argsort(fraction(log.keys, stream, seed), kind="stable")
    chosen = np.zeros(len(log.users), dtype=bool)
    chosen[order[:users]] = True
    return log.select(chosen)
