"""Targets: what the scores of an outcome network mean, and the loss they are trained with.

A score is a log odds, a standardised number, or the log odds of consuming a known amount; the log decides which. If
users leave before the campaign ends, survival (the probability of a next step) is one more score of the same network:
what makes users respond also makes them stay, and a node of a tree still costs one forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import ModelError
from redenvelope.models.responses import float32

# Positive costs of one action that vary less than this (standard deviation over mean) are one amount.
_AMOUNT_VARIATION = 0.02
# Below this share of zeros, cost is not "paid only if consumed" but simply paid.
_LEAST_ZEROS = 0.01
_PRIOR_ROWS = 2.0


class RewardTarget(Protocol):
    """How the reward is learned and predicted."""

    def mean(self, scores: jax.Array) -> jax.Array:
        """Expected reward: [actions, n] -> [actions, n]."""
        ...

    def loss(self, score: jax.Array, reward: jax.Array) -> jax.Array:
        """Loss of the logged action's score, [n] -> [n]."""
        ...


class CostTarget(Protocol):
    """How a cost is learned and predicted; it may depend on the reward."""

    def mean(self, scores: jax.Array, rewards: jax.Array) -> jax.Array:
        """Expected cost, given the expected rewards: [actions, n] each -> [actions, n]."""
        ...

    def loss(self, score: jax.Array, action: jax.Array, cost: jax.Array, reward: jax.Array) -> jax.Array:
        """Loss of the logged action's score, [n] each -> [n]."""
        ...


class BinaryReward(eqx.Module):
    """A reward of 0 or 1: the score is the log odds, the loss logistic."""

    def mean(self, scores: jax.Array) -> jax.Array:
        """See RewardTarget."""
        return jax.nn.sigmoid(scores)

    def loss(self, score: jax.Array, reward: jax.Array) -> jax.Array:
        """See RewardTarget."""
        return _logistic_loss(score, reward)


class NumberReward(eqx.Module):
    """Any number: the score is standardised, the loss half the squared error."""

    centre: jax.Array
    """[]"""
    scale: jax.Array
    """[]"""

    def mean(self, scores: jax.Array) -> jax.Array:
        """See RewardTarget."""
        return self.centre + self.scale * scores

    def loss(self, score: jax.Array, reward: jax.Array) -> jax.Array:
        """See RewardTarget."""
        return 0.5 * jnp.square((reward - self.centre) / self.scale - score)


class NumberCost(eqx.Module):
    """Any number: the score is standardised, the loss half the squared error."""

    centre: jax.Array
    """[]"""
    scale: jax.Array
    """[]"""

    def mean(self, scores: jax.Array, rewards: jax.Array) -> jax.Array:
        """See CostTarget."""
        return self.centre + self.scale * scores

    def loss(self, score: jax.Array, action: jax.Array, cost: jax.Array, reward: jax.Array) -> jax.Array:
        """See CostTarget."""
        return 0.5 * jnp.square((cost - self.centre) / self.scale - score)


class ConsumedCost(eqx.Module):
    """A cost of 0, or the action's own amount when it is consumed: the score is the log odds of consumption.

    Learning the probability instead of the cost keeps rare, expensive actions from dominating the loss.
    """

    amounts: jax.Array
    """What each action costs when consumed, [actions]."""

    def mean(self, scores: jax.Array, rewards: jax.Array) -> jax.Array:
        """See CostTarget."""
        return jax.nn.sigmoid(scores) * self.amounts[:, None]

    def loss(self, score: jax.Array, action: jax.Array, cost: jax.Array, reward: jax.Array) -> jax.Array:
        """See CostTarget. An action that never costs anything says nothing about consumption."""
        return _logistic_loss(score, cost > 0) * (self.amounts[action] > 0)


class RewardedCost(eqx.Module):
    """As ConsumedCost, if only rewarded users consume: the score is the log odds of consumption given a reward.

    The cost is P(reward) · P(consumption | reward) · amount, so reward and cost cannot contradict each other.
    """

    amounts: jax.Array
    """What each action costs when consumed, [actions]."""

    def mean(self, scores: jax.Array, rewards: jax.Array) -> jax.Array:
        """See CostTarget."""
        return jax.nn.sigmoid(scores) * rewards * self.amounts[:, None]

    def loss(self, score: jax.Array, action: jax.Array, cost: jax.Array, reward: jax.Array) -> jax.Array:
        """See CostTarget. Only rewarded rows of actions that can cost something count."""
        return _logistic_loss(score, cost > 0) * (self.amounts[action] > 0) * reward


class OutcomeTargets(eqx.Module):
    """The targets of all outcomes."""

    reward: RewardTarget
    costs: tuple[CostTarget, ...]
    """One per budget."""
    survival: Survival | None = None
    """If users leave: one more score, after those of the outcomes."""

    @property
    def all(self) -> tuple[RewardTarget | CostTarget, ...]:
        """The target of each outcome, [outcomes]."""
        return (self.reward, *self.costs)

    def means(self, scores: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
        """Expected outcomes and, if users leave, survival: scores -> means, [actions, n] each."""
        # Not stacked: a loop that writes several of them into one array would not be vectorised.
        rewards = self.reward.mean(scores[0])
        own = scores[1 : 1 + len(self.costs)]
        costs = (target.mean(score, rewards) for target, score in zip(self.costs, own, strict=True))
        staying = () if self.survival is None else (self.survival.mean(scores[-1]),)
        return (rewards, *costs, *staying)

    def losses(self, scores: Sequence[jax.Array], action: jax.Array, outcomes: jax.Array) -> jax.Array:
        """Loss of the logged action's scores, [n] each, given the outcomes [n, outcomes]: [scores, n].

        If users leave, the last column of the outcomes says who stayed (see `Survival`).
        """
        reward = outcomes[:, 0]
        own = [
            target.loss(scores[place], action, outcomes[:, place], reward)
            for place, target in enumerate(self.costs, start=1)
        ]
        staying = () if self.survival is None else (self.survival.loss(scores[-1], outcomes[:, -1]),)
        return jnp.stack([self.reward.loss(scores[0], reward), *own, *staying])


_KINDS: dict[str, Any] = {
    "binary_reward": BinaryReward,
    "number_reward": NumberReward,
    "number_cost": NumberCost,
    "consumed_cost": ConsumedCost,
    "rewarded_cost": RewardedCost,
}


def reward_target(reward: NDArray[np.float64]) -> RewardTarget:
    """Binary if every reward is 0 or 1, else a number."""
    if ((reward == 0) | (reward == 1)).all():
        return BinaryReward()
    return NumberReward(*_centre_and_scale(reward, "reward"))


def cost_target(
    cost: NDArray[np.float64], reward: NDArray[np.float64], action: NDArray[np.int32], actions: int
) -> CostTarget:
    """Consumed if the log has zeros and one amount per action; rewarded if, too, only users with reward 1 consume."""
    paid = cost > 0
    count = np.maximum(np.bincount(action[paid], minlength=actions), 1)
    amounts = np.bincount(action[paid], weights=cost[paid], minlength=actions) / count
    squares = np.bincount(action[paid], weights=(cost[paid] - amounts[action[paid]]) ** 2, minlength=actions)
    constant = (np.sqrt(squares / count) <= _AMOUNT_VARIATION * amounts).all()
    able = amounts[action] > 0
    zeros = 1 - paid[able].mean() if able.any() else 0.0
    if not (constant and zeros >= _LEAST_ZEROS and (cost >= 0).all()):
        return NumberCost(*_centre_and_scale(cost, "cost"))
    binary = ((reward == 0) | (reward == 1)).all()
    if binary and (reward[paid] == 1).all():
        return RewardedCost(float32(amounts))
    return ConsumedCost(float32(amounts))


def outcome_targets(outcomes: NDArray[np.float64], action: NDArray[np.int32], actions: int) -> OutcomeTargets:
    """The targets that suit outcomes [outcomes, rows] of actions [rows]."""
    reward, *costs = outcomes
    return OutcomeTargets(reward_target(reward), tuple(cost_target(cost, reward, action, actions) for cost in costs))


def training_labels(
    target: RewardTarget | CostTarget,
    value: NDArray[np.float64],
    reward: NDArray[np.float64],
    action: NDArray[np.int32],
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """A mask of the rows that a target is learned from, and the labels, 0 and 1 or numbers: [rows] each."""
    if isinstance(target, ConsumedCost | RewardedCost):
        used = np.asarray(target.amounts)[action] > 0
        if isinstance(target, RewardedCost):
            used &= reward > 0
        return used, (value > 0).astype(np.float64)
    return np.ones(len(value), dtype=bool), value


def starting_scores(
    target: RewardTarget | CostTarget,
    value: NDArray[np.float64],
    reward: NDArray[np.float64],
    action: NDArray[np.int32],
    actions: int,
) -> NDArray[np.float64]:
    """Initial scores [actions], which give each action its mean outcome in the log."""
    used, labels = training_labels(target, value, reward, action)
    mean = _means_by_action(labels[used], action[used], actions)
    if isinstance(target, NumberReward | NumberCost):
        return np.asarray((mean - float(target.centre)) / float(target.scale))
    return _log_odds(mean)


def _means_by_action(values: NDArray[np.floating], action: NDArray[np.int32], actions: int) -> NDArray[np.float64]:
    """Mean of values [rows] by action, [actions], shrunk towards the overall mean if an action has few rows."""
    count = np.bincount(action, minlength=actions)
    total = np.bincount(action, weights=values, minlength=actions)
    return np.asarray((total + _PRIOR_ROWS * (values.mean() if len(values) else 0.5)) / (count + _PRIOR_ROWS))


def _log_odds(mean: NDArray[np.float64]) -> NDArray[np.float64]:
    mean = np.clip(mean, 1e-4, 1 - 1e-4)
    return np.asarray(np.log(mean / (1 - mean)))


@dataclass(frozen=True)
class WrittenTarget:
    """A target as plain data, with the fields of its kind."""

    kind: str
    centre: float | None = None
    scale: float | None = None
    amounts: tuple[float, ...] | None = None
    """[actions]"""


def written_target(target: RewardTarget | CostTarget) -> WrittenTarget:
    """A target as plain data."""
    kind = next(name for name, known in _KINDS.items() if type(target) is known)
    return WrittenTarget(kind, **{name: np.asarray(value).tolist() for name, value in vars(target).items()})


def new_target(written: WrittenTarget, actions: int) -> Any:
    """The target that `written_target` wrote, of a model with this number of actions."""
    if written.kind not in _KINDS:
        raise ModelError(f"the model is damaged: there is no target of kind {written.kind[:40]!r}")
    kind = _KINDS[written.kind]
    names = [field.name for field in fields(kind)]
    values = {name: getattr(written, name) for name in names}
    if not all(value is not None and _are_numbers(value) for value in values.values()):
        raise ModelError(f"the model is damaged: a target of kind {written.kind} needs {' and '.join(names)}")
    if written.amounts is not None and len(written.amounts) != actions:
        raise ModelError(f"the model is damaged: {len(written.amounts)} amounts for {actions} actions")
    return kind(**{name: float32(value) for name, value in values.items()})


def _are_numbers(value: Any) -> bool:
    """Whether all numbers are finite in float32."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.asarray(value, np.float32)).all())


def _logistic_loss(score: jax.Array, happened: jax.Array) -> jax.Array:
    return jax.nn.softplus(score) - happened * score


def _centre_and_scale(value: NDArray[np.float64], name: str) -> tuple[jax.Array, jax.Array]:
    if not np.isfinite(value).all():
        row = int(np.flatnonzero(~np.isfinite(value))[0])
        raise ModelError(f"the {name} in row {row} is not a number; read the log with read_log, which checks it")
    scale = float(value.std())
    return jnp.float32(value.mean()), jnp.float32(scale if scale > 1e-12 else 1.0)


STRUCTURE = "low_rank"
"""Response structure of survival: an incentive may also drive users away, so it is not assumed monotone."""

UNKNOWN = -1.0
"""Marks rows where it is unknown whether the user stayed: the campaign's last step, and before a gap in the log."""

# With fewer leavers, survival is not learned: another head would only slow every node down.
_LEAST_LEAVERS = 20
_LEAST_SHARE = 0.001


class Survival(eqx.Module):
    """The probability of a next step: the score is its log odds, the loss logistic."""

    def mean(self, scores: jax.Array) -> jax.Array:
        """Probability of a next step: [actions, n] -> [actions, n]."""
        return jax.nn.sigmoid(scores)

    def loss(self, score: jax.Array, stayed: jax.Array) -> jax.Array:
        """Loss of the logged action's score, [n] -> [n]; zero where unknown."""
        return _logistic_loss(score, stayed) * (stayed >= 0)


def users_leave(stays: NDArray[np.float32]) -> bool:
    """Whether users leave before the last step; [rows] of 1 (stayed), 0 (left) or −1 (unknown)."""
    left, known = np.count_nonzero(stays == 0), np.count_nonzero(stays >= 0)
    return bool(left >= max(_LEAST_LEAVERS, _LEAST_SHARE * known))


def starting_odds(stays: NDArray[np.float32], action: NDArray[np.int32], actions: int) -> NDArray[np.float64]:
    """Initial scores of survival, [actions]: log odds of staying after each action in the log; columns [rows]."""
    known = stays >= 0
    return _log_odds(_means_by_action(stays[known], action[known], actions))
