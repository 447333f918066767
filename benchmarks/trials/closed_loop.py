"""One campaign in closed loop: a plan fitted on its log, what the plan really costs, and the plug-in plan beside."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from trials.campaigns import budget_of, campaign_of, deployed, exact_truth, quick_settings, truth_of
from trials.fresh_checks import fresh_checks
from trials.task import Task


def closed_loop(task: Task) -> dict[str, Any]:
    """A plan fitted on a campaign's log, and what it really costs; or why there is none."""
    from redenvelope.errors import LogError, UsageError
    from redenvelope.fitting.fit import fit
    from redenvelope.log.columns import ColumnMap
    from redenvelope.log.read import log_from_frame
    from trials.families.registry import FAMILIES

    _, family, seed, users, share, explore, cross_fit, _ = task
    start, processor = time.perf_counter(), time.process_time()
    campaign = campaign_of(family, seed)
    budget = budget_of(campaign, share)
    row: dict[str, Any] = {**task._asdict(), "budget": budget}
    try:
        columns = ColumnMap(cluster=FAMILIES[family].cluster)
        log = log_from_frame(campaign.log(users, seed), columns)
        plan = fit(log, budget=budget, settings=replace(quick_settings(seed), explore=explore, cross_fit=cross_fit))
    except LogError as refused:
        row |= {"certified": False, "rules": [f"audit: {finding.rule}" for finding in refused.findings]}
    except UsageError as refused:
        row |= {"certified": False, "rules": ["no plan"], "reasons": [str(refused)]}
    else:
        row |= {"fit_seconds": time.perf_counter() - start} | judged(campaign, plan, log, budget)
        if task.fresh_checks:
            row["fresh_checks_spent"] = fresh_checks(campaign, plan, log, columns, task)
    seconds = {"seconds": time.perf_counter() - start, "processor_seconds": time.process_time() - processor}
    return row | seconds


def judged(campaign: Any, plan: Any, log: Any, budget: float) -> dict[str, Any]:
    """What a certificate says, beside the truth."""
    pricing, labels, certificate = plan.policy.pricing, plan.catalogue.labels, plan.certificate
    exact = exact_truth(campaign, plan)
    members = plan.policy.members
    truths = [
        [truth_of(campaign, labels, deployed(member, row)) for row in range(len(pricing.shares))] for member in members
    ]
    cost, reward = (
        float(pricing.mix(np.array([[getattr(truth, name) for truth in own] for own in truths])).mean())
        for name in ("cost", "reward")
    )
    cost = cost if exact is None else exact[0]
    refusals = [reason.rule for reason in certificate.reasons if reason.weight.value == "refusal"]
    plug_in = truth_of(campaign, labels, plug_in_policy(members[0], log, budget))
    return {
        "method": certificate.method,
        "certified": certificate.is_certified,
        "rules": refusals,
        "reasons": [reason.message for reason in certificate.reasons],
        "estimate": certificate.cost.estimate,
        "bound": certificate.cost.upper,
        "standard_error": certificate.cost.standard_error,
        "estimator": certificate.cost.estimator,
        "true_cost": cost,
        "gain": None if exact is None else exact[2],
        "members": len(members),
        "true_reward": reward if exact is None else exact[1],
        "truth_error": 0.0 if exact is not None else max(truth.cost_error for own in truths for truth in own),
        "plug_in_cost": plug_in.cost,
    }


def plug_in_policy(policy: Any, log: Any, budget: float) -> Callable[[Any, Any], Any]:
    """The plan whose price comes from its own belief, on the very users it was trained on."""
    from redenvelope.dual.search import solve_dual
    from redenvelope.policies.pricing import Pricing

    first = log.starts[:-1][:2_000]
    states = policy.encoder.encode_table(log.features.rows(first), log.step[first])
    believed = policy.believed(states, policy.steps_left(log.step[first]), None)
    return deployed(replace(policy, pricing=Pricing.at(solve_dual(believed, budget).dual)))
