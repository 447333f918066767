"""The second table's form on any log: bandit and plan at a fixed budget and at a fixed reward, truth unknown."""

from __future__ import annotations

from typing import Any, Literal

import polars as pl

from experiments.charts import log_chart
from experiments.paper import TABLE_TWO
from experiments.result import Figure, Result
from experiments.settings import ReproduceSettings
from redenvelope.audit.audit import verdicts
from redenvelope.fitting.fit import fit
from redenvelope.fitting.settings import FitSettings
from redenvelope.log.log import Log
from redenvelope.plan.plan import Plan

__all__ = ["run_log_table"]

_REACH = 1.959964  # two-sided, 95 %
_METHODS: dict[str, Literal["bandit", "planned"]] = {"bandit": "bandit", "constrained MDP": "planned"}


def run_log_table(log: Log, name: str, settings: ReproduceSettings, budget: float | None = None) -> Result:
    """Four fits: bandit and plan, for the budget (what was logged, unless given) and for the logged reward."""
    users = len(log.users)
    logged = {"cost": float(log.cost.sum() / users), "reward": float(log.reward.sum() / users)}
    budget = logged["cost"] if budget is None else budget
    wanted = {"fixed budget": (budget, None), "fixed reward": (None, logged["reward"])}
    plans = {
        (form, policy): fit(
            log,
            budget=asked,
            target_reward=target,
            settings=FitSettings(method=method, seed=settings.seed, neural=settings.neural),
        )
        for form, (asked, target) in wanted.items()
        for policy, method in _METHODS.items()
    }
    rows = [_logged_row(log, logged), *(_row(*names, plan, logged) for names, plan in plans.items())]
    table = pl.DataFrame(rows, infer_schema_length=None)
    refused = [row["row"] for row in rows if row["certificate"] == "refused"]
    said = f"certificate refused for {len(refused)} of {len(plans)} plans"
    spoken = verdicts(next(iter(plans.values())).record.audit)
    return Result(
        name="log_table",
        title=f"The second table's form on {name}",
        key=said,
        sentences=(*_sentences(log, budget, said), *spoken),
        table=table,
        figures=(
            Figure(
                "log_table",
                f"Fixed budget and fixed reward on {name}",
                "Estimated reward against estimated cost with 95 % intervals, on each plan's certify users. Where the "
                "crosses overlap, the log cannot tell the policies apart.",
                log_chart(table, f"Fixed budget and fixed reward on {name}, off-policy estimates"),
            ),
        ),
    )


def _sentences(log: Log, budget: float, said: str) -> tuple[str, ...]:
    return (
        f"{len(log.users):,} users, up to {log.campaign_steps} steps, {len(log.catalogue)} actions. The truth is not "
        "known here: every figure is an off-policy estimate on users that neither taught the model nor chose the "
        "price, with its 95 % interval. Plans are made as `redenvelope fit` makes them, so they aim below the budget, "
        "or above the reward, by what the certificate's bound asks for.",
        f"Fixed budget: {budget:.4g} a user. Fixed reward: what was logged. In place of random stands what was logged. "
        f"{said[0].upper()}{said[1:]}; the column `reason` says why. Plans keep different margins, so compare cost and "
        "reward together. The paper's numbers are of another campaign.",
    )


def _logged_row(log: Log, logged: dict[str, float]) -> dict[str, Any]:
    row: dict[str, Any] = {"row": "as logged", "form": "random", "policy": "as logged"}
    paper = TABLE_TWO["random", "random"]
    row |= {"paper_cost": paper.cost, "paper_reward": paper.reward, "paper_change": None}
    for target, column in (("cost", log.cost), ("reward", log.reward)):
        error = float(log.sums_by_user(column).std(ddof=1) / len(log.users) ** 0.5)
        row |= _bounded(target, logged[target], error)
    return row | {"change": None, "dual": None, "certificate": "", "reason": ""}


def _row(form: str, policy: str, plan: Plan, logged: dict[str, float]) -> dict[str, Any]:
    certificate, paper = plan.certificate, TABLE_TWO[form, policy]
    changed = "reward" if form == "fixed budget" else "cost"
    figure = certificate.reward if changed == "reward" else certificate.cost
    refused = certificate.status == "refused"
    return {
        "row": f"{form}: {policy}",
        "form": form,
        "policy": policy,
        "paper_cost": paper.cost,
        "paper_reward": paper.reward,
        "paper_change": paper.change,
        **_bounded("cost", certificate.cost.estimate, certificate.cost.standard_error),
        **_bounded("reward", certificate.reward.estimate, certificate.reward.standard_error),
        "change": figure.estimate / logged[changed] - 1 if logged[changed] else None,
        "dual": certificate.dual,
        "certificate": certificate.status,
        "reason": certificate.reasons[0].message if refused and certificate.reasons else "",
    }


def _bounded(name: str, estimate: float, error: float) -> dict[str, float]:
    return {name: estimate, f"{name}_lower": estimate - _REACH * error, f"{name}_upper": estimate + _REACH * error}
