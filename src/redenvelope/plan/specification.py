"""How a policy decides, in a few words and numbers."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PolicySpecification"]


@dataclass(frozen=True)
class PolicySpecification:
    """All that a policy is, besides its weights and its prices."""

    method: str
    horizon: int
    temperature: float
    steps: int
    """Steps of the campaign."""
    explore: float = 0.0
    """Share of the decisions that is drawn evenly among what is eligible."""
