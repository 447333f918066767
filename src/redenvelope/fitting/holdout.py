"""Off-policy evaluation of candidate policies on held-out users, planned and evaluated once for all later stages.

Ladder, certificate, comparison, frontier and report all read the same `Check`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.arrays import FloatArray
from redenvelope.engine.engine import LocalEngine
from redenvelope.evaluation.confidence import Concentration, Spread, decided_by_few, each_confidence
from redenvelope.evaluation.data import Extent, OffPolicyData, off_policy_data
from redenvelope.evaluation.diagnostics import Reason, Weight, merged_reasons
from redenvelope.evaluation.estimators import Estimator
from redenvelope.evaluation.evaluate import Evaluation, agreement, evaluate_partitions
from redenvelope.evaluation.influence import NeighbourSums, by_person, neighbour_sums, person_keys
from redenvelope.evaluation.item_groups import FEWEST_ITEMS, GroupedRows, behaviour_of, with_group_ratios
from redenvelope.evaluation.jackknife import SparsePrices
from redenvelope.fitting.encoded import EncodedLog
from redenvelope.fitting.stage_cache import Arrays, Codec, flat_codec
from redenvelope.log.log import Log
from redenvelope.plan.ladder import Ladder, Mixtures, Place, new_ladder
from redenvelope.plan.policy import DeployedPolicy, Rows
from redenvelope.policies.action_values import ActionValues
from redenvelope.prices import checked_prices
from redenvelope.randomness import fraction, member_of
from redenvelope.wording import counted


@dataclass(frozen=True, eq=False)
class CandidatePolicy:
    """A policy and the prices at which it is checked."""

    policy: DeployedPolicy
    prices: FloatArray
    """In descending order, [rungs, budgets]; if rungs are mixtures, the prices of the mixed plans, [plans, budgets]."""
    mixtures: Mixtures | None = None
    """The rungs, if they mix several prices."""

    def at(self, place: Place, values: NDArray[Any], axis: int = -1) -> FloatArray:
        """Mix values per price along an axis as at a place of the ladder; each user draws a price once."""
        if self.mixtures is None:
            return place.mix(values, axis)
        return np.asarray(np.tensordot(values, place.mix(self.mixtures.shares, axis=0), axes=(axis, 0)))

    def rungs_of(self, values: NDArray[Any]) -> NDArray[Any]:
        """Turn values per price along the last axis into values per rung."""
        return values if self.mixtures is None else np.asarray(values @ self.mixtures.shares.T)

    def main_prices(self) -> NDArray[np.intp]:
        """Index of the price that most users of each rung follow, [rungs]."""
        if self.mixtures is None:
            return np.arange(len(self.prices))
        return np.asarray(self.mixtures.shares.argmax(axis=1))


@dataclass(frozen=True, eq=False)
class PlannedFold:
    """The candidates' decisions and baselines for the check users at all prices: everything that needs planning."""

    data: tuple[OffPolicyData, ...]
    """In batches of users."""
    shown: NDArray[np.float32]
    """Action probabilities of the first candidate in the rows of the shown users, [rows, prices, actions]."""


@dataclass(frozen=True, eq=False)
class DecidedRows:
    """The decisions of a policy in the rows of some users."""

    log: Log
    probabilities: FloatArray
    """Probability of each action, with prices mixed by their shares, [rows, actions]."""
    costs: FloatArray
    """Expected cost of each decision, [rows]."""


@dataclass(frozen=True, eq=False)
class PastCorrection:
    """The correction of estimates for effects of the past beyond the state, with its standard error."""

    value: FloatArray
    """[outcomes, all prices]."""
    standard_error: FloatArray
    """[outcomes, all prices]."""

    @property
    def detectable(self) -> FloatArray:
        """The smallest bias that a one-sided test at 5 % detects with power 80 %, [outcomes, all prices]."""
        return _POWER * self.standard_error

    def diagnostics(self, place: int) -> dict[str, list[float]]:
        """The entries for the diagnostics of a rung at one of the prices."""
        figures = {_CORRECTION: self.value, _DETECTABLE: self.detectable}
        return {name: [float(value) for value in table[:, place]] for name, table in figures.items()}

    @classmethod
    def of_rungs(cls, diagnostics: Sequence[Mapping[str, Any]]) -> PastCorrection | None:
        """Read the correction from the diagnostics of a ladder with one price per rung; None if they lack it."""
        if not all(_CORRECTION in rung for rung in diagnostics):
            return None
        value, detectable = (np.array([rung[name] for rung in diagnostics]).T for name in (_CORRECTION, _DETECTABLE))
        return cls(value, detectable / _POWER)


_CORRECTION, _DETECTABLE = "correction_for_the_past", "smallest_detectable_bias"
_POWER = 1.645 + 0.842  # in standard errors: the quantile of the level plus that of the power


@dataclass(frozen=True, eq=False)
class Check:
    """Estimated rewards and costs of the candidates on the users of a fold."""

    log: Log
    candidates: Mapping[str, CandidatePolicy]
    evaluation: Evaluation
    """At all candidates' prices, concatenated in the candidates' order."""
    shown: Shown
    """The decisions of the first candidate for some of the users."""
    costs: Mapping[str, Concentration]
    """Distribution of logged costs over all users, other folds included, by outcome."""
    correction: PastCorrection | None = None
    """For a past that the state does not show; None if the estimator itself uses the past, or nothing is known."""
    over_groups: bool = False
    """Whether importance weights are over groups of items instead of single ones."""
    groups: Evaluation | None = None
    """The evaluation over groups, while single items contradict it somewhere."""
    contradicted: FloatArray | None = None
    """By how much single items contradict groups at each price of the first candidate, [outcomes, prices]."""

    @cached_property
    def influence(self) -> FloatArray:
        """Influence of each user on the estimates, corrected for the past; see `influence_of`. Means outside of the
        range that the log makes possible are moved to its nearest end."""
        added = influence_of(self.evaluation, self.log, self.correction)
        means = added.mean(axis=1)
        least, most = possible_means(self.log)[:, :, None]
        return np.asarray(added + (np.clip(means, least, most) - means)[:, None])

    @cached_property
    def impossible(self) -> NDArray[np.bool_]:
        """Prices at which a cost is estimated beyond what any policy can cost, by more than rounding, [all prices]."""
        corrected = self.evaluation.value + (0.0 if self.correction is None else self.correction.value)
        return np.asarray(are_impossible(corrected, self.log)[0, 1:].any(axis=0))

    @cached_property
    def leans_on_model(self) -> NDArray[np.bool_]:
        """Prices at which overlap is thin and a cost differs from what the model alone predicts, [all prices]."""
        thin = self.evaluation.diagnostics.is_thin
        if not thin.any():
            return thin
        users = self.evaluation.partitions
        predicted = evaluate_partitions(users.parts, ["direct"], engine=users.engine)["direct"].value
        value = self.evaluation.value
        return np.asarray(thin & (np.abs(predicted - value) > _LARGEST_CORRECTION * np.abs(value))[1:].any(axis=0))

    def ladder(self, name: str, joint: Sequence[float] = (), seed: int = 0) -> Ladder:
        """The ladder of a candidate, with simultaneous bounds for all prices at the confidences `joint`."""
        candidate, places = self.candidates[name], self.places(name)
        added = candidate.rungs_of(self.influence[:, :, places.start : places.stop])
        reasons = self.reasons(name)
        diagnostics = [_diagnostics(self, place) for place in places]
        mixtures, main = candidate.mixtures, candidate.main_prices()
        if mixtures is not None:
            reasons = [merged_reasons([reasons[plan] for plan in np.flatnonzero(shares)]) for shares in mixtures.shares]
        diagnostics, sums = [diagnostics[place] for place in main], neighbour_sums(added)
        for rung, few in enumerate(self._decided_by_few(added, sums, diagnostics)):
            reasons[rung].extend(few)
        return new_ladder(
            candidate.prices if mixtures is None else mixtures.duals,
            sums,
            reasons,
            diagnostics,
            self.evaluation.estimator.name,
            each_confidence(added, person_keys(self.log.keys), joint, seed) if joint else (),
            mixtures,
            0 if self.log.clusters is None else self.log.people,
        )

    def reasons(self, name: str) -> list[list[Reason]]:
        """Objections to the estimates of a candidate at each of its prices."""
        found = [
            [
                *_reasons(self.evaluation, self.candidates[name].policy, place),
                *[IMPOSSIBLE] * bool(self.impossible[place]),
                *[_LEANS_ON_MODEL] * bool(self.leans_on_model[place]),
            ]
            for place in self.places(name)
        ]
        if self.over_groups and self.contradicted is not None and not self.places(name).start:
            for place in np.flatnonzero(self.contradicted.any(axis=0)):
                found[place].append(_GROUPS_OFF)
        return found

    def by_groups(self, contradicted: FloatArray) -> Check:
        """The check with weights over groups, without the prices at which single items contradict them."""
        assert self.groups is not None
        return replace(self, evaluation=self.groups, over_groups=True, groups=None, contradicted=contradicted)

    def _decided_by_few(
        self, added: FloatArray, sums: NeighbourSums, diagnostics: Sequence[dict[str, Any]]
    ) -> Iterator[list[Reason]]:
        """For every rung, whether one user dominates an estimated cost: a check user, by weight × cost in `added`
        [outcomes, users, rungs], or any user of the log, if the plan gives them what was logged."""
        effective = np.array([np.mean(own["effective_users_by_step"]) for own in diagnostics])
        users = len(self.log.users)
        # Weights average out within a cluster.
        weight = 1 + (users / np.maximum(effective, 1.0) - 1) * (self.log.independent / users)
        whom = "user" if self.log.clusters is None else "cluster"
        for rung in range(len(diagnostics)):
            found = []
            for outcome, (name, costs) in enumerate(self.costs.items(), start=1):
                moments = (each[outcome, rung] for each in (sums.means, sums.squares, sums.cubes))
                mean, squares, cubes = (np.asarray(each) for each in moments)
                largest = max(float(added[outcome, :, rung].max()), float(costs.influence(mean, weight[rung])))
                spread = Spread(sums.users, mean, squares * sums.users, cubes * sums.users)
                found.append(decided_by_few(largest, spread, name, whom))
            yield [reason for reason in found if reason is not None][:1]

    def evaluated_by(self, estimator: Estimator) -> Check:
        """The same policies and users evaluated by another estimator, without planning again."""
        users, sparse = self.evaluation.partitions, sparse_prices(self.candidates)
        found = evaluate_partitions(users.parts, [estimator], engine=users.engine, sparse=sparse)[estimator.name]
        return replace(self, evaluation=found, correction=None, groups=None)

    def added(self, name: str, place: Place) -> FloatArray:
        """Influence of each user on the estimates of a candidate at a place of its ladder, [outcomes, users].

        Each user draws a price once, so the influence of a mixture is the mixture of the influences.
        """
        places = self.places(name)
        return self.candidates[name].at(place, self.influence[:, :, places.start : places.stop])

    def learning_factor(self, name: str, place: Place) -> FloatArray:
        """The factor for the error of what the estimator learned, at a place of a candidate's ladder, [outcomes]."""
        return self.evaluation.learning_factor @ self.shares(name, place)

    def shares(self, name: str, place: Place) -> FloatArray:
        """Share of users who follow each of all prices, for a candidate at a place of its ladder, [all prices]."""
        own, shares = self.places(name), np.zeros(self.evaluation.value.shape[1])
        shares[own.start : own.stop] = self.candidates[name].at(place, np.eye(len(own)))
        return shares

    def places(self, name: str) -> range:
        """Indices of a candidate's prices in the evaluation."""
        return sparse_prices(self.candidates).ladders[list(self.candidates).index(name)]


_EVERY = 4


def sparse_prices(candidates: Mapping[str, CandidatePolicy]) -> SparsePrices:
    """Every fourth price of each candidate, or all if rungs mix them."""
    edges = np.cumsum([0, *(len(each.prices) for each in candidates.values())])
    every = tuple(1 if each.mixtures is not None else _EVERY for each in candidates.values())
    return SparsePrices(tuple(range(*pair) for pair in pairwise(edges.tolist())), every)


def influence_of(
    evaluation: Evaluation, log: Log, correction: PastCorrection | None = None, factor: FloatArray | None = None
) -> FloatArray:
    """Influence of each user on the estimates, [outcomes, users, prices]; people with several episodes count once, and
    so do clusters: [outcomes, people or clusters, prices]. With a correction, means are corrected for the past, and
    deviations are scaled until the standard error includes the correction's, and that of what the estimator learned
    (`factor`, [outcomes, prices], by default its own)."""
    added = by_person(evaluation.influence(), log.keys)
    means = added.mean(axis=1, keepdims=True)
    added -= means
    spread = evaluation.learning_factor if factor is None else factor
    if correction is not None:
        error = np.sqrt((added**2).mean(axis=1) / max(added.shape[1] - 1, 1))
        share = np.divide(correction.standard_error, error, out=np.zeros_like(error), where=error > 0)
        spread = np.sqrt(spread**2 + share**2)
        means += correction.value[:, None]
    added *= spread[:, None]
    added += means
    return added


_GROUPS_OFF = Reason(
    "groups_off",
    Weight.REFUSAL,
    "weights over groups of items and over single items lead to different estimates here; bring more users, or "
    "attributes of the items",
)
IMPOSSIBLE = Reason(
    "impossible_estimate",
    Weight.REFUSAL,
    "the estimate is less, or more, than any policy can have by what was logged, so it is noise and no figure to show: "
    "too few logged users got what this policy gives; bring more users, or plan closer to what was logged",
)
_LARGEST_CORRECTION = 0.1
"""Share of the cost by which an estimate with thin overlap may differ from the model's prediction: the regressions that
give the weights are approximations, and the larger the error they have to correct, the larger the one that remains."""
_LEANS_ON_MODEL = Reason(
    "model_and_log_differ",
    Weight.REFUSAL,
    f"overlap is thin, and the cost by the model differs from the estimate by more than {_LARGEST_CORRECTION:.0%}: too "
    "few users got what this policy gives to tell which is right; bring more users, plan closer to what was logged, or "
    "leave out columns that matter little (--ignore)",
)
_ROUNDING = 0.01
"""As a share of the logged mean per user: an estimate this little beyond the possible range is moved to its end."""


def possible_means(log: Log) -> FloatArray:
    """The least and the most that any policy can earn and cost per user according to a log, [2, outcomes]: sums over
    steps of the extreme values logged; 0 counts too at steps that some users lack."""
    here = np.bincount(log.step)
    totals = []
    for extreme, ufunc in ((np.inf, np.minimum), (-np.inf, np.maximum)):
        found = np.full((len(log.outcomes), len(here)), extreme)
        for own, outcome in zip(found, log.outcomes, strict=True):
            ufunc.at(own, log.step, outcome)
        totals.append(np.where(here < len(log.users), ufunc(np.where(here, found, 0.0), 0.0), found).sum(axis=1))
    return np.stack(totals)


def are_impossible(values: FloatArray, log: Log) -> NDArray[Any]:
    """Whether estimated means [outcomes, any] are below, and above, what the log makes possible, [2, outcomes, any]."""
    least, most = possible_means(log)[:, :, None]
    room = _ROUNDING * np.abs(log.outcomes).sum(axis=1)[:, None] / len(log.users)
    return np.stack([values < least - room, values > most + room])


@dataclass(frozen=True, eq=False)
class Shown:
    """Rows of some users, with a policy's action probabilities at all checked prices."""

    encoded: EncodedLog
    probabilities: NDArray[np.float32]
    """[rows, prices, actions]"""
    candidate: CandidatePolicy

    def decided(self, policy: DeployedPolicy, place: Place) -> DecidedRows:
        """The policy's decisions at a place of its ladder."""
        mixed = self.candidate.at(place, self.probabilities, axis=1)
        costs = policy.outcomes(self.encoded.states, self.encoded.row_keys)[1]
        return DecidedRows(self.encoded.log, mixed, (mixed * costs).sum(axis=1))


def check_policies(
    candidates: Mapping[str, CandidatePolicy],
    encoded: EncodedLog,
    estimator: Estimator,
    shown_users: int,
    seed: int,
    planned: PlannedFold | None = None,
    costs: Mapping[str, Concentration] | None = None,
) -> Check:
    """Evaluate policies at their prices; record the decisions of the first for about `shown_users` users.

    `planned` is the result of `planned_fold` for the same policies and users, if known; `costs` are the
    `concentrations` of all users of the log, if these are only some of them.
    """
    planned = planned or planned_fold(candidates, encoded, shown_users, seed)
    items = evaluated(planned.data, estimator, sparse_prices(candidates))
    first = next(iter(candidates.values()))
    groups, contradicted = over_groups(planned.data, items, sparse_prices(candidates), len(first.prices))
    shown = encoded.select(_shown(encoded, shown_users, seed))
    costs = concentrations(encoded.log) if costs is None else costs
    shown_rows = Shown(shown, planned.shown, first)
    check = Check(encoded.log, dict(candidates), items, shown_rows, costs, None, False, groups, contradicted)
    return check if groups is None or contradicted.any() else check.by_groups(contradicted)


def evaluated(data: Sequence[OffPolicyData], estimator: Estimator, sparse: SparsePrices) -> Evaluation:
    """Evaluate off-policy data by one estimator."""
    return evaluate_partitions(data, [estimator], engine=LocalEngine(), sparse=sparse)[estimator.name]


def over_groups(
    data: Sequence[OffPolicyData], items: Evaluation, sparse: SparsePrices, compared: int
) -> tuple[Evaluation | None, FloatArray]:
    """The evaluation with weights over groups of items, None if there are few items; and by how much the evaluation
    over single `items` contradicts it at the first `compared` prices, [outcomes, compared]: 0 where it does not."""
    contradicted = np.zeros((len(items.value), compared))
    if any(part.group_ratio is None for part in data):
        return None, contradicted
    groups = evaluated([part.over_groups() for part in data], items.estimator, sparse)
    pairs = list(zip(*agreement(groups, items), strict=True))[:compared]
    # With few effective users, even the standard error of a difference is unknown, so the difference is no evidence.
    for price, pair in enumerate(pairs):
        if not items.diagnostics.is_refused(price):
            contradicted[:, price] = [0.0 if each.is_noise else abs(each.difference) for each in pair]
    return groups, contradicted


def _shown(encoded: EncodedLog, users: int, seed: int) -> NDArray[np.bool_]:
    """The mask of users to show, [users]."""
    return fraction(encoded.log.keys, "shown", seed) < users / len(encoded.log.users)


def planned_fold(
    candidates: Mapping[str, CandidatePolicy],
    encoded: EncodedLog,
    shown_users: int,
    seed: int,
) -> PlannedFold:
    """Plan for the users of a fold with every candidate at all of its prices."""
    shown, extent = _shown(encoded, shown_users, seed), Extent.of(encoded.log)
    behaviour = behaviour_of(encoded.log) if len(encoded.log.catalogue) >= FEWEST_ITEMS else None
    policy = next(iter(candidates.values())).policy
    data, grouped, probabilities, first_user = [], [], [], 0
    for batch in encoded.batches():
        values = [priced_values(each.policy, each.prices, batch) for each in candidates.values()]
        data.append(encoded_data(batch, values, extent))
        if behaviour is not None:
            every = np.concatenate([part.probabilities for part in values], axis=1)
            outcomes, members = policy.outcomes(batch.states, batch.row_keys), len(policy.members)
            member = member_of(batch.row_keys, members)
            grouped.append(
                GroupedRows.of(batch.log, every, behaviour(batch.log), outcomes, extent.steps, member, members)
            )
        own = shown[first_user : first_user + len(batch.log.users)]
        probabilities.append(values[0].probabilities[np.repeat(own, batch.log.lengths)])
        first_user += len(own)
    known = with_group_ratios(data, grouped) if grouped else tuple(data)
    return PlannedFold(known, np.concatenate(probabilities))


def _encoded_fold(fold: PlannedFold) -> tuple[Any, Arrays]:
    records, arrays = [], {"shown": fold.shown}
    for number, part in enumerate(fold.data):
        record, own = _PART.encode(part)
        records.append(record)
        arrays |= {f"{number} {name}": array for name, array in own.items()}
    return {"parts": records}, arrays


def _decoded_fold(record: Any, arrays: Arrays) -> PlannedFold:
    parts = []
    for number, part in enumerate(record["parts"]):
        head = f"{number} "
        own = {name.removeprefix(head): array for name, array in arrays.items() if name.startswith(head)}
        parts.append(_PART.decode(part, own))
    return PlannedFold(tuple(parts), arrays["shown"])


_PART = flat_codec(OffPolicyData)
PLANNED_FOLD = Codec(_encoded_fold, _decoded_fold)


def logged_by_user(log: Log) -> FloatArray:
    """Logged reward and costs of each user, [outcomes, users]; users with several episodes are merged."""
    return by_person(np.stack([log.sums_by_user(outcome) for outcome in log.outcomes]), log.keys)


def concentrations(log: Log) -> dict[str, Concentration]:
    """How each budget's cost is distributed over the users of a log, by outcome."""
    rows = np.maximum(np.bincount(log.action), 1)
    usual = [(np.bincount(log.action, cost) / rows)[log.action] for cost in log.outcomes[1:]]
    expected = by_person(np.stack([log.sums_by_user(cost) for cost in usual]), log.keys)
    pairs = zip(logged_by_user(log)[1:], expected, strict=True)
    return dict(zip(log.outcome_names[1:], (Concentration.of(*pair) for pair in pairs), strict=True))


def fold_sha256(log: Log) -> str:
    """A hash of the users and their logged rows, which identifies a fold."""
    digest = hashlib.sha256("\n".join(map(str, log.users)).encode())
    further = [values for _, values in log.further]
    for column in (log.step, log.action, log.propensity, log.reward, log.cost, *further):
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()


def _reasons(evaluation: Evaluation, policy: DeployedPolicy, place: int) -> list[Reason]:
    """Reasons against the estimates at one of the prices."""
    wanted, found = policy.specification, []
    for reason in _of_costs(evaluation, place):
        message = reason.message
        if reason.rule == "thin_overlap":
            trees = counted(wanted.horizon, "step")
            message += f"; this plan has temperature {wanted.temperature:.3g} and trees of {trees}"
        found.append(Reason(reason.rule, reason.weight, message))
    return found


def _of_costs(evaluation: Evaluation, place: int) -> Iterator[Reason]:
    """Reasons against the estimated costs at one of the prices, one per rule."""
    found: dict[str, Reason] = {}
    for name in evaluation.outcome_names[1:]:
        for reason in evaluation.reasons(name, place):
            # With several budgets, one without charges at these prices is no objection to the others.
            if reason.rule != "no_variance" or len(evaluation.outcome_names) == 2:
                found.setdefault(reason.rule, reason)
    yield from found.values()


def _diagnostics(check: Check, place: int) -> dict[str, Any]:
    weights = check.evaluation.diagnostics
    of_past = {} if check.correction is None else check.correction.diagnostics(place)
    return {
        "weights_of": "groups of items" if check.over_groups else "single actions",
        "effective_users_by_step": [float(value) for value in weights.effective_users[:, place]],
        "largest_weight_share": float(weights.largest_share[place]),
        "probability_of_unlogged_actions": float(weights.unlogged[place]),
        "share_clipped": float(weights.clipped[place]),
        "mean_weight_by_step": [float(value) for value in weights.mean_weight[:, place]],
        "propensities_estimated": bool(weights.estimated),
        **of_past,
    }


def priced_values(policy: DeployedPolicy, prices: ArrayLike, encoded: EncodedLog) -> ActionValues:
    """Action values of every row at prices [prices, budgets], to the end of the campaign."""
    table = checked_prices(prices, policy.pricing.budgets)

    def of_member(own: DeployedPolicy, rows: Rows) -> ActionValues:
        eligibility = None if encoded.eligibility is None else encoded.eligibility[rows]
        return own.to_the_end(encoded.states[rows], encoded.steps_left[rows], table, eligibility)

    return ActionValues(*policy.by_member(encoded.row_keys, of_member, (0, 0, 1)))


def encoded_data(encoded: EncodedLog, values: Sequence[ActionValues], extent: Extent) -> OffPolicyData:
    """The off-policy data of some users of a fold of this extent, with the prices of all `values` concatenated."""
    return off_policy_data(
        encoded.log,
        np.concatenate([part.probabilities for part in values], axis=1),
        np.concatenate([part.to_go for part in values], axis=2),
        extent=extent,
        features=encoded.features,
        feature_blocks=encoded.feature_blocks,
    )
