"""What the rows of an outcome or a propensity add up to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

__all__ = ["OutcomeSums", "merge_outcomes", "outcome_sums"]


@dataclass(frozen=True)
class OutcomeSums:
    """Counts and range of a role that is a number; sums of parts merge into those of the whole."""

    rows: int
    finite: int
    zeros: int
    above_one: int
    """Finite values above 1."""
    low: float
    high: float
    """Of the finite values."""


def outcome_sums(values: NDArray[np.float64]) -> OutcomeSums:
    """The sums of values [rows]."""
    finite = np.isfinite(values)
    usable = values if finite.all() else values[finite]
    return OutcomeSums(
        rows=len(values),
        finite=len(usable),
        zeros=len(usable) - int(np.count_nonzero(usable)),
        above_one=int(np.count_nonzero(usable > 1)),
        low=float(usable.min()) if len(usable) else inf,
        high=float(usable.max()) if len(usable) else -inf,
    )


def merge_outcomes(parts: Iterable[OutcomeSums]) -> OutcomeSums:
    """The sums of all parts."""
    known = tuple(parts)
    return OutcomeSums(
        rows=sum(part.rows for part in known),
        finite=sum(part.finite for part in known),
        zeros=sum(part.zeros for part in known),
        above_one=sum(part.above_one for part in known),
        low=min(part.low for part in known),
        high=max(part.high for part in known),
    )
