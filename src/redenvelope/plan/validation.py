"""Validation: whether the parts of a plan folder are consistent. Hashes detect damage, but not contradictory content.

Types are checked when parts are decoded. Here the parts are checked against each other, so that other code need not
handle mismatched shapes, invalid prices, or a certificate with other figures. The size limits of a plan are here too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
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
from redenvelope.planning.leaf_values import LEAF_VALUES
from redenvelope.planning.temperature import is_temperature
from redenvelope.policies.policy import Constraint, Memory

MOST_ACTIONS = 10_000
MOST_STEPS = 10_000
MOST_RUNGS = 4_096
"""`fit` never writes a plan beyond these limits; a larger one is refused before its arrays are allocated."""

METHODS = frozenset({"planned", "learned", "bandit"})

Schema = Mapping[str, type[pl.DataType]]
"""Columns of a table, in order, and their types."""

_FIGURES = ("cost", "reward", "cost_lower", "cost_upper", "reward_lower", "reward_upper", "model_cost", "model_reward")
FRONTIER: Schema = {"budget": pl.String, **dict.fromkeys(("dual", *_FIGURES), pl.Float64)}
"""The columns of a frontier."""

# Figures are stored with all digits, but recomputed ones may differ in the last.
_TOLERANCE = 1e-6

# A bound for rewards, costs, their squares and cubes: products of three such numbers are still finite.
_LARGEST_SUM = 1e100


def require_frontier(name: str, columns: Schema, found: Mapping[str, Any], rows: int) -> None:
    """Refuse a frontier with other columns or too many rows."""
    if tuple(found.items()) != tuple(columns.items()):
        wanted = ", ".join(f"{column} ({kind.__name__})" for column, kind in columns.items())
        raise PlanError(f"{name} must have the columns {wanted}")
    _require(rows <= MOST_RUNGS, f"{name} has {rows:,} rows; at most {MOST_RUNGS:,} are allowed")


def require_policy(policy: DeployedPolicy) -> None:
    """Refuse a policy whose parts are not of the same campaign."""
    wanted, encoder, labels = policy.specification, policy.encoder, policy.catalogue.labels
    where = "plan.json: policy"
    _require(wanted.method in METHODS, f"{where}: there is no method {wanted.method[:40]!r}")
    _require(1 <= wanted.steps <= MOST_STEPS, f"{where}: {wanted.steps:,} steps; 1 to {MOST_STEPS:,} are allowed")
    _require(1 <= wanted.horizon <= wanted.steps, f"{where}: a horizon of {wanted.horizon:,} in {wanted.steps} steps")
    _require(is_temperature(wanted.temperature), f"{where}: the temperature is {wanted.temperature}")
    _require(0 <= wanted.explore <= 1, f"{where}: explore is a share from 0 to 1, not {wanted.explore}")
    _require(0 <= policy.holdout < 1, f"plan.json: holdout is a share from 0 to below 1, not {policy.holdout}")
    _require_new(policy)
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
    for member in policy.members:
        _require_leaf_values(member)
    steps = policy.source.steps
    _require(steps in (None, wanted.steps), f"{where}: values of {steps} steps were learned, not of {wanted.steps}")


def _require_new(policy: DeployedPolicy) -> None:
    """Refuse new actions that are known, given to everybody, or charged nothing that a number can say."""
    known, budgets, taken = policy.catalogue, policy.pricing.budgets, policy.catalogue.labels
    for each in policy.new:
        where = f"plan.json: new: {each.label[:40]!r}"
        fits = not known.numeric or _is_number(each.label)
        _require(fits and places_of((each.label,), taken, known.numeric) == [None], f"{where}: not new")
        taken = (*taken, each.label)
        lists = (each.charges, each.dearest, each.added)
        _require(0 <= each.like < len(known) == len(each.mixture), f"{where}: like no action of the plan")
        _require(bool(np.isfinite(each.mixture).all()), f"{where}: its mixture is no number")
        _require(all(len(amounts) == budgets for amounts in lists), f"{where}: not as many charges as budgets")
        sound = all(0 <= amount < _LARGEST_SUM for amounts in lists for amount in amounts)
        _require(sound and 0 < each.share < 1, f"{where}: its charges or its share")
    _require(sum(each.share for each in policy.new) < 1, "plan.json: new: they leave nothing to the plan")


def _require_leaf_values(policy: DeployedPolicy) -> None:
    """Refuse values to go of another campaign: other steps, budgets, states or rules."""
    wanted, values = policy.specification, getattr(policy.source, LEAF_VALUES, None)
    where = "plan.json: leaf_values"
    if values is None:
        _require(not wanted.leaf_values, f"{where}: decisions count them, and there are none")
        return
    layout, actions, budgets = policy.source.shape
    further = 0
    if values.masked:
        rules = policy.constraint
        further = actions if rules is None or not rules.remembers else actions + rules.told(_nothing(rules)).shape[1]
    known = replace(layout, dynamic_binaries=layout.dynamic_binaries + further)
    _require(values.layout == known, f"{where}: they are of other states, or of other rules")
    stages, components, _ = values.least.shape
    _require(stages == wanted.steps - 1, f"{where}: they are of {stages + 1} steps, not of {wanted.steps}")
    _require(len(values.grid.units) == budgets, f"{where}: prices of {len(values.grid.units)} budgets, not {budgets}")
    bonus = wanted.leaf_values and wanted.temperature > 0
    _require(components == 1 + budgets + bonus, f"{where}: {components} components for {budgets} budgets")


def _nothing(rules: Constraint) -> Memory:
    """The memory of a user to whom nothing has happened yet, as rules keep it, [1, columns]."""
    return np.zeros((1, rules.remembers), np.int16)


def _require_charges(policy: DeployedPolicy) -> None:
    """Refuse charges that do not match the encoder's states."""
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
    """Whether a condition uses only columns of the states."""
    features = {number.name for number in encoder.numbers} | {category.name for category in encoder.categories}
    return columns_of(condition) <= features | {STEP}


def _require_rules(policy: DeployedPolicy) -> None:
    """Refuse rules about actions or features that the plan does not have."""
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
    """Refuse a plan whose certificate is not about this policy at this place on this ladder."""
    ladder, certificate, stop = plan.ladder, plan.certificate, plan.record.stop
    _require_ladder(ladder)
    _require(ladder.prices.shape[1] == plan.policy.pricing.budgets, "ladder.json: as many prices a rung as costs")
    rung, share = stop.place.rung, stop.place.share
    last = len(ladder.rungs) - 1
    inside = 0 <= rung <= last and 0 <= share <= 1 and (rung < last or not share)
    _require(bool(inside), "plan.json: record: stop: the place is not on the ladder")
    width = len(ladder.rungs[0].mean)
    known = all(
        len(one.prices) + 1 == len(one.mean) == width and np.isfinite(one.mean).all() for one in plan.record.priced
    )
    _require(known, "plan.json: record: priced: the plans are not of the plan's budgets")
    if (mixture := plan.record.untargeted) is not None:
        paired = len(mixture.actions) == len(mixture.shares) > 0
        _require(paired, "plan.json: record: untargeted: not as many shares as actions")
    if plan.record.made_with is not None:
        try:
            _require(len(plan.record.made_with.pairs) > 0, "plan.json: record: made_with: nobody")
        except ValueError:
            _require(False, "plan.json: record: made_with: not a list of users")
    if (sums := plan.record.sums) is not None:
        plans, believed = len(plan.record.priced), np.array([one.believed for one in plan.record.priced])
        entries = (plans * (plans + 1) // 2, plans * (plans + 1) * (plans + 2) // 6)
        fits = [np.shape(part) == (width, size) for part, size in zip((sums.squares, sums.cubes), entries, strict=True)]
        sound = believed.shape == (plans, width) and np.isfinite(believed).all()
        _require(all(fits) and bool(sound), "plan.json: record: sums: not of the plans that are mixed")
    _require(ladder.pricing(stop.place) == plan.policy.pricing, "plan.json: pricing: not that of the ladder's place")
    _require_certificate(certificate)
    counted = (certificate.users, certificate.clusters) == (ladder.people, ladder.clusters)
    _require(counted, "certificate.json: users: not those of the ladder")
    members = len(plan.policy.members)
    _require(certificate.members == members, "certificate.json: members: not those of the policy")
    _require(certificate.most_per_user == ladder.most_per_user, "certificate.json: most_per_user: not the ladder's")
    _require(certificate.method == plan.policy.specification.method, "certificate.json: method: not the policy's")
    _require_figures(plan)
    _require_table(plan)
    aside = [each.set_aside for each in certificate.budgets]
    new = zip(aside, plan.policy.set_aside.tolist(), strict=True)
    _require(all(map(_same, *zip(*new, strict=True))), "certificate.json: set_aside: not for the plan's new actions")
    if certificate.policy_sha256 not in (policy_sha256(plan.policy), policy_sha256(plan.policy, format_5=True)):
        raise PlanError("the certificate is not this policy's; fit it again")
    require_record(plan.record, plan.catalogue.labels)


def _require_ladder(ladder: Ladder) -> None:
    """Refuse moments that are not finite or not possible, and prices that do not fall."""
    _require(len(ladder.rungs) <= MOST_RUNGS, f"ladder.json: {len(ladder.rungs):,} rungs, at most {MOST_RUNGS:,}")
    for name in ("most_per_user", "largest"):
        value = getattr(ladder, name)
        _require(value is None or 0 < value < _LARGEST_SUM, f"ladder.json: {name} must be above 0")
    _require(ladder.clustered == 0 or ladder.clustered >= ladder.users, "ladder.json: fewer users than clusters")
    for place, rung in enumerate(ladder.rungs):
        sums = np.concatenate([rung.mean, rung.square, rung.cube, *map(np.asarray, rung.products)])
        _require(bool((np.abs(sums) < _LARGEST_SUM).all()), f"ladder.json: rung {place} holds what no users add up to")
        _require(min(rung.square) >= 0, f"ladder.json: rung {place}: a square below 0")
        _require(bool((np.asarray(rung.prices) >= 0).all()), f"ladder.json: rung {place}: a price below 0")
        ladder.pricing(Place(place))  # refuses invalid prices and shares
    for place, (rung, following) in enumerate(pairwise(ladder.rungs)):
        # The Cauchy–Schwarz inequality, up to rounding of the sums.
        most = np.sqrt(np.multiply(rung.square, following.square)) + _TOLERANCE * np.add(rung.square, following.square)
        _require(
            bool((np.abs(rung.products[0]) <= most).all()), f"ladder.json: rung {place}: products that none can be"
        )
    prices = ladder.prices
    # Along several budgets, the price of one may rise while that of another falls.
    falls = prices.shape[1] > 1 or (prices[1:] <= prices[:-1]).all()
    _require(bool(falls), "ladder.json: prices must fall from rung to rung")
    for together, each in ladder.joint:
        _require(0.5 < together <= each < 1, "ladder.json: joint: confidences of all bounds and of each")


def _require_table(plan: Plan) -> None:
    where, frontier = "frontier.parquet", plan.frontier
    values = frontier.drop("budget").to_numpy()
    finite = np.isfinite(values[:, 1:]).all() and not frontier.null_count().to_numpy().any()
    _require(bool(finite), f"{where}: holds what is not a number")
    names = [each.name for each in plan.certificate.budgets]
    _require(set(frontier["budget"]) <= set(names), f"{where}: budget: not those of the certificate")
    if len(names) == 1:  # with several budgets, the points of a frontier are not rungs of the ladder
        same = np.array_equal(values[::-1, 0], plan.ladder.prices[:, 0])
        _require(same, f"{where}: dual: not the prices of the ladder")


def _require_certificate(certificate: Certificate) -> None:
    """Refuse a certificate that contradicts itself."""
    where = "certificate.json"
    _require(0.5 < certificate.confidence < 1, f"{where}: confidence: {certificate.confidence}")
    _require(bool(np.isfinite(certificate.logged_reward)), f"{where}: logged: no reward")
    refused = any(reason.weight is Weight.REFUSAL for reason in certificate.reasons)
    _require(refused != certificate.is_certified, f"{where}: status: it is not what its reasons say")
    _require(certificate.is_certified or bool(certificate.reasons), f"{where}: reasons: refused without one")
    for each in certificate.budgets:
        name = f"{where}: budgets: {each.name[:40]!r}"
        _require(bool(np.isfinite((each.budget, each.logged)).all()), f"{name}: budget or logged is not a number")
        over = each.cost.upper > each.limit + (each.budget + 1) * _TOLERANCE
        _require(not (certificate.is_certified and over), f"{name}: certified, and its bound says otherwise")
    target = certificate.target_reward
    _require(target is None or bool(np.isfinite(target)), f"{where}: target_reward: it is not a number")
    reached = target is None or certificate.reward.lower >= target - _TOLERANCE * (1 + abs(target))
    _require(reached or not certificate.is_certified, f"{where}: status: certified, and its bounds say otherwise")


def _require_figures(plan: Plan) -> None:
    """Refuse figures other than the ladder's at the plan's place, with bounds for these budgets or for all at once."""
    certificate, ladder, place = plan.certificate, plan.ladder, plan.record.stop.place
    levels = {certificate.confidence}
    with suppress(UsageError):  # joint bounds are known only for some confidences
        levels.add(ladder.each_confidence(certificate.confidence))
    given = [ladder.figures(place, level) for level in sorted(levels)]
    written = {"reward": certificate.reward, **{each.name: each.cost for each in certificate.budgets}}
    where = "certificate.json: budgets"
    alike = len(written) == 1 + len(certificate.budgets) == len(given[0])
    _require(alike, f"{where}: not as many as the ladder has costs, or two alike")
    for outcome, (name, own) in enumerate(written.items()):
        same = any(_alike(own, figures[outcome]) for figures in given)
        _require(same, f"certificate.json: {name[:40]!r} is not what the ladder gives at the place of the plan")
    # Plans of earlier versions store the price of their rung, even if it is infinite and few users follow it.
    duals = zip(certificate.budgets, ladder.duals(place), ladder.rungs[place.rung].prices, strict=True)
    same = all(_same(each.dual, dual) or _same(each.dual, rung) for each, dual, rung in duals)
    _require(same, f"{where}: dual: not the prices of the plan")
    asked = [budget.name for budget in plan.record.budgets]
    _require(not asked or asked == list(written)[1:], f"{where}: not those that were asked for")


def _alike(one: Estimate, other: Estimate) -> bool:
    names = ("estimate", "lower", "upper", "standard_error")
    return one.estimator == other.estimator and all(_same(getattr(one, name), getattr(other, name)) for name in names)


def _same(one: float, other: float) -> bool:
    near = abs(one - other) <= _TOLERANCE * max(abs(one), abs(other), _TOLERANCE)
    return one == other or bool(near and np.isfinite((one, other)).all())


def _require(fits: bool, message: str) -> None:
    if not fits:
        raise PlanError(f"{message}; the plan contradicts itself: fit it again, or ask who made it")


def require_record(record: FitRecord, labels: tuple[str, ...]) -> None:
    """Refuse a record whose lists do not match the plan's actions and steps."""
    _require_audit(record.audit)
    if record.shares is not None:
        _require_shares(record.shares, labels)


def _require_audit(audit: Audit) -> None:
    where = "plan.json: record: audit"
    _require(len(audit.actions) > 0, f"{where}: actions: there are none")
    _require(len(audit.calibration) == len(audit.actions), f"{where}: calibration: not as many as there are actions")
    _require(len(audit.overlap) > 0, f"{where}: overlap: there are no steps")


def _require_shares(shares: ActionShares, labels: tuple[str, ...]) -> None:
    where = "plan.json: record: shares"
    _require(shares.actions == labels, f"{where}: actions: not those of the catalogue")
    _require(len(shares.by_step) > 0, f"{where}: by_step: there are no steps")
    _require(all(len(each.bins) > 0 for each in shares.by_feature), f"{where}: by_feature: a feature has no bins")
    fits = all(len(each) == len(labels) for each in _by_action(shares))
    _require(fits, f"{where}: probabilities: not as many as there are actions")


def _by_action(shares: ActionShares) -> Iterator[tuple[object, ...]]:
    """Yield every list that has one entry per action."""
    for step in shares.by_step:
        yield from (step.probabilities, step.logged)
    for feature in shares.by_feature:
        yield from (each.probabilities for each in feature.bins)
    for groups in shares.groups:
        yield from (each.probabilities for each in groups.groups)
    yield from (example.alternatives for example in shares.examples)
