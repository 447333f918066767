"""One plan, checked by many logs of other users: whether a wrong certificate was chance, or the fault of the plan."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from trials.campaigns import deployed, recoded, truth_of
from trials.task import Task

_APART = 1_000_000
"""Between the seeds of one campaign's logs."""


def fresh_checks(campaign: Any, plan: Any, log: Any, columns: Any, task: Task) -> list[float | None]:
    """What the plan truly costs of its budget where each of some logs says how far its ladder goes, [logs]; None where
    that is refused. The logs are as large as the plan's own, and as many of their users check."""
    from redenvelope.audit.audit import audit_log
    from redenvelope.evaluation.diagnostics import Weight
    from redenvelope.fitting.certify import default_estimator, trusted_check
    from redenvelope.fitting.encoded import encode, past_effects
    from redenvelope.fitting.holdout import CandidatePolicy, check_policies
    from redenvelope.log.log import split
    from redenvelope.log.read import log_from_frame
    from redenvelope.plan.fixed_sequence_test import Question, walk

    policy, own, seed = plan.policy, {"plan": CandidatePolicy(plan.policy, plan.ladder.prices)}, plan.record.seed
    estimator = replace(default_estimator(audit_log(log), seed), members=len(policy.members))
    question, truth, found = Question.of(plan.certificate.budget, None, 0.95), _truths(campaign, plan), []
    for number in range(1, task.fresh_checks + 1):
        users = log_from_frame(campaign.log(task.users, task.seed + _APART * number), columns)
        users = recoded(users, plan.catalogue)
        checking = users if len(policy.members) > 1 else split(users, plan.record.parts, seed)[2]
        check = check_policies(own, encode(checking, policy.encoder, policy.specification.steps), estimator, 0, seed)
        past = past_effects(users, policy.encoder, task.users, seed)
        trusted = trusted_check(check, lambda ladder: walk(ladder, question), past)
        ladder = trusted.marked(trusted.check.ladder("plan"))
        stop = walk(ladder, question)
        refused = any(reason.weight is Weight.REFUSAL for reason in ladder.reasons(stop.place))
        found.append(truth(stop.place) / question.budget if stop.holds and not refused else None)
    return found


def _truths(campaign: Any, plan: Any) -> Any:
    """What the plan costs in truth at a place of its ladder."""
    from redenvelope.policies.pricing import Pricing

    @cache
    def on_rung(rung: int) -> float:
        at_price = replace(plan.policy, pricing=Pricing.at(plan.ladder.rungs[rung].prices[0]))
        labels = plan.catalogue.labels
        return float(np.mean([truth_of(campaign, labels, deployed(own)).cost for own in at_price.members]))

    def at(place: Any) -> float:
        last = on_rung(place.rung + 1) if place.share else 0.0
        return (1 - place.share) * on_rung(place.rung) + place.share * last

    return at
