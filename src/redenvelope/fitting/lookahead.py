"""Lookahead: the depth of a plan's trees, and whether they have values to go at their leaves, chosen on tune users.

Candidates are trees of one step and of two with values to go, and trees without them. Each is rolled out in the learned
model from the first states of pilot users, at a few prices. The cheapest to compute is taken, unless it measurably
loses reward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from redenvelope.arrays import FloatArray
from redenvelope.fitting.encoded import EncodedLog, encode
from redenvelope.fitting.price_grid import temperature_for
from redenvelope.fitting.settings import FitSettings
from redenvelope.learning.values_to_go import COLD, KnownStates, ValueLearner, can_learn, told_columns
from redenvelope.log.log import Log
from redenvelope.plan.policy import DeployedPolicy, ModelSource, PolicySpecification
from redenvelope.plan.record import LookaheadRecord
from redenvelope.planning.leaf_values import LeafValues
from redenvelope.planning.planner import ModelPrice, TreePlanner
from redenvelope.planning.tree import MODERATE_TREE, fit_depth
from redenvelope.prices import outcome_weights
from redenvelope.randomness import fraction

_LARGEST_LOSS = 0.003
"""Share of the gain that a candidate may lose against the best: about the precision with 500 pilot users."""
_PRICES = (0.25, 0.75, 2.0, 1e3)
"""Prices at which candidates are compared, in units of the price above which little is bought; the last buys none."""


ALONE = "alone"
"""The candidate without values to go; if it is chosen, trees are as deep as a moderate size allows."""


def value_learner(policy: DeployedPolicy, train: Log, settings: FitSettings) -> ValueLearner | None:
    """The learner of values to go, on states of training users; None if there is nothing to learn.

    `policy` looks one step ahead and supplies the model, the rules and the exploration share.
    """
    planner, steps = _planner(policy), policy.specification.steps
    if not can_learn(planner, settings.values):
        return None
    # Twice as many users as states per step, because users may join late or leave.
    wanted = 2 * settings.values.sampled(steps) / len(train.users)
    some = train.select(fraction(train.keys, "values to go", settings.seed) < wanted)
    encoded = encode(some, policy.encoder, steps, policy.constraint)
    logged = KnownStates(encoded.states, encoded.steps_left, encoded.eligibility)
    return ValueLearner.prepare(planner, logged, policy.encoder.layout, settings.values, settings.seed)


def planned_policy(
    policy: DeployedPolicy,
    learner: ValueLearner | None,
    pilot_users: EncodedLog,
    settings: FitSettings,
    budgets: FloatArray | None,
) -> tuple[DeployedPolicy, LookaheadRecord | None]:
    """The policy that plans ahead, from one that looks one step ahead at temperature 0, and a record of the choice."""
    actions, steps = len(policy.catalogue), policy.specification.steps
    alone = _with(policy, horizon=min(settings.horizon or fit_depth(actions, steps, MODERATE_TREE), steps))
    horizons = [horizon for horizon in (1, 2) if horizon == 1 or actions**horizon <= MODERATE_TREE]
    if settings.horizon is not None:
        horizons = [settings.horizon]
    # A tree of two steps is small; if it reaches the end of the campaign, it needs no values to go.
    to_the_end = steps <= horizons[-1]
    if learner is None or not settings.leaf_values or to_the_end:
        warm = at_temperature(alone, temperature_for(alone, pilot_users, settings, budgets))
        return with_baseline(warm, learner), None
    first = _with_values(at_temperature(policy, COLD), learner.first)
    warm = at_temperature(policy, temperature_for(first, pilot_users, settings, budgets))
    ahead = _with_values(warm, learner.optimal(_planner(warm)))
    candidates = {f"{horizon} with values to go": _with(ahead, horizon=horizon) for horizon in horizons}
    planners = {name: _planner(each) for name, each in candidates.items()}
    planners[ALONE] = replace(planners[next(reversed(planners))], leaf_values=None)
    record = compare_lookahead(planners, pilot_users, learner)
    if record.chosen == ALONE:
        return with_baseline(at_temperature(alone, warm.specification.temperature), learner), record
    return candidates[record.chosen], record


def planned_like(policy: DeployedPolicy, learner: ValueLearner | None, wanted: PolicySpecification) -> DeployedPolicy:
    """Give a policy that looks one step ahead the lookahead of another."""
    warm = replace(policy, specification=wanted)
    if not wanted.leaf_values or learner is None:
        return with_baseline(warm, learner)
    return _with_values(warm, learner.optimal(_planner(_with(warm, leaf_values=False))))


def compare_lookahead(
    planners: Mapping[str, TreePlanner], pilot_users: EncodedLog, learner: ValueLearner
) -> LookaheadRecord:
    """Roll out planners in the model, and choose the first that loses nothing measurable."""
    prices = np.outer(_PRICES, learner.grid.units)
    weights = outcome_weights(prices)[:, :-1]
    states, left = pilot_users.first_states()
    eligibility = pilot_users.first_eligibility()
    worth: dict[str, FloatArray] = {}
    least = 0.0
    for name, planner in planners.items():
        outcomes = ModelPrice(planner, states, left, eligibility, layout=pilot_users.layout).by_user(prices)
        worth[name] = np.einsum("op,oup->up", weights, outcomes[:, :, :-1])
        # The outcomes of the last price, which buys nothing, valued at the same prices.
        least = float(np.einsum("op,ou->up", weights, outcomes[:, :, -1]).mean())
    best = max(float(found.mean()) for found in worth.values())
    gain = max(best - least, 1e-12)
    loss = {name: (best - float(found.mean())) / gain for name, found in worth.items()}
    chosen = next(name for name, own in loss.items() if own <= _LARGEST_LOSS)
    return LookaheadRecord(chosen, loss, _error(planners[chosen], pilot_users, prices[:-1]) / gain)


def _error(planner: TreePlanner, users: EncodedLog, prices: FloatArray) -> float:
    """Root mean square error of leaf values in the users' states, as penalised reward to go, against one step of the
    model followed by leaf values; 0 without leaf values."""
    values, rows = planner.leaf_values, np.flatnonzero(users.steps_left < planner.steps)
    if values is None or not len(rows):
        return 0.0
    states, left = users.states[rows], users.steps_left[rows]
    eligibility = None if users.eligibility is None else users.eligibility[rows]
    weights = outcome_weights(prices)
    ahead = replace(planner, horizon=1).state_values(states, left, prices, eligibility)[1:]
    columns = told_columns(states, left, eligibility, planner.constraint)
    at_once = values.of(columns, left, prices)[: len(weights)]
    return float(np.sqrt(np.square(np.einsum("op,oup->up", weights, ahead - at_once)).mean()))


def with_baseline(policy: DeployedPolicy, learner: ValueLearner | None) -> DeployedPolicy:
    """The same decisions, with values to go for doubly robust estimates if trees end before the campaign."""
    own, planner = policy.specification, _planner(policy)
    if learner is None or own.leaf_values or planner.depth >= own.steps:
        return policy
    return replace(policy, source=replace(_source(policy), leaf_values=learner.followed(planner)))


def at_temperature(policy: DeployedPolicy, temperature: float) -> DeployedPolicy:
    """The policy at another temperature."""
    return _with(policy, temperature=temperature)


def _with_values(policy: DeployedPolicy, values: LeafValues | None) -> DeployedPolicy:
    """The policy with values to go at its leaves."""
    return replace(_with(policy, leaf_values=True), source=replace(_source(policy), leaf_values=values))


def _with(policy: DeployedPolicy, **changes: Any) -> DeployedPolicy:
    """The policy with changes to its specification."""
    return replace(policy, specification=replace(policy.specification, **changes))


def _source(policy: DeployedPolicy) -> ModelSource:
    assert isinstance(policy.source, ModelSource)
    return policy.source


def _planner(policy: DeployedPolicy) -> TreePlanner:
    return _source(policy).valuer(policy.specification, policy.constraint)
