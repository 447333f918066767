"""Outcome networks of a loaded plan: responses as matrices, targets as factors of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray
from redenvelope.errors import ModelError
from redenvelope.log.encoding.layout import StateLayout
from redenvelope.models.networks import OutcomeNetwork, TailScale, TransitionNetwork, WideDeep, number_width
from redenvelope.models.responses import CumulativeResponse, DoseResponse, IndependentResponse, LowRankResponse
from redenvelope.models.single.networks import Chances, Inputs, Outcomes, Tails, Trunk
from redenvelope.models.targets import BinaryReward, ConsumedCost, NumberCost, NumberReward, RewardedCost, Survival


class _Scores(NamedTuple):
    """What a response makes of its raw outputs: scores [actions] = level + raw @ linear + softplus(raw) @ rising."""

    level: FloatArray
    """[members, actions]."""
    linear: FloatArray
    """[members, raw outputs, actions]."""
    rising: FloatArray
    """[members, raw outputs, actions]; rows of zeros where no softplus is taken."""


@np.errstate(over="ignore", invalid="ignore")  # what is beyond all numbers is refused when it is made single
def single_outcomes(network: OutcomeNetwork, targets: tuple[Any, ...], actions: int) -> Outcomes:
    """An outcome network whose arrays have a leading axis [members], with the targets of its responses."""
    count, responses = len(targets), network.responses
    members, _, raw = network.network.wide_weights.shape
    level = np.zeros((members, count, actions))
    linear, rising = (np.zeros((members, raw, count, actions)) for _ in range(2))
    first = 0
    for place, (response, target) in enumerate(zip(responses, targets, strict=True)):
        scores = _scores(response, members, actions)
        scale, centre = _scale(target)
        own = slice(first, first + scores.linear.shape[1])
        linear[:, own, place], rising[:, own, place] = scale * scores.linear, scale * scores.rising
        level[:, place] = centre + scale * scores.level
        first = own.stop
    soft = np.flatnonzero(rising.any(axis=(0, 2, 3)))
    # Scores first, then the raw outputs that a softplus is taken of, as they are.
    over = np.concatenate(
        [linear.reshape(members, raw, -1), np.broadcast_to(np.eye(raw)[:, soft], (members, raw, len(soft)))], axis=2
    )
    levels = np.concatenate([level.reshape(members, -1), np.zeros((members, len(soft)))], axis=1)
    blocks = [slice(place * actions, (place + 1) * actions) for place in range(count)]
    chances = [isinstance(target, BinaryReward | ConsumedCost | RewardedCost | Survival) for target in targets]
    amounts = [np.asarray(getattr(target, "amounts", np.ones(actions)), np.float64) for target in targets]
    return Outcomes(
        trunk=single_trunk(network.network, over, levels),
        steps=single(rising[:, soft].reshape(members, len(soft), count * actions)),
        amounts=single(np.concatenate(amounts) / members),
        chances=(slice(0, count * actions),)
        if all(chances)
        else tuple(block for block, chance in zip(blocks, chances, strict=True) if chance),
        rewarded=tuple(
            block for block, target in zip(blocks, targets, strict=True) if isinstance(target, RewardedCost)
        ),
        kinds=count,
        actions=actions,
    )


def _scores(response: Any, members: int, actions: int) -> _Scores:
    """A response as matrices."""
    linear = np.zeros((members, response.outputs, actions))
    rising = np.zeros_like(linear)
    if isinstance(response, IndependentResponse):
        linear[:] = np.eye(actions)
    elif isinstance(response, LowRankResponse):
        linear[:, 0], linear[:, 1:] = 1.0, double(response.shapes)
    elif isinstance(response, CumulativeResponse):
        linear[:, 0] = 1.0
        steps = np.exp(double(response.log_step))
        rising[:, 1:] = steps[:, :, None] * np.triu(np.ones((actions - 1, actions)), k=1)
    elif isinstance(response, DoseResponse):
        linear[:, 0] = 1.0
        rising[:, 1:, 1:] = np.cumsum(np.exp(double(response.log_step)), axis=2)
    else:
        raise ModelError(f"a {type(response).__name__} has no form for single users; fit the plan anew")
    return _Scores(np.broadcast_to(double(response.level), (members, actions)), linear, rising)


def _scale(target: Any) -> tuple[float, float]:
    """What a score is multiplied with, and what is added: log odds are turned around."""
    if isinstance(target, NumberReward | NumberCost):
        return float(target.scale), float(target.centre)
    return -1.0, 0.0


# Transition networks of a loaded plan: the tail after every event and action, straight from the hidden units.


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


# Wide & Deep networks of a loaded plan as trunks: what is constant is multiplied out in double precision.


def single_inputs(layout: StateLayout) -> Inputs:
    """Where networks find their inputs in states of a layout."""
    hats = number_width(layout) - _tail_width(layout) - layout.static_numbers
    return Inputs(len(layout.static_categories), layout.step, np.arange(hats, dtype=np.float32))


def single_trunk(
    network: WideDeep, over: FloatArray | None = None, level: FloatArray | None = None, onto: FloatArray | None = None
) -> Trunk:
    """A network whose arrays have a leading axis [members], its raw outputs turned into others.

    These are raw @ `over` [members, raw outputs, outputs] + `level` [members, outputs] + tail @ `onto` [tail, outputs].
    """
    layout, wide, deep = network.layout, double(network.wide_weights), double(network.deep_weights)
    members, _, raw = wide.shape
    over = np.broadcast_to(np.eye(raw), (members, raw, raw)) if over is None else over
    outputs = over.shape[2]
    known = number_width(layout) - _tail_width(layout)
    first, units = _first_layer(network, over)
    # The rows are those of numbers, embeddings and the wide tables' rows; the columns hidden units, then outputs.
    embedded = first.shape[1] - wide.shape[1]
    weights = np.zeros((members, first.shape[1] + raw, units + outputs))
    weights[:, : first.shape[1], : first.shape[2]] = first
    weights[:, : wide.shape[1], units:] += wide @ over
    weights[:, first.shape[1] :, units:] = over
    static, tail = layout.static_numbers, weights[:, known : wide.shape[1]].copy()
    if onto is not None:
        tail[:, :, units:] += onto
    coded = weights[:, wide.shape[1] :] if embedded else weights[:, :0]
    bias = np.zeros((members, 1, units + outputs))
    if units:
        bias[:, 0, :units] = -double(network.trunk_biases[0])
    if level is not None:
        bias[:, 0, units:] = level
    return Trunk(
        embeddings=tuple(single(table) for table in network.embedding_tables),
        wide_tables=tuple(single(table) for table in network.wide_tables),
        static_weights=single(np.concatenate([weights[:, :static], coded], axis=1)),
        bias=single(bias),
        hat_weights=single(weights[:, static:known]),
        tail_weights=single(tail),
        layers=tuple(
            (single(weights), single(-double(biases)[:, None]))
            for weights, biases in zip(network.trunk_weights[1:], network.trunk_biases[1:], strict=True)
        ),
        last=single(-deep @ over) if units else np.zeros((members, 0, outputs), np.float32),
        units=units,
    )


def _tail_width(layout: StateLayout) -> int:
    """Number of columns after the step."""
    return layout.width - layout.step - 1


def _first_layer(network: WideDeep, over: FloatArray) -> tuple[FloatArray, int]:
    """Turned weights of numbers and embeddings [members, inputs, units] and the number of units.

    Without hidden layers, what the deep part makes of them, [members, inputs, outputs], and 0.
    """
    if network.trunk_weights:
        weights = -double(network.trunk_weights[0])
        return weights, weights.shape[2]
    return double(network.deep_weights) @ over, 0


def double(array: Any) -> NDArray[np.float64]:
    """An array in double precision."""
    return np.asarray(array, dtype=np.float64)


def single(array: Any) -> NDArray[np.float32]:
    """An array in single precision, its last axis contiguous; refused where its numbers are beyond all bounds."""
    with np.errstate(over="ignore"):
        found = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(found).all():
        raise ModelError(
            "what the plan learned holds numbers beyond all bounds; fit the plan again, or ask who made it"
        )
    return found
