"""One evaluation of the check users: encoded and planned once; ladder, comparison, frontier and report read it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.arrays import FloatArray
from redenvelope.engine.engine import LocalEngine
from redenvelope.evaluation.clustering import by_person, person_keys
from redenvelope.evaluation.confidence import each_confidence
from redenvelope.evaluation.data import Extent, OffPolicyData, off_policy_data
from redenvelope.evaluation.diagnostics import Reason, Weight
from redenvelope.evaluation.estimators import Estimator
from redenvelope.evaluation.evaluate import Evaluation, evaluate_partitions
from redenvelope.evaluation.influence import neighbour_sums
from redenvelope.fitting.encoded import EncodedLog
from redenvelope.log.log import Log
from redenvelope.plan.ladder import Ladder, Mixtures, Place, new_ladder
from redenvelope.plan.policy import DeployedPolicy
from redenvelope.planning.continuation import Continuation
from redenvelope.policies.action_values import ActionValues, Valuer
from redenvelope.prices import checked_prices
from redenvelope.randomness import fraction


@dataclass(frozen=True, eq=False)
class CandidatePolicy:
    """A policy and the prices that it is checked at."""

    policy: DeployedPolicy
    prices: FloatArray
    """Falling, [rungs, budgets]; where rungs are mixtures, those of the plans that they mix, [plans, budgets]."""
    mixtures: Mixtures | None = None
    """The rungs, where they are mixtures."""

    def at(self, place: Place, values: NDArray[Any], axis: int = -1) -> FloatArray:
        """Values of the prices along an axis as those of the users at a place, who are drawn once each."""
        if self.mixtures is None:
            return place.mix(values, axis)
        return np.asarray(np.tensordot(values, place.mix(self.mixtures.shares, axis=0), axes=(axis, 0)))

    def rungs_of(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values of the prices, along the last axis, as those of the rungs."""
        return values if self.mixtures is None else np.asarray(values @ self.mixtures.shares.T)

    def main_prices(self) -> NDArray[np.intp]:
        """Which of the prices most users of each rung follow, [rungs]."""
        if self.mixtures is None:
            return np.arange(len(self.prices))
        return np.asarray(self.mixtures.shares.argmax(axis=1))


@dataclass(frozen=True, eq=False)
class PlannedFold:
    """What the contestants would do on the check users, at all of their prices: all that takes planning."""

    evidence: tuple[OffPolicyData, ...]
    """Batch by batch."""
    shown: NDArray[np.float32]
    """Probabilities of the first contestant at the rows of users that are shown, [rows, rungs, actions]."""


@dataclass(frozen=True, eq=False)
class DecidedRows:
    """What a policy would do at the rows of some users."""

    log: Log
    probabilities: FloatArray
    """Its prices mixed by their shares, [rows, actions]."""
    costs: FloatArray
    """Expected cost of the row's decision, [rows]."""


@dataclass(frozen=True, eq=False)
class Check:
    """What policies are estimated to earn and cost on the users of one fold."""

    log: Log
    contestants: Mapping[str, CandidatePolicy]
    evaluation: Evaluation
    """The prices of all contestants beside each other, in their order."""
    shown: Shown
    """What the first contestant does at the rows of some users."""

    @cached_property
    def influence(self) -> FloatArray:
        """What each user adds to the estimates, [outcomes, users, prices of all], as far from the mean as the
        estimator's caution asks for; a user with several episodes once."""
        added, caution = self.evaluation.influence(), self.evaluation.estimator.caution
        if caution != 1:
            means = added.mean(axis=1, keepdims=True)
            added -= means
            added *= caution
            added += means
        return by_person(added, self.log.keys)

    def ladder(self, name: str, joint: Sequence[float] = (), seed: int = 0) -> Ladder:
        """The ladder of a contestant; with bounds for all prices at once at the confidences `joint`."""
        contestant, places = self.contestants[name], self.places(name)
        added = contestant.rungs_of(self.influence[:, :, places.start : places.stop])
        reasons = [_reasons(self.evaluation, contestant.policy, place) for place in places]
        diagnostics = [_diagnostics(self.evaluation, place) for place in places]
        mixtures, main = contestant.mixtures, contestant.main_prices()
        if mixtures is not None:
            reasons = [_of_mixture(reasons, shares) for shares in mixtures.shares]
        return new_ladder(
            contestant.prices if mixtures is None else mixtures.duals,
            neighbour_sums(added),
            reasons,
            [diagnostics[place] for place in main],
            self.evaluation.estimator.name,
            each_confidence(added, person_keys(self.log.keys), joint, seed) if joint else (),
            mixtures,
        )

    def evaluated_by(self, estimator: Estimator) -> Check:
        """The same policies and users by another estimator; nothing is planned again."""
        users = self.evaluation.partitions
        found = evaluate_partitions(users.parts, [estimator], engine=users.engine)[estimator.name]
        return Check(self.log, self.contestants, found, self.shown)

    def added(self, name: str, place: Place) -> FloatArray:
        """What each user adds to the estimates of a contestant at a place of its ladder, [outcomes, users].

        A mixture is drawn once per user, so each user adds the mixture of what its prices add.
        """
        places = self.places(name)
        return self.contestants[name].at(place, self.influence[:, :, places.start : places.stop])

    def places(self, name: str) -> range:
        """Where a contestant's prices stand in the evaluation."""
        first = 0
        for other, contestant in self.contestants.items():
            last = first + len(contestant.prices)
            if other == name:
                return range(first, last)
            first = last
        raise KeyError(name)


@dataclass(frozen=True, eq=False)
class Shown:
    """Rows of some users, and the probabilities of a policy there at all prices that it was checked at."""

    encoded: EncodedLog
    probabilities: NDArray[np.float32]
    """[rows, prices, actions]"""
    contestant: CandidatePolicy

    def decided(self, policy: DeployedPolicy, place: Place) -> DecidedRows:
        """What the policy does at a place of its ladder."""
        mixed = self.contestant.at(place, self.probabilities, axis=1)
        costs = policy.valuer.outcomes(self.encoded.states)[1]
        return DecidedRows(self.encoded.log, mixed, (mixed * costs).sum(axis=1))


def check_policies(
    contestants: Mapping[str, CandidatePolicy],
    encoded: EncodedLog,
    walkers: EncodedLog,
    estimator: Estimator,
    shown_users: int,
    seed: int,
    planned: PlannedFold | None = None,
) -> Check:
    """Evaluate policies at their prices; of the first it is kept what it does at the rows of `shown_users` users.

    `walkers` are users whose first states tell what comes after trees that end early; `planned` is what was planned
    before, by the same policies for the same users.
    """
    planned = planned or planned_fold(contestants, encoded, walkers, shown_users, seed)
    evaluation = evaluate_partitions(planned.evidence, [estimator], engine=LocalEngine())[estimator.name]
    shown = encoded.select(_shown(encoded, shown_users, seed))
    first = next(iter(contestants.values()))
    return Check(encoded.log, dict(contestants), evaluation, Shown(shown, planned.shown, first))


def _shown(encoded: EncodedLog, users: int, seed: int) -> NDArray[np.bool_]:
    """The users at whose rows it is kept what a policy does, [users]."""
    return fraction(encoded.log.keys, "shown", seed) < users / len(encoded.log.users)


def planned_fold(
    contestants: Mapping[str, CandidatePolicy], encoded: EncodedLog, walkers: EncodedLog, shown_users: int, seed: int
) -> PlannedFold:
    """What policies would do on the users of a fold at all of their prices."""
    contenders = [priced_policy(each.policy, each.prices, walkers) for each in contestants.values()]
    shown, extent = _shown(encoded, shown_users, seed), Extent.of(encoded.log)
    evidence, probabilities, first_user = [], [], 0
    for batch in encoded.batches():
        values = [each.values(batch) for each in contenders]
        evidence.append(encoded_data(batch, values, extent))
        own = shown[first_user : first_user + len(batch.log.users)]
        probabilities.append(values[0].probabilities[np.repeat(own, batch.log.lengths)])
        first_user += len(own)
    return PlannedFold(tuple(evidence), np.concatenate(probabilities))


def fold_sha256(log: Log) -> str:
    """A hash of the users and what happened to them: the same fold, if and only if the hash is the same."""
    digest = hashlib.sha256("\n".join(map(str, log.users)).encode())
    further = [values for _, values in log.further]
    for column in (log.step, log.action, log.propensity, log.reward, log.cost, *further):
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()


def _reasons(evaluation: Evaluation, policy: DeployedPolicy, place: int) -> list[Reason]:
    """What speaks against the estimate at one of the prices."""
    wanted, found = policy.specification, []
    for reason in _of_costs(evaluation, place):
        message = reason.message
        if reason.rule == "thin_overlap":
            message += f"; now: --temperature {wanted.temperature:.3g} --horizon {wanted.horizon}"
        found.append(Reason(reason.rule, reason.weight, message))
    return found


def _of_costs(evaluation: Evaluation, place: int) -> Iterator[Reason]:
    """What speaks against the estimates of the costs at one of the prices, each rule once."""
    found: dict[str, Reason] = {}
    for name in evaluation.outcome_names[1:]:
        for reason in evaluation.reasons(name, place):
            # With several budgets, one that nothing counts against at these prices is no reason to doubt the others.
            if reason.rule != "no_variance" or len(evaluation.outcome_names) == 2:
                found.setdefault(reason.rule, reason)
    yield from found.values()


def _of_mixture(reasons: list[list[Reason]], shares: FloatArray) -> list[Reason]:
    """What speaks against any of the plans that are mixed, each rule once, the weightiest first."""
    found: dict[str, Reason] = {}
    for plan in np.flatnonzero(shares):
        for reason in sorted(reasons[plan], key=lambda reason: reason.weight is not Weight.REFUSAL):
            known = found.get(reason.rule)
            if known is None or (reason.weight is Weight.REFUSAL and known.weight is not Weight.REFUSAL):
                found[reason.rule] = reason
    return list(found.values())


def _diagnostics(evaluation: Evaluation, place: int) -> dict[str, Any]:
    weights = evaluation.diagnostics
    return {
        "effective_users_by_step": [float(value) for value in weights.effective_users[:, place]],
        "largest_weight_share": float(weights.largest_share[place]),
        "probability_of_unlogged_actions": float(weights.unlogged[place]),
        "share_clipped": float(weights.clipped[place]),
        "mean_weight_by_step": [float(value) for value in weights.mean_weight[:, place]],
        "propensities_estimated": bool(weights.estimated),
    }


# Policies side by side: each with its prices, and with values to go until the campaign's end.


@dataclass(frozen=True, eq=False)
class PricedPolicy:
    """A policy at some prices, as estimators see it."""

    valuer: Valuer
    prices: NDArray[np.float64]
    """[prices, budgets]"""
    continuation: Continuation | None
    """What comes after the trees; None where values reach the end."""

    def values(self, encoded: EncodedLog) -> ActionValues:
        """Values of every row, to go until the campaign's last step."""
        values = self.valuer.values(encoded.states, encoded.steps_left, self.prices, encoded.standing)
        if self.continuation is None:
            return values
        return self.continuation.extend(values, encoded.states, encoded.steps_left)


def priced_policy(policy: DeployedPolicy, prices: ArrayLike, walkers: EncodedLog) -> PricedPolicy:
    """A policy at prices [prices, budgets]; what its trees leave out is learned from some users' first states."""
    table = checked_prices(prices, policy.valuer.budgets)
    planner = policy.planner
    continuation = None
    if planner is not None and planner.depth < policy.specification.steps:
        states, left = walkers.first_states()
        features, standing = partial(_numbers, walkers.codes), walkers.first_standing()
        continuation = Continuation.fit(planner, states, left, table, features, eligible=standing)
    return PricedPolicy(policy.valuer, table, continuation)


def _numbers(codes: int, states: NDArray[np.float32]) -> NDArray[np.float32]:
    return states[:, codes:]


def encoded_data(encoded: EncodedLog, values: Sequence[ActionValues], extent: Extent) -> OffPolicyData:
    """The off-policy data of some users of a fold with that extent: the prices of several values beside each other, in
    their order."""
    return off_policy_data(
        encoded.log,
        np.concatenate([part.probabilities for part in values], axis=1),
        np.concatenate([part.to_go for part in values], axis=2),
        extent=extent,
        features=encoded.features,
        feature_blocks=encoded.feature_blocks,
        past=encoded.past,
    )
