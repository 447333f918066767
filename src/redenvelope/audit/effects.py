"""What each action costs and earns, and whether dearer is better, with inverse-propensity weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.audit.groups import ROUNDING, GroupSums, group_sums, squares_by_user
from redenvelope.log.log import Log

__all__ = [
    "ActionEffect",
    "Mean",
    "Reversal",
    "action_effects",
    "counted",
    "effect_squares",
    "effect_sums",
    "reversals",
]

MOST_REVERSALS = 100
"""Pairs that are kept."""

_TWO_SIDED_95 = 1.959963984540054


@dataclass(frozen=True)
class Mean:
    """An estimated mean with its 95 % interval."""

    estimate: float
    lower: float
    upper: float
    standard_error: float

    @classmethod
    def of(cls, estimate: float, standard_error: float) -> Mean:
        """A mean with a normal interval."""
        margin = _TWO_SIDED_95 * standard_error
        return cls(estimate, estimate - margin, estimate + margin, standard_error)


@dataclass(frozen=True)
class ActionEffect:
    """One action as the log shows it, as if it had been given to everybody at random."""

    label: str
    rows: int
    reward: Mean
    cost: Mean


@dataclass(frozen=True)
class Reversal:
    """A dearer action that earns less than a cheaper one, beyond chance."""

    cheap: ActionEffect
    dear: ActionEffect


def effect_sums(log: Log) -> GroupSums:
    """Outcomes by action, weighted by 1/propensity."""
    return group_sums(log.action, 1.0 / log.propensity, log.outcomes, len(log.catalogue))


def effect_squares(log: Log, means: NDArray[np.float64]) -> NDArray[np.float64]:
    """What the errors of the means [outcomes, actions] are made of, [outcomes, actions]."""
    residuals = log.outcomes - means[:, log.action]
    return squares_by_user(log, log.action, 1.0 / log.propensity, residuals, len(log.catalogue))


def action_effects(
    labels: tuple[str, ...], rows: NDArray[np.int64], sums: GroupSums, squares: NDArray[np.float64]
) -> tuple[ActionEffect, ...]:
    """Reward and cost of each action of the catalogue, which was logged in so many rows, [actions]."""
    (reward, cost), (reward_error, cost_error) = sums.means.tolist(), sums.errors(squares).tolist()
    return tuple(
        ActionEffect(
            label,
            int(rows[action]),
            Mean.of(reward[action], reward_error[action]),
            Mean.of(cost[action], cost_error[action]),
        )
        for action, label in enumerate(labels)
    )


def reversals(effects: tuple[ActionEffect, ...]) -> tuple[Reversal, ...]:
    """Pairs where dearer earns less, each beyond three standard errors in cost and in reward, clearest first.

    At most so many as anybody would read: a thousand actions make half a million pairs.
    """
    reward = np.array([effect.reward.estimate for effect in effects])
    dearer = _beyond_chance([effect.cost for effect in effects])
    better = _beyond_chance([effect.reward for effect in effects])
    cheap, dear = np.nonzero(dearer & better.T)
    clearest = np.argsort(reward[dear] - reward[cheap], kind="stable")[:MOST_REVERSALS]
    return tuple(Reversal(effects[cheap[pair]], effects[dear[pair]]) for pair in clearest)


def counted(pairs: tuple[Reversal, ...]) -> str:
    """How many such pairs there are, in words."""
    return f"{len(pairs)} such pair{'s' * (len(pairs) != 1)}" if len(pairs) < MOST_REVERSALS else "many such pairs"


def _beyond_chance(means: list[Mean]) -> NDArray[np.bool_]:
    """Whether the second mean lies above the first, [means, means]."""
    estimate = np.array([mean.estimate for mean in means])
    error = np.array([mean.standard_error for mean in means])
    # Three standard errors rather than two: a catalogue of ten actions makes 45 comparisons.
    difference = estimate[None, :] - estimate[:, None]
    rounding = ROUNDING * np.maximum(np.abs(estimate)[None, :], np.abs(estimate)[:, None])
    return np.asarray(difference > 3 * np.hypot(error[None, :], error[:, None]) + rounding)
