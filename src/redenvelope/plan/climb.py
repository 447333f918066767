"""Climb the ladder: the dearest plan whose bound still holds, tested in an order that was fixed before.

The hypotheses "the plan on this rung costs more than the budget" are tested one after the other, each at the full
level, and the walk ends at the first that cannot be rejected. To err, the first one that is true would have to be
rejected: so the level holds for the whole walk, without a correction (fixed-sequence testing; "Learn then Test",
Angelopoulos et al. 2021). With several budgets every bound must hold on a rung (an intersection-union test).
Rungs whose estimates must not be relied on are stepped over: nobody may stand on them, and they say nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.dual.solution import DualStatus
from redenvelope.errors import UsageError
from redenvelope.plan.ladder import Ladder, Place

__all__ = ["Stop", "climb", "descend"]

FloatArray = NDArray[np.float64]
Holds = Callable[[FloatArray, FloatArray], NDArray[np.bool_]]
"""Lower and upper bounds [outcomes, anything] -> whether what is promised holds, [anything]."""

# Mixtures tested between two rungs; finer ones would spend no thousandth more of what lies between them.
_SHARES = 200
# A mixture that moves the cost by less than this share of it is not worth two prices.
_WORTH_MIXING = 0.0025


@dataclass(frozen=True)
class Stop:
    """Where a walk ended."""

    place: Place
    status: DualStatus
    """converged; budget_slack where the walk came to the end; budget_infeasible where not even the first rung holds, by
    its estimate."""
    holds: bool
    """Whether a rung was found whose bound holds: else the place is the best there is, and certifies nothing."""


def climb(ladder: Ladder, budgets: Sequence[float], confidence: float) -> Stop:
    """From the cheapest plan up, as far as the upper bound of every cost is within its budget, [budgets]."""
    if len(budgets) != len(ladder.rungs[0].prices):
        raise UsageError(f"the plan knows {len(ladder.rungs[0].prices)} cost(s); give as many budgets")
    limits = np.asarray(budgets, dtype=np.float64)[:, None]

    def holds(lower: FloatArray, upper: FloatArray) -> NDArray[np.bool_]:
        return np.asarray((upper[1:] <= limits).all(axis=0))

    estimates = np.asarray((ladder.means[1:] <= limits).all(axis=0))
    return _walk(ladder, holds, estimates, confidence, 1)


def descend(ladder: Ladder, target_reward: float, confidence: float) -> Stop:
    """From the dearest plan down, as far as the lower bound of the reward reaches a target: the cheapest that does."""

    def holds(lower: FloatArray, upper: FloatArray) -> NDArray[np.bool_]:
        return np.asarray(lower[0] >= target_reward)

    return _walk(ladder, holds, ladder.means[0] >= target_reward, confidence, -1)


def _walk(ladder: Ladder, holds: Holds, estimates: NDArray[np.bool_], confidence: float, step: int) -> Stop:
    """`estimates` say on which rungs the promise holds without any bound, [rungs]; `step` is 1 up and −1 down."""
    passed = holds(*ladder.bounds(confidence))
    order = [rung for rung in range(len(ladder.rungs))[::step] if not ladder.doubted[rung]]
    stood = _first_failing(passed[order])
    if not stood:
        return _nowhere(ladder, estimates, step)
    rung = order[stood - 1]
    if stood == len(order):
        slack = DualStatus.BUDGET_SLACK if rung == range(len(ladder.rungs))[::step][-1] else DualStatus.CONVERGED
        return Stop(Place(rung), slack, True)
    if order[stood] != rung + step:  # what lies between is doubted
        return Stop(Place(rung), DualStatus.CONVERGED, True)
    return Stop(_mixed(ladder, rung, step, holds, confidence), DualStatus.CONVERGED, True)


def _mixed(ladder: Ladder, rung: int, step: int, holds: Holds, confidence: float) -> Place:
    """The last mixture, from a rung to the next of the walk, before the first whose bound fails."""
    lower_rung = min(rung, rung + step)
    shares = np.linspace(0.0, 1.0, _SHARES + 1)[::step]
    means, low, high = ladder.between(lower_rung, shares, confidence)
    last = max(_first_failing(holds(low, high)) - 1, 0)
    moved = np.abs(means[1:, last] - means[1:, 0])
    if (moved <= _WORTH_MIXING * np.abs(means[1:, 0])).all() or shares[last] in (0.0, 1.0):
        return Place(rung)
    return Place(lower_rung, float(shares[last]))


def _first_failing(passed: NDArray[np.bool_]) -> int:
    """How many pass before the first that does not."""
    failing = np.flatnonzero(~passed)
    return int(failing[0]) if len(failing) else len(passed)


def _nowhere(ladder: Ladder, estimates: NDArray[np.bool_], step: int) -> Stop:
    """No bound holds: where the walk would have ended by the estimates alone, for whoever wants to see that plan."""
    order = list(range(len(ladder.rungs))[::step])
    reached = _first_failing(estimates[order])
    if not reached:
        return Stop(Place(order[0]), DualStatus.BUDGET_INFEASIBLE, False)
    return Stop(Place(order[reached - 1]), DualStatus.CONVERGED, False)
