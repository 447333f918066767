"""One campaign in closed loop: a plan fitted on its log, what the plan really costs, and the plug-in plan beside."""

from __future__ import annotations

import time
from collections.abc import Callable
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
    shares = plan.policy.specification.shares

    def component(place: int) -> Callable[[Any], Any]:
        return lambda frame: plan.policy.probabilities(frame, place)

    labels = plan.catalogue.labels
    cost = float(np.dot(shares, [true_cost(campaign, labels, component(place)) for place in range(len(shares))]))
    certificate = plan.certificate
    return {
        "kind": kind,
        "family": family,
        "seed": seed,
        "users": users,
        "share": share,
        "method": certificate.method,
        "certified": certificate.status == "certified",
        "reasons": list(certificate.reasons),
        "budget": budget,
        "estimate": certificate.cost.estimate,
        "bound": certificate.cost.upper,
        "true_cost": cost,
        "plug_in_cost": true_cost(campaign, labels, plug_in_policy(plan.policy, log, budget)),
        "fit_seconds": fitted,
        "seconds": time.perf_counter() - start,
        "processor_seconds": time.process_time() - processor,
    }


def plug_in_policy(policy: Any, log: Any, budget: float) -> Callable[[Any], Any]:
    """The plan whose price comes from its own belief, on the very users it was trained on."""
    from redenvelope.dual.solve import solve_dual

    first = log.starts[:-1][:2_000]
    states = policy.encoder.encode_table(log.features.rows(first), log.step[first])
    left = policy.steps_left(log.step[first])

    def price(prices: Any) -> Any:
        costs, rewards = policy.valuer.believed(states, left, prices[:, 0])
        return np.stack([rewards, costs])

    dual = solve_dual(price, budget).dual
    component = policy.valuer.policy(dual)

    def decide(users: Any) -> Any:
        rows, _ = policy.encoder.encode_frame(users)
        return component.probabilities(rows, policy.steps_left(users["step"].to_numpy()))

    return decide
