"""What each action costs and earns, and whether dearer is better, with inverse-propensity weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.log.log import Log

__all__ = ["ActionEffect", "Mean", "Reversal", "action_effects", "reversals", "weighted_means"]

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


def weighted_means(
    log: Log,
    values: NDArray[np.float64],
    weights: NDArray[np.float64],
    groups: NDArray[np.int32],
    count: int,
    rows: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Self-normalised mean of each group and its standard error by user: ([count], [count]).

    values, weights and groups are given for all rows of the log, or for the `rows` named.
    """
    user = log.user_of_row if rows is None else log.user_of_row[rows]
    totals = np.bincount(groups, weights=weights, minlength=count)
    safe = np.maximum(totals, np.finfo(float).tiny)
    means = np.bincount(groups, weights=weights * values, minlength=count) / safe
    influence = weights * (values - means[groups])
    errors = np.empty(count)
    for group in range(count):
        mine = groups == group
        by_user = np.bincount(user[mine], weights=influence[mine])
        errors[group] = np.sqrt((by_user**2).sum()) / safe[group]
    return np.where(totals > 0, means, np.nan), np.where(totals > 0, errors, np.nan)


def action_effects(log: Log) -> tuple[ActionEffect, ...]:
    """Reward and cost of each action of the catalogue."""
    count = len(log.catalogue)
    weights = 1.0 / log.propensity
    rows = np.bincount(log.action, minlength=count)
    reward, reward_error = weighted_means(log, log.reward, weights, log.action, count)
    cost, cost_error = weighted_means(log, log.cost, weights, log.action, count)
    return tuple(
        ActionEffect(
            label,
            int(rows[action]),
            Mean.of(float(reward[action]), float(reward_error[action])),
            Mean.of(float(cost[action]), float(cost_error[action])),
        )
        for action, label in enumerate(log.catalogue.labels)
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
    return difference > 3 * float(np.hypot(low.standard_error, high.standard_error))
