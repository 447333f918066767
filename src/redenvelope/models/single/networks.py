"""Outcomes and successors of every action from a trunk's outputs, for all members at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from redenvelope.models.single.trunk import Trunk

__all__ = ["Chances", "Future", "Outcomes", "Tails", "softmax"]

FloatArray = NDArray[np.float32]

_ONE = np.float32(1.0)
_LINEAR_FROM = np.float32(30.0)  # above, a softplus is what it is taken of


class Chances(NamedTuple):
    """How the chances of what can come of an action follow from its outcomes; see `models.events`."""

    events: int
    members: int
    """Members of the transition networks: their mean is taken on the way."""
    over_amount: FloatArray
    """One over what each action costs when paid for, 0 where it cannot be, [actions]."""

    def of(self, outcomes: FloatArray) -> FloatArray | None:
        """Over the members, [n, events, actions] from outcomes [outcomes, n, actions]; None with one event."""
        if self.events == 1:
            return None
        reward = outcomes[0]
        found = np.empty((len(reward), self.events, reward.shape[1]), np.float32)
        np.subtract(_ONE, reward, out=found[:, 0])
        if self.events == 2:
            found[:, 1] = reward
        else:
            np.multiply(outcomes[1], self.over_amount, out=found[:, 2])
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
    kinds: int
    """Number of outcomes."""
    actions: int

    def means(self, constant: FloatArray, tails: FloatArray) -> FloatArray:
        """[outcomes, n, actions]; the arguments are those of `Trunk.outputs`."""
        raw = self.trunk.outputs(constant, tails)
        width = self.kinds * self.actions
        scores = raw[..., :width]
        if raw.shape[2] > width:
            scores = _softplus(raw[..., width:]) @ self.steps
            scores += raw[..., :width]
        for part in self.chances:
            _turned_sigmoid(scores[..., part])
        for part in self.rewarded:
            scores[..., part] *= scores[..., : self.actions]
        mean = (scores[0] if len(scores) == 1 else np.add.reduce(scores, axis=0)) * self.amounts
        means: FloatArray = mean.reshape(-1, self.kinds, self.actions).transpose(1, 0, 2)
        return means


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
            block[...] = softmax(block.reshape(*block.shape[:2], -1, codes)).reshape(block.shape)
        members = len(raw)
        total = raw[0] if members == 1 else np.add.reduce(raw, axis=0)
        by_event = total.take(self.order, axis=1).reshape(n, self.chances.events, self.actions, -1)
        chances = self.chances.of(outcomes)
        if chances is None:
            return np.asarray(by_event[:, 0] * np.float32(1.0 / members))
        by_event *= chances[..., None]
        return np.asarray(np.add.reduce(by_event, axis=1))


class Future(NamedTuple):
    """What follows every action by learned values, at some prices: the mean over folds."""

    trunk: Trunk
    curves: FloatArray
    """What a trunk's outputs add, over the folds, [folds, raw outputs, prices · components · actions]."""
    level: FloatArray
    """[prices · components · actions]."""

    def values(self, constant: FloatArray, tails: FloatArray) -> FloatArray:
        """[n, prices · components · actions]; the arguments are those of `Trunk.outputs`."""
        found = np.add.reduce(self.trunk.outputs(constant, tails) @ self.curves, axis=0)
        found += self.level
        return np.asarray(found)


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


def softmax(values: FloatArray) -> FloatArray:
    """Shares over the last axis that are proportional to exponentials."""
    found = np.exp(values - values.max(axis=-1, keepdims=True))
    found /= found.sum(axis=-1, keepdims=True)
    return np.asarray(found)
