"""Everything a log says about itself before anything is learned from it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial, reduce
from operator import add
from typing import Any

from redenvelope.audit.assignment import AssignmentEvidence, assignment_evidence
from redenvelope.audit.carry_over import CarryOver, carry_overs
from redenvelope.audit.effects import ActionEffect, Mean, Reversal, action_effects, reversals
from redenvelope.audit.fitness import report_few_users, report_gaps
from redenvelope.audit.leaks import Leak, report_leaks, suspected_leaks
from redenvelope.audit.overlap import (
    LEAST_EFFECTIVE_USERS,
    Calibration,
    StepOverlap,
    calibration,
    overlap_by_step,
    steps_alive,
)
from redenvelope.audit.quantiles import quantiles
from redenvelope.audit.sums import FirstSums, SecondSums, first_sums, second_sums
from redenvelope.engine.engine import Engine
from redenvelope.engine.local import LocalEngine
from redenvelope.log.findings import Finding, Findings, merge
from redenvelope.log.join import join_logs
from redenvelope.log.log import Log
from redenvelope.log.split import SHARES

__all__ = ["Audit", "Fold", "audit_log", "audit_partitions"]

_QUANTILES = (0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0)
_FOLD_NAMES = ("train", "tune", "check")
_CHECK_SHARE = SHARES[-1]  # of the users, unless a fit is told otherwise


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
    leaks: tuple[Leak, ...] = ()
    """Columns that were perhaps not known when the action was chosen."""

    @property
    def check_share(self) -> float:
        """Share of the users who check a plan: overlap is judged on them, because a certificate is."""
        return _check_share(self.folds)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, with the sentences of `verdicts`."""
        from redenvelope.audit.verdicts import verdicts

        content = asdict(self)
        content["findings"] = [finding.as_dict() for finding in self.findings]
        content["assignment"]["looks_random"] = self.assignment.looks_random
        for plain, effect in zip(content["carry_over"], self.carry_over, strict=True):
            plain |= {"share": effect.share, "strength": effect.strength}
        content["reversals"] = [{"cheap": pair.cheap.label, "dear": pair.dear.label} for pair in self.reversals]
        for plain, leak in zip(content["leaks"], self.leaks, strict=True):
            plain["evidence"] = leak.evidence
        content["verdicts"] = list(verdicts(self))
        return content


def audit_log(log: Log, budget: float | None = None, *, known_before: Collection[str] = ()) -> Audit:
    """Look at a log; with a budget, also whether the budget makes sense for it.

    `known_before` are features of which you say that they were known when the action was chosen, whatever they tell.
    """
    return audit_partitions([log], budget, known_before=known_before)


def audit_partitions(
    parts: Iterable[Any],
    budget: float | None = None,
    engine: Engine | None = None,
    *,
    known_before: Collection[str] = (),
) -> Audit:
    """The same for a log in parts of whole users, which are gone through twice; any parts give the same figures.

    Parts are logs, or what the engine opens as logs.
    """
    runs = engine or LocalEngine()
    first = reduce(add, runs.map(first_sums, parts))
    second = reduce(add, runs.map(partial(second_sums, first=first), parts))
    fitness = Findings()
    report_gaps(first.gaps, fitness)
    report_few_users(first.fold_users.tolist(), fitness)
    known = merge(first.header.findings, fitness.sorted())
    return _with_findings(_figures(first, second, known_before), known, budget)


def _figures(first: FirstSums, second: SecondSums, known_before: Collection[str]) -> Audit:
    header = first.header
    effects = action_effects(header.labels, first.action_rows, first.effects, second.effects)
    overlap, folds = overlap_by_step(second.overlap), _folds(first)
    costs = [effect.cost.estimate * first.rows / first.users for effect in effects]
    reward, cost = map(Mean.of, first.logged.mean.tolist(), first.logged.errors.tolist())
    levels = [f"{level:g}" for level in _QUANTILES]
    return Audit(
        users=first.people,
        rows=first.rows,
        steps=first.last_step - first.first_step + 1,
        features=header.features,
        static_features=header.static_features,
        propensity_source=header.propensity_source,
        logged_reward=reward,
        logged_cost=cost,
        actions=effects,
        reversals=reversals(effects),
        propensity_quantiles=dict(zip(levels, quantiles(first.propensities, _QUANTILES), strict=True)),
        calibration=calibration(header.labels, first.calibration, first.rows),
        assignment=assignment_evidence(join_logs(second.sample)),
        overlap=overlap,
        steps_alive=steps_alive(overlap, _check_share(folds)),
        carry_over=carry_overs(first.carry, second.carry),
        cheapest_cost=min(costs),
        dearest_cost=max(costs),
        folds=folds,
        findings=(),
        leaks=suspected_leaks(second.leak_sample, known_before),
    )


def _folds(first: FirstSums) -> tuple[Fold, ...]:
    if not first.fold_users.all():  # too few users for three folds: the log's own finding says so
        return ()
    return tuple(
        Fold(name, int(users), int(rows))
        for name, users, rows in zip(_FOLD_NAMES, first.fold_users, first.fold_rows, strict=True)
    )


def _check_share(folds: tuple[Fold, ...]) -> float:
    users = sum(fold.users for fold in folds)
    return folds[-1].users / users if users and folds[-1].users else _CHECK_SHARE


def _with_findings(result: Audit, known: tuple[Finding, ...], budget: float | None) -> Audit:
    """The audit with what it found, after what reading found."""
    findings = Findings()
    report_leaks(result.leaks, findings)
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
    for effect in result.carry_over:
        if effect.outcome == "cost" and effect.is_late:
            findings.add("cost_booked_later", column="cost", count=result.rows, share=f"{effect.late_share:.0%}")
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
            share=f"{result.check_share:.0%}",
        )
    if budget is not None:
        if budget < result.cheapest_cost:
            findings.add("budget_infeasible", column="cost", budget=budget, least=result.cheapest_cost)
        elif budget > result.dearest_cost:
            findings.add("budget_slack", column="cost", budget=budget, most=result.dearest_cost)
    return replace(result, findings=merge(known, findings.sorted()))
