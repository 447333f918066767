"""What is remembered of a fit: policies side by side on the check users, and all that the report tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from scipy.special import ndtri

from redenvelope.arrays import FloatArray
from redenvelope.audit.audit import Audit
from redenvelope.dual.frontier import Frontier, falling
from redenvelope.dual.paths import Paths
from redenvelope.evaluation.confidence import Spread
from redenvelope.fitting.certify import Certification
from redenvelope.fitting.explain import who_gets_what
from redenvelope.fitting.holdout import Check, logged_by_user
from redenvelope.fitting.learn import UnpricedPolicy
from redenvelope.fitting.objective import Objective
from redenvelope.fitting.price_grid import next_effective_share
from redenvelope.fitting.settings import FitSettings
from redenvelope.log.columns import ColumnMap
from redenvelope.plan.certificate import Certificate
from redenvelope.plan.fixed_sequence_test import climb
from redenvelope.plan.ladder import Ladder, Place
from redenvelope.plan.record import (
    ActionShares,
    ComparedPolicy,
    ExplorationRecord,
    FitRecord,
    FoldSize,
    PlannerRecord,
    PricedPlan,
    Source,
)
from redenvelope.plan.validation import FRONTIER


@dataclass(frozen=True, eq=False)
class Comparison:
    """What the check users say of the certified plan besides its certificate."""

    policies: tuple[ComparedPolicy, ...]
    """Logged, uniform, the bandit where the plan is none, and the plan."""
    shares: ActionShares
    effective_share: float
    """Effective sample size of the log that the plan would produce, as a share of its users."""
    frontier: pl.DataFrame | None
    """With several budgets, the frontier along each; the only budget's is read off the ladder."""
    priced: tuple[PricedPlan, ...]
    """With several budgets, the plans that are mixed."""


def compare_policies(check: Check, certified: Certification, paths: Paths | None, names: tuple[str, ...]) -> Comparison:
    """Compare the certified plan with other policies on the check users; `names` are those of the budgets."""
    policy, place, certificate = certified.policy, certified.stop.place, certified.certificate
    return Comparison(
        policies=compared_policies(check, place, certificate),
        shares=who_gets_what(check.shown, policy, place),
        effective_share=next_effective_share(check.shown, policy, place),
        frontier=None if paths is None else path_frontiers(check, paths, names, certificate.confidence),
        priced=() if paths is None else priced_plans(check, paths),
    )


def compared_policies(check: Check, place: Place, certificate: Certificate) -> tuple[ComparedPolicy, ...]:
    """The plan beside the log, uniform choice, and the bandit, which climbs its own ladder to the same budgets."""
    added = {"logged": logged_by_user(check.log), "uniform": check.added("uniform", Place(0))}
    if "bandit" in check.candidates:
        limits = [own.budget for own in certificate.budgets]
        reached = climb(check.ladder("bandit"), limits, certificate.confidence)
        added["bandit"] = check.added("bandit", reached.place)
    return compare(added | {"plan": check.added("plan", place)}, certificate.confidence)


def fit_record(
    audit: Audit,
    sample: str,
    folds: dict[str, FoldSize],
    settings: FitSettings,
    unpriced: UnpricedPolicy,
    certified: Certification,
    comparison: Comparison,
    exploration_loss: float,
    objective: Objective,
    columns: ColumnMap,
) -> FitRecord:
    """The record of a fit, from the results of its stages."""
    learned, valuer = unpriced.learned, certified.policy.valuer
    return FitRecord(
        audit=audit,
        folds=folds,
        seed=settings.seed,
        parts=settings.parts,
        confidence=settings.confidence,
        fidelity=unpriced.fidelity,
        planner=PlannerRecord(valuer.notes, valuer.depth, unpriced.policies.lookahead),
        stop=certified.stop,
        comparison=comparison.policies,
        shares=comparison.shares,
        model=learned.neural.as_dict(),
        settings=settings.as_dict(),
        history="" if learned.history is None else learned.history.reason,
        sample=sample,
        objections=certified.objections,
        exploration=ExplorationRecord(unpriced.terms.explore, exploration_loss, comparison.effective_share),
        source=None if columns == ColumnMap() else Source.of("", "", columns),
        budgets=objective.budgets,
        priced=comparison.priced,
    )


# One table for people: the plan beside what was logged, chance, and the bandit, on the same users.


def compare(added: Mapping[str, FloatArray], confidence: float) -> tuple[ComparedPolicy, ...]:
    """Compare policies by what each user adds, [outcomes, users]; the first is what the others are compared with."""
    reference = next(iter(added.values()))
    reach = float(ndtri((1 + confidence) / 2))
    return tuple(_compared(name, users, users - reference, reach) for name, users in added.items())


def _compared(name: str, users: FloatArray, difference: FloatArray, reach: float) -> ComparedPolicy:
    count = users.shape[1]
    mean, error = users.mean(axis=1), users.std(axis=1, ddof=1) / np.sqrt(count)
    # Paired: what is common to a user under both policies cancels before the spread is taken.
    gap, gap_error = difference.mean(axis=1), difference.std(axis=1, ddof=1) / np.sqrt(count)
    lower, upper = gap - reach * gap_error, gap + reach * gap_error
    figures = (mean[1], error[1], mean[0], error[0], gap[1], lower[1], upper[1], gap[0], lower[0], upper[0])
    return ComparedPolicy(name, *(float(figure) for figure in figures))


# The frontier: what more or less of a budget buys, as the check users say.


def ladder_frontier(ladder: Ladder, model: Frontier, budget: str, confidence: float) -> pl.DataFrame:
    """The frontier of one budget, by rising price: reward and cost of every rung with two-sided bounds, and as the
    model believes.

    Costs and rewards fall with the price, so the nearest that do are shown. Two plans can always be mixed, so no reward
    lies below the line between two others.
    """
    upward = slice(None, None, -1)  # a ladder's prices fall
    lower, upper = (bound[:, upward] for bound in ladder.bounds((1 + confidence) / 2))
    means, prices = ladder.means[:, upward], ladder.prices[upward, 0]
    errors = np.array([rung.square for rung in ladder.rungs]).T[:, upward] ** 0.5
    rewards, costs = (falling(means[outcome], errors[outcome]) for outcome in (0, 1))
    corners = (curve := Frontier(prices, costs, rewards)).envelope
    concave = np.interp(costs, curve.costs[corners], curve.rewards[corners])
    return _table(budget, prices, (concave, costs), lower, upper, (model.rewards[upward], model.costs[upward]))


def path_frontiers(check: Check, paths: Paths, budgets: tuple[str, ...], confidence: float) -> pl.DataFrame:
    """The frontier along every budget by its name, the others held, by rising price: the shadow price, off-policy
    reward and cost of this budget with two-sided bounds, and what was believed of both.

    Users of other folds fixed which plans are mixed at a limit; the check users only say what they cost and earn.
    """
    places = check.places("plan")
    added = check.influence[:, :, places.start : places.stop]
    level, tables = (1 + confidence) / 2, [pl.DataFrame(schema=FRONTIER)]
    for own, (name, path) in enumerate(zip(budgets, paths.frontiers, strict=True)):
        if not len(path):
            continue
        # Reward and this budget's cost of every mixture, user by user.
        spread = Spread.of(added[[0, 1 + own]] @ path.shares.T, axis=1)
        believed = paths.plans.outcomes[[0, 1 + own]] @ path.shares.T
        figures = (spread.mean, spread.lower(level), spread.upper(level), believed)
        tables.append(_table(name, path.duals[:, own], *figures).reverse())
    return pl.concat(tables)


Pair = Sequence[FloatArray] | FloatArray


def _table(budget: str, duals: FloatArray, means: Pair, lower: Pair, upper: Pair, model: Pair) -> pl.DataFrame:
    """Figures of one budget's frontier: duals [points], the others reward and cost, [2, points]."""
    columns = (duals, means[1], means[0], lower[1], upper[1], lower[0], upper[0], model[1], model[0])
    figures = pl.DataFrame(dict(zip(list(FRONTIER)[1:], columns, strict=True)))
    return figures.select(pl.lit(budget).alias("budget"), pl.all())


def priced_plans(check: Check, paths: Paths) -> tuple[PricedPlan, ...]:
    """The plans that are mixed, each with what the check users say of it."""
    places = check.places("plan")
    means = check.influence[:, :, places.start : places.stop].mean(axis=1)
    rows = zip(paths.plans.prices.tolist(), means.T.tolist(), strict=True)
    return tuple(PricedPlan(tuple(prices), tuple(mean)) for prices, mean in rows)
