"""Which response structure a log calls for: what it contradicts is not tried, held-out users choose the rest."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redenvelope.models.response import MONOTONE, STRUCTURES

__all__ = ["StructureChoice", "allowed_structures", "choose_structure", "falls"]

# Standard errors by which a dearer action must fall short of a cheaper one to be called worse; among the
# few dozen pairs of a catalogue, chance alone seldom goes so far.
_FALL_ERRORS = 3.5
_LEAST_PROPENSITY = 0.01
_LEAST_ROWS = 30


@dataclass(frozen=True)
class StructureChoice:
    """The structure chosen for one outcome, and why."""

    outcome: str
    """"reward" or "cost"."""
    structure: str
    losses: dict[str, float]
    """Mean held-out loss of each structure tried; empty when the structure was given."""
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def falls(
    value: NDArray[np.float64], action: NDArray[np.int32], propensity: NDArray[np.float64], actions: int
) -> list[tuple[int, int]]:
    """Pairs (cheaper, dearer) of actions where the dearer one's mean is clearly lower; columns [rows].

    Rows count by the inverse of their propensity: a logger that gives the dear actions to lazy users must not
    make dear actions look worse than cheap ones.
    """
    weight = 1.0 / np.maximum(propensity, _LEAST_PROPENSITY)
    total = np.maximum(np.bincount(action, weights=weight, minlength=actions), 1e-12)
    mean = np.bincount(action, weights=weight * value, minlength=actions) / total
    squares = np.bincount(action, weights=(weight * (value - mean[action])) ** 2, minlength=actions)
    # An action seen in a handful of rows has no error to speak of, and proves nothing.
    count = np.bincount(action, minlength=actions)
    variance = np.where(count >= _LEAST_ROWS, squares / total**2, np.inf)
    return [
        (cheaper, dearer)
        for cheaper in range(actions)
        for dearer in range(cheaper + 1, actions)
        if mean[cheaper] - mean[dearer] > _FALL_ERRORS * np.sqrt(variance[cheaper] + variance[dearer])
    ]


def allowed_structures(contradictions: list[tuple[int, int]]) -> tuple[str, ...]:
    """The structures to try, the one that shares most first; none that is monotone when `falls` found a fall."""
    return tuple(name for name in STRUCTURES if not (contradictions and name in MONOTONE))


def choose_structure(outcome: str, losses: dict[str, NDArray[np.float64]]) -> StructureChoice:
    """The structure that shares most among those within one standard error of the best.

    `losses` holds the held-out loss of every row, [rows], for each structure tried. The rows are the same, so
    that the difference of two structures is far less noisy than either.
    """
    means = {name: float(rows.mean()) for name, rows in losses.items()}
    best = min(means, key=lambda name: means[name])
    for name in STRUCTURES:
        if name not in losses:
            continue
        excess = losses[name] - losses[best]
        error = float(excess.std() / np.sqrt(len(excess)))
        if means[name] - means[best] <= error:
            break
    reason = f"least loss on held-out users ({means[name]:.5f})"
    if name != best:
        reason = (
            f"shares more than {best} and is within one standard error of it on held-out users "
            f"({means[name]:.5f} against {means[best]:.5f} ± {error:.5f})"
        )
    left_out = [name for name in STRUCTURES if name not in losses]
    if left_out:
        reason += f"; {', '.join(left_out)} not tried: in the log some dearer action has a lower {outcome}"
    return StructureChoice(outcome, name, means, reason)
