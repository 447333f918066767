"""Everything a log says about itself before anything is learned from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from redenvelope.audit.assignment import AssignmentEvidence, assignment_evidence
from redenvelope.audit.carry_over import CarryOver, carry_over
from redenvelope.audit.effects import ActionEffect, Mean, Reversal, action_effects, reversals
from redenvelope.audit.overlap import (
    LEAST_EFFECTIVE_USERS,
    Calibration,
    StepOverlap,
    calibration,
    overlap_by_step,
    steps_alive,
)
from redenvelope.errors import UsageError
from redenvelope.log.findings import Finding, Findings, merge
from redenvelope.log.log import Log
from redenvelope.log.split import split

__all__ = ["Audit", "Fold", "audit_log"]

_QUANTILES = (0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0)
_FOLD_NAMES = ("train", "search", "certify")
_CERTIFY_SHARE = 0.15  # of the users, unless a fit is told otherwise


@dataclass(frozen=True)
class Fold:
    """The size of a fold."""

    name: str
    users: int
    rows: int


@dataclass(frozen=True)
class Audit:
    """What decides whether planning on a log is worth it."""

    users: int
    rows: int
    steps: int
    features: int
    static_features: int
    propensity_source: str
    logged_reward: Mean
    """Per user, summed over the steps."""
    logged_cost: Mean
    actions: tuple[ActionEffect, ...]
    reversals: tuple[Reversal, ...]
    propensity_quantiles: dict[str, float]
    calibration: tuple[Calibration, ...]
    assignment: AssignmentEvidence
    overlap: tuple[StepOverlap, ...]
    steps_alive: int
    carry_over: tuple[CarryOver, ...]
    cheapest_cost: float
    """Mean cost a user of giving everybody the cheapest action at every step."""
    dearest_cost: float
    folds: tuple[Fold, ...]
    findings: tuple[Finding, ...]

    @property
    def certify_share(self) -> float:
        """Share of the users who certify: overlap is judged on them, because a certificate is."""
        return _certify_share(self.folds)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, with the sentences of `verdicts`."""
        from redenvelope.audit.verdicts import verdicts

        content = asdict(self)
        content["findings"] = [finding.as_dict() for finding in self.findings]
        content["assignment"]["looks_random"] = self.assignment.looks_random
        for plain, effect in zip(content["carry_over"], self.carry_over, strict=True):
            plain |= {"share": effect.share, "strength": effect.strength}
        content["reversals"] = [{"cheap": pair.cheap.label, "dear": pair.dear.label} for pair in self.reversals]
        content["verdicts"] = list(verdicts(self))
        return content


def audit_log(log: Log, budget: float | None = None) -> Audit:
    """Look at a log; with a budget, also whether the budget makes sense for it."""
    effects = action_effects(log)
    greedy = int(np.nanargmax([effect.reward.estimate for effect in effects]))
    overlap, folds = overlap_by_step(log, greedy), _folds(log)
    steps = float(log.lengths.mean())
    costs = [effect.cost.estimate * steps for effect in effects]
    quantiles = np.quantile(log.propensity, _QUANTILES)
    carried = [carry_over(log, "reward"), carry_over(log, "cost")]
    result = Audit(
        users=len(log.users),
        rows=len(log),
        steps=log.campaign_steps,
        features=len(log.features.names),
        static_features=len(log.features.static),
        propensity_source=log.propensity_source,
        logged_reward=_mean_per_user(log.sums_by_user(log.reward)),
        logged_cost=_mean_per_user(log.sums_by_user(log.cost)),
        actions=effects,
        reversals=reversals(effects),
        propensity_quantiles={f"{level:g}": float(value) for level, value in zip(_QUANTILES, quantiles, strict=True)},
        calibration=calibration(log),
        assignment=assignment_evidence(log),
        overlap=overlap,
        steps_alive=steps_alive(overlap, _certify_share(folds)),
        carry_over=tuple(effect for effect in carried if effect is not None),
        cheapest_cost=min(costs),
        dearest_cost=max(costs),
        folds=folds,
        findings=(),
    )
    return _with_findings(result, log, budget)


def _mean_per_user(sums: np.ndarray[Any, np.dtype[np.float64]]) -> Mean:
    error = float(sums.std(ddof=1) / np.sqrt(len(sums))) if len(sums) > 1 else float("inf")
    return Mean.of(float(sums.mean()), error)


def _folds(log: Log) -> tuple[Fold, ...]:
    try:
        parts = split(log)
    except UsageError:  # too few users for three folds: the log's own finding says so
        return ()
    return tuple(Fold(name, len(part.users), len(part)) for name, part in zip(_FOLD_NAMES, parts, strict=True))


def _certify_share(folds: tuple[Fold, ...]) -> float:
    users = sum(fold.users for fold in folds)
    return folds[-1].users / users if users and folds[-1].users else _CERTIFY_SHARE


def _with_findings(result: Audit, log: Log, budget: float | None) -> Audit:
    """The audit with what it found, after what reading found."""
    findings = Findings()
    for entry in result.calibration:
        if entry.is_off:
            findings.add(
                "propensity_miscalibrated", column="propensity", label=entry.label, ratio=entry.ratio, z=entry.z
            )
    if result.reversals:
        worst = result.reversals[0]
        findings.add(
            "reward_not_monotone",
            column="action",
            count=len(result.reversals),
            cheap=worst.cheap.label,
            dear=worst.dear.label,
            cheap_cost=worst.cheap.cost.estimate,
            dear_cost=worst.dear.cost.estimate,
            cheap_reward=worst.cheap.reward.estimate,
            dear_reward=worst.dear.reward.estimate,
        )
    if result.steps_alive < len(result.overlap):
        dead = result.overlap[result.steps_alive]
        findings.add(
            "overlap_thin",
            column="propensity",
            count=dead.users - dead.matching,
            steps=result.steps_alive,
            users=dead.users,
            effective=dead.greedy,
            at_step=dead.step,
            needed=LEAST_EFFECTIVE_USERS,
            share=f"{result.certify_share:.0%}",
        )
    if budget is not None:
        if budget < result.cheapest_cost:
            findings.add("budget_infeasible", column="cost", budget=budget, least=result.cheapest_cost)
        elif budget > result.dearest_cost:
            findings.add("budget_slack", column="cost", budget=budget, most=result.dearest_cost)
    return replace(result, findings=merge(log.findings, findings.sorted()))
