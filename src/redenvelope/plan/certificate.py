"""The budget certificate: what a plan costs on users that chose nothing, and whether that may be relied on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

__all__ = ["Certificate", "Figure"]


@dataclass(frozen=True)
class Figure:
    """An estimated mean a user."""

    estimate: float
    lower: float
    upper: float
    standard_error: float
    estimator: str


@dataclass(frozen=True)
class Certificate:
    """Certified when the one-sided upper bound of the cost is within the budget and nothing forbids believing it."""

    status: Literal["certified", "refused"]
    reasons: tuple[str, ...]
    """Why it was refused, and what to know besides."""
    budget: float
    dual: float
    method: str
    confidence: float
    cost: Figure
    """`upper` is the one-sided bound; `lower` the one-sided bound on the other side."""
    reward: Figure
    logged: dict[str, float]
    """Cost and reward a user as logged, on the same users."""
    diagnostics: dict[str, Any]
    users: int
    policy_sha256: str
    fold_sha256: str
    target_reward: float | None = None
    """The reward that was asked for, where that was asked for instead of a budget."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self) | {"dual": "infinity" if np.isinf(self.dual) else self.dual}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Certificate:
        """The certificate that `as_dict` wrote."""
        return cls(
            **content
            | {
                "reasons": tuple(content["reasons"]),
                "dual": np.inf if content["dual"] == "infinity" else float(content["dual"]),
                "cost": Figure(**content["cost"]),
                "reward": Figure(**content["reward"]),
            }
        )

    def _sentence_of_target(self, target: float) -> str:
        figures = (
            f"{self.reward.estimate:.4g} a user, at least {self.reward.lower:.4g} with {self.confidence:.0%} "
            f"confidence, for {self.cost.estimate:.4g}, at most {self.cost.upper:.4g}"
        )
        if self.status == "certified":
            return (
                f"Certified: on {self.users:,} users that neither trained the model nor chose the price, the plan "
                f"earns {figures}: it reaches the target of {target:.4g}."
            )
        return f"Refused: {self.reasons[0]} (estimated reward {figures}; target {target:.4g})."

    def sentence(self) -> str:
        """The certificate in words."""
        if self.target_reward is not None:
            return self._sentence_of_target(self.target_reward)
        bound = f"{self.cost.estimate:.4g} a user, at most {self.cost.upper:.4g} with {self.confidence:.0%} confidence"
        if self.status == "certified":
            return (
                f"Certified: on {self.users:,} users that neither trained the model nor chose the price, the plan "
                f"costs {bound}, within the budget of {self.budget:.4g}."
            )
        return f"Refused: {self.reasons[0]} (estimated cost {bound}; budget {self.budget:.4g})."
