"""The paper's first table: random, bandit and constrained MDP on the two-step problem at one budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from experiments.charts import table_one_chart
from experiments.checking import bisect_budget
from experiments.methods import true_value
from experiments.paper import BUDGET, TABLE_ONE
from experiments.result import Figure, Result, with_interval
from experiments.studies import METHODS, Studies, TwoStepStudy
from redenvelope.finite.problem import Value

__all__ = ["run_table_one"]


def run_table_one(studies: Studies, methods: Sequence[tuple[str, str]] = METHODS) -> Result:
    """Exact values, and what policies learned from a log really cost and earn, over seeds; the last is the headline."""
    campaign = studies.two_step[0].campaign
    uniform = campaign.uniform()
    exact = {"random": uniform, **{name: _exact(studies, name) for name in ("bandit", "constrained MDP")}}
    rows = [_row(name, "truth known", value, uniform.reward) for name, value in exact.items()]
    learned = [_learned_values(study, methods) for study in studies.two_step]
    for names in methods:
        values = [found[names] for found in learned]
        regrets = [campaign.optimum(value.cost).reward - value.reward for value in values]
        rows.append(_row(*names, exact[names[0]], uniform.reward) | _over_seeds(values, regrets, uniform.reward))
    for row, value in zip(rows[: len(exact)], exact.values(), strict=True):
        row |= _over_seeds([value], [campaign.optimum(value.cost).reward - value.reward], uniform.reward)
    table = pl.DataFrame(rows, infer_schema_length=None)
    best = table.row(-1, named=True)
    return Result(
        name="table_one",
        title=f"Table 1: random, bandit and constrained MDP at a budget of {BUDGET:g} a user",
        key="{policy}, {learned_by}: reward {reward:.4f} at a true cost of {cost:.4f}, regret {regret:.4f}".format(
            **best
        ),
        sentences=_sentences(studies),
        table=table,
        figures=(
            Figure(
                "table_one",
                "What a budget of 2.9295 a user earns",
                "True reward of policies learned from a log (points, with intervals over logs) beside the exact value "
                "(diamonds) and the paper's number (ticks).",
                table_one_chart(table),
            ),
        ),
    )


def _sentences(studies: Studies) -> tuple[str, ...]:
    settings = studies.settings
    return (
        f"{settings.seeds} logs of {settings.two_step_users:,} users, logged at random; 70 % of the users teach, the "
        "others tell what a policy costs (sequential doubly robust). The price of the budget is found by bisection on "
        "that estimate. Then the truth is computed exactly for the policy that was found.",
        "Regret is what the exact optimum earns at the cost that the policy really has, minus what the policy really "
        "earns. Intervals are 95 % over logs (Student's t).",
        "The exact values agree with the paper because the problem's parameters, which the paper leaves out, were "
        "calibrated to this table; how close the learned policies come is what is measured.",
    )


def _exact(studies: Studies, name: str) -> Value:
    campaign = studies.two_step[0].campaign
    solution = campaign.bandit(BUDGET) if name == "bandit" else campaign.optimum(BUDGET)
    return Value(np.array([solution.reward, solution.cost]))


def _learned_values(study: TwoStepStudy, methods: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Value]:
    """What each method of a study really costs and earns, its price found on the validation users."""
    values = {}
    for names in methods:
        price = study.price(*names)
        landing = bisect_budget(price, BUDGET)
        values[names] = true_value(study.campaign, price.method, price.encoder, landing.prices, landing.shares)
    return values


def _row(policy: str, learned_by: str, exact: Value, random: float) -> dict[str, Any]:
    paper = TABLE_ONE[policy]
    return {
        "policy": policy,
        "learned_by": learned_by,
        "paper_cost": paper.cost,
        "paper_reward": paper.reward,
        "paper_gain": paper.change,
        "exact_cost": exact.cost,
        "exact_reward": exact.reward,
        "exact_gain": exact.reward / random - 1 if policy != "random" else None,
    }


def _over_seeds(values: list[Value], regrets: list[float], random: float) -> dict[str, Any]:
    return {
        **with_interval("cost", [value.cost for value in values]),
        **with_interval("reward", [value.reward for value in values]),
        **with_interval("regret", regrets),
        "gain": sum(value.reward for value in values) / len(values) / random - 1,
        "seeds": len(values) if len(values) > 1 else None,
    }
