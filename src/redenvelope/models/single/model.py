"""A learned world for few rows at once, in plain arrays: the same answers as the compiled model's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from redenvelope.log.layout import StateLayout
from redenvelope.models.single.networks import Outcomes, Tails
from redenvelope.models.single.trunk import Inputs

__all__ = ["SingleHistory", "SingleModel", "quiet"]

FloatArray = NDArray[np.float32]

quiet = np.errstate(over="ignore")
"""An exponential beyond the largest number is infinite, and what is divided by it zero: as it should be."""


class SingleHistory(NamedTuple):
    """How the history in the states moves on; see `models.known`."""

    keep: FloatArray
    """[actions, columns]"""
    jump: FloatArray
    """[actions, columns]"""
    gain: FloatArray
    """[outcomes, columns]"""

    def after(self, history: FloatArray, outcomes: FloatArray) -> FloatArray:
        """[n, columns] and expected outcomes [outcomes or more, n, actions] -> [n, actions, columns]."""
        following = self.keep * history[:, None] + self.jump
        for gain, outcome in zip(self.gain, outcomes, strict=False):
            following += gain * outcome[..., None]
        return following


@dataclass(frozen=True, eq=False)
class SingleModel:
    """Outcomes and successors of every action, for a handful of states."""

    outcome: Outcomes
    tail: Tails
    layout: StateLayout
    inputs: Inputs
    leaves: bool = False
    """Whether users leave: the last of the outcome network's responses is then the chance of a next step."""
    history: SingleHistory | None = None
    """None where states have none."""

    @property
    def actions(self) -> int:
        """Number of actions, in the order of the action catalogue."""
        return self.outcome.actions

    @property
    def budgets(self) -> int:
        """Number of budgets: costs after the reward."""
        return self.outcome.kinds - 1 - self.leaves

    @quiet
    def outcomes(self, states: FloatArray) -> FloatArray:
        """Mean outcomes of every action: [n, width] -> [outcomes, n, actions]."""
        constant = self.outcome.trunk.constant(self.inputs.heads(states, states[:, self.layout.step]))
        return self.outcome.means(constant, states[:, self.layout.step + 1 :])[: 1 + self.budgets]

    @quiet
    def successors(self, states: FloatArray) -> FloatArray:
        """Expected next state after every action: [n, width] -> [n, actions, width]."""
        known = self.layout.step + 1
        found = np.empty((len(states), self.actions, self.layout.width), np.float32)
        found[:, :, :known] = states[:, None, :known]
        found[:, :, self.layout.step] += np.float32(self.layout.step_change)
        constant = self.tail.trunk.constant(self.inputs.heads(states, states[:, self.layout.step]))
        found[:, :, known:] = self.following(constant, states[:, known:], self.outcomes(states))
        return found

    def following(self, constant: FloatArray, tails: FloatArray, outcomes: FloatArray) -> FloatArray:
        """Expected tails after every action, [n, actions, tail]; the arguments are those of `Tails.following`."""
        predicted = self.tail.following(constant, tails, outcomes)
        if self.history is None:
            return predicted
        before = tails[:, self.layout.history.start - self.layout.step - 1 :]
        return np.concatenate([predicted, self.history.after(before, outcomes)], axis=2)
