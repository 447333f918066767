"""Whether what a plan folder says fits together: hashes protect against damage, not against content.

Every part was decoded by its types before. Here the parts are held against each other, so that nothing downstream has
to fear an odd shape, a price that nobody checked, or a certificate of other figures. The limits are stated here too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from redenvelope.audit.audit import Audit
from redenvelope.campaign.campaign import MOST_BUDGETS, MOST_RULES, MOST_STEPS_BACK, steps_back
from redenvelope.campaign.conditions import Condition, column_uses, columns_of
from redenvelope.campaign.rows import STEP, places_of
from redenvelope.errors import PlanError, UsageError
from redenvelope.evaluation.confidence import Estimate
from redenvelope.evaluation.diagnostics import Weight
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.models.charges import decoding_for
from redenvelope.plan.certificate import Certificate
from redenvelope.plan.ladder import Ladder, Place
from redenvelope.plan.plan import Plan
from redenvelope.plan.policy import DeployedPolicy, policy_sha256
from redenvelope.plan.record import ActionShares, FitRecord
from redenvelope.planning.temperature import is_temperature

MOST_ACTIONS = 10_000
MOST_STEPS = 10_000
MOST_RUNGS = 4_096
"""A plan beyond these is none that `fit` ever wrote; it is refused before anything of its size is made."""

METHODS = frozenset({"planned", "learned", "bandit"})

FRONTIER_COLUMNS = (
    "dual",
    "cost",
    "reward",
    "cost_lower",
    "cost_upper",
    "reward_lower",
    "reward_upper",
    "model_cost",
    "model_reward",
)

# Figures are written with all their digits; what is computed again may differ in the last ones.
_TOLERANCE = 1e-6

# Of users' rewards and costs, their squares and cubes: products of three such are numbers still.
_LARGEST_SUM = 1e100


def require_frontier(schema: Mapping[str, Any], rows: int) -> None:
    """The columns of a frontier, and a length that one may have."""
    if tuple(schema) != FRONTIER_COLUMNS or any(kind != pl.Float64 for kind in schema.values()):
        raise PlanError(f"frontier.parquet must have the columns {', '.join(FRONTIER_COLUMNS)}, all of 64-bit floats")
    _require(0 < rows <= MOST_RUNGS, f"frontier.parquet has {rows:,} rows; at least 1 and at most {MOST_RUNGS:,}")


def require_frontiers(schema: Mapping[str, Any], rows: int) -> None:
    """The columns of the frontiers of several budgets, and a length that they may have."""
    wanted = {"budget": pl.String, **dict.fromkeys(("limit", *FRONTIER_COLUMNS), pl.Float64)}
    if dict(schema) != wanted:
        raise PlanError(f"frontiers.parquet must have the columns {', '.join(wanted)}: a text, then 64-bit floats")
    _require(rows <= MOST_RUNGS, f"frontiers.parquet has {rows:,} rows; at most {MOST_RUNGS:,}")


def require_policy(policy: DeployedPolicy) -> None:
    """A policy whose parts are of one campaign."""
    wanted, encoder, labels = policy.specification, policy.encoder, policy.catalogue.labels
    where = "plan.json: policy"
    _require(wanted.method in METHODS, f"{where}: there is no method {wanted.method[:40]!r}")
    _require(1 <= wanted.steps <= MOST_STEPS, f"{where}: {wanted.steps:,} steps; 1 to {MOST_STEPS:,} are allowed")
    _require(1 <= wanted.horizon <= wanted.steps, f"{where}: a horizon of {wanted.horizon:,} in {wanted.steps} steps")
    _require(is_temperature(wanted.temperature), f"{where}: the temperature is {wanted.temperature}")
    _require(0 <= wanted.explore <= 1, f"{where}: explore is a share from 0 to 1, not {wanted.explore}")
    _require(1 <= len(labels) <= MOST_ACTIONS, f"plan.json: catalogue: {len(labels):,} actions")
    _require(len(set(labels)) == len(labels), "plan.json: catalogue: two actions have the same label")
    numbers = not policy.catalogue.numeric or all(map(_is_number, labels))
    _require(numbers, "plan.json: catalogue: numeric, and a label is no number")
    _require_encoder(policy)
    _require_rules(policy)
    layout, actions, budgets = policy.source.shape
    _require(layout == encoder.layout, "plan.json: the encoder's states are not those that the source was learned on")
    _require(actions == len(labels), f"plan.json: {actions} actions were learned, {len(labels)} have a label")
    _require(policy.pricing.budgets == budgets, f"plan.json: pricing: {policy.pricing.budgets} prices, {budgets} costs")
    _require_charges(policy)
    steps = policy.source.steps
    _require(steps in (None, wanted.steps), f"{where}: values of {steps} steps were learned, not of {wanted.steps}")


def _require_charges(policy: DeployedPolicy) -> None:
    """Charges of budgets that read the states as the encoder writes them."""
    charges = policy.source.charges
    if charges is None:
        return
    names = charges.names
    _require(len(set(names)) == len(names) <= MOST_BUDGETS, f"plan.json: charges: {len(names)} budgets, or two alike")
    conditions = tuple(charge.condition for charge in charges.budgets if charge.condition is not None)
    steps = [step for charge in charges.budgets for step in charge.steps or ()]
    _require(
        charges.decoding == decoding_for(policy.encoder, conditions)
        and all(0 <= step < policy.specification.steps for step in steps)
        and all(_is_known(policy.encoder, condition) for condition in conditions),
        "plan.json: charges: they do not read the encoder's states",
    )


def _is_known(encoder: Encoder, condition: Condition) -> bool:
    """Whether a condition asks only for what states tell."""
    features = {number.name for number in encoder.numbers} | {category.name for category in encoder.categories}
    return columns_of(condition) <= features | {STEP}


def _require_rules(policy: DeployedPolicy) -> None:
    """Rules about actions and features that the plan knows."""
    _require(
        len(policy.rules) <= MOST_RULES, f"plan.json: rules: {len(policy.rules):,}, at most {MOST_RULES} are allowed"
    )
    _require(steps_back(policy.rules) <= MOST_STEPS_BACK, "plan.json: rules: they look back too many steps")
    texts = {category.name for category in policy.encoder.categories}
    numbers = {STEP, *(number.name for number in policy.encoder.numbers)}
    for place, rule in enumerate(policy.rules, start=1):
        where = f"plan.json: rules: {place}"
        known = places_of(rule.actions, policy.catalogue.labels, policy.catalogue.numeric)
        _require(None not in known, f"{where}: it is about an action that the plan does not know")
        for name, kind in () if rule.condition is None else column_uses(rule.condition):
            fits = name in (texts if kind == "text" else numbers if kind == "number" else texts | numbers)
            _require(fits, f"{where}: it asks for {name[:40]!r}, which the plan does not know so")


def _is_number(label: str) -> bool:
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False


def _require_encoder(policy: DeployedPolicy) -> None:
    encoder, where = policy.encoder, "plan.json: encoder"
    _require(
        encoder.campaign_steps == policy.specification.steps, f"{where}: campaign_steps are not the policy's steps"
    )
    _require(abs(encoder.first_step) < 2**30, f"{where}: the first step is {encoder.first_step}")
    for number in encoder.numbers:
        finite = np.isfinite((number.mean, number.scale)).all() and number.scale > 0
        _require(bool(finite), f"{where}: mean and scale of {number.name[:40]!r} are no numbers to divide by")
    names = [number.name for number in encoder.numbers] + [category.name for category in encoder.categories]
    _require(len(set(names)) == len(names), f"{where}: two features have the same name")
    for category in encoder.categories:
        _require(
            len(set(category.labels)) == len(category.labels),
            f"{where}: two labels of {category.name[:40]!r} are the same",
        )
    history = encoder.history
    if history is not None:
        same = (history.labels, history.numeric) == (policy.catalogue.labels, policy.catalogue.numeric)
        fits = same and len(history.scales) == history.width
        sound = np.isfinite(history.scales).all() and min(history.scales, default=0) > 0
        _require(bool(fits and sound), f"{where}: history: its actions and scales do not fit the plan's")


def require_consistent(plan: Plan) -> None:
    """A plan whose certificate is about this policy, at this place of this ladder."""
    ladder, certificate, stop = plan.ladder, plan.certificate, plan.record.stop
    _require_ladder(ladder)
    _require(ladder.prices.shape[1] == plan.policy.pricing.budgets, "ladder.json: as many prices a rung as costs")
    _require_table(plan.frontier, ladder)
    rung, share = stop.place.rung, stop.place.share
    last = len(ladder.rungs) - 1
    inside = 0 <= rung <= last and 0 <= share <= 1 and (rung < last or not share)
    _require(bool(inside), "plan.json: record: stop: the place is not on the ladder")
    width = len(ladder.rungs[0].mean)
    known = all(
        len(one.prices) + 1 == len(one.mean) == width and np.isfinite(one.mean).all() for one in plan.record.priced
    )
    _require(known, "plan.json: record: priced: the plans are not of the plan's budgets")
    _require(ladder.pricing(stop.place) == plan.policy.pricing, "plan.json: pricing: not that of the ladder's place")
    _require_certificate(certificate)
    _require(certificate.users == ladder.users, "certificate.json: users: not those of the ladder")
    _require(certificate.method == plan.policy.specification.method, "certificate.json: method: not the policy's")
    _require(_same(certificate.dual, ladder.duals(stop.place)[0]), "certificate.json: dual: not the price of the plan")
    _require_figures(certificate, ladder, plan)
    _require_budgets(plan)
    if certificate.policy_sha256 != policy_sha256(plan.policy):
        raise PlanError("the certificate is not this policy's; fit it again")
    require_record(plan.record, plan.catalogue.labels)


def _require_ladder(ladder: Ladder) -> None:
    """Numbers to compute with, and prices that fall."""
    _require(len(ladder.rungs) <= MOST_RUNGS, f"ladder.json: {len(ladder.rungs):,} rungs, at most {MOST_RUNGS:,}")
    for place, rung in enumerate(ladder.rungs):
        sums = np.concatenate([rung.mean, rung.square, rung.cube, *map(np.asarray, rung.products)])
        _require(bool((np.abs(sums) < _LARGEST_SUM).all()), f"ladder.json: rung {place} holds what no users add up to")
        _require(min(rung.square) >= 0, f"ladder.json: rung {place}: a square below 0")
        _require(bool((np.asarray(rung.prices) >= 0).all()), f"ladder.json: rung {place}: a price below 0")
        ladder.pricing(Place(place))  # which refuses prices and shares that are none
    for place, (rung, following) in enumerate(pairwise(ladder.rungs)):
        # Two numbers of the same users are never more alike than each is to itself; the sums are rounded.
        most = np.sqrt(np.multiply(rung.square, following.square)) + _TOLERANCE * np.add(rung.square, following.square)
        _require(
            bool((np.abs(rung.products[0]) <= most).all()), f"ladder.json: rung {place}: products that none can be"
        )
    prices = ladder.prices
    # Along several budgets the price of one may rise while that of another falls.
    falls = prices.shape[1] > 1 or (prices[1:] <= prices[:-1]).all()
    _require(bool(falls), "ladder.json: prices must fall from rung to rung")
    for whole, each in ladder.joint:
        _require(0.5 < whole <= each < 1, "ladder.json: joint: confidences of all bounds and of each")


def _require_table(frontier: pl.DataFrame, ladder: Ladder) -> None:
    values = frontier.to_numpy()
    finite = np.isfinite(values[:, 1:]).all() and not frontier.null_count().to_numpy().any()
    _require(bool(finite), "frontier.parquet: holds what is not a number")
    if ladder.prices.shape[1] > 1:  # along the first budget, the others held: no rungs of the ladder
        return
    same = len(frontier) == len(ladder.rungs) and np.array_equal(values[::-1, 0], ladder.prices[:, 0])
    _require(bool(same), "frontier.parquet: dual: not the prices of the ladder")


def _require_certificate(certificate: Certificate) -> None:
    """A certificate that does not contradict itself."""
    where = "certificate.json"
    _require(0.5 < certificate.confidence < 1, f"{where}: confidence: {certificate.confidence}")
    _require(certificate.dual >= 0, f"{where}: dual: {certificate.dual}")
    _require(bool(np.isfinite(certificate.budget)), f"{where}: budget: it is no number")
    for name in ("cost", "reward"):
        _require(bool(np.isfinite(certificate.logged.get(name, np.nan))), f"{where}: logged: no {name}")
    refused = any(reason.weight is Weight.REFUSAL for reason in certificate.reasons)
    _require(refused != certificate.is_certified, f"{where}: status: it is not what its reasons say")
    _require(certificate.is_certified or bool(certificate.reasons), f"{where}: reasons: refused without one")
    target = certificate.target_reward
    _require(target is None or bool(np.isfinite(target)), f"{where}: target_reward: it is no number")
    for each in certificate.budgets:
        _require(bool(np.isfinite(each.budget)), f"{where}: budgets: {each.name[:40]!r} is no number")
        over = each.cost.upper > each.budget * (1 + _TOLERANCE) + _TOLERANCE
        _require(not (certificate.is_certified and over), f"{where}: status: certified, and {each.name[:40]!r} is not")
    if certificate.is_certified:
        kept = certificate.cost.upper <= certificate.budget * (1 + _TOLERANCE) + _TOLERANCE
        reached = target is None or certificate.reward.lower >= target - _TOLERANCE * (1 + abs(target))
        _require(kept and reached, f"{where}: status: certified, and its bounds say otherwise")


def _require_budgets(plan: Plan) -> None:
    """Budgets of the certificate that are those of the ladder, with its figures."""
    certificate, ladder, where = plan.certificate, plan.ladder, "certificate.json: budgets"
    named = certificate.budgets
    _require(len(named) == ladder.prices.shape[1], f"{where}: not as many as the ladder has costs")
    first = named[0]
    same = _same(first.budget, certificate.budget) and _alike(first.cost, certificate.cost)
    _require(same and _same(first.dual, certificate.dual), f"{where}: the first is not the certificate's own")
    asked = [budget.name for budget in plan.record.budgets]
    _require(not asked or asked == [each.name for each in named], f"{where}: not those that were asked for")
    levels = [certificate.confidence]
    with suppress(UsageError):
        levels.append(ladder.each_confidence(certificate.confidence))
    found = [ladder.figures(plan.record.stop.place, level)[1:] for level in levels]
    for place, (each, dual) in enumerate(zip(named, ladder.duals(plan.record.stop.place), strict=True)):
        given = any(_alike(each.cost, figures[place]) for figures in found)
        _require(given and _same(each.dual, dual), f"{where}: {each.name[:40]!r} is not what the ladder gives")


def _require_figures(certificate: Certificate, ladder: Ladder, plan: Plan) -> None:
    """Figures that the ladder gives, with bounds for this budget or for all prices at once."""
    levels = {certificate.confidence}
    with suppress(UsageError):  # bounds for all prices at once are known for some confidences
        levels.add(ladder.each_confidence(certificate.confidence))
    written = (certificate.reward, certificate.cost)
    found = [ladder.figures(plan.record.stop.place, level)[:2] for level in sorted(levels)]
    for name, place, own in (("reward", 0, written[0]), ("cost", 1, written[1])):
        given = any(_alike(own, figures[place]) for figures in found)
        _require(given, f"certificate.json: {name}: not what the ladder gives at the place of the plan")


def _alike(one: Estimate, other: Estimate) -> bool:
    names = ("estimate", "lower", "upper", "standard_error")
    return one.estimator == other.estimator and all(_same(getattr(one, name), getattr(other, name)) for name in names)


def _same(one: float, other: float) -> bool:
    near = abs(one - other) <= _TOLERANCE * max(abs(one), abs(other), _TOLERANCE)
    return one == other or bool(near and np.isfinite((one, other)).all())


def _require(fits: bool, message: str) -> None:
    if not fits:
        raise PlanError(f"{message}; the plan contradicts itself: fit it again, or ask who made it")


# Whether what is remembered of a fit fits together: a report is drawn from it, one list beside the other.


def require_record(record: FitRecord, labels: tuple[str, ...]) -> None:
    """Refuse a record whose lists are not of the plan's actions and steps."""
    _require_audit(record.audit)
    if record.shares is not None:
        _require_shares(record.shares, labels)


def _require_audit(audit: Audit) -> None:
    where = "plan.json: record: audit"
    _require_listed(len(audit.actions) > 0, f"{where}: actions: there are none")
    _require_listed(
        len(audit.calibration) == len(audit.actions), f"{where}: calibration: not as many as there are actions"
    )
    _require_listed(len(audit.overlap) > 0, f"{where}: overlap: there are no steps")


def _require_shares(shares: ActionShares, labels: tuple[str, ...]) -> None:
    where = "plan.json: record: shares"
    _require_listed(shares.actions == labels, f"{where}: actions: not those of the catalogue")
    _require_listed(len(shares.by_step) > 0, f"{where}: by_step: there are no steps")
    _require_listed(
        all(len(each.bins) > 0 for each in shares.by_feature), f"{where}: by_feature: a feature has no bins"
    )
    fits = all(len(each) == len(labels) for each in _by_action(shares))
    _require_listed(fits, f"{where}: probabilities: not as many as there are actions")


def _by_action(shares: ActionShares) -> Iterator[tuple[object, ...]]:
    """Every list that has an entry an action."""
    for step in shares.by_step:
        yield from (step.probabilities, step.logged)
    for feature in shares.by_feature:
        yield from (each.probabilities for each in feature.bins)
    for groups in shares.groups:
        yield from (each.probabilities for each in groups.groups)
    yield from (example.alternatives for example in shares.examples)


def _require_listed(fits: bool, message: str) -> None:
    if not fits:
        raise PlanError(message)
