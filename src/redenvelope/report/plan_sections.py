"""The sections about the plan: what a budget buys, how the price was found, how it was made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from redenvelope.dual.frontier import Frontier
from redenvelope.plan.plan import Plan
from redenvelope.plan.record import ComparedPolicy, Source
from redenvelope.report.frontier_charts import by_price_chart, frontier_chart, search_chart
from redenvelope.report.markup import figure, interval, items, number, section, signed, table

__all__ = ["frontier_section", "making_section", "search_section"]

_OTHER_BUDGETS = (0.8, 0.9, 1.0, 1.1, 1.25, 1.5)


def frontier_section(plan: Plan) -> str:
    """What a budget buys."""
    comparison, certificate = plan.record.comparison, plan.certificate
    level = f"{certificate.confidence:.0%} interval"
    pair = figure(by_price_chart(plan.frontier, "cost", certificate))
    pair += figure(by_price_chart(plan.frontier, "reward", certificate))
    return section(
        "frontier",
        "What a budget buys",
        figure(frontier_chart(plan.frontier, certificate, comparison)),
        _policies(comparison, level),
        _other_budgets(plan),
        f'<div class="pair">{pair}</div>' if pair else "",
        _frontier_table(plan, level),
    )


def _policies(comparison: Sequence[ComparedPolicy], level: str) -> str:
    heads = ("policy", "cost", "reward", "reward beside logged", level)
    rows = []
    for row in comparison:
        beside = signed(row.reward_difference), interval(row.reward_difference_lower, row.reward_difference_upper)
        differs = ("–", "–") if row.policy == "logged" else beside
        rows.append((row.policy, number(row.cost), number(row.reward), *differs))
    return table("Policies side by side: means a user, on the certify users", heads, rows)


def _other_budgets(plan: Plan) -> str:
    """Rewards of other budgets beside that of this one, along the estimated frontier and along the model's."""
    budget = plan.certificate.budget
    curves = [_curve(plan, "cost", "reward"), _curve(plan, "model_cost", "model_reward")]
    rows = []
    for factor in _OTHER_BUDGETS:
        change = "this budget" if factor == 1 else f"{factor - 1:+.0%}".replace("-", "−")
        cells = [change, number(factor * budget)]
        for curve in curves:
            reward, here = _reward_at(curve, factor * budget), _reward_at(curve, budget)
            known = reward is not None and here is not None and factor != 1
            cells += [number(reward), signed(float(reward or 0) - float(here or 0)) if known else "–"]
        rows.append(cells)
    if all(cell == "–" for row in rows for cell in row[2:]):
        return ""
    return table(
        "What another budget would buy a user, as estimated (a small difference is lost in the band) and by the model",
        ("change", "budget", "reward, estimated", "difference", "reward, model", "difference"),
        rows,
    )


def _curve(plan: Plan, cost: str, reward: str) -> Frontier | None:
    known = plan.frontier.filter(pl.col(cost).is_finite() & pl.col(reward).is_finite())
    return Frontier(*(known[name].to_numpy() for name in ("dual", cost, reward))) if known.height else None


def _reward_at(curve: Frontier | None, budget: float) -> float | None:
    return curve.reward_at(budget) if curve is not None and budget >= curve.least_budget else None


def _frontier_table(plan: Plan, level: str) -> str:
    rows = [
        (
            number(row["dual"]),
            number(row["cost"]),
            interval(row["cost_lower"], row["cost_upper"]),
            number(row["reward"]),
            interval(row["reward_lower"], row["reward_upper"]),
            number(row["model_cost"]),
            number(row["model_reward"]),
        )
        for row in plan.frontier.sort("dual").to_dicts()
    ]
    heads = ("price λ", "cost", level, "reward", level, "model’s cost", "model’s reward")
    inside = table("The frontier, point by point, a user", heads, rows, words=0)
    return f"<details><summary>The figures behind these charts</summary>{inside}</details>" if inside else ""


def search_section(plan: Plan) -> str:
    """How the price was found."""
    search, budget, wanted = plan.record.search, plan.certificate.budget, plan.certificate.target_reward
    met = "the budget" if wanted is None else f"{number(search.target)}, what a reward of {number(wanted)} takes"
    sentences = [
        f"Costs and rewards of a table of prices were estimated in one pass over {number(search.users)} users who did "
        f"not train the model; the price is read off where the cost meets {met}.",
        search.message,
    ]
    if wanted is None and search.target < budget * (1 - 1e-6):
        sentences.append(
            f"The costs below have the uncertainty added, so that {number(budget)} holds with confidence: the "
            f"price found spends {number(search.target)} as estimated without it."
        )
    if search.made_monotone_by > 0:
        moved = number(search.made_monotone_by, 3)
        sentences.append(f"Estimated costs were moved by at most {moved} so that they fall with the price.")
    rows = [(number(point.dual), number(point.cost), number(point.reward)) for point in search.points]
    around = table("Prices near the plan’s", ("price λ", "cost a user", "reward a user"), rows, words=0)
    chart = figure(search_chart(search.points, budget if wanted is None else search.target))
    return section(
        "search", "How the price was found", items(sentences), f'<div class="pair top">{chart}{around}</div>'
    )


def making_section(plan: Plan) -> str:
    """Where it came from, method, folds and settings."""
    wanted, pricing, record = plan.policy.specification, plan.policy.pricing, plan.record
    rows: list[tuple[str, object]] = [
        *(_source(record.source) if record.source is not None else ()),
        ("method", wanted.method),
        ("steps planned ahead", f"{min(wanted.horizon, wanted.steps)} of {wanted.steps}"),
        ("temperature", number(wanted.temperature, 3)),
        ("price λ", ", ".join(number(row[0]) for row in pricing.prices)),
        ("share of users at each price", ", ".join(f"{share:.1%}" for share in pricing.shares)),
        ("estimator of the certificate", plan.certificate.cost.estimator),
        ("standard error of the cost", number(plan.certificate.cost.standard_error, 3)),
        ("standard error of the reward", number(plan.certificate.reward.standard_error, 3)),
    ]
    for name, fold in record.folds.items():
        rows.append((f"users who {name}", f"{number(fold.users)} ({number(fold.rows)} rows)"))
    asked = (("safety", record.safety), ("confidence", record.confidence), ("seed", record.seed))
    rows += [(name, _plain(value)) for name, value in (*asked, *plan.certificate.diagnostics.items())]
    shown = [(name.replace("_", " "), value) for name, value in rows]
    notes = items(record.planner.notes)
    return section("making", "How it was made", notes, table("Settings and diagnostics", ("what", "value"), shown, 2))


def _source(source: Source) -> Iterator[tuple[str, str]]:
    """The log's name, the day, and what its columns are called."""
    yield "log", source.log
    yield "made on", source.date
    renamed = ", ".join(f"{role} = {name}" for role, name in source.columns.items() if role != name)
    yield "columns of the log", renamed or "named as here"
    if source.ignored:
        yield "columns left out", ", ".join(source.ignored)


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple | np.ndarray):
        return ", ".join(_plain(part) for part in value)
    return number(value) if isinstance(value, int | float) else str(value)
