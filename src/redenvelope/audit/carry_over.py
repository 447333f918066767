"""Is it sequential at all? What an action does to the outcomes of the next step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from redenvelope.audit.effects import weighted_means
from redenvelope.log.log import Log

__all__ = ["CarryOver", "carry_over"]

_SURE = 1e-3
_WEAK, _STRONG = 0.10, 0.30


@dataclass(frozen=True)
class CarryOver:
    """How much the previous action moves an outcome, beside what the present action does."""

    outcome: Literal["reward", "cost"]
    direct: float
    """Standard deviation over actions of the outcome at the same step."""
    carried: float
    """Standard deviation over previous actions of the outcome one step later, noise taken off."""
    p_value: float
    """Probability of differences as large if nothing carried over."""

    @property
    def share(self) -> float:
        """Carried effect as a share of the direct one."""
        return self.carried / self.direct if self.direct > 0 else 0.0

    @property
    def strength(self) -> Literal["none", "weak", "moderate", "strong"]:
        """The share in a word: weak below 10 %, strong from 30 % on; none when it may be chance."""
        if self.p_value > _SURE:
            return "none"
        return "weak" if self.share < _WEAK else "moderate" if self.share < _STRONG else "strong"


def carry_over(log: Log, outcome: Literal["reward", "cost"]) -> CarryOver | None:
    """Compare the next step's outcome between previous actions; None when no user has two steps.

    Both actions are weighted by their propensities, so that neither who got the previous action nor what
    was sent after it can pose as carry-over.
    """
    from scipy.stats import chi2

    rows = np.flatnonzero(~log.is_last) + 1
    if not len(rows):
        return None
    values = (log.reward if outcome == "reward" else log.cost)[rows]
    actions = len(log.catalogue)
    previous, present = log.action[rows - 1], log.action[rows]
    weights = 1.0 / (log.propensity[rows] * log.propensity[rows - 1])
    direct, _ = weighted_means(log, values, weights, present, actions, rows)
    residuals = values - direct[present]
    carried, errors = weighted_means(log, residuals, weights, previous, actions, rows)
    known = np.isfinite(carried) & (errors > 0)
    if known.sum() < 2:
        return None
    carried, errors = carried[known], errors[known]
    precision = errors**-2
    centre = (precision * carried).sum() / precision.sum()
    statistic = (precision * (carried - centre) ** 2).sum()
    spread = max(carried.var() - (errors**2).mean(), 0.0)
    return CarryOver(
        outcome,
        direct=float(np.nanstd(direct)),
        carried=float(np.sqrt(spread)),
        p_value=float(chi2.sf(statistic, len(carried) - 1)),
    )
