"""Repricing: another budget, target or audience from the same plan, without the log, and what other budgets would buy.

The fixed-sequence test is run again on the plan's ladder of stored moments. `reprice` makes the new plan,
`budget_point` says what a budget buys, and `answer` is what the `frontier` command prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from redenvelope.arrays import FloatArray
from redenvelope.dual.oracle import Priced
from redenvelope.dual.paths import frontier_path, ladder_path
from redenvelope.errors import UsageError, require_whole
from redenvelope.evaluation.confidence import Spread
from redenvelope.evaluation.diagnostics import Reason, Weight, merged_reasons
from redenvelope.plan.certificate import BudgetFigure
from redenvelope.plan.fixed_sequence_test import BudgetTarget, Checked, Question, certify, climb, walk
from redenvelope.plan.ladder import Ladder, MixableSums, Mixtures, moved_ladder
from redenvelope.plan.plan import Plan
from redenvelope.plan.record import PricedPlan
from redenvelope.plan.validation import FRONTIER

_REPRICED = Reason(
    "repriced",
    Weight.WARNING,
    "this certificate is from the same check users as the plan's first one. Each holds with its confidence if the "
    "budget was chosen for other reasons; choosing among many by looking at their certificates lowers it. "
    "--for-all-prices (in Python: for_all_prices=True) gives bounds that hold for all budgets at once",
)


def reprice(
    plan: Plan,
    *,
    budget: float | Mapping[str, float] | None = None,
    target_reward: float | None = None,
    audience: int | None = None,
    confidence: float | None = None,
    for_all_prices: bool = False,
) -> Plan:
    """The plan for another budget (mean cost per user), or for a target reward, with its own certificate.

    `budget` is a number, for the first budget, or maps budget names to numbers; the others stay as they are. What was
    learned is kept; comparisons made at the old price are dropped. With `for_all_prices` the bounds hold simultaneously
    for every budget. Another `audience` changes the totals.
    """
    wanted = plan.record.confidence if confidence is None else confidence
    question = _question(plan, budget, target_reward, audience, wanted, for_all_prices)
    ladder = plan.ladder if question.budget is None or for_all_prices else ladder_for(plan, question.limits)
    stop = walk(ladder, question)
    policy = replace(plan.policy, pricing=ladder.pricing(stop.place))
    given = plan.certificate
    logged = (given.logged_reward, *(each.logged for each in given.budgets))
    checked = Checked(logged, given.fold_sha256, plan.record.objections)
    certificate = certify(ladder, stop, question, policy, checked)
    if not for_all_prices:
        certificate = replace(certificate, reasons=(*certificate.reasons, _REPRICED))
    record = replace(plan.record, stop=stop, confidence=wanted, comparison=(), shares=None, exploration=None)
    audit = record.audit if record.audit.budget is None else replace(record.audit, budget=question.budget)
    record = replace(record, untargeted=None, audit=audit)
    again = replace(plan, policy=policy, certificate=certificate, record=record, ladder=ladder)
    if ladder is plan.ladder or record.sums is None:
        return again
    # A budget's frontier holds the other budgets, and one of these has moved.
    names = [each.name for each in certificate.budgets]
    limits = np.array(question.limits)
    frontier = path_frontiers(record.priced, record.sums, ladder.users, limits, names, wanted)
    return replace(again, frontier=frontier)


_RUNGS, _FRONTIER_POINTS = 16, 10
"""For ladders and frontiers at other limits of several budgets."""


def ladder_for(plan: Plan, limits: Sequence[float]) -> Ladder:
    """The ladder to walk for other limits [budgets].

    With one budget the plan's ladder serves every limit. With several, a ladder scales all limits together; for other
    limits, the plans are mixed anew by their predicted costs, so the check users do not choose the order.
    """
    record, own = plan.record, [each.limit for each in plan.certificate.budgets]
    if len(own) == 1 or record.sums is None or np.allclose(limits, own, rtol=1e-12):
        return plan.ladder
    path = ladder_path(believed_plans(record.priced), np.array(limits, dtype=np.float64), _RUNGS)
    mixtures = Mixtures(np.array([one.prices for one in record.priced]), path.shares, path.duals)
    means = np.array([one.mean for one in record.priced]).T
    reasons = [merged_reasons([record.priced[plan].reasons for plan in np.flatnonzero(row)]) for row in path.shares]
    return moved_ladder(plan.ladder, record.sums.mixed(means, path.shares, plan.ladder.users), mixtures, reasons)


def believed_plans(priced: Sequence[PricedPlan]) -> Priced:
    """The plans with their predicted reward and costs."""
    return Priced(np.array([one.prices for one in priced]), np.array([one.believed for one in priced]).T)


def path_frontiers(
    priced: Sequence[PricedPlan],
    sums: MixableSums,
    users: int,
    limits: FloatArray,
    budgets: Sequence[str],
    confidence: float,
) -> pl.DataFrame:
    """The frontier along every budget by name, the others held, by rising price: the budget's shadow price, off-policy
    reward and cost with two-sided bounds, and the predictions of both.

    Which plans are mixed at a limit was decided on users of other folds; the check users only estimate their outcomes.
    """
    plans, means = believed_plans(priced), np.array([one.mean for one in priced]).T
    level, tables = (1 + confidence) / 2, [pl.DataFrame(schema=FRONTIER)]
    for own, name in enumerate(budgets):
        path = frontier_path(plans, limits, own, _FRONTIER_POINTS)
        if not len(path):
            continue
        found = sums.mixed(means, path.shares, users)
        spread = Spread(
            users, *(part[[0, 1 + own]] for part in (found.means, found.squares * users, found.cubes * users))
        )
        figures = (spread.mean, spread.lower(level), spread.upper(level), plans.outcomes[[0, 1 + own]] @ path.shares.T)
        tables.append(frontier_table(name, path.duals[:, own], *figures).reverse())
    return pl.concat(tables)


Pair = Sequence[FloatArray] | FloatArray


def frontier_table(budget: str, duals: FloatArray, means: Pair, lower: Pair, upper: Pair, model: Pair) -> pl.DataFrame:
    """One budget's frontier as a table: duals [points], and pairs of reward and cost, [2, points]."""
    columns = (duals, means[1], means[0], lower[1], upper[1], lower[0], upper[0], model[1], model[0])
    figures = pl.DataFrame(dict(zip(list(FRONTIER)[1:], columns, strict=True)))
    return figures.select(pl.lit(budget).alias("budget"), pl.all())


def _question(
    plan: Plan,
    budget: float | Mapping[str, float] | None,
    target_reward: float | None,
    audience: int | None,
    confidence: float,
    for_all_prices: bool,
) -> Question:
    """The question, with the names of the plan's budgets."""
    known, given = plan.certificate.budgets, _by_name(plan, budget)
    if target_reward is not None and len(known) > 1:
        raise UsageError(
            f"a target reward asks for the least cost, and the plan has {len(known)} of them; give budgets instead"
        )
    if target_reward is None and not given and audience is None:
        return Question.of(None, None, confidence)  # which says what is missing
    asked = tuple(_asked(each, given.get(each.name), audience) for each in known)
    if target_reward is not None:
        asked = (replace(asked[0], limit=given.get(asked[0].name)),)
    return Question(asked, target_reward, confidence, for_all_prices)


def _by_name(plan: Plan, budget: float | Mapping[str, float] | None) -> Mapping[str, float]:
    """The given budgets by name; a number is for the first."""
    names = [each.name for each in plan.certificate.budgets]
    given = budget if isinstance(budget, Mapping) else {} if budget is None else {names[0]: budget}
    for name in given:
        if name not in names:
            raise UsageError(f"the plan has no budget {name!r}; it has {', '.join(map(repr, names))}")
    return given


def _asked(known: BudgetFigure, limit: float | None, audience: int | None) -> BudgetTarget:
    """A budget's new or unchanged limit. With another audience, the total stays and the mean per user changes."""
    if audience is None:
        wanted = known.budget if limit is None else limit
        return BudgetTarget(known.name, wanted, known.audience, known.set_aside)
    require_whole("an audience", audience)
    unchanged = known.budget if known.total is None else known.total / audience
    return BudgetTarget(known.name, unchanged if limit is None else limit, audience, known.set_aside)


# What other budgets would buy. The `frontier` command, the report's slider and tables, and the service's page show
# these figures, which equal those of the certificate that `reprice` would give.

_POINTS, _POINTS_OF_SEVERAL = 60, 12


@dataclass(frozen=True)
class BudgetPoint:
    """What a budget buys."""

    budget: float
    """Mean cost per user."""
    cost: float
    """Estimated cost of the plan for it; the upper bound of that cost is within the budget."""
    reward: float
    """Estimated reward of the plan for it."""
    price: float
    """Shadow price: the reward that one more unit of budget buys."""


def budget_point(plan: Plan, own: BudgetFigure, limit: float) -> BudgetPoint | None:
    """What another limit of one budget buys while the others are held; None if no plan keeps all of them."""
    budgets, certificate = plan.certificate.budgets, plan.certificate
    place = [each.name for each in budgets].index(own.name)
    if limit == own.budget:  # the certificate's own figures
        found = BudgetPoint(limit, own.cost.estimate, certificate.reward.estimate, own.dual)
        return found if plan.record.stop.holds else None
    limits = [(limit if each.name == own.name else each.budget) - each.set_aside for each in budgets]
    ladder = ladder_for(plan, limits)
    stop = climb(ladder, limits, certificate.confidence)
    if not stop.holds:
        return None
    reward, *costs = ladder.figures(stop.place, certificate.confidence)
    return BudgetPoint(limit, costs[place].estimate, reward.estimate, ladder.duals(stop.place)[place])


def budget_points(plan: Plan, own: BudgetFigure | None = None) -> Iterator[BudgetPoint]:
    """Yield points in rising order, from about the smallest limit that can be kept to the one beyond which more buys
    nothing. `own` is the budget to vary, by default the first; the others are held."""
    own = plan.certificate.budgets[0] if own is None else own
    if len(plan.certificate.budgets) > 1:
        limits, count = plan.along(own.name)["model_cost"].to_numpy(), _POINTS_OF_SEVERAL
    else:
        upper = plan.ladder.bounds(plan.certificate.confidence)[1][1]
        limits, count = upper[~plan.ladder.unreliable & np.isfinite(upper)], _POINTS
    limits = limits + own.set_aside
    wanted = {*np.linspace(limits.min(), limits.max(), count).tolist(), own.budget} if len(limits) else set()
    found = (budget_point(plan, own, limit) for limit in sorted(wanted))
    return (point for point in found if point is not None)


def profit_budget(plan: Plan, value_per_reward: float) -> float:
    """The budget at which the last unit of money spent earns one unit of money: where the price times the value is 1.

    The rule is fixed before the check users are looked at, and so is the plan that follows from it.
    """
    if not isinstance(value_per_reward, int | float) or not 0 < value_per_reward < np.inf:
        raise UsageError(f"the value of a unit of reward is a number above 0, not {value_per_reward!r}")
    if len(plan.certificate.budgets) > 1:
        raise UsageError("profit weighs one cost, and the plan has several budgets; keep one of them")
    own, points = plan.certificate.budgets[0], list(budget_points(plan))
    if not points:
        raise UsageError("no budget is known to be kept by this plan; fit it with more users")
    # If no unit of cost earns its own value, the cheapest plan is the most profitable.
    worthwhile = [point for point in points if point.price * value_per_reward >= 1] or points[:1]
    low = worthwhile[-1].budget
    high = next((point.budget for point in points if point.budget > low), None)
    if high is None:
        return low
    for _ in range(20):
        middle = (low + high) / 2
        found = budget_point(plan, own, middle)
        if found is not None and found.price * value_per_reward >= 1:
            low = middle
        else:
            high = middle
    return low


def answer(plan: Plan, budget: float | Mapping[str, float] | None, reward: float | None) -> dict[str, Any]:
    """The frontier, what 10 % more or less budget buys, and answers for a given budget and a given reward.

    With several budgets, each has its own frontier with the others held; `budget` is then given by name, and a number
    is for the first.
    """
    given = _by_name(plan, budget)
    if len(plan.certificate.budgets) > 1 and reward is not None:
        raise UsageError("a reward asks for the least cost, and the plan has several; give --budget NAME=VALUE")
    for name, asked_for in (*given.items(), ("reward", reward)):
        if asked_for is not None and not np.isfinite(asked_for):
            raise UsageError(f"the {name} must be a number, not {asked_for}")
    first, *others = plan.certificate.budgets
    content: dict[str, Any] = {"budget": plan.certificate.budget} | _along(plan, first, given.get(first.name))
    if others:
        content["budgets"] = [
            _along(plan, each, given.get(each.name)) | {"name": each.name} for each in (first, *others)
        ]
    if reward is not None:
        least = reprice(plan, target_reward=reward).certificate
        if not least.is_certified:
            raise UsageError(least.reasons[0].message)
        content["least_cost"] = {"reward": reward, "cost": least.cost.estimate, "budget": least.budget}
    return content


def _along(plan: Plan, budget: BudgetFigure, wanted: float | None) -> dict[str, Any]:
    """One budget's frontier, and what some limits of it buy."""
    asked = [budget.budget * factor for factor in (0.9, 1.0, 1.1)] if wanted is None else [wanted]
    points = [point for value in asked if (point := budget_point(plan, budget, value)) is not None]
    least = next(budget_points(plan, budget), None)
    return {
        "least_budget": None if least is None else least.budget,
        "at": [
            {"budget": one.budget, "cost": one.cost, "reward": one.reward, "shadow_price": _written(one.price)}
            for one in points
        ],
        "frontier": [
            {name: _written(value) for name, value in row.items()}
            for row in plan.along(budget.name).iter_rows(named=True)
        ],
    }


def _written(value: float) -> float | str:
    return "infinity" if np.isinf(value) else value
