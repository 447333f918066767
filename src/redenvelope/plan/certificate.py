"""The budget certificate: what a plan costs on held-out users, and whether its upper bound is within the budget.

This module holds the record, its wording and its JSON. `plan/ladder.py` computes the bounds, and
`plan/fixed_sequence_test.py` chooses the plan and writes the certificate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from redenvelope.dual.solution import BudgetStatus
from redenvelope.errors import PlanError
from redenvelope.evaluation.confidence import Estimate
from redenvelope.evaluation.diagnostics import Reason, Weight
from redenvelope.serialization import from_plain, to_plain
from redenvelope.wording import for_reader, html_block, number

HIDDEN_ODDS = "hidden_odds_ratio"
"""Diagnostic: the smallest odds ratio of hidden confounding that could bring a cost to its budget."""
UNDER_SPENT = "under_spent"
"""Rule: the plan is certified, uses less than half of every budget, and would earn more with a larger one."""


@dataclass(frozen=True)
class BudgetFigure:
    """One budget and what the plan spends of it; means per user."""

    name: str
    budget: float
    cost: Estimate
    """`upper` is the one-sided bound that the certificate rests on."""
    dual: float
    """Shadow price: the reward that one more unit of this budget buys; 0 where the budget is slack."""
    status: BudgetStatus
    logged: float
    """Cost per user as logged, on the same users."""
    audience: int | None = None
    """Number of users in the campaign, where known."""
    total: float | None = None
    """The budget for the whole audience."""
    set_aside: float = 0.0
    """What new actions, which the certificate does not cover, may add to the mean cost per user."""

    @property
    def limit(self) -> float:
        """What is left of the budget for the plan: the certified bound is within it."""
        return self.budget - self.set_aside

    @property
    def unspent(self) -> float | None:
        """The expected remainder of the total budget; None where the total or the audience is unknown."""
        return None if self.total is None or self.audience is None else self.total - self.cost.estimate * self.audience

    def total_sentence(self) -> str:
        """The expected remainder for the whole audience in words; empty where the audience is unknown."""
        if self.unspent is None:
            return ""
        left = "unspent" if self.unspent >= 0 else "too much"
        return f"{abs(self.unspent):,.0f} of {self.total:,.0f} {left} with {self.audience:,} users"

    def sentence(self) -> str:
        """The budget in words."""
        cost, upper = number(self.cost.estimate), number(self.cost.upper)
        said = f"{self.name}: {cost} of {number(self.budget)} per user, at most {upper}"
        said += f"; {self.total_sentence()}" if self.unspent is not None else ""
        buys = f"one more unit buys {number(self.dual)}" if self.dual > 0 else "more of it would buy nothing"
        return f"{said} ({self.status}, {buys})" if np.isfinite(self.dual) else f"{said} ({self.status})"


@dataclass(frozen=True)
class Certificate:
    """Certified when the one-sided upper bound of every cost is within its budget and no reason refuses it.

    `budget`, `dual` and `cost` are those of the first budget.
    """

    status: Literal["certified", "refused"]
    reasons: tuple[Reason, ...]
    """Reasons for a refusal, then warnings."""
    budgets: tuple[BudgetFigure, ...]
    """At least one."""
    method: str
    confidence: float
    reward: Estimate
    logged_reward: float
    """Mean reward per user as logged, on the same users."""
    diagnostics: dict[str, Any]
    users: int
    policy_sha256: str
    fold_sha256: str
    members: int = 1
    """Members of the plan; each of several was checked on the users who follow it, and did not train on them."""
    clusters: int | None = None
    """Number of clusters that the users form, for cluster-robust errors; None where users are independent."""
    most_per_user: float | None = None
    """The cap on a user's cost over the campaign, which the ledger has to enforce; None where there is none."""
    target_reward: float | None = None
    """The target reward, where the plan was fitted to one instead of a budget."""

    @property
    def budget(self) -> float:
        """The first budget, the mean cost per user."""
        return self.budgets[0].budget

    @property
    def dual(self) -> float:
        """Shadow price of the first budget."""
        return self.budgets[0].dual

    @property
    def cost(self) -> Estimate:
        """Cost against the first budget; `upper` and `lower` are one-sided bounds."""
        return self.budgets[0].cost

    @property
    def logged(self) -> dict[str, float]:
        """Cost (against the first budget) and reward per user as logged, on the same users."""
        return {"cost": self.budgets[0].logged, "reward": self.logged_reward}

    @property
    def is_certified(self) -> bool:
        """Whether the status is "certified"."""
        return self.status == "certified"

    @property
    def is_under_spent(self) -> bool:
        """Whether the plan is certified but has the warning `UNDER_SPENT`."""
        return self.is_certified and any(reason.rule == UNDER_SPENT for reason in self.reasons)

    def of(self, budget: BudgetFigure) -> Certificate:
        """The same certificate restricted to one of its budgets."""
        return replace(self, budgets=(budget,))

    @property
    def notes(self) -> tuple[Reason, ...]:
        """The reasons that the sentence leaves out: all of them if certified, else all but the first."""
        return self.reasons if self.is_certified else self.reasons[1:]

    def __str__(self) -> str:
        return "\n• ".join(self._sentences)

    def _repr_html_(self) -> str:
        return html_block(f"Certificate ({self.status})", self._sentences)

    @property
    def _sentences(self) -> list[str]:
        return [for_reader(said) for said in (self.sentence(), *(reason.message for reason in self.notes))]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON: the reasons as messages, rule and weight of each, and the first budget's figures at the
        top."""
        plain = to_plain(self)
        for own, written in zip(self.budgets, plain["budgets"], strict=True):
            written["dual"] = "infinity" if np.isinf(own.dual) else own.dual
            if own.unspent is None:
                del written["audience"], written["total"]
            if not own.set_aside:
                del written["set_aside"]
        top = plain | {"logged": to_plain(self.logged), "reasons": [reason.message for reason in self.reasons]}
        top |= {name: plain["budgets"][0][name] for name in ("budget", "dual", "cost")}
        top["rules"] = [{"rule": reason.rule, "weight": str(reason.weight)} for reason in self.reasons]
        if self.members == 1:
            del top["members"]
        return {name: top[name] for name in _WRITTEN if name in top}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Certificate:
        """Read what `as_dict` wrote."""
        written = from_plain(_Written, content, "the certificate")
        if len(written.reasons) != len(written.rules) or not written.budgets:
            raise PlanError("the certificate is damaged: it needs a rule for each reason, and at least one budget")
        reasons = [
            {"rule": entry.rule, "weight": entry.weight.value, "message": message}
            for entry, message in zip(written.rules, written.reasons, strict=True)
        ]
        budgets = [each | {"dual": np.inf} if each.get("dual") == "infinity" else each for each in written.budgets]
        own = {"reasons": reasons, "budgets": budgets, "logged_reward": written.logged.get("reward")}
        found = from_plain(cls, content | own, "the certificate")
        again = found.as_dict()
        for name in ("budget", "dual", "cost", "logged"):
            if content.get(name) != again[name]:
                raise PlanError(f"the certificate is damaged: {name} is not that of its first budget")
        return found

    def sentence(self) -> str:
        """The certificate in words."""
        if self.target_reward is not None:
            return self._sentence_of_target(self.target_reward)
        if len(self.budgets) > 1:
            return self._sentence_of_several()
        cost, upper = number(self.cost.estimate), number(self.cost.upper)
        bound = f"{cost} per user, at most {upper} with {self.confidence:.0%} confidence"
        if self.is_certified:
            budget = f"{number(self.budget)}{_aside(self.budgets)}"
            return f"{self._on('price')} costs {bound}, within the budget of {budget}{self._capped()}."
        return f"Refused: {self.reasons[0].message} (estimated cost {bound}; budget {number(self.budget)})."

    def _sentence_of_target(self, target: float) -> str:
        figures = (
            f"{number(self.reward.estimate)} per user, at least {number(self.reward.lower)} with {self.confidence:.0%} "
            f"confidence, for {number(self.cost.estimate)}, at most {number(self.cost.upper)}"
        )
        if self.is_certified:
            return f"{self._on('price')} earns {figures}: it reaches the target of {number(target)}{self._capped()}."
        return f"Refused: {self.reasons[0].message} (estimated reward {figures}; target {number(target)})."

    def _sentence_of_several(self) -> str:
        spent = "; ".join(
            f"{each.name} {number(each.cost.estimate)}, at most {number(each.cost.upper)} of {number(each.budget)}"
            for each in self.budgets
        )
        level, aside = f"with {self.confidence:.0%} confidence each", _aside(self.budgets)
        if self.is_certified:
            return f"{self._on('prices')} keeps all {len(self.budgets)} budgets per user{aside}, {level}: {spent}."
        return f"Refused: {self.reasons[0].message} (estimated costs per user, {level}: {spent})."

    def _capped(self) -> str:
        return "" if self.most_per_user is None else f", if no user may cost more than {number(self.most_per_user)}"

    def _on(self, prices: str) -> str:
        counted = "" if self.clusters is None else f" in {self.clusters:,} clusters"
        checked = f"on {self.users:,} users{counted} who neither trained the model nor chose the {prices}"
        if self.members > 1:
            checked = f"on {self.users:,} users{counted}, each by the one of {self.members} members made without them"
        used = ""
        if self.is_under_spent:
            most = max(each.cost.estimate / each.budget for each in self.budgets)
            used = f", but uses only {max(most, 0):.0%} of {'its' if len(self.budgets) == 1 else 'any'} budget"
        return f"Certified{used}: {checked}, the plan"


def _aside(budgets: tuple[BudgetFigure, ...]) -> str:
    aside = [each.set_aside for each in budgets]
    return f", of which {', '.join(map(number, aside))} is set aside for new actions" if any(aside) else ""


_WRITTEN = (
    *("status", "reasons", "budget", "dual", "method", "confidence", "cost", "reward", "logged", "diagnostics"),
    *(
        "users",
        "members",
        "clusters",
        "most_per_user",
        "policy_sha256",
        "fold_sha256",
        "target_reward",
        "budgets",
        "rules",
    ),
)
"""The keys of a certificate in JSON, in this order."""


@dataclass(frozen=True)
class _Rule:
    """Rule and weight of a reason."""

    rule: str
    weight: Weight


@dataclass(frozen=True)
class _Written:
    """The fields whose JSON form differs from the Python form."""

    reasons: tuple[str, ...]
    rules: tuple[_Rule, ...]
    budgets: tuple[dict[str, Any], ...]
    logged: dict[str, float]
