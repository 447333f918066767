"""Transition networks of a loaded plan: the tail after every event and action, straight from the hidden units."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redenvelope.log.layout import StateLayout
from redenvelope.models.single.folded_trunk import double, single, single_trunk
from redenvelope.models.single.networks import Chances, Tails
from redenvelope.models.targets import RewardedCost
from redenvelope.models.transition import TailScale, TransitionNetwork

__all__ = ["single_chances", "single_tails"]

FloatArray = NDArray[np.float64]


def single_chances(targets: tuple[Any, ...], events: int, members: int, actions: int) -> Chances:
    """The chances of so many events, given the targets of reward and costs; the first cost is the payment."""
    amounts = double(targets[1].amounts) if isinstance(targets[1], RewardedCost) else np.zeros(actions)
    over = np.where(amounts > 0, 1.0 / np.where(amounts > 0, amounts, 1.0), 0.0)
    return Chances(events, members, single(over))


def single_tails(network: TransitionNetwork, scale: TailScale, chances: Chances) -> Tails:
    """A transition network whose arrays have a leading axis [members]."""
    layout, level = network.layout, double(network.level)
    _, events, actions, tail = level.shape
    factor = _factors(layout, scale)
    # A number moves from where it is.
    onto = np.zeros((layout.width - layout.step - 1, events, actions, tail))
    numbers = np.arange(layout.dynamic_numbers)
    onto[numbers, :, :, numbers] = 1.0
    pieces = _pieces(layout)
    names = np.arange(events * actions * tail).reshape(events, actions, tail)
    edges = np.cumsum([0, *(names[..., piece].size for piece in pieces)]).tolist()
    places = [slice(low, high) for low, high in pairwise(edges)]
    return Tails(
        trunk=single_trunk(
            network.network,
            _by_feature(_over_actions(network) * factor, pieces),
            _by_feature(level * factor, pieces),
            _by_feature(onto, pieces),
        ),
        chances=chances,
        low=single(np.tile(double(scale.low), events * actions)),
        high=single(np.tile(double(scale.high), events * actions)),
        binaries=places[1],
        categories=tuple(zip(places[2:], layout.dynamic_categories, strict=True)),
        order=np.argsort(_by_feature(names, pieces)),
        actions=actions,
    )


def _factors(layout: StateLayout, scale: TailScale) -> FloatArray:
    """What scores are multiplied with, [tail]: numbers move by a change, the log odds of binaries are turned around."""
    rest = sum(layout.dynamic_categories)
    return np.concatenate([double(scale.change), -np.ones(layout.dynamic_binaries), np.ones(rest)])


def _over_actions(network: TransitionNetwork) -> FloatArray:
    """What raw outputs add to scores, [members, raw outputs, events, actions, tail]."""
    members, events, actions, tail = network.level.shape
    shapes = np.concatenate([np.ones((members, 1, actions)), double(network.shapes)], axis=1)
    over = np.einsum("mja,ef,tu->mejtfau", shapes, np.eye(events), np.eye(tail))
    # Written out: there may be nothing to predict.
    return np.asarray(over.reshape(members, events * shapes.shape[1] * tail, events, actions, tail))


def _pieces(layout: StateLayout) -> list[slice]:
    """Where numbers, binaries and each category stand in the tail."""
    widths = [0, layout.dynamic_numbers, layout.dynamic_binaries, *layout.dynamic_categories]
    return [slice(low, high) for low, high in pairwise(np.cumsum(widths).tolist())]


def _by_feature(array: NDArray[Any], pieces: list[slice]) -> NDArray[Any]:
    """[..., events, actions, tail] -> [..., outputs]: all of the numbers, then of the binaries and of each category."""
    events, actions = array.shape[-3:-1]
    widths = [events * actions * (piece.stop - piece.start) for piece in pieces]
    parts = zip(pieces, widths, strict=True)
    return np.concatenate([array[..., piece].reshape(*array.shape[:-3], width) for piece, width in parts], axis=-1)
