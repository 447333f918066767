"""From what a loaded plan holds to plain arrays for one user at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from redenvelope.models.neural import NeuralModel
from redenvelope.models.single.folded_outcomes import single_outcomes
from redenvelope.models.single.folded_tails import single_chances, single_tails
from redenvelope.models.single.folded_trunk import double, single, single_inputs
from redenvelope.models.single.model import SingleHistory, SingleModel
from redenvelope.models.single.networks import Future
from redenvelope.models.single.trunk import Trunk
from redenvelope.models.value_network import ValueNetwork

__all__ = ["single_future", "single_model"]

FloatArray = NDArray[np.float64]


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
