"""The budget certificate: what a plan costs on users that chose nothing, and whether that may be relied on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from redenvelope.errors import PlanError
from redenvelope.evaluation.reasons import Reason, Weight
from redenvelope.plain import from_plain, to_plain

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
class _Rule:
    """What a reason is, beside its words."""

    rule: str
    weight: Weight


@dataclass(frozen=True)
class _Written:
    """What of a certificate is written in a form of its own."""

    reasons: tuple[str, ...]
    rules: tuple[_Rule, ...]
    dual: float | Literal["infinity"]


@dataclass(frozen=True)
class Certificate:
    """Certified when the one-sided upper bound of the cost is within the budget and nothing forbids believing it."""

    status: Literal["certified", "refused"]
    reasons: tuple[Reason, ...]
    """Why it was refused, and what to know besides; refusals first."""
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

    @property
    def is_certified(self) -> bool:
        """Whether it may be relied on."""
        return self.status == "certified"

    @property
    def notes(self) -> tuple[Reason, ...]:
        """What to know besides the sentence, which holds the first reason of a refusal."""
        return self.reasons if self.is_certified else self.reasons[1:]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON: reasons in words, and beside them the rule and the weight of each."""
        content: dict[str, Any] = to_plain(self)
        content["reasons"] = [reason.message for reason in self.reasons]
        content["rules"] = [{"rule": reason.rule, "weight": str(reason.weight)} for reason in self.reasons]
        return content | {"dual": "infinity" if np.isinf(self.dual) else self.dual}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Certificate:
        """The certificate that `as_dict` wrote."""
        written = from_plain(_Written, content, "the certificate")
        if len(written.reasons) != len(written.rules):
            raise PlanError("the certificate is damaged: its reasons and their rules are not as many")
        reasons = tuple(
            Reason(entry.rule, entry.weight, message)
            for entry, message in zip(written.rules, written.reasons, strict=True)
        )
        plain = {name: value for name, value in content.items() if name not in ("reasons", "rules", "dual")}
        numbers = {"dual": np.inf if written.dual == "infinity" else float(written.dual), "reasons": []}
        return replace(from_plain(cls, plain | numbers, "the certificate"), reasons=reasons)

    def _sentence_of_target(self, target: float) -> str:
        figures = (
            f"{self.reward.estimate:.4g} a user, at least {self.reward.lower:.4g} with {self.confidence:.0%} "
            f"confidence, for {self.cost.estimate:.4g}, at most {self.cost.upper:.4g}"
        )
        if self.is_certified:
            return (
                f"Certified: on {self.users:,} users that neither trained the model nor chose the price, the plan "
                f"earns {figures}: it reaches the target of {target:.4g}."
            )
        return f"Refused: {self.reasons[0].message} (estimated reward {figures}; target {target:.4g})."

    def sentence(self) -> str:
        """The certificate in words."""
        if self.target_reward is not None:
            return self._sentence_of_target(self.target_reward)
        bound = f"{self.cost.estimate:.4g} a user, at most {self.cost.upper:.4g} with {self.confidence:.0%} confidence"
        if self.is_certified:
            return (
                f"Certified: on {self.users:,} users that neither trained the model nor chose the price, the plan "
                f"costs {bound}, within the budget of {self.budget:.4g}."
            )
        return f"Refused: {self.reasons[0].message} (estimated cost {bound}; budget {self.budget:.4g})."
