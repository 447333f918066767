"""Certification: which estimator the check users support, where the fixed-sequence test stops, and what is objected.

The default estimator uses marginalised ratios, which rely on the state. Some rungs are therefore estimated again by
estimators that use more of the history. Where those differ by more than noise at the price where the plan would stop,
the whole ladder is estimated again by the estimator that uses the full history. Its bounds are wider; where its overlap
is too thin, its rungs are refused with the reason. The bounds themselves are computed in `plan.ladder`, by the formulas
of `evaluation.confidence`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from redenvelope.audit.audit import Audit, audit_log
from redenvelope.campaign.costs import without_costs
from redenvelope.evaluation.confidence import Concentration
from redenvelope.evaluation.diagnostics import Reason, Weight
from redenvelope.evaluation.evaluate import (
    EstimatorChoice,
    agreement,
    checking_estimators,
    choose_estimator,
    estimator_named,
    evaluate_partitions,
)
from redenvelope.evaluation.marginalised import Marginalised
from redenvelope.fitting.holdout import Check, concentrations, fold_sha256, logged_by_user
from redenvelope.fitting.settings import FitSettings
from redenvelope.log.log import Log
from redenvelope.models.fidelity import Fidelity
from redenvelope.plan.certificate import Certificate
from redenvelope.plan.fixed_sequence_test import Checked, Question, Stop, certify, walk
from redenvelope.plan.ladder import Ladder, Rung
from redenvelope.plan.policy import DeployedPolicy
from redenvelope.randomness import fraction

_EVERY = 4  # every fourth rung is estimated again
_JOINT = (0.8, 0.9, 0.95, 0.99)  # confidences at which simultaneous bounds for all prices are recorded


@dataclass(frozen=True, eq=False)
class PopulationSummary:
    """The audit and the costs of all users, where a fit is given only a sample of them."""

    audit: Audit
    costs: Mapping[str, Concentration]
    """How each budget's cost is spread over users, by name."""
    sample: str = ""
    """Which users the fit is given, in words; empty where it is given all."""


@dataclass(frozen=True, eq=False)
class Certification:
    """Where the fixed-sequence test stopped on the ladder, and what that certifies."""

    ladder: Ladder
    stop: Stop
    policy: DeployedPolicy
    """At the prices of the stop."""
    certificate: Certificate
    objections: tuple[Reason, ...]


def summarize_population(log: Log, budget: float | None, known_before: Sequence[str]) -> PopulationSummary:
    """Audit a log that contains all users."""
    # The audit is of what was logged; the budgets' costs derive from it.
    return PopulationSummary(audit_log(without_costs(log, ()), budget, known_before=known_before), concentrations(log))


def default_estimator(audit: Audit, seed: int) -> Marginalised:
    """Doubly robust with marginalised ratios: over several steps their errors add up, those of products multiply.

    A cost that is booked one step after its action, at a state that no longer shows it, needs the product of that step.
    """
    late = any(effect.is_late for effect in audit.carry_over)
    return Marginalised(seed=seed).looking_back(1 if late else 0)


def certify_plan(
    check: Check, policy: DeployedPolicy, question: Question, objections: tuple[Reason, ...], settings: FitSettings
) -> tuple[Check, Certification]:
    """Run the fixed-sequence test on the check users; the check is returned by the estimator that certifies."""
    search = settings.search
    trusted = trusted_check(check, lambda ladder: walk(ladder, question), search.agreement_users, settings.seed)
    check, joint = trusted.check, sorted({*_JOINT, settings.confidence})
    ladder = trusted.marked(check.ladder("plan", joint, settings.seed))
    ladder = replace(ladder, most_per_user=settings.most_per_user)
    stop = walk(ladder, question)
    if settings.most_per_user is not None and _decided_by_few(ladder, stop):
        check, ladder, stop = _for_any_tail(check, ladder, stop, settings.most_per_user, question)
    policy = replace(policy, pricing=ladder.pricing(stop.place))
    logged = tuple(float(value) for value in logged_by_user(check.log).mean(axis=1))
    certificate = certify(ladder, stop, question, policy, Checked(logged, fold_sha256(check.log), objections))
    return check, Certification(ladder, stop, policy, certificate, objections)


def _decided_by_few(ladder: Ladder, stop: Stop) -> bool:
    """Whether a walk ended where it did because one user decides the estimates beyond."""
    beyond = ladder.rungs[stop.place.rung + 1 :] if stop.holds else ladder.rungs
    return any(reason.rule == "concentrated" for rung in beyond[:1] for reason in rung.reasons)


def _for_any_tail(
    check: Check, ladder: Ladder, stop: Stop, most: float, question: Question
) -> tuple[Check, Ladder, Stop]:
    """The same by bounds that hold for any tail, if the walk gets further: of the importance-weighted sum of capped
    costs, which is the mean of independent numbers from 0 to the cap times the largest weight.

    Learned baselines and ratios would make these numbers depend on each other, so none are used. Clusters add up more.
    """
    if check.log.clusters is not None or question.target_reward is not None:
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
    """The check to rely on, and the verdicts on its rungs."""

    check: Check
    verdicts: tuple[EstimatorChoice, ...]
    """On every rung where the first estimator is relied on; else only on the one where the plan would have stopped."""

    def marked(self, ladder: Ladder) -> Ladder:
        """The check's ladder with the verdicts' objections."""
        if not self.verdicts:
            return ladder
        if len(self.verdicts) == 1:
            return replace(ladder, rungs=tuple(_by_the_past(rung, self.verdicts[0]) for rung in ladder.rungs))
        pairs = zip(ladder.rungs, self.verdicts, strict=True)
        return replace(ladder, rungs=tuple(_by_the_state(rung, own) for rung, own in pairs))


def trusted_check(check: Check, walk: Callable[[Ladder], Stop], users: int, seed: int) -> Trusted:
    """The check itself, or one by the estimator that uses the full history; `walk` says where the plan would stop.

    At most `users` users are compared: a difference matters only where it exceeds the width of the bounds.
    """
    estimator = check.evaluation.estimator
    if not isinstance(estimator, Marginalised) or check.log.lengths.max() < 2:
        return Trusted(check, ())
    ladder = check.ladder("plan")
    verdicts = _verdicts(check, estimator, len(ladder.rungs), users, seed)
    return relied_on(check, estimator, walk(ladder), verdicts)


def relied_on(check: Check, estimator: Marginalised, stop: Stop, verdicts: tuple[EstimatorChoice, ...]) -> Trusted:
    """What the verdict at the place where the plan would stop makes of the check."""
    reached = verdicts[stop.place.rung + round(stop.place.share)]
    if reached.rely_on == "first":
        return Trusted(check, verdicts)
    return Trusted(check.evaluated_by(checking_estimators(estimator, int(check.log.lengths.max()))[-1]), (reached,))


def _verdicts(check: Check, estimator: Marginalised, rungs: int, users: int, seed: int) -> tuple[EstimatorChoice, ...]:
    """On every rung, the verdict on the nearest one that was estimated again."""
    parts = check.evaluation.partitions
    again = np.unique(np.append(np.arange(0, rungs, _EVERY), rungs - 1))
    # A mixture is represented by the price that most of its users follow.
    prices = check.places("plan").start + check.candidates["plan"].main_prices()[again]
    share = users / max(len(check.log.users), 1)
    chosen = ((part, fraction(part.keys, "agreement", seed) < share) for part in parts.parts())
    # A small part may have no user in the sample.
    data = [part.at_prices(prices).of_users(own) for part, own in chosen if own.any()]
    past_known = all(part.past is not None for part in data)
    others = checking_estimators(estimator, int(check.log.lengths.max()), past_known)
    found = evaluate_partitions(data, [estimator, *others], engine=parts.engine)
    pairs = [agreement(found[estimator.name], found[other.name]) for other in others]
    sequential = found[others[-1].name]
    known = [
        choose_estimator(
            [outcome[place] for pair in pairs for outcome in pair],
            sequential.reasons(sequential.outcome_names[1], place),
        )
        for place in range(len(again))
    ]
    return tuple(known[int(np.argmin(np.abs(again - rung)))] for rung in range(rungs))


def _by_the_state(rung: Rung, own: EstimatorChoice) -> Rung:
    """A rung where estimators disagree is refused, because another budget could lead there."""
    if own.rely_on == "first":
        return rung
    return replace(rung, objections=tuple(Reason(each.rule, Weight.REFUSAL, each.message) for each in own.reasons))


def _by_the_past(rung: Rung, reached: EstimatorChoice) -> Rung:
    """Every rung says why this estimator was needed; a rung refused for thin overlap says it as a refusal."""
    weight = Weight.REFUSAL if rung.is_unreliable else Weight.WARNING
    return replace(rung, objections=tuple(Reason(each.rule, weight, each.message) for each in reached.reasons))


def objections_to(population: PopulationSummary, fidelity: Fidelity) -> tuple[Reason, ...]:
    """What audit and fidelity say against any plan from this log.

    A refusal where an assumption of the certificate fails, a warning where only the quality of the plan is in doubt.
    """
    audit = population.audit
    return (*_about_propensities(audit), *_about_columns(audit), *_about_the_model(fidelity))


def _about_propensities(audit: Audit) -> Iterator[Reason]:
    """Every estimate divides by propensities, so nothing can be certified where the log contradicts them."""
    for entry in audit.calibration:
        if entry.is_off:
            yield Reason(
                "propensity_miscalibrated",
                Weight.REFUSAL,
                f"the propensities of action {entry.label!r} contradict the log: 1/propensity adds up to "
                f"{entry.ratio:.3f} of the rows instead of 1 (z = {entry.z:+.1f}), and every estimate relies on them; "
                "correct the column, or use --estimate-propensity",
            )


def _about_columns(audit: Audit) -> Iterator[Reason]:
    """A plan that uses what is known only afterwards cannot be deployed, and its estimates say nothing; where actions
    were drawn for many users together, its errors are too small."""
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
    """The certificate does not rely on the model; the quality of the plan does."""
    if not fidelity.trusted:
        yield Reason(
            "model_not_trusted",
            Weight.WARNING,
            f"the model was not trusted to plan ahead: {fidelity.reasons[0]}; the bounds do not rely on it, but a plan "
            "made without it may earn less",
        )


def merge_concentrations(parts: Sequence[Mapping[str, Concentration]]) -> dict[str, Concentration]:
    """The concentrations of all users, from those of disjoint parts in their order."""
    return {name: reduce(Concentration.merge, (part[name] for part in parts)) for name in parts[0]}
