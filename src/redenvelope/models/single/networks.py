"""Outcomes and successors of every action from a trunk's outputs, for all members at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import Float32Array

_UNIT = np.float32(1.0)
_LINEAR_FROM = np.float32(30.0)  # above, a softplus is what it is taken of


class Chances(NamedTuple):
    """How the chances of what can come of an action follow from its outcomes; see `models.events`."""

    events: int
    members: int
    """Members of the transition networks: their mean is taken on the way."""
    over_amount: Float32Array
    """One over what each action costs when paid for, 0 where it cannot be, [actions]."""

    def of(self, outcomes: Float32Array) -> Float32Array | None:
        """Over the members, [n, events, actions] from outcomes [outcomes, n, actions]; None with one event."""
        if self.events == 1:
            return None
        reward = outcomes[0]
        found = np.empty((len(reward), self.events, reward.shape[1]), np.float32)
        np.subtract(_UNIT, reward, out=found[:, 0])
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
    steps: Float32Array
    """[members, softplus outputs, outcomes · actions]."""
    amounts: Float32Array
    """What a chance is multiplied by, 1 for what is none; over the members, [outcomes · actions]."""
    chances: tuple[slice, ...]
    """Scores that are log odds."""
    rewarded: tuple[slice, ...]
    """Costs that only the rewarded pay."""
    kinds: int
    """Number of outcomes."""
    actions: int

    def means(self, constant: Float32Array, tails: Float32Array) -> Float32Array:
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
        means: Float32Array = mean.reshape(-1, self.kinds, self.actions).transpose(1, 0, 2)
        return means


class Tails(NamedTuple):
    """Expected tail after every action: the mean over events and members.

    A trunk's outputs are the tail after every event and action, feature by feature: numbers first, then binaries with
    their sign turned around, then the codes of each category.
    """

    trunk: Trunk
    chances: Chances
    low: Float32Array
    """[number outputs]."""
    high: Float32Array
    """[number outputs]."""
    binaries: slice
    categories: tuple[tuple[slice, int], ...]
    """Outputs and number of codes of each category."""
    order: NDArray[np.intp]
    """Where outputs stand, [events · actions · tail]."""
    actions: int

    def following(self, constant: Float32Array, tails: Float32Array, outcomes: Float32Array) -> Float32Array:
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
    curves: Float32Array
    """What a trunk's outputs add, over the folds, [folds, raw outputs, prices · components · actions]."""
    level: Float32Array
    """[prices · components · actions]."""

    def values(self, constant: Float32Array, tails: Float32Array) -> Float32Array:
        """[n, prices · components · actions]; the arguments are those of `Trunk.outputs`."""
        found = np.add.reduce(self.trunk.outputs(constant, tails) @ self.curves, axis=0)
        found += self.level
        return np.asarray(found)


def _softplus(values: Float32Array) -> Float32Array:
    # The library's own logaddexp takes five times as long.
    found = np.minimum(values, _LINEAR_FROM)
    np.exp(found, out=found)
    found += _UNIT
    np.log(found, out=found)
    return np.maximum(found, values, out=found)


def _turned_sigmoid(turned: Float32Array) -> None:
    """Write 1 / (1 + exp(z)) over z."""
    np.exp(turned, out=turned)
    turned += _UNIT
    np.reciprocal(turned, out=turned)


def softmax(values: Float32Array) -> Float32Array:
    """Shares over the last axis that are proportional to exponentials."""
    found = np.exp(values - values.max(axis=-1, keepdims=True))
    found /= found.sum(axis=-1, keepdims=True)
    return np.asarray(found)


# A Wide & Deep network as plain arrays: all members at once, and what never changes within a user apart.


# Made once: making a number takes half as long as a whole operation on a small array.
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


class Heads(NamedTuple):
    """The heads of some states, as networks read them."""

    numbers: Float32Array
    """Static numbers, [n, numbers]; [1, numbers] where all are of one user."""
    codes: tuple[NDArray[np.intp], ...]
    """Of each static category, [n] or [1] each."""
    hats: Float32Array
    """The step, spread over hats, [n, hats]."""


class Inputs(NamedTuple):
    """Where networks find their inputs in a state."""

    categories: int
    """Static categories: the first columns."""
    step: int
    """The step's column; the static numbers stand before it, the tail after it."""
    peaks: Float32Array
    """Of the hats that the step is spread over, on a scale where one hat is 1 wide, [hats]."""

    def heads(self, states: Float32Array, steps: Float32Array) -> Heads:
        """Of states [n, step or more] at steps [n] as their column has them; one state may have several steps."""
        hats = np.abs((steps * self.peaks[-1])[:, None] - self.peaks)
        np.subtract(_ONE, hats, out=hats)
        np.maximum(hats, _ZERO, out=hats)
        codes = states[:, : self.categories].astype(np.intp).T
        return Heads(states[:, self.categories : self.step], tuple(codes), hats)


class Trunk(NamedTuple):
    """States -> outputs, in two halves: the head of a state (static columns and step), and its tail.

    Hidden layers and the wide part read the same inputs, so their weights stand side by side and are multiplied at
    once: the first `units` columns are the first hidden layer, the others the outputs. The first hidden layer's sign is
    turned around, which saves a pass: silu(x) = −z / (1 + exp(z)) for z = −x.
    """

    embeddings: tuple[Float32Array, ...]
    """[members, codes, dimensions] for each static category."""
    wide_tables: tuple[Float32Array, ...]
    """[members, codes, raw outputs] for each static category."""
    static_weights: Float32Array
    """Of static numbers, embeddings and the sum of the wide tables' rows, [members, inputs, units + outputs]."""
    bias: Float32Array
    """[members, 1, units + outputs]."""
    hat_weights: Float32Array
    """[members, hats, units + outputs]."""
    tail_weights: Float32Array
    """[members, tail, units + outputs]."""
    layers: tuple[tuple[Float32Array, Float32Array], ...]
    """Weights [members, units, units] and biases [members, 1, units] of the hidden layers after the first."""
    last: Float32Array
    """[members, units, outputs]."""
    units: int
    """Of the first hidden layer; 0 where there is none."""

    def constant(self, heads: Heads) -> Float32Array:
        """What heads of states add, [members, n, units + outputs]."""
        static = heads.numbers
        if heads.codes:
            rows = [table.take(code, axis=1) for table, code in zip(self.embeddings, heads.codes, strict=True)]
            wide = [table.take(code, axis=1) for table, code in zip(self.wide_tables, heads.codes, strict=True)]
            numbers = static[None].repeat(len(self.bias), axis=0)
            static = np.concatenate([numbers, *rows, sum(wide[1:], start=wide[0])], axis=2)
        known = static @ self.static_weights
        known += self.bias
        return np.asarray(heads.hats @ self.hat_weights + known)

    def outputs(self, constant: Float32Array, tails: Float32Array) -> Float32Array:
        """Outputs [members, n, outputs] of tails [n, tail], whose heads add [members, n or 1, units + outputs]."""
        first = tails @ self.tail_weights
        first += constant
        if not self.units:
            return np.asarray(first)
        found = _turned_silu(first[..., : self.units])
        for weights, biases in self.layers:
            values = found @ weights
            values += biases
            found = _turned_silu(values)
        found = found @ self.last
        found += first[..., self.units :]
        return np.asarray(found)


def _turned_silu(turned: Float32Array) -> Float32Array:
    """−silu(−z) of z."""
    found = np.exp(turned)
    found += _ONE
    return np.divide(turned, found, out=found)
