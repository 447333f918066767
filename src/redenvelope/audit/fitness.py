"""Why no plan can be made from a log that can be read: said by the audit, and in the same words by a fit."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from redenvelope.log.findings import Findings

__all__ = ["LEAST_USERS", "report_few_users", "report_gaps"]

LEAST_USERS = 50
"""Of the folds that tune and check: a certificate refuses fewer effective ones."""


def report_gaps(rows: int, findings: Findings) -> None:
    """Report so many rows that skip a step of their user, if any."""
    if rows:
        findings.add("fit_step_gap", column="step", count=rows)


def report_few_users(folds: Sequence[int], findings: Findings) -> None:
    """Report folds (train, tune, check) of so few users that none could be spared to choose or to check a plan."""
    users, fewest = sum(folds), min(folds[1:])
    if fewest < LEAST_USERS:
        # A share that chance made small would be about as small again: a fifth more, and rounded up.
        enough = ceil(LEAST_USERS * users / max(fewest, 1) * 1.2 / 50) * 50
        findings.add(
            "fit_few_users", column="user", count=users, fewest=fewest, needed=LEAST_USERS, enough=f"{enough:,}"
        )
