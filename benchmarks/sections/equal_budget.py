"""What a user gets: certified plans at equal *budget*, the money that certainty leaves unspent included."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from redenvelope.fitting.fit import fit
from redenvelope.fitting.settings import FitSettings
from redenvelope.log.read import log_from_frame
from redenvelope.plan.plan import Plan
from redenvelope.plan.reprice import reprice

if TYPE_CHECKING:
    from quality import Stage

__all__ = ["run_equal_budget"]


def run_equal_budget(stage: Stage, users: int, seed: int) -> dict:
    """One fit, repriced for each budget: the true cost as a share of it, and the share of the optimum's gain at it."""
    log = log_from_frame(stage.campaign.log(users, seed))
    # The features tell all of the state here, and the exact truth is asked state by state.
    plan = fit(log, budget=float(stage.budgets[0]), settings=FitSettings(seed=seed, history="none"))
    priced = [reprice(plan, budget=float(budget)) for budget in stage.budgets]
    costs, rewards = np.array([_truth(stage, each) for each in priced]).T
    return {
        "policy": "certified plan, equal budget",
        "users": users,
        "seed": seed,
        "shares": stage.share(rewards).tolist(),
        "spent": (costs / stage.budgets).tolist(),
        "certified": [each.certificate.is_certified for each in priced],
    }


def _truth(stage: Stage, plan: Plan) -> NDArray[np.float64]:
    """Exact cost and reward, the users drawn to prices once each."""
    pricing = plan.policy.pricing
    values = [stage.campaign.value(partial(plan.policy.probabilities, row=row)) for row in range(len(pricing.shares))]
    return pricing.mix(np.array([(value.cost, value.reward) for value in values]), axis=0)
