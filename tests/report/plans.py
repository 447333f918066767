"""Plans made by hand: the page reads figures, it needs no model."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl

from redenvelope import Audit, Certificate, Finding, Plan, Pricing
from redenvelope.audit.effects import ActionEffect, CarryOver, Mean, Reversal
from redenvelope.audit.overlap import Calibration, StepOverlap
from redenvelope.audit.randomization import AssignmentEvidence
from redenvelope.dual.solution import BudgetStatus, DualStatus
from redenvelope.evaluation.confidence import Estimate
from redenvelope.log.findings import Severity
from redenvelope.log.log import ActionCatalogue
from redenvelope.models.fidelity import ActionFidelity, Fidelity, FidelityThresholds, OutcomeFidelity, RollOutFidelity
from redenvelope.models.fidelity import RollOutOutcome as FollowedOutcome
from redenvelope.plan.certificate import BudgetFigure
from redenvelope.plan.fixed_sequence_test import Stop
from redenvelope.plan.ladder import Ladder, Place, Rung
from redenvelope.plan.policy import PolicySpecification
from redenvelope.plan.record import (
    ActionShares,
    Alternative,
    ComparedPolicy,
    Condition,
    Example,
    FeatureShares,
    FitRecord,
    FoldSize,
    Group,
    PlannerRecord,
    Shares,
    StepGroups,
    StepShares,
)

HOSTILE = "<script>alert(1)</script>"
CHARTS, NARROW = 14, 2
"""In a whole report; some of them are drawn a second time, for phones."""
LONG = "\"quoted\" & 'dear' and far too long for a legend"
LABELS = ("nothing", HOSTILE, LONG)
GIVEN = ((0.5, 0.3, 0.2), (0.2, 0.2, 0.6))
"""Shares of the actions, [groups, actions]."""


def certificate(**changes: Any) -> Certificate:
    """A certificate of one budget; `changes` are of the certificate, or `budget`, `dual` and `cost` of the budget."""
    first = BudgetFigure(
        "cost", 4.0, Estimate(3.65, 3.39, 3.9, 0.15, "marginalised"), 0.0625, BudgetStatus.BINDING, logged=7.84
    )
    own = {name: changes.pop(name) for name in ("budget", "dual", "cost") if name in changes}
    content: dict[str, Any] = {
        "status": "certified",
        "reasons": (),
        "budgets": (replace(first, **own),),
        "method": "planned",
        "confidence": 0.95,
        "reward": Estimate(2.97, 2.83, 3.11, 0.08, "marginalised"),
        "logged_reward": 2.81,
        "diagnostics": {"effective_users_by_step": [546.1, 406.7], "propensities_estimated": False},
        "users": 3020,
        "policy_sha256": "ab" * 32,
        "fold_sha256": "cd" * 32,
    }
    return Certificate(**content | changes)


def frontier(points: int = 8) -> pl.DataFrame:
    """Reward √cost, so that what a budget buys is known."""
    cost = np.linspace(9, 1, points)
    reward = np.sqrt(cost)
    dual = np.append(0.5 / reward[:-1], np.inf)
    dual[0] = 0.0
    columns = {"budget": "cost", "dual": dual, "cost": cost, "reward": reward}
    for name, spread in (("cost", 0.3), ("reward", 0.1)):
        columns |= {f"{name}_lower": columns[name] - spread, f"{name}_upper": columns[name] + spread}
    return pl.DataFrame(columns | {"model_cost": cost, "model_reward": 1.02 * reward})


def finding(message: str, **changes: Any) -> Finding:
    return replace(Finding("odd", Severity.WARNING, message, remedy="look"), **changes)


def audit() -> Audit:
    effects = tuple(
        ActionEffect(label, 80, Mean.of(0.3 * place, 0.05), Mean.of(1.0 * place, 0.05))
        for place, label in enumerate(LABELS)
    )
    return Audit(
        users=120,
        rows=240,
        steps=2,
        features=3,
        static_features=1,
        propensity_source="logged",
        logged_reward=Mean.of(2.81, 0.1),
        logged_cost=Mean.of(7.84, 0.1),
        actions=effects,
        reversals=(Reversal(cheap=effects[0], dear=effects[1]),),  # so that a sentence names the hostile label
        propensity_quantiles={"0": 0.2, "1": 0.5},
        calibration=tuple(Calibration(label, 1.01, 0.2) for label in LABELS),
        assignment=AssignmentEvidence(0.0, 0.01),
        overlap=tuple(StepOverlap(step, 120, 100.0 / step, 60.0 / step**2, 60.0 / step, 40) for step in (1, 2)),
        steps_alive=1,
        carry_over=(CarryOver("reward", 1.0, 0.2, 1e-6),),
        cheapest_cost=0.0,
        dearest_cost=9.0,
        folds=(),
        findings=(
            finding(f"column {HOSTILE} is odd", column=HOSTILE, count=1, examples=(HOSTILE,)),
            finding("two values are odd", file="log.csv", column="city", count=2, rows=(3, 9), examples=("a", "b")),
        ),
    )


def fidelity(*reasons: str) -> Fidelity:
    actions = tuple(ActionFidelity(place, 100, 0.1 * place, 0.11 * place, 0.02) for place in range(3))
    outcomes = tuple(OutcomeFidelity(name, 0.1, 0.11, 0.02, 0.5, None, actions, ()) for name in ("reward", "cost"))
    sums = (FollowedOutcome("reward", 1.0, 1.1, 0.1, ()), FollowedOutcome("cost", 2.0, 2.1, 0.1, ()))
    followed = RollOutFidelity(1, 100, 0.1, 0.4, sums)
    return Fidelity(50, 100, outcomes, (followed,), FidelityThresholds(), reasons)


def ladder(**changes: Any) -> Ladder:
    """Three rungs: costs 1, 4 and 9, each known to a standard error of about 0.1 (500 users with a spread of 2)."""
    rungs = tuple(
        Rung((price,), (reward, cost), (1.0, 4.0), (0.0, 0.0), ((0.9, 3.9), (0.0, 0.0), (0.0, 0.0)), (), {})
        for price, cost, reward in ((np.inf, 1.0, 1.0), (0.0625, 4.0, 2.0), (0.0, 9.0, 3.0))
    )
    return replace(Ladder(500, "marginalised", rungs), **changes)


def compared(
    policy: str, figures: tuple[float, float], differences: tuple[float, float], reach: float = 0.1
) -> ComparedPolicy:
    """A policy's cost and reward, and its differences from the log in both, each known to ± `reach`."""
    known = [figure for difference in differences for figure in (difference, difference - reach, difference + reach)]
    return ComparedPolicy(policy, figures[0], 0.1, figures[1], 0.1, *known)


def shares() -> ActionShares:
    steps = tuple(StepShares(step, 20, given, given, 1.0 + step, 3.0) for step, given in enumerate(GIVEN))
    bins = tuple(Shares(f"bin {place} {HOSTILE}", 10, given, 1.0 + place) for place, given in enumerate(GIVEN))
    features = tuple(FeatureShares(f"{name} {HOSTILE}", 0.4, bins) for name in ("city", "age", "size"))
    return ActionShares(20, 40, LABELS, steps, features, groups(), (example(),))


def groups() -> tuple[StepGroups, ...]:
    """Two steps: cedar's active users and the others, then everybody."""
    cedar = Condition(f"city {HOSTILE}", "is cedar"), Condition("active", "is yes")
    first = (Group(cedar, 5, (0.02, 0.01, 0.97), 2.0), Group((cedar[0],), 15, (0.5, 0.3, 0.2), 0.5))
    return StepGroups(0, 20, 0.8, first), StepGroups(1, 20, 0.0, (Group((), 20, GIVEN[1], 1.0),))


def example() -> Example:
    """At the plan's price of 0.0625, the second action is best: the third earns 0.1 more for 3 more, which is worth
    0.1875 elsewhere."""
    figures = ((0.1, 1.0, 1.0), (0.8, 1.2, 2.0), (0.1, 1.3, 5.0))
    return Example(
        step=0,
        known=((f"city {HOSTILE}", "cedar"), ("active", "yes")),
        alternatives=tuple(
            Alternative(label, chance, reward, cost, reward - 0.0625 * cost)
            for label, (chance, reward, cost) in zip(LABELS, figures, strict=True)
        ),
    )


def record(**changes: Any) -> FitRecord:
    content: dict[str, Any] = {
        "audit": audit(),
        "folds": {"train": FoldSize(100, 200), "check": FoldSize(20, 40)},
        "seed": 0,
        "parts": (0.6, 0.1, 0.3),
        "confidence": 0.95,
        "fidelity": fidelity(f"the mean of {HOSTILE} is off"),
        "planner": PlannerRecord((f"thinned {HOSTILE}",), 2),
        "stop": Stop(Place(0, 0.9), DualStatus.CONVERGED, holds=True),
        "comparison": (
            compared("logged", (7.84, 2.81), (0.0, 0.0), reach=0.0),
            compared(f"bandit {HOSTILE}", (3.9, 2.5), (-3.94, -0.31)),
            compared("plan", (3.65, 2.97), (-4.19, 0.16)),
        ),
        "shares": shares(),
        "model": {},
        "settings": {},
    }
    return FitRecord(**content | changes)


def policy(pricing: Pricing | None = None) -> Any:
    """What of a policy the page reads."""
    specification = PolicySpecification("planned", horizon=3, temperature=0.002, steps=2)
    catalogue = ActionCatalogue(LABELS, numeric=False)
    own = {"specification": specification, "catalogue": catalogue, "pricing": pricing or Pricing.at(0.0625)}
    return SimpleNamespace(**own, rules=(), holdout=0.0, new=())


def plan(**changes: Any) -> Plan:
    content: dict[str, Any] = {
        "policy": policy(),
        "certificate": certificate(),
        "frontier": frontier(),
        "ladder": ladder(),
        "record": record(),
    }
    return Plan(**content | changes)
