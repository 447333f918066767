"""What each action costs and earns, and whether dearer is better, with inverse-propensity weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.audit.groups import ROUNDING, GroupSums, group_sums, squares_by_user
from redenvelope.log.log import Log

__all__ = ["ActionEffect", "Mean", "Reversal", "action_effects", "effect_squares", "effect_sums", "reversals"]

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
    """Pairs where dearer earns less, each beyond three standard errors in cost and in reward, clearest first."""
    found = []
    for cheap in effects:
        for dear in effects:
            clearly_dearer = _beyond_chance(cheap.cost, dear.cost)
            clearly_worse = _beyond_chance(dear.reward, cheap.reward)
            if clearly_dearer and clearly_worse:
                found.append(Reversal(cheap, dear))
    return tuple(sorted(found, key=lambda pair: pair.dear.reward.estimate - pair.cheap.reward.estimate))


def _beyond_chance(low: Mean, high: Mean) -> bool:
    # Three standard errors rather than two: a catalogue of ten actions makes 45 comparisons.
    difference = high.estimate - low.estimate
    rounding = ROUNDING * max(abs(low.estimate), abs(high.estimate))
    return difference > 3 * float(np.hypot(low.standard_error, high.standard_error)) + rounding
