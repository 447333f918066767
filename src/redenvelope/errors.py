"""The exceptions of redenvelope, as a tree.

RedenvelopeError            everything this package raises on purpose
├── UsageError              an argument, option or configuration that makes no sense
├── LogError                a log that cannot be used; carries every finding, not just the first
├── ProblemError            a decision problem whose numbers contradict each other
├── ModelError              a model that cannot be learned from the given data, or not applied to it
├── PlanError               a plan folder that is damaged, incomplete or too new to be opened
└── LedgerError             a ledger that does not exist, is not one, or cannot be used now

The outcome of a search (a budget too small, a bracket not found) is a return value, never an exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING

from redenvelope.wording import for_reader

if TYPE_CHECKING:
    from redenvelope.log.findings import Finding


class RedenvelopeError(Exception):
    """Base class of everything redenvelope raises on purpose; the message says what is wrong, where, and what to do."""

    def __str__(self) -> str:
        return for_reader(super().__str__())


class UsageError(RedenvelopeError, ValueError):
    """An argument, option or configuration file that makes no sense."""


def require_whole(what: str, number: object) -> None:
    """Refuse a count of users, steps or the like that is not a whole number from 1 up; `what` begins the message."""
    if isinstance(number, bool) or not isinstance(number, Integral) or number < 1:
        raise UsageError(f"{what} is a whole number, at least 1, not {number!r}")


class ProblemError(RedenvelopeError, ValueError):
    """A decision problem whose numbers contradict each other, such as a probability above one."""


class ModelError(RedenvelopeError, ValueError):
    """A model that cannot be learned from the given data, or not applied to it."""


class PlanError(RedenvelopeError):
    """A plan folder that is damaged, incomplete or too new to be opened."""


class LedgerError(RedenvelopeError):
    """A ledger that does not exist, is not one, or cannot be used now (full disk, database does not answer)."""


class LogError(RedenvelopeError):
    """A log that cannot be used; `findings` lists every violation that was found, errors first."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings: tuple[Finding, ...] = tuple(findings)
        super().__init__("\n".join(str(finding) for finding in self.findings))
