"""Evaluating a plan on another log: whether its certificate holds there, every estimator, and what has drifted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redenvelope.audit.audit import report_gaps
from redenvelope.campaign.costs import capped_log, charged_log
from redenvelope.errors import LogError, UsageError
from redenvelope.evaluation.confidence import Estimate, require_confidence
from redenvelope.evaluation.data import Extent
from redenvelope.evaluation.diagnostics import Reason, Weight
from redenvelope.evaluation.estimators import Estimator
from redenvelope.evaluation.evaluate import ESTIMATORS, Evaluation, evaluate_partitions
from redenvelope.evaluation.marginalised import Marginalised
from redenvelope.evaluation.promise import Status, all_kept, reaches_target, within_budget
from redenvelope.fitting.encoded import EncodedLog, encode
from redenvelope.fitting.holdout import (
    CandidatePolicy,
    check_policies,
    encoded_data,
    fold_sha256,
    logged_by_user,
    priced_values,
)
from redenvelope.fitting.learn import log_left
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.encoding.layout import CategoryEncoding
from redenvelope.log.encoding.table import report_outside, state_places
from redenvelope.log.findings import EXAMPLES, Finding, Findings, Severity
from redenvelope.log.log import FeatureTable, Log, split_fold
from redenvelope.plan.certificate import Certificate
from redenvelope.plan.ladder import Ladder
from redenvelope.plan.plan import Plan
from redenvelope.policies.eligibility_state import allowed
from redenvelope.serialization import to_plain


def evaluate_plan(plan: Plan, log: Log, confidence: float = 0.95, all_users: bool = False) -> dict[str, Any]:
    """Estimates of reward and cost by every estimator, and what they say of the certificate.

    Users of the folds that made the plan are recognised by their ids and left out. With `all_users` they stay: they are
    new people who happen to have such ids.
    """
    require_confidence(confidence)
    unknown = sorted(set(log.catalogue.labels) - set(plan.catalogue.labels))
    if unknown:
        raise UsageError(
            f"the log has the action {unknown[0]!r}, which the plan does not know (it knows "
            f"{', '.join(plan.catalogue.labels)}); evaluate on a log of the plan's own actions"
        )
    log = capped_log(charged_log(log, plan.record.budgets), plan.certificate.most_per_user)
    lacking = lacking_features(plan, log)
    everybody = plan.recoded(log)
    held_out = everybody if all_users else _held_out(plan, everybody)
    encoded = _encoded(plan, held_out)
    estimator = _estimator(plan)
    extent, prices = Extent.of(encoded.log), plan.policy.pricing.table
    data = [encoded_data(part, [priced_values(plan.policy, prices, part)], extent) for part in encoded.batches()]
    shown = {each.name: each for each in (*ESTIMATORS.values(), Marginalised(seed=plan.record.seed), estimator)}
    evaluations = evaluate_partitions(data, list(shown.values()))
    logged = logged_by_user(encoded.log).mean(axis=1)
    ladder = _ladder(plan, encoded, estimator)
    return {
        "users": held_out.people,
        "left_out": log.people - held_out.people,
        "confidence": confidence,
        "verdict": to_plain(_judged(plan, ladder)),
        "lacking": [finding.as_dict() for finding in (*lacking, *_left(plan, encoded))],
        "drift": [finding.as_dict() for finding in _drift(plan, encoded)],
        "logged": {"reward": float(logged[0]), "cost": float(logged[1])} | _logged_costs(plan, logged[1:]),
        "estimates": [row for each in evaluations.values() for row in _rows(plan, each, confidence)],
        "certificate": _verified(plan, everybody, held_out, ladder),
    }


def _left(plan: Plan, encoded: EncodedLog) -> tuple[Finding, ...]:
    """How much of the log agrees with the plan's rules."""
    if encoded.eligibility is None:
        return ()
    eligible = allowed(encoded.eligibility, plan.policy.constraint, encoded.states, encoded.steps_left)
    return log_left(encoded.log, eligible)


def _drift(plan: Plan, encoded: EncodedLog) -> tuple[Finding, ...]:
    return drift_findings(plan.policy.encoder, encoded.states, encoded.log.features)


def _estimator(plan: Plan) -> Estimator:
    """The estimator that certified the plan."""
    name = plan.certificate.cost.estimator
    return ESTIMATORS[name] if name in ESTIMATORS else Marginalised.named(name, plan.record.seed)


def _held_out(plan: Plan, log: Log) -> Log:
    """The users who are in the check fold by their ids."""
    check = _checking(plan, log)
    if not check.any():
        raise UsageError(
            f"by their ids, all {log.people} users of this log are among those the plan was made with; bring "
            "other users, or pass --all-users if these are new people"
        )
    return log.select(check)


def _ladder(plan: Plan, encoded: EncodedLog, estimator: Estimator) -> Ladder:
    """The plan's ladder on other users: all prices, because neighbours share their baselines beyond the trees."""
    mixtures = plan.ladder.mixtures()
    prices = plan.ladder.prices if mixtures is None else mixtures.prices
    own = {"plan": CandidatePolicy(plan.policy, prices, mixtures)}
    ladder = check_policies(own, encoded, estimator, 0, plan.record.seed).ladder("plan")
    return ladder if plan.ladder.largest is None else ladder.for_any_tail(plan.ladder.largest)


def _judged(plan: Plan, ladder: Ladder) -> CertificateVerdict:
    place = plan.record.stop.place
    reward, *costs = ladder.figures(place, plan.certificate.confidence)
    return judge(plan.certificate, reward, costs, ladder.people, ladder.reasons(place))


def _logged_costs(plan: Plan, costs: NDArray[np.float64]) -> dict[str, Any]:
    """What was spent of each of several budgets, by their names."""
    names = [each.name for each in plan.certificate.budgets]
    return {"costs": dict(zip(names, costs.tolist(), strict=True))} if len(names) > 1 else {}


def _checking(plan: Plan, log: Log) -> NDArray[np.bool_]:
    """Who is in the check fold, [users]: by cluster where the plan was made so, else by user."""
    keys = log.keys if plan.columns.cluster is not None else log.user_keys
    return np.asarray(split_fold(keys, plan.record.parts, plan.record.seed) == len(plan.record.parts) - 1)


def _encoded(plan: Plan, log: Log) -> EncodedLog:
    return encode(log, plan.policy.encoder, plan.policy.specification.steps, plan.policy.constraint)


def _rows(plan: Plan, evaluation: Evaluation, confidence: float) -> list[dict[str, Any]]:
    """One row per target; of a mixture, one row per price with its share."""
    rows, budgets = [], [each.name for each in plan.certificate.budgets]
    targets = ["reward", *("cost" for _ in budgets)]
    for place, share in enumerate(plan.policy.pricing.shares):
        for number, (target, outcome) in enumerate(zip(targets, evaluation.outcome_names, strict=True)):
            estimate = evaluation.estimate(outcome, place, confidence)
            reasons = [to_plain(reason) for reason in evaluation.reasons(outcome, place)]
            named = {"budget": budgets[number - 1]} if number and len(budgets) > 1 else {}
            rows.append({"target": target, "share": share} | named | estimate.as_dict() | {"reasons": reasons})
    return rows


def _verified(plan: Plan, log: Log, held_out: Log, ladder: Ladder) -> dict[str, Any]:
    """The certificate made again from its own fold, where the log still has it; `ladder` is of the held-out users."""
    given = plan.certificate
    if not plan.policy.looks_to_the_end:
        note = "the plan does not say what follows its trees: fit it again with this version to verify it"
        return {"status": given.status, "verified": None, "note": note}
    check = _checking(plan, log)
    for candidate in (held_out, log.select(check)) if check.any() else (held_out,):
        if fold_sha256(candidate) == given.fold_sha256:
            own = ladder if candidate is held_out else _ladder(plan, _encoded(plan, candidate), _estimator(plan))
            again = own.figures(plan.record.stop.place, given.confidence)[1:]
            same = all(
                abs(figure.upper - each.cost.upper) <= 1e-6 * max(abs(each.cost.upper), 1.0)
                for figure, each in zip(again, given.budgets, strict=True)
            )
            return {"status": given.status, "verified": same}
    return {"status": given.status, "verified": None, "note": "this log does not contain the fold it was made on"}


# What another log says of a certificate.


@dataclass(frozen=True)
class BudgetVerdict:
    """What a log says of one budget."""

    name: str
    status: Status
    budget: float
    cost: Estimate
    message: str


@dataclass(frozen=True)
class CertificateVerdict:
    """What a log says of a certificate."""

    status: Status
    message: str
    cost: Estimate
    """Of the first budget, with one-sided bounds at the certificate's confidence."""
    reward: Estimate
    users: int
    """Held-out users."""
    budgets: tuple[BudgetVerdict, ...] = ()
    """Of every budget; empty where a reward was promised."""


def judge(
    certificate: Certificate, reward: Estimate, costs: Sequence[Estimate], users: int, reasons: tuple[Reason, ...]
) -> CertificateVerdict:
    """Compare what is promised with bounds on other users; `reasons` are those against these bounds.

    A certificate promises all of its budgets: one that is contradicted contradicts it.
    """
    against = next((reason for reason in reasons if reason.weight is Weight.REFUSAL), None)
    if against is not None:
        message = f"this log cannot decide: {against.message}"
        return CertificateVerdict("undecided", message, costs[0], reward, users)
    budgets: tuple[BudgetVerdict, ...] = ()
    if certificate.target_reward is not None:
        found = reaches_target(reward, certificate.target_reward)
    else:
        pairs = list(zip(certificate.budgets, costs, strict=True))
        verdicts = [within_budget(cost, each.budget, each.name if len(pairs) > 1 else None) for each, cost in pairs]
        budgets = tuple(
            BudgetVerdict(each.name, verdict.status, each.budget, cost, verdict.sentence)
            for (each, cost), verdict in zip(pairs, verdicts, strict=True)
        )
        found = all_kept(verdicts)
    message = f"{found.sentence} (with {certificate.confidence:.0%} confidence, on {users:,} users)"
    return CertificateVerdict(found.status, message, costs[0], reward, users, budgets)


# Whether a log has the features that a plan decides by.

_LEFT_OUT = ("feature_missing_all", "feature_constant", "feature_like_id")


def lacking_features(plan: Plan, log: Log) -> tuple[Finding, ...]:
    """Features that the plan decides by and that were left out when the log was read.

    Raises `LogError` where the log lacks such a column, skips steps, or has steps that the plan does not know.
    """
    findings = Findings()
    report_gaps(log.gaps, findings)
    first = plan.policy.encoder.first_step
    last = first + plan.policy.specification.steps - 1
    outside = int(((log.step < first) | (log.step > last)).sum())
    if outside:
        findings.add("evaluate_steps", column="step", count=outside, first=first, last=last)
    _report_features(plan, log, findings)
    if findings.refused:
        raise LogError([finding for finding in findings.sorted() if finding.severity is Severity.ERROR])
    return findings.sorted()


def _report_features(plan: Plan, log: Log, findings: Findings) -> None:
    encoder = plan.policy.encoder
    left_out = {finding.column: finding for finding in log.findings if finding.rule in _LEFT_OUT}
    numbers, categories = set(log.features.numeric_names), set(log.features.category_names)
    wanted = [(number.name, number.name in numbers) for number in encoder.numbers]
    wanted += [(category.name, category.name in categories) for category in encoder.categories]
    for name in (name for name, there in wanted if not there):
        if name in left_out:
            findings.add("evaluate_feature_left_out", column=name, count=len(log), why=left_out[name].message)
        elif name in numbers | categories:
            findings.add("evaluate_feature_kind", column=name, count=len(log))
        else:
            findings.add("evaluate_feature_missing", column=name, count=len(log))


# Drift: features whose distribution differs from that in training.


# In training the standardised mean is 0. Half a standard deviation is far beyond chance and beyond most seasons.
_LARGEST_SHIFT = 0.5
_LARGEST_UNSEEN = 0.05  # share of rows


def drift_findings(encoder: Encoder, states: NDArray[np.float32], features: FeatureTable) -> tuple[Finding, ...]:
    """Numbers whose mean has moved or that are outside of what training saw, and categories whose labels are new.

    `states` [rows, width] are those of the features.
    """
    findings, places = Findings(), state_places(encoder.numbers, encoder.categories, encoder.layout)
    for number, column in zip(encoder.numbers, places.numbers, strict=True):
        # A binary is not standardised: it keeps its own scale, and its mean in training is not remembered.
        if number.binary:
            continue
        shift = float(states[:, column].mean(dtype=np.float64))
        if abs(shift) > _LARGEST_SHIFT:
            findings.add(
                "drift_number",
                column=number.name,
                count=len(states),
                mean=number.mean + shift * number.scale,
                before=number.mean,
                deviations=abs(shift),
            )
    for number in encoder.numbers:
        if number.name in features.numeric_names:
            report_outside(number, features.numeric[:, features.numeric_names.index(number.name)], findings)
    for category in encoder.categories:
        if category.name in features.category_names:
            _report_labels(category, features, findings)
    return findings.sorted()


def _report_labels(category: CategoryEncoding, features: FeatureTable, findings: Findings) -> None:
    """Labels that training never saw, where they are many; few are named as at any decision."""
    column = features.category_names.index(category.name)
    known = {*category.labels, *category.rare}
    unseen = np.array([label not in known for label in features.labels[column]] + [False])
    rows = np.flatnonzero(unseen[features.codes[:, column]])
    if not len(rows):
        return
    labels = [features.labels[column][code] for code in np.unique(features.codes[rows, column])[:EXAMPLES]]
    share = len(rows) / len(features.codes)
    rule = "drift_category" if share > _LARGEST_UNSEEN else "serving_unseen_label"
    findings.add(rule, column=category.name, count=len(rows), examples=labels, share=f"{share:.0%}")
