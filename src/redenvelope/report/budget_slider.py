"""What a budget buys: a slider over the plan's ladder, the curve, and a table of a few other budgets."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from redenvelope.plan.plan import Plan
from redenvelope.plan.reprice import BudgetPoint, budget_points
from redenvelope.report.frontier_charts import budget_chart, curve
from redenvelope.report.markup import Spoken, figure, section, table, text
from redenvelope.wording import number, signed

_OTHERS = (0.5, 0.75, 0.9, 1.1, 1.25, 1.5, 2.0)


@dataclass(frozen=True)
class _SliderRow:
    """One position of the slider, with all of its texts, so that the page only has to display them."""

    cells: list[str]
    said: str
    """The value for screen readers."""
    cost: float
    reward: float


def budget_section(plan: Plan) -> str:
    """What this budget and others buy, and the budget up to which more money pays off."""
    if len(plan.certificate.budgets) > 1:
        return section("budget", "What each budget buys", *_several(plan))
    words, points = Spoken.of(plan), tuple(budget_points(plan))
    chart = budget_chart(plan, words)
    return section(
        "budget",
        "What a budget buys",
        _pays(plan, points, words),
        _slider(plan, points, words) if len(points) > 1 else "",
        figure(chart, "budget-chart") if chart is not None else "",
        _others(plan, points, words),
    )


def _several(plan: Plan) -> Iterator[str]:
    """What each of several budgets buys, by name, while the others are held."""
    money = {budget.name for budget in plan.record.budgets if budget.summed == "cost"}
    for place, budget in enumerate(plan.certificate.budgets):
        # Counts, such as of pushes or points, have no currency.
        words = Spoken.of(plan) if budget.name in money else replace(Spoken.of(plan), currency="")
        value = plan.record.money.value_per_reward if budget.name in money else None
        record = replace(plan.record, money=replace(plan.record.money, value_per_reward=value))
        own = replace(plan.of(budget), record=record)
        points, chart = tuple(budget_points(plan, budget)), budget_chart(own, words)
        yield f"<h3>{text(budget.name)}, the others held</h3>"
        if not points:
            yield f"<p>{text(f'Nothing can be said of other limits of {budget.name}.')}</p>"
            continue
        yield _pays(own, points, words, budget.name)
        yield _slider(own, points, words, budget.name, place)
        yield figure(chart, f"budget-chart-{place}") if chart is not None else ""
        yield _others(own, points, words)


def _pays(plan: Plan, points: Sequence[BudgetPoint], words: Spoken, name: str = "") -> str:
    """What the last unit of money earns, and the budget up to which it pays; `name` is that of one of several."""
    own = _own(plan, points)
    if own is None:
        return ""
    one = "one more " + (words.currency or (f"of {name}" if name else "unit of cost"))
    sentences = [
        f"At this budget, {one} per user would earn about {number(own.price)} more reward."
        if own.price > 0
        else "More money than this buys nothing: no plan uses it."
    ]
    if math.isinf(own.price):
        sentences = [f"The plan saves whatever can be saved; what {one} per user would earn is not known."]
    value = plan.record.money.value_per_reward
    if value is not None and math.isfinite(own.price):
        limit = break_even(tuple(points), value)
        back = f"At {words.cost(value)} a unit of reward, that brings back {words.cost(value * own.price)}."
        total = f" ({words.total_cost(limit)} in all)" if limit is not None and words.audience is not None else ""
        if limit is None:
            end = "Even at the least budget that can be kept, money brings back less than itself."
        elif limit >= points[-1].budget:
            end = "Every budget shown here brings back more than it costs."
        else:
            side = "Yours is beyond it." if limit < own.budget else "Yours is below it."
            end = (
                f"By the estimate, money brings back more than itself up to a budget of about "
                f"{words.cost(limit)} per user{total}; beyond, less. {side}"
            )
        sentences += [back, end]
    return f"<p>{text(' '.join(sentences))}</p>"


def _own(plan: Plan, points: Sequence[BudgetPoint]) -> BudgetPoint | None:
    """The point of the plan's own budget, or the nearest one if the plan has a target instead."""
    return min(points, key=lambda point: abs(point.budget - plan.certificate.budget), default=None)


def _slider(plan: Plan, points: Sequence[BudgetPoint], words: Spoken, name: str = "", place: int = 0) -> str:
    """A slider over a plan's budget; `name` and `place` identify one of several budgets."""
    own = _own(plan, points)
    assert own is not None
    value = plan.record.money.value_per_reward
    rows = [_row(point, own, words, value) for point in points]
    start = points.index(own)
    outputs = "".join(
        f'<div><dt>{text(name)}</dt><dd data-part="{place}">{text(cell)}</dd></div>'
        for place, (name, cell) in enumerate(zip(_names(words), rows[start].cells, strict=True))
    )
    mark = f"-{place}" if name else ""
    command = f"redenvelope reprice --budget {shlex.quote(f'{name}=…') if name else '…'}"
    how = (
        f"Each place is what <code>{text(command)}</code> would certify on the same users"
        f"{', the other budgets kept' if name else ''}: estimates, to choose by. Small differences between their "
        "rewards are chance; what one more unit earns is the plan’s price."
    )
    return (
        f'<div class="slider" data-points="{_data([asdict(row) for row in rows])}" '
        f'data-ends="{_data(_ends(plan, words))}" data-chart="budget-chart{mark}">'
        f'<label for="budget-slider{mark}">Try another budget{text(f" for {name}" if name else "")}</label>'
        f'<input type="range" id="budget-slider{mark}" min="0" max="{len(rows) - 1}" step="1" value="{start}" '
        f'aria-valuetext="{text(rows[start].said)}" aria-describedby="budget-how{mark}">'
        f'<dl class="figures" aria-live="polite">{outputs}</dl>'
        f'<p class="note" id="budget-how{mark}">{how}</p>'
        "</div>"
    )


def _data(value: object) -> str:
    return text(json.dumps(value, ensure_ascii=False))


def _ends(plan: Plan, words: Spoken) -> list[dict[str, object]]:
    """Two points of the curve with their values, from which the page's script derives the scale of the drawing."""
    rows = curve(plan, words)
    ends = [rows[0], max(rows, key=lambda row: row["reward"])] if rows else []
    return [{name: row[name] for name in ("note", "cost", "reward")} for row in ends]


def _names(words: Spoken) -> list[str]:
    names = ["Budget per user", "Expected cost", "Expected reward", "Beside this plan"]
    return [*names, f"1 {words.currency or 'unit'} more earns"]


def _row(point: BudgetPoint, own: BudgetPoint, words: Spoken, value: float | None) -> _SliderRow:
    def whole(shown: str, total: str) -> str:
        return f"{shown}\n{total} in all" if total else shown

    back = f"\nworth {words.cost(value * point.price)}" if value is not None and math.isfinite(point.price) else ""
    reward = point.reward - own.reward
    cells = [
        whole(words.cost(point.budget), words.total_cost(point.budget)),
        whole(words.cost(point.cost), words.total_cost(point.cost)),
        whole(number(point.reward), words.total_reward(point.reward)),
        "this plan" if point is own else whole(f"{signed(reward, 2)} reward", words.total_reward(reward)),
        f"{number(point.price)} reward{back}",
    ]
    said = f"{words.cost(point.budget)} per user, expected reward {number(point.reward)}"
    return _SliderRow(cells, said, round(point.cost, 6), round(point.reward, 6))


def _others(plan: Plan, points: Sequence[BudgetPoint], words: Spoken) -> str:
    """A table of some budgets, for paper and for readers without a pointer."""
    own = _own(plan, points)
    if own is None:
        return ""
    value = plan.record.money.value_per_reward
    chosen = {}
    for factor in _OTHERS:
        wanted = factor * own.budget
        if points[0].budget <= wanted <= points[-1].budget * 1.01:
            nearest = min(points, key=lambda point: abs(point.budget - wanted))
            chosen[nearest.budget] = nearest
    chosen[own.budget] = own
    rows = [
        (
            words.cost(point.budget) + (" (this plan)" if point is own else ""),
            *([words.total_cost(point.budget)] if words.audience is not None else []),
            words.cost(point.cost),
            number(point.reward),
            "–" if point is own else signed(point.reward - own.reward, 2),
            number(point.price),
            *([words.cost(value * point.price) if math.isfinite(point.price) else "–"] if value is not None else []),
        )
        for _, point in sorted(chosen.items())
    ]
    heads = (
        "budget per user",
        *(["in all"] if words.audience is not None else []),
        "expected cost",
        "expected reward",
        "beside this plan",
        "reward of one more",
        *(["worth"] if value is not None else []),
    )
    return f'<div class="others">{table("Other budgets, per user", heads, rows)}</div>'


def break_even(points: tuple[BudgetPoint, ...], value: float) -> float | None:
    """The largest budget at which the last unit of money still earns at least itself, if a unit of reward is worth
    `value`; None if there is none."""
    paying = [point.budget for point in points if value * point.price >= 1]
    return max(paying) if paying else None
