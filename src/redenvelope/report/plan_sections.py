"""The sections about the plan: what a budget buys, how the price was found, how it was made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from redenvelope.dual.frontier import Frontier
from redenvelope.plan.plan import Plan
from redenvelope.plan.record import ComparedPolicy, Source
from redenvelope.report.frontier_charts import by_price_chart, frontier_chart, ladder_chart
from redenvelope.report.markup import figure, folded, interval, items, number, signed, table, text

_NEAR = 5  # rungs on either side of the plan's that are shown
_OTHER_BUDGETS = (0.8, 0.9, 1.0, 1.1, 1.25, 1.5)


def frontier_section(plan: Plan) -> str:
    """What a budget buys."""
    comparison, certificate = plan.record.comparison, plan.certificate
    level = f"{certificate.confidence:.0%} interval"
    if len(certificate.budgets) > 1:
        return _several_frontiers(plan, level)
    pair = figure(by_price_chart(plan.frontier, "cost", certificate))
    pair += figure(by_price_chart(plan.frontier, "reward", certificate))
    return folded(
        "frontier",
        "The frontier and its prices",
        figure(frontier_chart(plan.frontier, certificate, comparison)),
        _policies(comparison, level),
        _other_budgets(plan),
        f'<div class="pair">{pair}</div>' if pair else "",
        _frontier_table(plan, level),
    )


def _several_frontiers(plan: Plan, level: str) -> str:
    """What each of several budgets buys while the others are held."""
    parts = [_policies(plan.record.comparison, level)]
    for each in plan.certificate.budgets:
        own = plan.of(each)
        chart = figure(frontier_chart(own.frontier, own.certificate, ()))
        if not own.frontier.height:
            chart = items([f"Whatever {each.name} may be, the other budgets cannot be kept."])
        parts += [
            f"<h3>{text(each.name)}, the others held</h3>",
            chart,
            _other_budgets(own),
            _frontier_table(own, level),
        ]
    return folded("frontier", "What each budget buys", *parts)


def _policies(comparison: Sequence[ComparedPolicy], level: str) -> str:
    heads = ("policy", "cost", "reward", "reward beside logged", level)
    rows = []
    for row in comparison:
        beside = signed(row.reward_difference), interval(row.reward_difference_lower, row.reward_difference_upper)
        differs = ("–", "–") if row.policy == "logged" else beside
        rows.append((row.policy, number(row.cost), number(row.reward), *differs))
    return table("Policies side by side: means per user, on the check users", heads, rows)


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
        "What another budget would buy per user, as estimated (the band hides small differences) and by the model",
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
    return table("The frontier, point by point, per user", heads, rows, words=0)


def search_section(plan: Plan) -> str:
    """How the price was found."""
    certificate, ladder, stop = plan.certificate, plan.ladder, plan.record.stop
    level = f"{certificate.confidence:.0%}"
    tested, first = (
        (f"at most {number(certificate.budget)}", "the cheapest plan up")
        if certificate.target_reward is None
        else (f"at least {number(certificate.target_reward)}", "the dearest plan down")
    )
    bound = "the cost" if certificate.target_reward is None else "the reward"
    if len(certificate.budgets) > 1:
        bound, tested = "every cost", "within its budget"
    plans = "plans" if len(certificate.budgets) > 1 else "prices"
    sentences = [
        f"{len(ladder.rungs)} {plans} were put in order before anybody looked at the {number(ladder.users)} users who "
        f"check the plan. From {first}, each was tested on them: is {bound} {tested}, with {level} confidence? The "
        "walk ends at the first that fails. An error would need the first plan that breaks the promise to pass, so the "
        "confidence holds for the whole walk.",
    ]
    if len(certificate.budgets) > 1:
        sentences.append(
            "Each is the best mixture for all budgets made tighter or wider by one number, from the tightest that "
            f"can be kept on; this one mixes {len(plan.policy.pricing.shares)} plans, to which users are drawn once."
        )
    elif stop.place.share:
        sentences.append(
            f"Between two prices their plans are mixed: {stop.place.share:.0%} of the users, drawn once each, follow "
            "the cheaper price."
        )
    if ladder.unreliable.any():
        sentences.append(
            f"{int(ladder.unreliable.sum())} of the prices were stepped over: too few logged users behave like them."
        )
    near = range(max(stop.place.rung - _NEAR, 0), min(stop.place.rung + _NEAR + 1, len(ladder.rungs)))
    lower, upper = ladder.bounds(certificate.confidence)
    several = len(certificate.budgets) > 1
    costs = [each.name for each in certificate.budgets] if several else ["cost per user"]
    rows = [
        [
            *(() if several else (number(ladder.rungs[rung].prices[0]),)),
            *(number(bound[place, rung]) for place in range(1, 1 + len(costs)) for bound in (ladder.means, upper)),
            number(ladder.means[0, rung]),
            number(lower[0, rung]),
        ]
        for rung in near
    ]
    heads = [*(() if several else ("price λ",)), *(head for name in costs for head in (name, f"at most ({level})"))]
    around = table(
        "Plans near this one" if several else "Prices near the plan’s",
        [*heads, "reward per user", f"at least ({level})"],
        rows,
        words=0,
    )
    chart = "" if several else figure(ladder_chart(ladder, near, certificate))
    return folded("search", "How the price was found", items(sentences), f'<div class="pair top">{chart}{around}</div>')


def making_section(plan: Plan) -> str:
    """Where it came from, method, folds and settings."""
    wanted, pricing, record = plan.policy.specification, plan.policy.pricing, plan.record
    rows: list[tuple[str, object]] = [
        *(_source(record.source) if record.source is not None else ()),
        ("method", wanted.method),
        ("steps planned ahead", f"{min(wanted.horizon, wanted.steps)} of {wanted.steps}"),
        ("temperature", number(wanted.temperature, 3)),
        ("share of decisions left to chance", number(wanted.explore, 3)),
        (
            "price λ",
            ("; " if pricing.budgets > 1 else ", ").join(" and ".join(map(number, row)) for row in pricing.prices),
        ),
        ("share of users at each price", ", ".join(f"{share:.1%}" for share in pricing.shares)),
        ("estimator of the certificate", plan.certificate.cost.estimator),
        ("standard error of the cost", number(plan.certificate.cost.standard_error, 3)),
        ("standard error of the reward", number(plan.certificate.reward.standard_error, 3)),
    ]
    for name, fold in record.folds.items():
        rows.append((f"users who {name}", f"{number(fold.users)} ({number(fold.rows)} rows)"))
    asked = (("confidence", record.confidence), ("seed", record.seed))
    rows += [(name, _plain(value)) for name, value in (*asked, *plan.certificate.diagnostics.items())]
    hashes = (("policy, sha256", plan.certificate.policy_sha256), ("check fold, sha256", plan.certificate.fold_sha256))
    shown = [(name.replace("_", " "), value) for name, value in (*rows, *hashes)]
    told = (words[:1].upper() + words[1:] + "." for words in (record.sample, record.history) if words)
    notes = items((*told, *record.planner.notes))
    return folded("making", "How it was made", notes, table("Settings and diagnostics", ("what", "value"), shown, 2))


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


# The section about who may get what: the rules in words, and what is left to chance.


_USERS = 10_000  # of a next log, as an example


def rules_section(plan: Plan) -> str:
    """Who may get what, and how much is left to chance."""
    return folded("rules", "Rules and exploration", items(tuple(rules_sentences(plan))))


def rules_sentences(plan: Plan) -> Iterator[str]:
    """The rules, what is left of the log by them, and exploration, one sentence each."""
    rules = plan.policy.rules
    if not rules:
        yield "There are no rules: everybody may get every action, as often as it is worth it."
    for rule in rules:
        yield f"Rule: {rule.sentence()}."
    for finding in plan.record.audit.findings:
        if finding.rule == "rules_forbid_logged":
            yield finding.message[:1].upper() + finding.message[1:] + "."
    yield from _exploration(plan)


def _exploration(plan: Plan) -> Iterator[str]:
    share, record = plan.policy.specification.explore, plan.record.exploration
    if not share:
        yield (
            "Nothing is left to chance beyond the temperature (explore 0): these decisions are hardly a log to learn "
            "another plan from."
        )
        return
    yield (
        f"{share:.1%} of the decisions are drawn evenly among what is eligible. That is part of the plan: of its "
        "price, of its certificate, and of the propensities that are written."
    )
    if record is None:
        return
    reward = plan.certificate.reward.estimate
    beside = f" ({record.reward_lost / abs(reward):.1%} of it)" if reward else ""
    yield (
        f"This costs {number(record.reward_lost, 3)} of reward per user{beside} at the same cost, by the model. In "
        f"return, of {_USERS:,} users decided for, about {record.effective_share * _USERS:,.0f} will be effective "
        "ones, at every step, for a plan that gives everything evenly."
    )
