"""Model-free against model-based over budgets, on the two-step problem."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from experiments.charts import budgets_chart
from experiments.checking import bisect_budget
from experiments.methods import true_value
from experiments.paper import BUDGET
from experiments.result import Figure, Result, with_interval
from experiments.studies import Studies
from redenvelope.finite.problem import Value

__all__ = ["run_budgets"]

_NAMES = {
    "counted model": "model-based, counted",
    "neural model": "model-based, neural",
    "no model, retrained": "model-free",
}


def run_budgets(studies: Studies) -> Result:
    """True reward and regret of planning in a model and of learning without one, at many budgets."""
    campaign = studies.two_step[0].campaign
    budgets = _budgets(studies)
    rows = []
    for budget in budgets:
        optimum, bandit = campaign.optimum(budget).reward, campaign.bandit(budget).reward
        for learned_by, name in _NAMES.items():
            values = [_value(studies, place, learned_by, budget) for place in range(len(studies.two_step))]
            regrets = [campaign.optimum(value.cost).reward - value.reward for value in values]
            rows.append(
                {
                    "budget": budget,
                    "method": name,
                    "exact_optimum": optimum,
                    "exact_bandit": bandit,
                    **with_interval("cost", [value.cost for value in values]),
                    **with_interval("reward", [value.reward for value in values]),
                    **with_interval("regret", regrets),
                    "seeds": len(values),
                }
            )
    table = pl.DataFrame(rows)
    worst = table.group_by("method", maintain_order=True).agg(pl.col("regret").mean())
    said = ", ".join(f"{row['method']} {row['regret']:.4f}" for row in worst.iter_rows(named=True))
    dense = np.linspace(budgets[0], budgets[-1], 60)
    truth = pl.DataFrame(
        {
            "budget": np.tile(dense, 2),
            "reward": [
                solve(float(budget)).reward for solve in (campaign.optimum, campaign.bandit) for budget in dense
            ],
            "policy": np.repeat(["exact optimum", "exact bandit"], len(dense)),
        }
    )
    return Result(
        name="budgets",
        title="Model-free against model-based over budgets",
        key=f"mean regret: {said}",
        sentences=(
            f"Constrained MDP on the {studies.settings.seeds} logs of table 1. Model-based plans in a model (counted, "
            "or neural as in the paper); model-free trains a soft Q-network anew at every price that bisection tries. "
            "Prices are found on validation users; costs and rewards are the exact ones of what was found.",
            f"Mean regret at equal true cost over all budgets: {said} (of about 4.5). The paper says that both give "
            "almost the same rewards, and shows it as a figure without numbers.",
        ),
        table=table,
        figures=(
            Figure(
                "budgets",
                "Model-free against model-based over budgets",
                "Left: true reward against true cost, on the exact optimum's line or below it; the dashed line is the "
                "exact bandit, the cross the paper's table. Right: regret at equal true cost, intervals over logs.",
                budgets_chart(table, truth),
            ),
        ),
    )


def _budgets(studies: Studies) -> list[float]:
    """From just above the cheapest plan to near the dearest, with the paper's among them."""
    campaign = studies.two_step[0].campaign
    least, most = campaign.cheapest().cost, campaign.dearest().cost
    inner: NDArray[np.float64] = np.linspace(least, most, studies.settings.budgets + 2)[1:-1]
    nearest = int(np.abs(inner - BUDGET).argmin())
    inner[nearest] = BUDGET
    return [float(budget) for budget in inner]


def _value(studies: Studies, place: int, learned_by: str, budget: float) -> Value:
    study = studies.two_step[place]
    price = study.price("constrained MDP", learned_by)
    landing = bisect_budget(price, budget)
    return true_value(study.campaign, price.method, price.encoder, landing.prices, landing.shares)
