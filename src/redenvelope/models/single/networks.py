"""Outcomes and successors of every action from a trunk's outputs, for all members at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from redenvelope.models.single.trunk import Trunk

__all__ = ["Chances", "Outcomes", "Tails"]

FloatArray = NDArray[np.float32]

_ONE = np.float32(1.0)
_LINEAR_FROM = np.float32(30.0)  # above, a softplus is what it is taken of


class Chances(NamedTuple):
    """How the chances of what can come of an action follow from its outcomes; see `models.events`."""

    events: int
    members: int
    """Members of the transition networks: their mean is taken on the way."""
    cost: int
    """The outcome that tells who pays, where there are three events."""
    over_amount: FloatArray
    """One over what each action costs when paid for, 0 where it cannot be, [actions]."""

    def of(self, outcomes: FloatArray) -> FloatArray | None:
        """Over the members, [n, events, actions] from [outcomes, n, actions]; None where nothing is to be told apart."""
        if self.events == 1:
            return None
        reward = outcomes[0]
        found = np.empty((len(reward), self.events, reward.shape[1]), np.float32)
        np.subtract(_ONE, reward, out=found[:, 0])
        if self.events == 2:
            found[:, 1] = reward
        else:
            np.multiply(outcomes[self.cost], self.over_amount, out=found[:, 2])
            np.subtract(reward, found[:, 2], out=found[:, 1])
        found *= np.float32(1.0 / self.members)
        return found


class Outcomes(NamedTuple):
    """Mean outcomes of every action.

    A trunk's outputs are first the scores, [outcomes · actions], of which those of chances have their sign turned
    around, and then what a softplus and `steps` turn into the rising part of scores.
    """

    trunk: Trunk
    steps: FloatArray
    """[members, softplus outputs, outcomes · actions]."""
    amounts: FloatArray
    """What a chance is multiplied by, 1 for what is none; over the members, [outcomes · actions]."""
    chances: tuple[slice, ...]
    """Scores that are log odds."""
    rewarded: tuple[slice, ...]
    """Costs that only the rewarded pay."""
    count: int
    """Number of outcomes."""
    actions: int

    def means(self, constant: FloatArray, tails: FloatArray) -> FloatArray:
        """[outcomes, n, actions]; the arguments are those of `Trunk.outputs`."""
        raw = self.trunk.outputs(constant, tails)
        width = self.count * self.actions
        scores = raw[..., :width]
        if raw.shape[2] > width:
            scores = _softplus(raw[..., width:]) @ self.steps
            scores += raw[..., :width]
        for part in self.chances:
            _turned_sigmoid(scores[..., part])
        for part in self.rewarded:
            scores[..., part] *= scores[..., : self.actions]
        mean = (scores[0] if len(scores) == 1 else np.add.reduce(scores, axis=0)) * self.amounts
        return mean.reshape(-1, self.count, self.actions).transpose(1, 0, 2)


class Tails(NamedTuple):
    """Expected tail after every action: the mean over events and members.

    A trunk's outputs are the tail after every event and action, feature by feature: numbers first, then binaries with
    their sign turned around, then the codes of each category.
    """

    trunk: Trunk
    chances: Chances
    low: FloatArray
    """[number outputs]."""
    high: FloatArray
    """[number outputs]."""
    binaries: slice
    categories: tuple[tuple[slice, int], ...]
    """Outputs and number of codes of each category."""
    order: NDArray[np.intp]
    """Where outputs stand, [events · actions · tail]."""
    actions: int

    def following(self, constant: FloatArray, tails: FloatArray, outcomes: FloatArray) -> FloatArray:
        """[n, actions, tail]; `outcomes` are those of the same rows, [outcomes, n, actions]."""
        n = len(tails)
        raw = self.trunk.outputs(constant, tails)
        numbers = raw[..., : len(self.low)]
        np.maximum(numbers, self.low, out=numbers)
        np.minimum(numbers, self.high, out=numbers)
        _turned_sigmoid(raw[..., self.binaries])
        for part, codes in self.categories:
            block = raw[..., part]
            block[...] = _softmax(block.reshape(*block.shape[:2], -1, codes)).reshape(block.shape)
        members = len(raw)
        total = raw[0] if members == 1 else np.add.reduce(raw, axis=0)
        by_event = total.take(self.order, axis=1).reshape(n, self.chances.events, self.actions, -1)
        chances = self.chances.of(outcomes)
        if chances is None:
            return by_event[:, 0] if members == 1 else by_event[:, 0] * np.float32(1.0 / members)
        by_event *= chances[..., None]
        return np.asarray(np.add.reduce(by_event, axis=1))


def _softplus(values: FloatArray) -> FloatArray:
    # The library's own logaddexp takes five times as long.
    found = np.minimum(values, _LINEAR_FROM)
    np.exp(found, out=found)
    found += _ONE
    np.log(found, out=found)
    return np.maximum(found, values, out=found)


def _turned_sigmoid(turned: FloatArray) -> None:
    """Write 1 / (1 + exp(z)) over z."""
    np.exp(turned, out=turned)
    turned += _ONE
    np.reciprocal(turned, out=turned)


def _softmax(values: FloatArray) -> FloatArray:
    """Over the last axis."""
    found = values - values.max(axis=-1, keepdims=True)
    np.exp(found, out=found)
    found /= found.sum(axis=-1, keepdims=True)
    return found
