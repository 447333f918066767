"""The comparison and the record of a fit: policies side by side on the check users, and what the report shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from scipy.special import ndtri

from redenvelope.arrays import FloatArray, IntArray
from redenvelope.audit.audit import Audit
from redenvelope.dual.column_generation import Mixed, best_mixture, budget_units
from redenvelope.dual.frontier import Frontier, falling
from redenvelope.dual.oracle import Priced
from redenvelope.dual.paths import Paths
from redenvelope.engine.engine import LocalEngine
from redenvelope.evaluation.data import Extent
from redenvelope.evaluation.estimators import Estimator
from redenvelope.evaluation.evaluate import Evaluation, evaluate_partitions
from redenvelope.evaluation.influence import person_keys
from redenvelope.fitting.certify import Certification
from redenvelope.fitting.encoded import EncodedLog, encode, sampled
from redenvelope.fitting.explain import who_gets_what
from redenvelope.fitting.holdout import Check, are_impossible, encoded_data, influence_of, logged_by_user
from redenvelope.fitting.learn import UnpricedPolicy
from redenvelope.fitting.objective import Objective
from redenvelope.fitting.price_grid import next_effective_share
from redenvelope.fitting.settings import FitSettings
from redenvelope.log.columns import ColumnMap
from redenvelope.log.log import Log
from redenvelope.plan.certificate import Certificate
from redenvelope.plan.fixed_sequence_test import climb
from redenvelope.plan.ladder import Ladder, MixableSums, Place
from redenvelope.plan.policy import DeployedPolicy
from redenvelope.plan.record import (
    ActionShares,
    ComparedPolicy,
    ExplorationRecord,
    FitRecord,
    FoldSize,
    PlannerRecord,
    PricedPlan,
    Source,
    Untargeted,
)
from redenvelope.plan.reprice import frontier_table, path_frontiers
from redenvelope.policies.action_values import ActionValues, Valuer
from redenvelope.policies.rules import RuleConstraint
from redenvelope.randomness import member_of


@dataclass(frozen=True, eq=False)
class Comparison:
    """The certified plan compared with other policies on the check users."""

    policies: tuple[ComparedPolicy, ...]
    """Logged, uniform, the best untargeted mixture, the bandit unless the plan is one, and the plan."""
    untargeted: Untargeted
    shares: ActionShares
    effective_share: float
    """Effective sample size of the log that the plan would produce, as a share of its users."""
    frontier: pl.DataFrame | None
    """With several budgets, the frontier along each; for a single budget, it is read off the ladder."""
    priced: tuple[PricedPlan, ...]
    """With several budgets, the plans that rungs mix."""
    sums: MixableSums | None
    """Moments of these plans on the check users."""


def compare_policies(
    check: Check,
    encoded: EncodedLog,
    certified: Certification,
    paths: Paths | None,
    names: tuple[str, ...],
    fixed: FixedActions,
) -> Comparison:
    """Compare the certified plan with others on the check users, `encoded`; `names` are those of the budgets."""
    policy, place, certificate = certified.policy, certified.stop.place, certified.certificate
    plan = check.added("plan", place)
    # The mixture is not corrected for the past, so the plan compared with it must not be either.
    uncorrected = plan if check.correction is None else replace(check, correction=None).added("plan", place)
    factor = check.learning_factor("plan", place)
    untargeted, mixture = fixed.beside(uncorrected, check, encoded, certificate, factor)
    priced, sums = priced_plans(check, paths)
    frontier = None
    if sums is not None:
        limits = np.array([each.budget for each in certificate.budgets])
        frontier = path_frontiers(priced, sums, certified.ladder.users, limits, names, certificate.confidence)
    return Comparison(
        policies=compared_policies(check, plan, mixture, certificate),
        untargeted=untargeted,
        shares=who_gets_what(check.shown, policy, place),
        effective_share=next_effective_share(check.shown, policy, place),
        frontier=frontier,
        priced=priced,
        sums=sums,
    )


def compared_policies(
    check: Check, plan: FloatArray, untargeted: FloatArray, certificate: Certificate
) -> tuple[ComparedPolicy, ...]:
    """Compare the plan with the log, uniform choice, the untargeted mixture, and the bandit on its own ladder for the
    same budgets. `plan` and `untargeted` are influences, [outcomes, users]."""
    places = {"uniform": Place(0)}
    if "bandit" in check.candidates:
        limits = [own.budget for own in certificate.budgets]
        places["bandit"] = climb(check.ladder("bandit"), limits, certificate.confidence).place
    found = {name: check.added(name, place) for name, place in places.items()}
    added = {"logged": logged_by_user(check.log), "uniform": found.pop("uniform"), "untargeted": untargeted} | found
    # An estimate outside of what the log makes possible, such as a negative cost, is noise and not worth showing.
    noise = {name for name, place in places.items() if check.shares(name, place) @ check.impossible}
    if are_impossible(untargeted.mean(axis=1, keepdims=True), check.log)[:, 1:].any():
        noise.add("untargeted")
    added = {name: users for name, users in added.items() if name not in noise}
    return compare(added | {"plan": plan}, certificate.confidence)


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
    learned, valuer = unpriced.learned, certified.policy.members[0].valuer
    return FitRecord(
        audit=audit,
        folds=folds,
        seed=settings.seed,
        parts=settings.parts,
        confidence=settings.confidence,
        fidelity=unpriced.fidelity,
        planner=PlannerRecord(
            tuple(map(unpriced.policy.catalogue.named, valuer.notes)), valuer.depth, unpriced.policies.lookahead
        ),
        stop=certified.stop,
        comparison=comparison.policies,
        untargeted=comparison.untargeted,
        shares=comparison.shares,
        model=learned.neural.as_dict(),
        settings=settings.as_dict(),
        history="" if learned.history is None else learned.history.reason,
        targeting="" if learned.neural.targeting is None else learned.neural.targeting.reason,
        sample=sample,
        objections=certified.objections,
        exploration=ExplorationRecord(unpriced.terms.explore, exploration_loss, comparison.effective_share),
        source=None if columns == ColumnMap() else Source.of("", "", columns),
        budgets=objective.budgets,
        priced=comparison.priced,
        sums=comparison.sums,
    )


# One table: the plan, what was logged, uniform choice and the bandit, on the same users.


def compare(added: Mapping[str, FloatArray], confidence: float) -> tuple[ComparedPolicy, ...]:
    """Compare policies by their users' influences, [outcomes, users], with the first as the reference."""
    reference = next(iter(added.values()))
    reach = float(ndtri((1 + confidence) / 2))
    return tuple(_compared(name, users, users - reference, reach) for name, users in added.items())


def _compared(name: str, users: FloatArray, difference: FloatArray, reach: float) -> ComparedPolicy:
    (mean, error), (gap, gap_error) = _means(users), _means(difference)
    lower, upper = gap - reach * gap_error, gap + reach * gap_error
    figures = (mean[1], error[1], mean[0], error[0], gap[1], lower[1], upper[1], gap[0], lower[0], upper[0])
    return ComparedPolicy(name, *(float(figure) for figure in figures))


def _means(users: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Means and standard errors over users, [outcomes, users] -> [outcomes] each. For a difference of policies they are
    paired: what a user has in common under both cancels."""
    return users.mean(axis=1), users.std(axis=1, ddof=1) / np.sqrt(users.shape[1])


# The value of targeting: the plan against the best mixture, at the same cost, that ignores the state.
#
# Each user draws one action for the whole campaign. The best mixture at given costs has at most one action more than
# there are budgets. It is chosen on training users, and evaluated on check users.

_FIXED_NUMBERS = 2**20
"""Limit on rows times actions of training users that are evaluated."""
_ROUNDING = 1e-9
_TOGETHER = 8
"""Number of fixed actions evaluated in one pass."""
_FINE = 1e4
"""Penalty for exceeding the plan's cost, in ranges of the reward: large enough to prevent it where possible."""


@dataclass(frozen=True, eq=False)
class FixedActions:
    """The policies that give one action to everybody, or the cheapest eligible action where it is not eligible."""

    policy: DeployedPolicy
    """Predicts the outcomes of a step, for the baseline of the estimates."""
    later: FloatArray
    """Predicted outcomes of all later steps, by number of steps left (this one included), [members, outcomes, 1 +
    steps, actions]."""
    outcomes: FloatArray
    """Estimated mean reward and costs per user of each action, on each member's training users, [members, outcomes,
    actions]."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the actions, [actions]."""
        return self.policy.catalogue.labels

    def beside(
        self, plan: FloatArray, check: Check, encoded: EncodedLog, certificate: Certificate, factor: FloatArray
    ) -> tuple[Untargeted, FloatArray]:
        """The best mixture at a plan's cost, and each check user's influence on it, [outcomes, users]; `plan` is the
        plan's, scaled by a `factor` [outcomes] for what the estimator learned. The same factor scales the mixture's,
        so that what both have in common cancels.

        Shares are chosen on other users, so the mixture's cost differs a little from the plan's. That difference is
        valued at the price at which the mixture trades cost for reward, and subtracted from the difference in reward.
        """
        costs = np.array([each.cost.estimate for each in certificate.budgets])
        mixtures = [_mixed_actions(own, costs) for own in self.outcomes]
        by_member = np.array([mixed.shares for mixed in mixtures])
        used = np.flatnonzero(by_member.any(axis=0))
        evaluation = self.evaluated(encoded, used, check.evaluation.estimator)
        found = influence_of(evaluation, check.log, factor=factor[:, None])
        member = member_of(person_keys(check.log.keys), len(mixtures))
        mixture = np.zeros_like(plan)
        for number, shares in enumerate(by_member):
            mixture += (found @ shares[used]) * (member == number)
        # If no mixture is as cheap as the plan, there is no such price.
        prices = np.mean([np.where(mixed.excess > 1e-6, 0.0, mixed.duals) for mixed in mixtures], axis=0)
        gap = plan - mixture
        (adds,), (error,) = _means((gap[0] - prices @ gap[1:])[None])
        # If the plan is the mixture itself, they differ by rounding, which is not a gain from targeting.
        reach = float(ndtri((1 + certificate.confidence) / 2)) * float(error) + _ROUNDING * abs(float(plan[0].mean()))
        named = tuple(self.labels[action] for action in used)
        shares = tuple(float(share) for share in by_member.mean(axis=0)[used])
        return Untargeted(named, shares, float(adds), float(adds) - reach, float(adds) + reach), mixture

    def evaluated(self, encoded: EncodedLog, actions: IntArray, estimator: Estimator) -> Evaluation:
        """Evaluate each of some actions [policies], given to everybody."""
        extent = Extent.of(encoded.log)
        data = [encoded_data(part, [self._decided(part, actions)], extent) for part in encoded.batches()]
        return evaluate_partitions(data, [estimator], engine=LocalEngine())[estimator.name]

    def _decided(self, encoded: EncodedLog, actions: IntArray) -> ActionValues:
        """Decisions and baselines, [rows, policies, actions]: the model's for this step plus means for later ones."""
        given = given_actions(encoded, self.policy.constraint, actions)
        probabilities = (given[:, :, None] == np.arange(len(self.labels))).astype(np.float32)
        now = self.policy.outcomes(encoded.states, encoded.row_keys)
        member = member_of(encoded.row_keys, len(self.later))
        later = np.moveaxis(self.later[member, :, encoded.steps_left], 0, 1)
        to_go = now[:, :, None, :] + later[:, :, actions, None]
        return ActionValues(None, probabilities, to_go.astype(np.float32))


def _mixed_actions(outcomes: FloatArray, costs: FloatArray) -> Mixed:
    """The mixture of fixed actions [outcomes, actions] with the greatest reward at these costs, [budgets]."""
    plans = Priced(np.zeros((outcomes.shape[1], len(costs))), outcomes)
    fine = _FINE * (float(np.ptp(plans.rewards)) or 1.0)
    return best_mixture(plans, costs, budget_units(plans, costs), fine)


def given_actions(encoded: EncodedLog, constraint: RuleConstraint | None, actions: IntArray) -> IntArray:
    """The action of each row under each fixed action, [rows, policies]."""
    eligible = encoded.eligible(constraint)
    if eligible is None:
        return np.broadcast_to(actions, (len(encoded.log), len(actions)))
    return np.where(eligible[:, actions], actions, eligible.argmax(axis=1)[:, None])


def fixed_actions(trained: Sequence[Log], policy: DeployedPolicy, estimator: Estimator, seed: int) -> FixedActions:
    """Estimate every fixed action on the training users of each member of a policy."""
    pairs = zip(trained, policy.members, strict=True)
    each = [_fixed_actions(train, member, estimator, seed) for train, member in pairs]
    later, outcomes = (np.concatenate([getattr(own, name) for own in each]) for name in ("later", "outcomes"))
    return FixedActions(policy, later, outcomes)


def _fixed_actions(train: Log, policy: DeployedPolicy, estimator: Estimator, seed: int) -> FixedActions:
    steps, labels = policy.specification.steps, policy.catalogue.labels
    users = max(1_000, _FIXED_NUMBERS // (steps * len(labels)))
    some = train.select(sampled(train, users, "untargeted", seed))
    encoded = encode(some, policy.encoder, steps, policy.constraint)
    everything = np.arange(len(labels))
    later = _later(encoded, policy.valuer, given_actions(encoded, policy.constraint, everything), steps)
    fixed = FixedActions(policy, later[None], np.empty(0))
    parts = np.array_split(everything, -(-len(labels) // _TOGETHER))
    means = [fixed.evaluated(encoded, part, estimator).value for part in parts]
    return replace(fixed, outcomes=np.concatenate(means, axis=1)[None])


def _later(encoded: EncodedLog, valuer: Valuer, given: IntArray, steps: int) -> FloatArray:
    """Mean predicted outcomes of all later steps per user, by number of steps left, if each action is given to
    everybody in the logged states, [outcomes, 1 + steps, actions]."""
    predicted = np.take_along_axis(valuer.outcomes(encoded.states), given[None], axis=2)
    lefts = [encoded.steps_left == left for left in range(1 + steps)]
    sums = np.stack([predicted[:, own].sum(axis=1) for own in lefts], axis=1)
    rows = np.array([own.sum() for own in lefts])
    before = np.concatenate([np.zeros_like(sums[:, :1]), np.cumsum(sums, axis=1)[:, :-1]], axis=1)
    return np.asarray(before / np.maximum(rows, 1)[None, :, None])


# The frontier: what more or less of a budget buys, estimated on the check users.


def ladder_frontier(ladder: Ladder, model: Frontier, budget: str, confidence: float) -> pl.DataFrame:
    """The frontier of one budget, by rising price: reward and cost of every rung with two-sided bounds, and as
    predicted.

    Costs and rewards must fall with the price, so they are projected onto falling sequences. Two plans can always be
    mixed, so rewards are raised to their concave envelope.
    """
    upward = slice(None, None, -1)  # prices fall along a ladder
    lower, upper = (bound[:, upward] for bound in ladder.bounds((1 + confidence) / 2))
    means, prices = ladder.means[:, upward], ladder.prices[upward, 0]
    errors = np.array([rung.square for rung in ladder.rungs]).T[:, upward] ** 0.5
    rewards, costs = (falling(means[outcome], errors[outcome]) for outcome in (0, 1))
    corners = (curve := Frontier(prices, costs, rewards)).envelope
    concave = np.interp(costs, curve.costs[corners], curve.rewards[corners])
    return frontier_table(budget, prices, (concave, costs), lower, upper, (model.rewards[upward], model.costs[upward]))


def priced_plans(check: Check, paths: Paths | None) -> tuple[tuple[PricedPlan, ...], MixableSums | None]:
    """The mixed plans, with their estimates on the check users and their joint moments; empty with one budget."""
    if paths is None:
        return (), None
    places = check.places("plan")
    added = check.influence[:, :, places.start : places.stop]
    columns = (paths.plans.prices, added.mean(axis=1).T, paths.plans.outcomes.T)
    rows = zip(*(column.tolist() for column in columns), check.reasons("plan"), strict=True)
    priced = tuple(PricedPlan(*map(tuple, row)) for row in rows)
    return priced, MixableSums.of(added)
