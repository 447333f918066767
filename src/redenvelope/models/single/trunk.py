"""A Wide & Deep network as plain arrays: all members at once, and what never changes within a user apart."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Heads", "Inputs", "Trunk"]

FloatArray = NDArray[np.float32]

# Made once: making a number takes half as long as a whole operation on a small array.
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


class Heads(NamedTuple):
    """The heads of some states, as networks read them."""

    numbers: FloatArray
    """Static numbers, [n, numbers]; [1, numbers] where all are of one user."""
    codes: tuple[NDArray[np.intp], ...]
    """Of each static category, [n] or [1] each."""
    hats: FloatArray
    """The step, spread over hats, [n, hats]."""


class Inputs(NamedTuple):
    """Where networks find their inputs in a state."""

    categories: int
    """Static categories: the first columns."""
    step: int
    """The step's column; the static numbers stand before it, the tail after it."""
    peaks: FloatArray
    """Of the hats that the step is spread over, on a scale where one hat is 1 wide, [hats]."""

    def heads(self, states: FloatArray, steps: FloatArray) -> Heads:
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

    embeddings: tuple[FloatArray, ...]
    """[members, codes, dimensions] for each static category."""
    wide_tables: tuple[FloatArray, ...]
    """[members, codes, raw outputs] for each static category."""
    static_weights: FloatArray
    """Of static numbers, embeddings and the sum of the wide tables' rows, [members, inputs, units + outputs]."""
    bias: FloatArray
    """[members, 1, units + outputs]."""
    hat_weights: FloatArray
    """[members, hats, units + outputs]."""
    tail_weights: FloatArray
    """[members, tail, units + outputs]."""
    layers: tuple[tuple[FloatArray, FloatArray], ...]
    """Weights [members, units, units] and biases [members, 1, units] of the hidden layers after the first."""
    last: FloatArray
    """[members, units, outputs]."""
    units: int
    """Of the first hidden layer; 0 where there is none."""

    def constant(self, heads: Heads) -> FloatArray:
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

    def outputs(self, constant: FloatArray, tails: FloatArray) -> FloatArray:
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


def _turned_silu(turned: FloatArray) -> FloatArray:
    """−silu(−z) of z."""
    found = np.exp(turned)
    found += _ONE
    return np.divide(turned, found, out=found)
