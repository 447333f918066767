"""From the networks of a loaded plan to plain arrays, with all that is constant multiplied out in double precision."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import ModelError
from redenvelope.log.layout import StateLayout
from redenvelope.models.neural import NeuralModel
from redenvelope.models.outcome import OutcomeNetwork
from redenvelope.models.response import CumulativeResponse, DoseResponse, IndependentResponse, LowRankResponse
from redenvelope.models.single.model import SingleModel
from redenvelope.models.single.networks import Chances, Outcomes, Tails
from redenvelope.models.single.trunk import Inputs, Trunk
from redenvelope.models.targets import BinaryReward, ConsumedCost, NumberCost, NumberReward, RewardedCost
from redenvelope.models.transition import TailScale, TransitionNetwork, tail_width
from redenvelope.models.wide_deep import WideDeep, number_width

__all__ = ["single_inputs", "single_model", "single_outcomes", "single_trunk"]

FloatArray = NDArray[np.float64]


def single_model(model: NeuralModel) -> SingleModel:
    """The same model for few rows at once."""
    costing = _costing(model)
    outcome = single_outcomes(model.outcome, (model.reward_target, *costing), model.actions)
    chances = _event_chances(costing, model.architecture.events, len(model.transition.shapes), model.actions)
    tails = _tails(model.transition, model.scale, chances)
    return SingleModel(outcome, tails, model.layout, single_inputs(model.layout))


def single_inputs(layout: StateLayout) -> Inputs:
    """Where networks find their inputs in states of a layout."""
    hats = number_width(layout) - tail_width(layout) - layout.static_numbers
    return Inputs(len(layout.static_categories), layout.step, np.arange(hats, dtype=np.float32))


def single_trunk(
    network: WideDeep, over: FloatArray | None = None, level: FloatArray | None = None, onto: FloatArray | None = None
) -> Trunk:
    """A network whose arrays have a leading axis [members], its raw outputs turned into others.

    These are raw @ `over` [members, raw outputs, outputs] + `level` [members, outputs] + tail @ `onto` [tail, outputs].
    """
    layout, wide, deep = network.layout, _double(network.wide_weights), _double(network.deep_weights)
    members, _, raw = wide.shape
    over = np.broadcast_to(np.eye(raw), (members, raw, raw)) if over is None else over
    outputs = over.shape[2]
    known = number_width(layout) - tail_width(layout)
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
        bias[:, 0, :units] = -_double(network.trunk_biases[0])
    if level is not None:
        bias[:, 0, units:] = level
    return Trunk(
        embeddings=tuple(_single(table) for table in network.embedding_tables),
        wide_tables=tuple(_single(table) for table in network.wide_tables),
        static_weights=_single(np.concatenate([weights[:, :static], coded], axis=1)),
        bias=_single(bias),
        hat_weights=_single(weights[:, static:known]),
        tail_weights=_single(tail),
        layers=tuple(
            (_single(weights), _single(-_double(biases)[:, None]))
            for weights, biases in zip(network.trunk_weights[1:], network.trunk_biases[1:], strict=True)
        ),
        last=_single(-deep @ over) if units else np.zeros((members, 0, outputs), np.float32),
        units=units,
    )


def _first_layer(network: WideDeep, over: FloatArray) -> tuple[FloatArray, int]:
    """Turned weights of numbers and embeddings [members, inputs, units] and the number of units.

    Without hidden layers, what the deep part makes of them, [members, inputs, outputs], and 0.
    """
    if network.trunk_weights:
        weights = -_double(network.trunk_weights[0])
        return weights, weights.shape[2]
    return _double(network.deep_weights) @ over, 0


class _Scores(NamedTuple):
    """What a response makes of its raw outputs: scores [actions] = level + raw @ linear + softplus(raw) @ rising."""

    level: FloatArray
    """[members, actions]."""
    linear: FloatArray
    """[members, raw outputs, actions]."""
    rising: FloatArray
    """[members, raw outputs, actions]; rows of zeros where no softplus is taken."""


def single_outcomes(network: OutcomeNetwork, targets: tuple[Any, ...], actions: int) -> Outcomes:
    """An outcome network whose arrays have a leading axis [members], with the targets of reward and costs."""
    count = len(targets)
    responses = (network.reward_response, *_cost_responses(network))
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
    chances = [isinstance(target, BinaryReward | ConsumedCost | RewardedCost) for target in targets]
    amounts = [np.asarray(getattr(target, "amounts", np.ones(actions)), np.float64) for target in targets]
    return Outcomes(
        trunk=single_trunk(network.network, over, levels),
        steps=_single(rising[:, soft].reshape(members, len(soft), count * actions)),
        amounts=_single(np.concatenate(amounts) / members),
        chances=(slice(0, count * actions),)
        if all(chances)
        else tuple(block for block, chance in zip(blocks, chances, strict=True) if chance),
        rewarded=tuple(
            block for block, target in zip(blocks, targets, strict=True) if isinstance(target, RewardedCost)
        ),
        count=count,
        actions=actions,
    )


def _scores(response: Any, members: int, actions: int) -> _Scores:
    """A response as matrices."""
    linear = np.zeros((members, response.outputs, actions))
    rising = np.zeros_like(linear)
    level = np.broadcast_to(_double(response.level), (members, actions))
    if isinstance(response, IndependentResponse):
        linear[:] = np.eye(actions)
    elif isinstance(response, LowRankResponse):
        linear[:, 0], linear[:, 1:] = 1.0, _double(response.shapes)
    elif isinstance(response, CumulativeResponse):
        linear[:, 0] = 1.0
        steps = np.exp(_double(response.log_step))
        rising[:, 1:] = steps[:, :, None] * np.triu(np.ones((actions - 1, actions)), k=1)
    elif isinstance(response, DoseResponse):
        linear[:, 0] = 1.0
        rising[:, 1:, 1:] = np.cumsum(np.exp(_double(response.log_step)), axis=2)
    else:
        raise ModelError(f"a {type(response).__name__} has no form for single users; fit the plan anew")
    return _Scores(level, linear, rising)


def _scale(target: Any) -> tuple[float, float]:
    """What a score is multiplied with, and what is added: log odds are turned around."""
    if isinstance(target, NumberReward | NumberCost):
        return float(target.scale), float(target.centre)
    return -1.0, 0.0


def _costing(model: NeuralModel) -> tuple[Any, ...]:
    """The targets of the costs, in the order of the budgets."""
    return _as_tuple(getattr(model, "cost_targets", None) or model.cost_target)


def _cost_responses(network: OutcomeNetwork) -> tuple[Any, ...]:
    """The responses of the costs, in the order of the budgets."""
    return _as_tuple(getattr(network, "cost_responses", None) or network.cost_response)


def _as_tuple(parts: Any) -> tuple[Any, ...]:
    return parts if isinstance(parts, tuple) else (parts,)


def _event_chances(costing: tuple[Any, ...], events: int, members: int, actions: int) -> Chances:
    paying = [place for place, target in enumerate(costing) if isinstance(target, RewardedCost)]
    if events < 3 or not paying:
        return Chances(events, members, 1, np.zeros(actions, np.float32))
    amounts = _double(costing[paying[0]].amounts)
    over = np.where(amounts > 0, 1.0 / np.where(amounts > 0, amounts, 1.0), 0.0)
    return Chances(events, members, 1 + paying[0], _single(over))


def _tails(network: TransitionNetwork, scale: TailScale, chances: Chances) -> Tails:
    """A transition network whose arrays have a leading axis [members]."""
    layout, shapes, level = network.layout, _double(network.shapes), _double(network.level)
    members, events, actions, tail = level.shape
    rank = shapes.shape[1]
    numbers = layout.dynamic_numbers
    # What a score is multiplied with: numbers move by a change, the log odds of binaries are turned around.
    factor = np.ones(tail)
    factor[:numbers] = _double(scale.change)
    factor[numbers : numbers + layout.dynamic_binaries] = -1.0
    over_actions = np.concatenate([np.ones((members, 1, actions)), shapes], axis=1)
    over = np.einsum("mja,ef,tu,t->mejtfau", over_actions, np.eye(events), np.eye(tail), factor)
    over = over.reshape(members, events * (1 + rank) * tail, events, actions, tail)
    onto = np.zeros((tail, events, actions, tail))
    onto[np.arange(numbers), :, :, np.arange(numbers)] = 1.0
    edges = np.cumsum([0, numbers, layout.dynamic_binaries, *layout.dynamic_categories])
    pieces = [slice(low, high) for low, high in zip(edges[:-1], edges[1:], strict=True)]
    widths = [events * actions * (piece.stop - piece.start) for piece in pieces]
    starts = np.cumsum([0, *widths])
    places = [slice(int(low), int(high)) for low, high in zip(starts[:-1], starts[1:], strict=True)]

    def by_feature(array: FloatArray) -> FloatArray:
        """[..., events, actions, tail] -> [..., outputs]."""
        parts = [array[..., piece].reshape(*array.shape[:-3], -1) for piece in pieces]
        return np.concatenate(parts, axis=-1)

    return Tails(
        trunk=single_trunk(network.network, by_feature(over), by_feature(level * factor), by_feature(onto)),
        chances=chances,
        low=_single(np.tile(_double(scale.low), events * actions)),
        high=_single(np.tile(_double(scale.high), events * actions)),
        binaries=places[1],
        categories=tuple(zip(places[2:], layout.dynamic_categories, strict=True)),
        order=_outputs_of(events, actions, tail, pieces),
        actions=actions,
    )


def _outputs_of(events: int, actions: int, tail: int, pieces: list[slice]) -> NDArray[np.intp]:
    """Where each event's, action's and column's output stands, [events · actions · tail]."""
    names = np.arange(events * actions * tail).reshape(events, actions, tail)
    stored = np.concatenate([names[..., piece].reshape(-1) for piece in pieces])
    order = np.empty(stored.size, dtype=np.intp)
    order[stored] = np.arange(stored.size)
    return order


def _double(array: Any) -> FloatArray:
    return np.asarray(array, dtype=np.float64)


def _single(array: Any) -> NDArray[np.float32]:
    return np.ascontiguousarray(array, dtype=np.float32)
