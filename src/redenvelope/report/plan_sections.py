"""The sections about the plan: its certificate, what a budget buys, how the price was found, how it was made."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl

from redenvelope.dual.frontier import Frontier
from redenvelope.plan.certificate import Certificate
from redenvelope.plan.plan import Plan
from redenvelope.report.drawing import finite
from redenvelope.report.frontier_charts import by_price_chart, frontier_chart, search_chart
from redenvelope.report.markup import figure, items, number, section, signed, table, text

__all__ = [
    "certificate_section",
    "frontier_section",
    "gain_sentence",
    "making_section",
    "price_sentence",
    "search_section",
]

_OTHER_BUDGETS = (0.8, 0.9, 1.0, 1.1, 1.25, 1.5)


def certificate_section(plan: Plan) -> str:
    """The verdict in words, and the figures that matter."""
    certificate = plan.certificate
    certified = certificate.status == "certified"
    others = certificate.reasons if certified else certificate.reasons[1:]
    heading = "To know besides:" if certified else "Also:"
    notes = f"<p>{heading}</p>{items(others)}" if others else ""
    status, _, rest = certificate.sentence().partition(":")
    verdict = (
        f'<div class="verdict {"certified" if certified else "refused"}"><p class="sentence">'
        f'<strong class="status"><span aria-hidden="true">{"✓" if certified else "✕"} </span>{text(status)}:</strong>'
        f"{text(rest)}</p>{notes}<p>{text(price_sentence(certificate))}</p></div>"
    )
    promise = (
        "The certificate speaks of the mean over users like those in the log. One campaign can still spend more or "
        "less by chance; a hard cap on the total needs a ledger."
    )
    gain = gain_sentence(_comparison(plan))
    return section(
        "certificate",
        "The certificate",
        verdict,
        _figures(certificate),
        f"<p>{text(gain)}</p>" if gain else "",
        f"<p>{text(promise)}</p>",
    )


def _comparison(plan: Plan) -> list[dict[str, Any]]:
    return [row for row in plan.record.get("comparison") or () if isinstance(row, dict)]


def gain_sentence(comparison: list[dict[str, Any]]) -> str:
    """The plan beside what was logged, user by user; empty if they were not compared."""
    names = [f"{target}_difference{end}" for target in ("reward", "cost") for end in ("", "_lower", "_upper")]
    row = next((row for row in comparison if row.get("policy") == "plan" and finite(row, *names)), None)
    if row is None:
        return ""
    reward, cost = row["reward_difference"], row["cost_difference"]
    return (
        f"Beside what was logged for the same users, the plan earns {number(abs(reward), 3)} "
        f"{'more' if reward >= 0 else 'less'} a user ({_interval(row, 'reward_difference')}) and costs "
        f"{number(abs(cost), 3)} {'more' if cost >= 0 else 'less'} ({_interval(row, 'cost_difference')})."
    )


def price_sentence(certificate: Certificate) -> str:
    """What the price of a unit of cost means."""
    dual = certificate.dual
    if math.isinf(dual):
        return "The price λ is infinite: the plan saves whatever can be saved, and no reward could justify more."
    if dual == 0:
        return "The price λ is 0: the budget does not bind, and one more unit of it buys no more reward."
    return f"The price λ is {number(dual)}: one more unit of budget a user buys about {number(dual)} more reward."


def _figures(certificate: Certificate) -> str:
    cost, reward, logged = certificate.cost, certificate.reward, certificate.logged
    level = f"{certificate.confidence:.0%}"
    entries = (
        ("Cost a user", number(cost.estimate), f"at most {number(cost.upper)} with {level} confidence"),
        ("Budget a user", number(certificate.budget), _share(cost.estimate, certificate.budget)),
        ("Reward a user", number(reward.estimate), f"at least {number(reward.lower)} with {level} confidence"),
        (
            "As logged, on the same users",
            number(logged.get("reward")),
            f"reward a user, at a cost of {number(logged.get('cost'))}",
        ),
    )
    inside = "".join(
        f'<div><dt>{text(name)}</dt><dd>{text(value)}</dd><dd class="note">{text(note)}</dd></div>'
        for name, value, note in entries
    )
    return f'<dl class="figures">{inside}</dl>'


def _share(cost: float, budget: float) -> str:
    return f"the estimate uses {cost / budget:.0%} of it" if budget > 0 else "nothing may be spent"


def frontier_section(plan: Plan) -> str:
    """What a budget buys."""
    comparison, certificate = _comparison(plan), plan.certificate
    pair = figure(by_price_chart(plan.frontier, "cost", certificate))
    pair += figure(by_price_chart(plan.frontier, "reward", certificate))
    return section(
        "frontier",
        "What a budget buys",
        figure(frontier_chart(plan.frontier, certificate, comparison)),
        _policies(comparison),
        _other_budgets(plan),
        f'<div class="pair">{pair}</div>' if pair else "",
        _frontier_table(plan),
    )


def _policies(comparison: list[dict[str, Any]]) -> str:
    heads = ("policy", "cost", "reward", "reward beside logged", "interval")
    rows = [
        (
            row.get("policy"),
            number(row.get("cost")),
            number(row.get("reward")),
            *(
                ("–", "–")
                if row.get("policy") == "logged"
                else (signed(row.get("reward_difference")), _interval(row, "reward_difference"))
            ),
        )
        for row in comparison
    ]
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
    if cost not in plan.frontier.columns or reward not in plan.frontier.columns:
        return None
    known = plan.frontier.filter(pl.col(cost).is_finite() & pl.col(reward).is_finite())
    return Frontier(*(known[name].to_numpy() for name in ("dual", cost, reward))) if known.height else None


def _reward_at(curve: Frontier | None, budget: float) -> float | None:
    return curve.reward_at(budget) if curve is not None and budget >= curve.least_budget else None


def _frontier_table(plan: Plan) -> str:
    rows = [
        (
            number(row["dual"]),
            number(row["cost"]),
            _interval(row, "cost"),
            number(row["reward"]),
            _interval(row, "reward"),
            number(row.get("model_cost")),
            number(row.get("model_reward")),
        )
        for row in plan.frontier.sort("dual").to_dicts()
    ]
    heads = ("price λ", "cost", "interval", "reward", "interval", "model’s cost", "model’s reward")
    inside = table("The frontier, point by point, a user", heads, rows, words=0)
    return f"<details><summary>The figures behind these charts</summary>{inside}</details>" if inside else ""


def _interval(row: dict[str, Any], name: str) -> str:
    return f"{number(row.get(f'{name}_lower'), 3)} to {number(row.get(f'{name}_upper'), 3)}"


def search_section(plan: Plan) -> str:
    """How the price was found."""
    search = plan.record.get("search") or {}
    steps = [step for step in search.get("steps") or () if isinstance(step, dict)]
    if not search:
        return ""
    budget = plan.certificate.budget
    sentences = [search["message"]] if search.get("message") else []
    target = search.get("target")
    if isinstance(target, float) and target < budget * (1 - 1e-6):
        sentences.append(
            f"To be safe the search aimed at an estimated cost of {number(target)}: the costs it compares with the "
            f"budget of {number(budget)} have the uncertainty added."
        )
    mended = search.get("made_monotone_by")
    if isinstance(mended, float) and mended > 0:
        sentences.append(f"Estimated costs were moved by at most {number(mended, 3)} so that they fall with the price.")
    rows = [
        (str(place), number(step.get("dual")), number(step.get("cost")), number(step.get("reward")))
        for place, step in enumerate(steps, start=1)
    ]
    tried = table("Prices tried", ("try", "price λ", "cost a user", "reward a user"), rows)
    chart = figure(search_chart({"steps": steps}, budget))
    return section(
        "search", "The search for the price", items(sentences), f'<div class="pair top">{chart}{tried}</div>'
    )


def making_section(plan: Plan) -> str:
    """Method, folds and settings."""
    wanted = plan.policy.specification
    rows: list[tuple[str, object]] = [
        ("method", wanted.method),
        ("steps planned ahead", f"{min(wanted.horizon, wanted.steps)} of {wanted.steps}"),
        ("temperature", number(wanted.temperature, 3)),
        ("price λ", ", ".join(number(dual) for dual in wanted.duals)),
        ("share of users at each price", ", ".join(f"{share:.1%}" for share in wanted.shares)),
        ("estimator of the certificate", plan.certificate.cost.estimator),
    ]
    for name, fold in (plan.record.get("folds") or {}).items():
        rows.append((f"users who {name}", f"{number(fold.get('users'))} ({number(fold.get('rows'))} rows)"))
    settings = plan.record.get("settings") or {}
    rows += [(name, _plain(settings[name])) for name in ("solver", "safety", "confidence", "seed") if name in settings]
    rows += [(name, _plain(value)) for name, value in plan.certificate.diagnostics.items()]
    shown = [(name.replace("_", " "), value) for name, value in rows]
    notes = items((plan.record.get("planner") or {}).get("notes") or ())
    return section("making", "How it was made", notes, table("Settings and diagnostics", ("what", "value"), shown, 2))


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple | np.ndarray):
        return ", ".join(_plain(part) for part in value)
    return number(value) if isinstance(value, int | float) else str(value)
