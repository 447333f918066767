"""Reasons: what speaks against an estimate, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["Reason", "Weight"]


class Weight(StrEnum):
    """What a reason means for an estimate."""

    REFUSAL = "refusal"
    """The estimate must not be relied on."""
    WARNING = "warning"
    """The estimate may be used, and the reason is to be shown with it."""


@dataclass(frozen=True)
class Reason:
    """One thing that speaks against an estimate."""

    rule: str
    weight: Weight
    message: str

    def __str__(self) -> str:
        return f"{self.weight}: {self.message}"

    def as_dict(self) -> dict[str, str]:
        """Plain data for JSON."""
        return {"rule": self.rule, "weight": self.weight.value, "message": self.message}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Reason:
        """The reason that `as_dict` wrote."""
        return cls(str(content["rule"]), Weight(content["weight"]), str(content["message"]))
