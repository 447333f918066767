"""The direct method: the baseline, believed as it is."""

from __future__ import annotations

import numpy as np

from redenvelope.evaluation.diagnostics import Diagnostics
from redenvelope.evaluation.estimator import Estimator, Prepared
from redenvelope.evaluation.evidence import Evidence
from redenvelope.evaluation.partitions import Partitions
from redenvelope.evaluation.reasons import Reason, Weight
from redenvelope.evaluation.terms import Terms

__all__ = ["Direct", "direct"]

_BELIEVED = Reason(
    "baseline_believed",
    Weight.WARNING,
    "the direct method believes its baseline: its interval knows the spread of users, not the baseline's error",
)


class Direct(Estimator):
    """The direct method: it weighs nothing, so no weight speaks against it."""

    name = "direct"

    def prepare(self, users: Partitions, discount: float) -> Prepared:
        """See Estimator."""
        return Prepared(direct)

    def reasons(self, diagnostics: Diagnostics, price: int) -> tuple[Reason, ...]:
        """See Estimator."""
        return (_BELIEVED,)


def direct(evidence: Evidence, discount: float = 1.0) -> Terms:
    """The baseline of the first state, believed as it is.

    Its error is that of the baseline, and no interval knows it. The discount is in the baseline already.
    """
    values, _ = evidence.baseline()
    return Terms.mean(values[:, evidence.positions[0][1]].astype(np.float64, copy=False))
