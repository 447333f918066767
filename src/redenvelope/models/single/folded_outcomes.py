"""Outcome networks of a loaded plan: responses as matrices, targets as factors of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import ModelError
from redenvelope.models.outcome import OutcomeNetwork
from redenvelope.models.response import CumulativeResponse, DoseResponse, IndependentResponse, LowRankResponse
from redenvelope.models.single.folded_trunk import double, single, single_trunk
from redenvelope.models.single.networks import Outcomes
from redenvelope.models.survival import Survival
from redenvelope.models.targets import BinaryReward, ConsumedCost, NumberCost, NumberReward, RewardedCost

__all__ = ["single_outcomes"]

FloatArray = NDArray[np.float64]


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
