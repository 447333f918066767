"""One campaign in closed loop: a plan fitted on its log, what the plan really costs, and the plug-in plan beside."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from trials.campaigns import budget_of, campaign_of, quick_settings, true_cost


def closed_loop(task: tuple[str, str, int, int, float]) -> dict[str, Any]:
    """A plan fitted on a campaign's log, and what it really costs."""
    from redenvelope.fitting.fit import fit
    from redenvelope.log.read import log_from_frame

    kind, family, seed, users, share = task
    start, processor = time.perf_counter(), time.process_time()
    campaign = campaign_of(family, seed)
    log = log_from_frame(campaign.log(users, seed))
    budget = budget_of(campaign, share)
    plan = fit(log, budget=budget, settings=quick_settings(seed))
    fitted = time.perf_counter() - start
    pricing, labels = plan.policy.pricing, plan.catalogue.labels

    def following(row: int) -> Callable[[Any], Any]:
        return lambda frame: plan.policy.probabilities(frame, row)

    costs = [true_cost(campaign, labels, following(row)) for row in range(len(pricing.shares))]
    certificate = plan.certificate
    return {
        "kind": kind,
        "family": family,
        "seed": seed,
        "users": users,
        "share": share,
        "method": certificate.method,
        "certified": certificate.is_certified,
        "reasons": [reason.message for reason in certificate.reasons],
        "budget": budget,
        "estimate": certificate.cost.estimate,
        "bound": certificate.cost.upper,
        "true_cost": float(pricing.mix(np.array(costs))),
        "plug_in_cost": true_cost(campaign, labels, plug_in_policy(plan.policy, log, budget)),
        "fit_seconds": fitted,
        "seconds": time.perf_counter() - start,
        "processor_seconds": time.process_time() - processor,
    }


def plug_in_policy(policy: Any, log: Any, budget: float) -> Callable[[Any], Any]:
    """The plan whose price comes from its own belief, on the very users it was trained on."""
    from redenvelope.dual.solve import solve_dual
    from redenvelope.policies.pricing import Pricing

    first = log.starts[:-1][:2_000]
    states = policy.encoder.encode_table(log.features.rows(first), log.step[first])
    believed = policy.source.believed(policy.specification, states, policy.steps_left(log.step[first]))
    plug_in = replace(policy, pricing=Pricing.at(solve_dual(believed, budget).dual))
    return plug_in.probabilities
