"""Predicted against observed means, with users as the units of chance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.models.examples import Examples

__all__ = ["ActionFidelity", "by_action", "mean_gap"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class ActionFidelity:
    """One action's mean outcome, predicted and observed on the rows where it was logged."""

    action: int
    rows: int
    predicted: float
    observed: float
    standard_error: float
    """Of the gap, by user."""


def mean_gap(
    examples: Examples, predicted: FloatArray, observed: FloatArray, rows: NDArray[np.bool_]
) -> tuple[int, float, float, float]:
    """Rows, mean predicted, mean observed, and the standard error of their gap with users as the units.

    `predicted` and `observed` are [rows of the log], and only those that `rows` [rows of the log] marks count.
    """
    count = int(rows.sum())
    by_user = np.add.reduceat(np.where(rows, observed - predicted, 0.0), examples.starts[:-1])
    centred = by_user - by_user.mean()
    error = float(np.sqrt((centred**2).sum())) / count
    return count, float(predicted[rows].mean()), float(observed[rows].mean()), error


def by_action(
    examples: Examples, predicted: FloatArray, observed: FloatArray, rows: NDArray[np.bool_]
) -> tuple[ActionFidelity, ...]:
    """The gap of every action that was logged in some of the rows; arguments as `mean_gap` takes them."""
    parts = []
    for action in range(examples.actions):
        chosen = rows & (examples.action == action)
        if chosen.any():
            parts.append(ActionFidelity(action, *mean_gap(examples, predicted, observed, chosen)))
    return tuple(parts)
