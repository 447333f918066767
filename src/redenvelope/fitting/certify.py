"""Certification: which estimator the check users support, where the fixed-sequence test stops, and objections.

The default estimator uses marginalised ratios, which assume that the state is Markov. Some rungs are therefore
estimated again by estimators that use more of the history. Where those differ by more than noise at the price where the
plan would stop, the whole ladder is estimated again by the estimator that uses the full history. Its bounds are wider;
where its overlap is too thin, its rungs are refused. The bounds themselves are computed in `plan/ladder.py`, by the
formulas of `evaluation/confidence.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray, IntArray
from redenvelope.audit.audit import Audit, audit_log, past_remedy, propensity_remedy
from redenvelope.audit.effects import latest
from redenvelope.campaign.costs import without_costs
from redenvelope.evaluation.confidence import Concentration
from redenvelope.evaluation.data import OffPolicyData
from redenvelope.evaluation.diagnostics import Reason, Weight
from redenvelope.evaluation.evaluate import (
    NEGLIGIBLE,
    Agreement,
    EstimatorChoice,
    Evaluation,
    agreement,
    checking_estimators,
    choose_estimator,
    estimator_named,
    evaluate_partitions,
)
from redenvelope.evaluation.marginalised import Marginalised
from redenvelope.evaluation.sensitivity import hidden_odds
from redenvelope.fitting.holdout import (
    Check,
    PastCorrection,
    concentrations,
    fold_sha256,
    logged_by_user,
    sparse_prices,
)
from redenvelope.fitting.settings import FitSettings
from redenvelope.log.log import Log
from redenvelope.models.fidelity import Fidelity
from redenvelope.models.past_effects import PastEffects
from redenvelope.plan.certificate import HIDDEN_ODDS, Certificate
from redenvelope.plan.fixed_sequence_test import Checked, Question, Stop, certify, walk
from redenvelope.plan.ladder import Ladder, Rung
from redenvelope.plan.policy import DeployedPolicy

_JOINT = (0.8, 0.9, 0.95, 0.99)  # confidences at which simultaneous bounds for all prices are recorded


@dataclass(frozen=True, eq=False)
class PopulationSummary:
    """The audit and the costs of all users, for a fit that is given only a sample of them."""

    audit: Audit
    costs: Mapping[str, Concentration]
    """How each budget's cost is distributed over users, by name."""
    sample: str = ""
    """Which users the fit is given, in words; empty if all."""


@dataclass(frozen=True, eq=False)
class Certification:
    """Where the fixed-sequence test stopped on the ladder, and what that certifies."""

    ladder: Ladder
    stop: Stop
    policy: DeployedPolicy
    """Priced at the stop."""
    certificate: Certificate
    objections: tuple[Reason, ...]


def summarize_population(log: Log, budget: float | None, known_before: Sequence[str]) -> PopulationSummary:
    """Audit a log that contains all users."""
    # The audit is of the logged costs, from which the budgets' costs are derived.
    return PopulationSummary(audit_log(without_costs(log, ()), budget, known_before=known_before), concentrations(log))


def default_estimator(audit: Audit, seed: int) -> Marginalised:
    """Doubly robust with marginalised ratios: their errors add up over steps, where those of cumulative ratios
    multiply.

    A cost that is booked some steps after its action, at a state that no longer shows it, needs ratios of as many.
    """
    late = latest(audit.carry_over)
    return Marginalised(seed=seed).looking_back(0 if late is None else late.lag)


def certify_plan(
    check: Check,
    policy: DeployedPolicy,
    question: Question,
    objections: tuple[Reason, ...],
    past: PastEffects | None,
    settings: FitSettings,
) -> tuple[Check, Certification]:
    """Run the fixed-sequence test on the check users; also return the check by the estimator that certifies.

    `past` holds effects of the past estimated on users of all folds, including the check fold.
    """
    check = over_groups_if_agreed(check, question)
    trusted = trusted_check(check, lambda ladder: walk(ladder, question), past)
    check, joint = trusted.check, sorted({*_JOINT, settings.confidence})
    ladder = trusted.marked(check.ladder("plan", joint, settings.seed))
    ladder = replace(ladder, most_per_user=settings.most_per_user)
    stop = walk(ladder, question)
    if settings.most_per_user is not None and _decided_by_few(ladder, stop):
        check, ladder, stop = _for_any_tail(check, policy, ladder, stop, settings.most_per_user, question)
    policy = replace(policy, pricing=ladder.pricing(stop.place))
    logged = tuple(float(value) for value in logged_by_user(check.log).mean(axis=1))
    certificate = certify(ladder, stop, question, policy, Checked(logged, fold_sha256(check.log), objections))
    rooms = [each.budget - each.cost.estimate for each in certificate.budgets]
    odds = hidden_odds(check.evaluation, check.log, check.shares("plan", stop.place), rooms)
    certificate = replace(certificate, diagnostics=certificate.diagnostics | {HIDDEN_ODDS: odds})
    return check, Certification(ladder, stop, policy, certificate, objections)


def over_groups_if_agreed(check: Check, question: Question) -> Check:
    """The check with weights over groups of items if single items agree on all rungs that the test looks at, up to the
    first that fails. Other rungs, on which they disagree, are refused: another budget could lead there."""
    if check.groups is None or question.budget is None or check.candidates["plan"].mixtures is not None:
        return check
    assert check.contradicted is not None
    matters = NEGLIGIBLE * np.array([0.0, *question.limits])  # little money, beside the budget
    contradicted = np.where(check.contradicted > matters[:, None], check.contradicted, 0.0)
    stop = walk(replace(check, evaluation=check.groups).ladder("plan"), question)
    return check if contradicted[:, : stop.place.rung + 2].any() else check.by_groups(contradicted)


def _decided_by_few(ladder: Ladder, stop: Stop) -> bool:
    """Whether a walk ended where it did because a single user dominates the estimates beyond."""
    beyond = ladder.rungs[stop.place.rung + 1 :] if stop.holds else ladder.rungs
    return any(reason.rule == "concentrated" for rung in beyond[:1] for reason in rung.reasons)


def _for_any_tail(
    check: Check, policy: DeployedPolicy, ladder: Ladder, stop: Stop, most: float, question: Question
) -> tuple[Check, Ladder, Stop]:
    """Repeat the test with bounds that hold for any tail, and keep the result if the walk gets further.

    The bounds are for the importance-weighted sum of capped costs: the mean of independent numbers between 0 and the
    cap times the largest weight. Learned baselines and ratios, or cross-fitted members, would make these numbers
    dependent, so neither is used; nor are clusters, whose sums exceed the cap.
    """
    if len(policy.members) > 1 or check.log.clusters is not None or question.target_reward is not None:
        return check, ladder, stop
    least = [check.log.propensity[check.log.step == step].min() for step in np.unique(check.log.step)]
    largest = most * float(np.prod(1 / np.array(least)))
    bounded = check.evaluated_by(estimator_named("per_decision"))
    other = replace(bounded.ladder("plan").for_any_tail(largest), most_per_user=most)
    reached = walk(other, question)
    further = reached.holds and (not stop.holds or reached.place.rung > stop.place.rung)
    return (bounded, other, reached) if further else (check, ladder, stop)


@dataclass(frozen=True, eq=False)
class Trusted:
    """The check to rely on, and which estimator each rung needs."""

    check: Check
    verdicts: tuple[EstimatorChoice, ...]
    """For every rung if the first estimator is relied on; else only for the one where the plan would have stopped."""

    def marked(self, ladder: Ladder) -> Ladder:
        """The check's ladder with the verdicts' objections."""
        if not self.verdicts:
            return ladder
        if len(self.verdicts) == 1:
            return replace(ladder, rungs=tuple(_by_the_past(rung, self.verdicts[0]) for rung in ladder.rungs))
        pairs = zip(ladder.rungs, self.verdicts, strict=True)
        return replace(ladder, rungs=tuple(_by_the_state(rung, own) for rung, own in pairs))


def trusted_check(check: Check, walk: Callable[[Ladder], Stop], past: PastEffects | None) -> Trusted:
    """The check corrected for the past, or estimated again from the full history; `walk` says where a ladder's test
    stops.

    The check users are among those that the effects of the past were estimated on.
    """
    estimator, steps = check.evaluation.estimator, int(check.log.lengths.max())
    if not isinstance(estimator, Marginalised) or steps < 2:
        return Trusted(check, ())
    compared = _compared(check, estimator, past)
    check = replace(check, correction=compared.correction)
    ladder = check.ladder("plan")
    main, start = check.candidates["plan"].main_prices(), check.places("plan").start
    nearest = [int(np.argmin(np.abs(compared.prices - start - price))) for price in main]
    return relied_on(check, estimator, walk(ladder), tuple(compared.verdicts[place] for place in nearest))


def relied_on(check: Check, estimator: Marginalised, stop: Stop, verdicts: tuple[EstimatorChoice, ...]) -> Trusted:
    """The check that follows from the verdict where the plan would stop."""
    reached = verdicts[stop.place.rung + round(stop.place.share)]
    if reached.rely_on == "first":
        return Trusted(check, verdicts)
    last = checking_estimators(estimator, int(check.log.lengths.max()))[-1]
    return Trusted(check.evaluated_by(last), (reached,))


@dataclass(frozen=True, eq=False)
class _Compared:
    """Estimates compared with those that use more of the history, at some of the prices."""

    prices: NDArray[np.intp]
    """Indices among all prices of the check, [some prices]."""
    verdicts: tuple[EstimatorChoice, ...]
    """[some prices]."""
    correction: PastCorrection | None
    """At all prices."""


def _compared(check: Check, estimator: Marginalised, past: PastEffects | None) -> _Compared:
    """Compare a check's estimator with others at every fourth price of each candidate."""
    parts, known = check.evaluation.partitions, past is not None and past.is_known
    sparse = sparse_prices(check.candidates)
    prices = sparse.places
    rows = np.zeros(0, dtype=bool) if past is None else past.rows_of(check.log.keys)
    data = _with_past((part.at_prices(prices) for part in parts.parts()), past, rows)
    others = checking_estimators(estimator, int(check.log.lengths.max()), known)
    found = evaluate_partitions(data, [estimator, *others], engine=parts.engine)
    own, sequential = found[estimator.name], found[others[-1].name]
    agreements, correction = [agreement(own, found[other.name]) for other in others], None
    effects: list[list[Agreement]] = [[] for _ in prices]
    if past is not None and known:
        value, error = past.moved(_shift_of_past(own, estimator, past, np.flatnonzero(rows)))
        effects = _of_effects(own, value, error)
        correction = PastCorrection(sparse.everywhere(value), sparse.everywhere(error))
    verdicts = []
    for place in range(len(prices)):
        # With few effective users, even the standard error of a difference is unknown, so the difference is no
        # evidence.
        thin = [_is_thin(found[other.name], place) for other in others]
        firm = [pair for pair, few in zip(agreements, thin, strict=True) if not few]
        pairs = [*(outcome[place] for pair in firm for outcome in pair), *effects[place]]
        verdict = choose_estimator(pairs, sequential.reasons(sequential.outcome_names[1], place))
        missed = None if correction is None else correction.detectable[1:, prices[place]]
        verdicts.append(replace(verdict, reasons=(*verdict.reasons, *_unchecked(own.value[1:, place], missed))))
    return _Compared(prices, tuple(verdicts), correction)


def _is_thin(evaluation: Evaluation, place: int) -> bool:
    """Whether the estimates at a price are refused for thin overlap."""
    reasons = evaluation.diagnostics.reasons(place)
    return any(reason.rule == "thin_overlap" and reason.weight is Weight.REFUSAL for reason in reasons)


def _with_past(
    parts: Iterable[OffPolicyData], past: PastEffects | None, rows: NDArray[np.bool_]
) -> list[OffPolicyData]:
    """The data of users with a known past, with its columns, which are at `rows`; all data if none is known."""
    if past is None:
        return list(parts)
    data, columns, first = [], past.past[rows], 0
    for part in parts:
        chosen = np.isin(part.keys, past.keys)
        if chosen.any():  # a small part may have no user in the sample
            own = part.of_users(chosen)
            data.append(replace(own, past=columns[first : first + own.rows]))
            first += own.rows
    return data


def _shift_of_past(own: Evaluation, estimator: Marginalised, past: PastEffects, places: IntArray) -> FloatArray:
    """How the plan shifts the users' past beyond what the estimator's weights account for, summed over steps, [width,
    prices]: the weights of an estimator that knows the past and one more step, minus its own. `places` [rows] are the
    evaluated users' rows in `past`."""
    users = own.partitions
    weigh = estimator.prepare(users, 1.0).weigh
    richer = replace(estimator, knows_past=True, window=estimator.window + 1).prepare(users, 1.0).weigh
    shift, first = np.zeros((len(past.scale), own.value.shape[1])), 0
    for part in users.parts():
        beyond = richer(part).weights - weigh(part).weights
        here = places[first : first + part.rows]
        for position, (chosen, rows) in enumerate(part.positions):
            shift += past.weighed(here[rows], beyond[position, chosen])
        first += part.rows
    return shift / own.users


def _of_effects(own: Evaluation, value: FloatArray, error: FloatArray) -> list[list[Agreement]]:
    """How an evaluation agrees with itself after correction for effects of the past, at every price.

    Only corrections larger than the standard error of the corrected estimate count; smaller ones need not be exact.
    """
    found: list[list[Agreement]] = []
    for place in range(own.value.shape[1]):
        large = np.flatnonzero(np.abs(value[:, place]) > own.moments.standard_error[:, place])
        found.append(
            [
                Agreement(
                    own.outcome_names[outcome],
                    own.estimator.name,
                    "effects of the past",
                    float(own.value[outcome, place]),
                    -float(value[outcome, place]),
                    float(error[outcome, place]),
                    0.0,
                    own.users,
                )
                for outcome in large
            ]
        )
    return found


_BEARABLE = 0.25
"""Share of the cost: a bound is worthless if a bias larger than this could not have been detected in the log."""


def _unchecked(values: FloatArray, missed: FloatArray | None) -> Iterator[Reason]:
    """Why the past is unchecked at a price, given the costs and the smallest detectable biases, [costs] each; None if
    these are unknown."""
    if missed is None:
        said = "there are too few rows of each step and action to tell whether earlier steps matter in ways that the"
        yield Reason("past_unchecked", Weight.REFUSAL, f"{said} features do not show; bring more users")
        return
    for value, most in zip(values, missed, strict=True):
        if most > _BEARABLE * abs(value):
            said = "earlier steps could matter in ways that the features do not show"
            advice = "bring more users, or columns that describe the past"
            message = f"{said}, by {most:.3g} of a cost of {value:.3g}, and the log would not tell; {advice}"
            yield Reason("past_unchecked", Weight.REFUSAL, message)
            return


def _by_the_state(rung: Rung, own: EstimatorChoice) -> Rung:
    """Refuse a rung that needs another estimator, because another budget could lead there."""
    if own.rely_on == "first":
        return replace(rung, objections=own.reasons)
    return replace(rung, objections=tuple(Reason(each.rule, Weight.REFUSAL, each.message) for each in own.reasons))


def _by_the_past(rung: Rung, reached: EstimatorChoice) -> Rung:
    """Say on every rung why this estimator was needed: a refusal where the rung is refused, else a warning."""
    weight = Weight.REFUSAL if rung.is_unreliable else Weight.WARNING
    return replace(rung, objections=tuple(Reason(each.rule, weight, each.message) for each in reached.reasons))


def objections_to(population: PopulationSummary, fidelity: Fidelity) -> tuple[Reason, ...]:
    """Objections of the audit and of the model's fidelity to any plan from this log.

    A refusal if an assumption of the certificate fails, a warning if only the quality of the plan is in doubt.
    """
    audit = population.audit
    return (*_about_propensities(audit), *_about_columns(audit), *_about_the_model(fidelity))


def _about_propensities(audit: Audit) -> Iterator[Reason]:
    """Every estimate divides by propensities, so nothing can be certified if the log contradicts them."""
    for entry in audit.calibration:
        if entry.is_off:
            yield Reason(
                "propensity_miscalibrated",
                Weight.REFUSAL,
                f"the propensities of action {entry.label!r} contradict the log: 1/propensity adds up to "
                f"{entry.ratio:.3f} of the rows instead of 1 (z = {entry.z:+.1f}), and every estimate relies on them; "
                f"{propensity_remedy(audit)}",
            )

    for found in audit.past:
        if found.is_beyond_chance:
            yield Reason(
                "draws_depend_on_past",
                Weight.REFUSAL,
                f"draws depend on the {found.column} of the step before, beyond their propensities "
                f"(z = {found.z:+.1f}): a hidden cause of assignment biases every estimate; {past_remedy(audit)}",
            )


def _about_columns(audit: Audit) -> Iterator[Reason]:
    """A plan that uses what is known only after the action cannot be deployed, and its estimates are invalid. If
    actions were drawn for many users together, standard errors are too small."""
    if audit.shared is not None:
        yield Reason(
            "assigned_by_cluster",
            Weight.REFUSAL,
            f"users with the same {audit.shared.column!r} were assigned together (z = {audit.shared.z:.0f}), so bounds "
            f"that count users are too narrow; fit with --cluster {audit.shared.column}",
        )
    for leak in audit.leaks:
        said = f"column {leak.column!r} {leak.evidence}"
        if leak.known:
            yield Reason(
                "said_known",
                Weight.WARNING,
                f"{said}; the certificate relies on --known-before: that the column is known when the action is chosen",
            )
        else:
            yield Reason(
                "suspected_leak",
                Weight.REFUSAL,
                f"{said}; if it is known only after the action, no plan that uses it can be trusted: exclude it with "
                f"--ignore {leak.column}, or confirm with --known-before {leak.column} that it was known when the "
                "action was chosen",
            )


def _about_the_model(fidelity: Fidelity) -> Iterator[Reason]:
    """The certificate does not rely on the model, but the quality of the plan does."""
    if not fidelity.trusted:
        yield Reason(
            "model_not_trusted",
            Weight.WARNING,
            f"the model was not trusted to plan ahead: {fidelity.reasons[0]}; the bounds do not rely on it, but a plan "
            "made without it may earn less",
        )


def merge_concentrations(parts: Sequence[Mapping[str, Concentration]]) -> dict[str, Concentration]:
    """Merge the concentrations of disjoint parts, in order, into those of all users."""
    return {name: reduce(Concentration.merge, (part[name] for part in parts)) for name in parts[0]}
