"""A learned world for few rows at once, in plain arrays: the same answers as the compiled model's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from redenvelope.arrays import Float32Array, FloatArray
from redenvelope.log.encoding.layout import StateLayout
from redenvelope.models.networks import ValueNetwork
from redenvelope.models.neural_model import NeuralModel
from redenvelope.models.single.folding import (
    double,
    single,
    single_chances,
    single_inputs,
    single_outcomes,
    single_tails,
)
from redenvelope.models.single.networks import Future, Inputs, Outcomes, Tails, Trunk

quiet = np.errstate(over="ignore")
"""An exponential beyond the largest number is infinite, and what is divided by it zero: as it should be."""


class SingleHistory(NamedTuple):
    """How the history in the states moves on; see `models.known`."""

    keep: Float32Array
    """[actions, columns]"""
    jump: Float32Array
    """[actions, columns]"""
    gain: Float32Array
    """[outcomes, columns]"""

    def after(self, history: Float32Array, outcomes: Float32Array) -> Float32Array:
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
    def outcomes(self, states: Float32Array) -> Float32Array:
        """Mean outcomes of every action: [n, width] -> [outcomes, n, actions]."""
        constant = self.outcome.trunk.constant(self.inputs.heads(states, states[:, self.layout.step]))
        return self.outcome.means(constant, states[:, self.layout.step + 1 :])[: 1 + self.budgets]

    @quiet
    def successors(self, states: Float32Array) -> Float32Array:
        """Expected next state after every action: [n, width] -> [n, actions, width]."""
        known = self.layout.step + 1
        found = np.empty((len(states), self.actions, self.layout.width), np.float32)
        found[:, :, :known] = states[:, None, :known]
        found[:, :, self.layout.step] += np.float32(self.layout.step_change)
        constant = self.tail.trunk.constant(self.inputs.heads(states, states[:, self.layout.step]))
        found[:, :, known:] = self.following(constant, states[:, known:], self.outcomes(states))
        return found

    def following(self, constant: Float32Array, tails: Float32Array, outcomes: Float32Array) -> Float32Array:
        """Expected tails after every action, [n, actions, tail]; the arguments are those of `Tails.following`."""
        predicted = self.tail.following(constant, tails, outcomes)
        if self.history is None:
            return predicted
        before = tails[:, self.layout.history.start - self.layout.step - 1 :]
        return np.concatenate([predicted, self.history.after(before, outcomes)], axis=2)


# From what a loaded plan holds to plain arrays for one user at a time.


def single_model(model: NeuralModel) -> SingleModel:
    """The same model for few rows at once."""
    targets = model.targets.all
    staying = () if model.targets.survival is None else (model.targets.survival,)
    outcome = single_outcomes(model.outcome, (*targets, *staying), model.actions)
    chances = single_chances(targets, model.architecture.events, len(model.transition.shapes), model.actions)
    tails = single_tails(model.transition, model.scale, chances)
    known = model.history
    history = None if known is None else SingleHistory(*(single(part) for part in (known.keep, known.jump, known.gain)))
    return SingleModel(outcome, tails, model.layout, single_inputs(model.layout), model.leaves, history)


def single_future(networks: ValueNetwork, trunk: Trunk, mixing: FloatArray) -> Future:
    """Value networks of one step, whose arrays have a leading axis [folds], at mixtures [prices, heads] of their heads.

    The trunk is theirs, with raw outputs; it does not depend on the prices.
    """
    folds, _, actions = networks.level.shape
    shapes = double(networks.shapes)
    over_actions = np.concatenate([np.ones((folds, 1, actions)), shapes - shapes.mean(axis=2, keepdims=True)], axis=1)
    scale = double(networks.scale)[:, None] * double(networks.basis) / folds
    spread = np.einsum("fkhc,ph->fkpc", scale, mixing)
    curves = np.einsum("fkpc,fja->fkjpca", spread, over_actions)
    centre = np.einsum("fhc,ph->pc", double(networks.centre) / folds, mixing)
    level = centre[..., None] + np.einsum("fkpc,fka->pca", spread, double(networks.level))
    return Future(trunk, single(curves.reshape(folds, -1, level.size)), single(level.reshape(-1)))
