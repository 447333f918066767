"""Whether what is remembered of a fit fits together: a report is drawn from it, one list beside the other."""

from __future__ import annotations

from collections.abc import Iterator

from redenvelope.audit.audit import Audit
from redenvelope.errors import PlanError
from redenvelope.plan.record import ActionShares, FitRecord

__all__ = ["require_record"]


def require_record(record: FitRecord, labels: tuple[str, ...]) -> None:
    """Refuse a record whose lists are not of the plan's actions and steps."""
    _require_audit(record.audit)
    if record.shares is not None:
        _require_shares(record.shares, labels)


def _require_audit(audit: Audit) -> None:
    where = "plan.json: record: audit"
    _require(len(audit.actions) > 0, f"{where}: actions: there are none")
    _require(len(audit.calibration) == len(audit.actions), f"{where}: calibration: not as many as there are actions")
    _require(len(audit.overlap) > 0, f"{where}: overlap: there are no steps")


def _require_shares(shares: ActionShares, labels: tuple[str, ...]) -> None:
    where = "plan.json: record: shares"
    _require(shares.actions == labels, f"{where}: actions: not those of the catalogue")
    _require(len(shares.by_step) > 0, f"{where}: by_step: there are no steps")
    _require(all(len(each.bins) > 0 for each in shares.by_feature), f"{where}: by_feature: a feature has no bins")
    fits = all(len(each) == len(labels) for each in _by_action(shares))
    _require(fits, f"{where}: probabilities: not as many as there are actions")


def _by_action(shares: ActionShares) -> Iterator[tuple[object, ...]]:
    """Every list that has an entry an action."""
    for step in shares.by_step:
        yield from (step.probabilities, step.logged)
    for feature in shares.by_feature:
        yield from (each.probabilities for each in feature.bins)
    for groups in shares.groups:
        yield from (each.probabilities for each in groups.groups)
    yield from (example.alternatives for example in shares.examples)


def _require(fits: bool, message: str) -> None:
    if not fits:
        raise PlanError(message)
