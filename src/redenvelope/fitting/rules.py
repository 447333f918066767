"""What is left of a log by the rules of a campaign."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from redenvelope.audit.audit import Audit
from redenvelope.fitting.method import Lessons
from redenvelope.log.findings import Finding, Findings, merge
from redenvelope.log.log import Log

__all__ = ["log_left", "with_rules"]


def with_rules(audited: Audit, lessons: Lessons, log: Log) -> Audit:
    """The audit, with what the rules leave of the log."""
    eligible = lessons.eligible(log)
    return audited if eligible is None else replace(audited, findings=merge(audited.findings, log_left(log, eligible)))


def log_left(log: Log, eligible: np.ndarray) -> tuple[Finding, ...]:
    """How many rows and users of a log were given what may be given, [rows, actions]; nothing where all were.

    What was given and is now forbidden has a ratio of 0: it says nothing of a plan that keeps the rules.
    """
    kept = eligible[np.arange(len(log)), log.action]
    if kept.all():
        return ()
    users = int(np.logical_and.reduceat(kept, log.starts[:-1]).sum())
    findings = Findings()
    findings.add(
        "rules_forbid_logged",
        column="action",
        count=int((~kept).sum()),
        rows_left=int(kept.sum()),
        rows_share=float(kept.mean()),
        users_left=users,
        users=len(log.users),
    )
    return findings.sorted()
