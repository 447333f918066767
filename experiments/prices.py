"""Reward and cost against λ, for bandit and constrained MDP, on the two-step problem."""

from __future__ import annotations

import numpy as np
import polars as pl

from experiments.charts import prices_chart
from experiments.checking import bisect_budget, bounds, estimated_curve
from experiments.methods import true_value
from experiments.paper import BUDGET
from experiments.result import Figure, Result
from experiments.studies import Studies
from redenvelope.finite.problem import exact_price

__all__ = ["run_prices"]

_HIGHEST = 2.5  # beyond it only the cheapest plan is left
_LOOKAHEAD = {"bandit": 1, "constrained MDP": None}


def run_prices(studies: Studies) -> Result:
    """Exact curves, and those of policies learned from the first log as its validation users estimate them."""
    study = studies.two_step[0]
    duals = np.linspace(0.0, _HIGHEST, studies.settings.duals)
    frames, crossings = [], {}
    for policy, lookahead in _LOOKAHEAD.items():
        price = study.price(policy, "neural model")
        rewards, costs = exact_price(study.campaign.problem, lookahead=lookahead)(duals)
        curve = estimated_curve(price.method, price.encoder, price.log, duals)
        truths = [true_value(study.campaign, price.method, price.encoder, (float(dual),), (1.0,)) for dual in duals]
        columns = {
            "policy": [policy] * len(duals),
            "dual": duals,
            "exact_cost": costs,
            "exact_reward": rewards,
            "learned_cost": [value.cost for value in truths],
            "learned_reward": [value.reward for value in truths],
        }
        lower, upper = bounds(curve)
        for target, outcome in (("cost", 1), ("reward", 0)):
            columns |= {f"estimated_{target}": curve.outcomes[outcome], f"estimated_{target}_lower": lower[outcome]}
            columns |= {f"estimated_{target}_upper": upper[outcome]}
        frames.append(pl.DataFrame(columns))
        crossings[policy] = bisect_budget(price, BUDGET).price
    table = pl.concat(frames)
    campaign = study.campaign
    # The budget is a corner of the optimum's frontier: any price between the slopes beside it spends it.
    low, high = (campaign.optimum(BUDGET + side).dual for side in (1e-3, -1e-3))
    exact = {"bandit": f"{campaign.bandit(BUDGET).dual:.3f}", "constrained MDP": f"{low:.3f} to {high:.3f}"}
    said = ", ".join(f"{policy} {dual:.3f} (exact {exact[policy]})" for policy, dual in crossings.items())
    return Result(
        name="prices",
        title="Reward and cost against the price λ, bandit and constrained MDP",
        key=f"λ at {BUDGET:g}: {said}",
        sentences=(
            "Policies of the neural model of the first log at each price. Estimates are those of its validation users "
            "(sequential doubly robust, all prices in one pass) with 95 % intervals; beside them the exact cost and "
            "reward of the same policies, and of the policies that know the truth.",
            f"The exact cost never rises with λ (Theorem 1, with its argmax put right); estimates may, by their noise. "
            f"λ at the budget of {BUDGET:g}: {said}. The paper says that the bandit's λ is smaller; it is not.",
        ),
        table=table,
        figures=(
            Figure(
                "prices",
                "Reward and cost against the price λ",
                "Lines are exact; points are estimated on validation users, with their 95 % bands. Without entropy the "
                "curves are staircases. The dotted line is the budget of table 1.",
                prices_chart(table, BUDGET),
            ),
        ),
    )
