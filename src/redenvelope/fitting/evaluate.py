"""Evaluating a plan on another log: whether its certificate holds there, estimates by every estimator, and drift.

`evaluate_plan` is behind `Plan.evaluate` and the `evaluate` command; `judge` compares bounds on held-out users with the
certificate, and `drift_findings` compares features with those of training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redenvelope.audit.audit import report_gaps
from redenvelope.campaign.costs import capped_log, charged_log
from redenvelope.engine.engine import one_blas_thread
from redenvelope.errors import LogError, UsageError
from redenvelope.evaluation.confidence import Estimate, Spread, require_confidence
from redenvelope.evaluation.data import Extent
from redenvelope.evaluation.diagnostics import Reason, Weight, merged_reasons
from redenvelope.evaluation.estimators import Estimator
from redenvelope.evaluation.evaluate import ESTIMATORS, Evaluation, evaluate_partitions
from redenvelope.evaluation.marginalised import Marginalised
from redenvelope.evaluation.promise import Status, all_kept, reaches_target, within_budget
from redenvelope.fitting.certify import trusted_check
from redenvelope.fitting.encoded import EncodedLog, encode, past_effects
from redenvelope.fitting.holdout import (
    IMPOSSIBLE,
    CandidatePolicy,
    Check,
    PastCorrection,
    are_impossible,
    check_policies,
    encoded_data,
    fold_sha256,
    influence_of,
    logged_by_user,
    possible_means,
    priced_values,
)
from redenvelope.fitting.learn import log_left
from redenvelope.fitting.settings import SearchSettings
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
from redenvelope.wording import html_block, interval


@one_blas_thread()
def evaluate_plan(plan: Plan, log: Log, confidence: float = 0.95, all_users: bool = False) -> dict[str, Any]:
    """Estimate reward and cost by every estimator, and compare them with the certificate.

    Users whose rows made the plan are left out, unless `all_users` is set.
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
    held_out, left_out = (everybody, "") if all_users else _held_out(plan, everybody)
    encoded = _encoded(plan, held_out)
    estimator = _estimator(plan)
    extent, prices = Extent.of(encoded.log), plan.policy.pricing.table
    data = [encoded_data(part, [priced_values(plan.policy, prices, part)], extent) for part in encoded.batches()]
    shown = {each.name: each for each in (*ESTIMATORS.values(), _marginalised(plan), estimator)}
    evaluations = evaluate_partitions(data, list(shown.values()))
    logged = logged_by_user(encoded.log).mean(axis=1)
    check = _checked(plan, encoded, estimator)
    ladder = _trusted_ladder(plan, check, everybody)
    verdict = to_plain(_judged(plan, ladder))
    lacks, drift = (*lacking, *_left(plan, encoded)), _drift(plan, encoded)
    content = {
        "users": held_out.people,
        "left_out": log.people - held_out.people,
        "left_out_note": left_out,
        "confidence": confidence,
        "verdict": verdict,
        "advice": _advice(plan, verdict, lacks, drift),
        "lacking": [finding.as_dict() for finding in lacks],
        "drift": [finding.as_dict() for finding in drift],
        "logged": {"reward": float(logged[0]), "cost": float(logged[1])} | _logged_costs(plan, logged[1:]),
        "estimates": [row for each in evaluations.values() for row in _rows(plan, encoded, each, confidence)],
        "certificate": _verified(plan, everybody, check),
    }
    return PlanEvaluation(content)


class PlanEvaluation(dict[str, Any]):
    """The result of `evaluate_plan`, with the keys of `--json`; prints as sentences."""

    def sentences(self) -> list[str]:
        """The verdict, who was left out, and what to do."""
        verdict, advice = self["verdict"], self["advice"]
        said = (f"{verdict['status']}: {verdict['message']}", self["left_out_note"])
        return [*filter(None, said), f"{advice['do']} the plan: {'; '.join(advice['reasons'])}"]

    def __str__(self) -> str:
        return "\n".join(self.sentences())

    def _repr_html_(self) -> str:
        named = ((f"{row['target']}, {row['estimator']}", row) for row in self["estimates"])
        rows = [(name, interval(row["lower"], row["upper"])) for name, row in named]
        return html_block("What the log says of the plan", self.sentences(), rows)


def _advice(
    plan: Plan, verdict: dict[str, Any], lacking: Sequence[Finding], drift: Sequence[Finding]
) -> dict[str, Any]:
    """Whether to fit the plan again, and why."""
    reasons = []
    if verdict["status"] == "contradicted":
        reasons.append("this log contradicts the certificate")
    if not plan.certificate.is_certified:
        reasons.append("the plan was never certified")
    for what, found in (("drifted from", drift), ("lacks what", lacking)):
        odd = [finding for finding in found if finding.severity is not Severity.REPAIRED]
        if odd:
            columns = ", ".join(dict.fromkeys(repr(finding.column) for finding in odd if finding.column)) or "the log"
            learned = "the users that the plan learned from" if found is drift else "the plan decides by"
            reasons.append(f"{columns} {what} {learned}")
    if reasons:
        return {"do": "refit", "reasons": reasons}
    confirmed = verdict["status"] == "confirmed"
    kept = "the log confirms the certificate" if confirmed else "nothing in this log speaks against the certificate"
    return {"do": "keep", "reasons": [f"{kept}, and no feature has drifted"]}


def _left(plan: Plan, encoded: EncodedLog) -> tuple[Finding, ...]:
    """Findings on how much of the log complies with the plan's rules."""
    if encoded.eligibility is None:
        return ()
    eligible = allowed(encoded.eligibility, plan.policy.constraint, encoded.states, encoded.steps_left)
    return log_left(encoded.log, eligible)


def _drift(plan: Plan, encoded: EncodedLog) -> tuple[Finding, ...]:
    return drift_findings(plan.policy.encoder, encoded.states, encoded.log.features)


def _estimator(plan: Plan) -> Estimator:
    """The estimator that certified the plan."""
    name = plan.certificate.cost.estimator
    return ESTIMATORS[name] if name in ESTIMATORS else _marginalised(plan, name)


def _marginalised(plan: Plan, name: str = Marginalised.name) -> Marginalised:
    return Marginalised.named(name, plan.record.seed, len(plan.policy.members))


def _held_out(plan: Plan, log: Log) -> tuple[Log, str]:
    """The users whose rows did not make the plan, and a note on those left out."""
    if len(plan.policy.members) > 1:  # no user made the member that they follow
        return log, ""
    listed = plan.record.made_with
    if listed is None:  # no list: judge by the fold that ids fall into
        known, same = ~_checking(plan, log), True
        who = "by their ids, they are in folds that made the plan; the plan has no list of its users"
    else:
        known, same = listed.among(log)
        who = "the plan was made with them"
    count = int(np.unique(log.user_keys[known]).size)
    if not same:
        return log, "" if not count else (
            f"{count:,} users have ids of users that the plan was made with, but other rows: they count as new users"
        )
    if known.all():
        raise UsageError(
            f"all {log.people:,} users of this log are among those the plan was made with; bring other users, or pass "
            "--all-users if these are new people"
        )
    return log.select(~known), f"{count:,} users were left out: {who}" if count else ""


def _checked(plan: Plan, encoded: EncodedLog, estimator: Estimator) -> Check:
    """The plan's ladder on other users, at all prices, because neighbouring prices share baselines beyond the trees."""
    mixtures = plan.ladder.mixtures()
    prices = plan.ladder.prices if mixtures is None else mixtures.prices
    own = {"plan": CandidatePolicy(plan.policy, prices, mixtures)}
    return check_policies(own, encoded, estimator, 0, plan.record.seed)


def _trusted_ladder(plan: Plan, check: Check, everybody: Log) -> Ladder:
    """The ladder, checked against the past as in a fit; effects of the past are estimated on all users of the log."""
    past = past_effects(everybody, plan.policy.encoder, SearchSettings().agreement_users, plan.record.seed)
    trusted = trusted_check(check, lambda ladder: plan.record.stop, past)
    return _bounded(plan, trusted.marked(trusted.check.ladder("plan")))


def _as_certified(plan: Plan, check: Check, everybody: Log) -> Ladder:
    """The ladder with the correction for the past from the plan's certification."""
    if plan.ladder.mixtures() is not None:  # a rung's diagnostics lack the correction of each mixed plan
        return _trusted_ladder(plan, check, everybody)
    correction = PastCorrection.of_rungs([rung.diagnostics for rung in plan.ladder.rungs])
    return _bounded(plan, replace(check, correction=correction).ladder("plan"))


def _bounded(plan: Plan, ladder: Ladder) -> Ladder:
    """Bounds for any tail, if the certificate used them: they rest on the largest weight in the certifying log."""
    return ladder if plan.ladder.largest is None else ladder.for_any_tail(plan.ladder.largest)


def _judged(plan: Plan, ladder: Ladder) -> CertificateVerdict:
    place = plan.record.stop.place
    reward, *costs = ladder.figures(place, plan.certificate.confidence)
    return judge(plan.certificate, reward, costs, ladder.people, ladder.reasons(place))


def _logged_costs(plan: Plan, costs: NDArray[np.float64]) -> dict[str, Any]:
    """Logged cost against each of several budgets, by name; empty with one."""
    names = [each.name for each in plan.certificate.budgets]
    return {"costs": dict(zip(names, costs.tolist(), strict=True))} if len(names) > 1 else {}


def _checking(plan: Plan, log: Log) -> NDArray[np.bool_]:
    """Who is in the check fold, [users]: by cluster if the plan was split so, else by user."""
    if len(plan.policy.members) > 1:  # every user checks the member that they follow
        return np.ones(len(log.users), dtype=bool)
    keys = log.keys if plan.columns.cluster is not None else log.user_keys
    return np.asarray(split_fold(keys, plan.record.parts, plan.record.seed) == len(plan.record.parts) - 1)


def _encoded(plan: Plan, log: Log) -> EncodedLog:
    return encode(log, plan.policy.encoder, plan.policy.specification.steps, plan.policy.constraint)


def _rows(plan: Plan, encoded: EncodedLog, evaluation: Evaluation, confidence: float) -> list[dict[str, Any]]:
    """One row per target. A mixture of prices is one policy, because each user draws a price once."""
    budgets, shares = [each.name for each in plan.certificate.budgets], plan.policy.pricing.shares
    added = influence_of(evaluation, encoded.log) @ np.array(shares)
    spread, level = Spread.of(added, axis=1), (1 + confidence) / 2
    possible = possible_means(encoded.log)
    ends = (np.clip(each, *possible) for each in (spread.mean, spread.lower(level), spread.upper(level)))
    columns = (*ends, spread.standard_error)
    impossible, rows = np.any(are_impossible(spread.mean[:, None], encoded.log), axis=(0, 2)), []
    for number, outcome in enumerate(evaluation.outcome_names):
        value, lower, upper, error = (float(column[number]) for column in columns)
        estimate = Estimate(value, lower, upper, error, evaluation.estimator.name)
        against = merged_reasons(evaluation.reasons(outcome, place) for place in range(len(shares)))
        named = {"budget": budgets[number - 1]} if number and len(budgets) > 1 else {}
        told = {"target": "cost" if number else "reward"} | named | estimate.as_dict()
        if impossible[number]:
            told |= dict.fromkeys(("estimate", "lower", "upper", "standard_error"))
            against.append(IMPOSSIBLE)
        rows.append(told | {"reasons": [to_plain(reason) for reason in against]})
    return rows


def _verified(plan: Plan, log: Log, held_out: Check) -> dict[str, Any]:
    """Recompute the certificate from its own fold, if the log still contains it."""
    given = plan.certificate
    if not plan.policy.looks_to_the_end:
        note = "the plan does not say what follows its trees: fit it again with this version to verify it"
        return {"status": given.status, "verified": None, "note": note}
    checking = _checking(plan, log)
    for candidate in (held_out.log, log.select(checking)) if checking.any() else (held_out.log,):
        if fold_sha256(candidate) == given.fold_sha256:
            own = candidate is held_out.log
            check = held_out if own else _checked(plan, _encoded(plan, candidate), _estimator(plan))
            again = _as_certified(plan, check, log).figures(plan.record.stop.place, given.confidence)[1:]
            same = all(
                abs(figure.upper - each.cost.upper) <= 1e-6 * max(abs(each.cost.upper), 1.0)
                for figure, each in zip(again, given.budgets, strict=True)
            )
            return {"status": given.status, "verified": same}
    return {"status": given.status, "verified": None, "note": "this log does not contain the fold it was made on"}


# Comparing a log with a certificate.


@dataclass(frozen=True)
class BudgetVerdict:
    """What a log says about one budget."""

    name: str
    status: Status
    budget: float
    cost: Estimate
    message: str


@dataclass(frozen=True)
class CertificateVerdict:
    """What a log says about a certificate."""

    status: Status
    message: str
    cost: Estimate
    """Against the first budget, with one-sided bounds at the certificate's confidence."""
    reward: Estimate
    users: int
    """Held-out users."""
    budgets: tuple[BudgetVerdict, ...] = ()
    """One per budget; empty if a reward was promised."""


def judge(
    certificate: Certificate, reward: Estimate, costs: Sequence[Estimate], users: int, reasons: tuple[Reason, ...]
) -> CertificateVerdict:
    """Compare a certificate with bounds on other users; `reasons` are those against these bounds.

    A certificate promises to keep every budget, so contradicting one contradicts the certificate.
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


# Whether a log has the features that the plan's decisions depend on.

_LEFT_OUT = ("feature_missing_all", "feature_constant", "feature_like_id")


def lacking_features(plan: Plan, log: Log) -> tuple[Finding, ...]:
    """Features that the plan uses and that were dropped when the log was read.

    Raises `LogError` if the log lacks such a column, skips steps, or has steps outside of the campaign.
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


# The standardised mean is 0 in training; half a standard deviation is far beyond chance and most seasonal change.
_LARGEST_SHIFT = 0.5
_LARGEST_UNSEEN = 0.05  # share of rows
_FEW = 0.005
"""Share of values outside of the training range that is still normal: a new sample of the same users has a few."""


def drift_findings(encoder: Encoder, states: NDArray[np.float32], features: FeatureTable) -> tuple[Finding, ...]:
    """Findings on numbers with a shifted mean or outside of the training range, and on categories with new labels.

    `states` [rows, width] are encoded from these features.
    """
    findings, places = Findings(), state_places(encoder.numbers, encoder.categories, encoder.layout)
    for number, column in zip(encoder.numbers, places.numbers, strict=True):
        # Binary features are not standardised, and their training mean is not stored.
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
            report_outside(number, features.numeric[:, features.numeric_names.index(number.name)], findings, _FEW)
    for category in encoder.categories:
        if category.name in features.category_names:
            _report_labels(category, features, findings)
    return findings.sorted()


def _report_labels(category: CategoryEncoding, features: FeatureTable, findings: Findings) -> None:
    """Report unknown labels: as drift if they are many, else as in a decision."""
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
