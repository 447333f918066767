"""What a rule of a log is made of."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["Rule"]


class Rule(NamedTuple):
    """A rule's class, its sentence, and its remedy."""

    severity: Literal["error", "warning", "repaired"]
    message: str
    remedy: str
