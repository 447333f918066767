"""A plan on a log: what it says of the certificate, every estimator side by side, and what has drifted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from redenvelope.audit.audit import report_gaps
from redenvelope.campaign.costs import charged_log
from redenvelope.errors import LogError, UsageError
from redenvelope.evaluation.confidence import require_confidence
from redenvelope.evaluation.diagnostics import Reason, Weight
from redenvelope.evaluation.estimators import Estimator
from redenvelope.evaluation.evaluate import ESTIMATORS, Evaluation, Extent, evaluate_partitions
from redenvelope.evaluation.marginalised import Marginalised
from redenvelope.fitting.encoded import EncodedLog, encode
from redenvelope.fitting.holdout import CandidatePolicy, check_policies, encoded_data, fold_sha256, priced_policy
from redenvelope.fitting.learn import log_left
from redenvelope.fitting.record import logged_by_user
from redenvelope.fitting.settings import SearchSettings
from redenvelope.log.encoding.drift import drift_findings
from redenvelope.log.findings import Finding, Findings, Severity
from redenvelope.log.log import Log, split_fold
from redenvelope.plan.certificate import BudgetFigure, Certificate, Figure
from redenvelope.plan.ladder import Ladder
from redenvelope.plan.plan import Plan
from redenvelope.policies.eligibility_state import allowed
from redenvelope.serialization import to_plain


def evaluate_plan(plan: Plan, log: Log, confidence: float = 0.95, all_users: bool = False) -> dict[str, Any]:
    """Estimates of reward and cost by every estimator, and what they say of the certificate.

    Users of the folds that made the plan are left out, told by their ids alone; with `all_users` they are new people
    who happen to have such ids, and stay.
    """
    require_confidence(confidence)
    unknown = sorted(set(log.catalogue.labels) - set(plan.catalogue.labels))
    if unknown:
        raise UsageError(
            f"the log holds the action {unknown[0]!r}, which the plan does not know (it knows "
            f"{', '.join(plan.catalogue.labels)}); evaluate on a log of the plan's own actions"
        )
    log = charged_log(log, plan.record.budgets)
    lacking = lacking_features(plan, log)
    whole = plan.recoded(log)
    kept = whole if all_users else _not_trained_on(plan, whole)
    encoded = _encoded(plan, kept)
    estimator = _estimator(plan)
    own = priced_policy(plan.policy, plan.policy.pricing.table, _walkers(plan, encoded))
    extent = Extent.of(encoded.log)
    evidence = [encoded_data(batch, [own.values(batch)], extent) for batch in encoded.batches()]
    shown = {each.name: each for each in (*ESTIMATORS.values(), Marginalised(seed=plan.record.seed), estimator)}
    evaluations = evaluate_partitions(evidence, list(shown.values()))
    logged = logged_by_user(encoded.log).mean(axis=1)
    ladder = _ladder(plan, encoded, estimator)
    return {
        "users": kept.people,
        "left_out": log.people - kept.people,
        "confidence": confidence,
        "verdict": to_plain(_verdict(plan, ladder)),
        "lacking": [finding.as_dict() for finding in (*lacking, *_left(plan, encoded))],
        "drift": [finding.as_dict() for finding in _drift(plan, encoded)],
        "logged": {"reward": float(logged[0]), "cost": float(logged[1])} | _logged_costs(plan, logged[1:]),
        "estimates": [row for each in evaluations.values() for row in _rows(plan, each, confidence)],
        "certificate": _verified(plan, whole, kept, ladder),
    }


def _left(plan: Plan, encoded: EncodedLog) -> tuple[Finding, ...]:
    """How much of the log the plan's rules leave to speak for it."""
    if encoded.standing is None:
        return ()
    eligible = allowed(encoded.standing, plan.policy.constraint, encoded.states, encoded.steps_left)
    return log_left(encoded.log, eligible)


def _drift(plan: Plan, encoded: EncodedLog) -> tuple[Finding, ...]:
    return drift_findings(plan.policy.encoder, encoded.states, encoded.log.features)


def _estimator(plan: Plan) -> Estimator:
    """The one that certified."""
    name = plan.certificate.cost.estimator
    return ESTIMATORS[name] if name in ESTIMATORS else Marginalised.named(name, plan.record.seed)


def _not_trained_on(plan: Plan, log: Log) -> Log:
    """The users who are in the check fold by their ids."""
    check = _checking(plan, log)
    if not check.any():
        raise UsageError(
            f"by their ids, all {log.people} users of this log are among those the plan was made with; bring "
            "others, or say --all-users if these are new people"
        )
    return log.select(check)


def _ladder(plan: Plan, encoded: EncodedLog, estimator: Estimator) -> Ladder:
    """The plan's ladder on other users: all prices, because neighbours share their baselines beyond the trees."""
    mixtures = plan.ladder.mixtures()
    prices = plan.ladder.prices if mixtures is None else mixtures.prices
    own = {"plan": CandidatePolicy(plan.policy, prices, mixtures)}
    check = check_policies(own, encoded, _walkers(plan, encoded), estimator, 0, plan.record.seed)
    return check.ladder("plan")


def _verdict(plan: Plan, ladder: Ladder) -> Verdict:
    place = plan.record.stop.place
    reward, *costs = ladder.figures(place, plan.certificate.confidence)
    return judge(plan.certificate, reward, costs, ladder.users, ladder.reasons(place))


def _logged_costs(plan: Plan, costs: NDArray[np.float64]) -> dict[str, Any]:
    """What was spent of each of several budgets, by their names."""
    names = [each.name for each in plan.certificate.budgets]
    return {"costs": dict(zip(names, costs.tolist(), strict=True))} if len(names) > 1 else {}


def _checking(plan: Plan, log: Log) -> NDArray[np.bool_]:
    """Who is in the check fold, [users]."""
    return np.asarray(split_fold(log.keys, plan.record.parts, plan.record.seed) == len(plan.record.parts) - 1)


def _encoded(plan: Plan, log: Log) -> EncodedLog:
    return encode(log, plan.policy.encoder, plan.policy.specification.steps, plan.policy.constraint)


def _walkers(plan: Plan, encoded: EncodedLog) -> EncodedLog:
    return encoded.some_users(SearchSettings().walkers, "walkers", plan.record.seed)


def _rows(plan: Plan, evaluation: Evaluation, confidence: float) -> list[dict[str, Any]]:
    """One row a target; of a mixture, one row a price with its share."""
    rows, budgets = [], [each.name for each in plan.certificate.budgets]
    targets = ["reward", *("cost" for _ in budgets)]
    for place, share in enumerate(plan.policy.pricing.shares):
        for number, (target, outcome) in enumerate(zip(targets, evaluation.outcome_names, strict=True)):
            estimate = evaluation.estimate(outcome, place, confidence)
            reasons = [to_plain(reason) for reason in estimate.reasons]
            named = {"budget": budgets[number - 1]} if number and len(budgets) > 1 else {}
            rows.append({"target": target, "share": share} | named | estimate.as_dict() | {"reasons": reasons})
    return rows


def _verified(plan: Plan, log: Log, kept: Log, ladder: Ladder) -> dict[str, Any]:
    """The certificate made again from its own fold, where the log still holds it; `ladder` is of the users kept."""
    given = plan.certificate
    check = _checking(plan, log)
    for candidate in (kept, log.select(check)) if check.any() else (kept,):
        if fold_sha256(candidate) == given.fold_sha256:
            own = ladder if candidate is kept else _ladder(plan, _encoded(plan, candidate), _estimator(plan))
            again = own.figures(plan.record.stop.place, given.confidence)[1:]
            same = all(
                abs(figure.upper - each.cost.upper) <= 1e-6 * max(abs(each.cost.upper), 1.0)
                for figure, each in zip(again, given.budgets, strict=True)
            )
            return {"status": given.status, "verified": same}
    return {"status": given.status, "verified": None, "note": "this log does not hold the fold it was made on"}


# Does another log bear a certificate out? Confirmed, contradicted, or too few users to say.


Status = Literal["confirmed", "contradicted", "undecided"]


@dataclass(frozen=True)
class BudgetVerdict:
    """What a log says of one budget."""

    name: str
    status: Status
    budget: float
    cost: Figure
    message: str


@dataclass(frozen=True)
class Verdict:
    """What a log says of a certificate."""

    status: Status
    message: str
    cost: Figure
    """Of the first budget, with one-sided bounds at the certificate's confidence."""
    reward: Figure
    users: int
    """Who were asked: none of them trained the plan."""
    budgets: tuple[BudgetVerdict, ...] = ()
    """Of every budget; empty where a reward was promised."""


def judge(
    certificate: Certificate, reward: Figure, costs: Sequence[Figure], users: int, reasons: tuple[Reason, ...]
) -> Verdict:
    """Compare what is promised with bounds on other users; `reasons` speak against these bounds.

    One budget that is contradicted contradicts the certificate, which promises all of them.
    """
    level = f"with {certificate.confidence:.0%} confidence, on {users:,} users"

    def verdict(status: Status, message: str, budgets: tuple[BudgetVerdict, ...] = ()) -> Verdict:
        return Verdict(status, message, costs[0], reward, users, budgets)

    against = next((reason for reason in reasons if reason.weight is Weight.REFUSAL), None)
    if against is not None:
        return verdict("undecided", f"this log cannot say: {against.message}")
    if certificate.target_reward is not None:
        target = f"the target {certificate.target_reward:.4g}"
        if reward.upper < certificate.target_reward:
            return verdict("contradicted", f"the reward is at most {reward.upper:.4g}, {target} ({level})")
        if reward.lower >= certificate.target_reward:
            return verdict("confirmed", f"the reward is at least {reward.lower:.4g}, {target} ({level})")
        return verdict(
            "undecided",
            f"too few users to say: the reward is {reward.lower:.4g} to {reward.upper:.4g}, {target} ({level})",
        )
    several = len(costs) > 1
    judged = tuple(_of_budget(*pair, several) for pair in zip(certificate.budgets, costs, strict=True))
    for status in ("contradicted", "undecided", "confirmed"):
        said = [each for each in judged if each.status == status]
        if said:
            few = "too few users to say: " if status == "undecided" else ""
            return verdict(status, f"{few}{'; '.join(each.message for each in said)} ({level})", judged)
    raise AssertionError("a certificate has at least one budget")


def _of_budget(promised: BudgetFigure, cost: Figure, several: bool) -> BudgetVerdict:
    what = f"the cost of {promised.name}" if several else "the cost"
    budget = f"the budget {promised.budget:.4g}"

    def judged(status: Status, message: str) -> BudgetVerdict:
        return BudgetVerdict(promised.name, status, promised.budget, cost, message)

    if cost.lower > promised.budget:
        return judged("contradicted", f"{what} is at least {cost.lower:.4g}, {budget}")
    if cost.upper <= promised.budget:
        return judged("confirmed", f"{what} is at most {cost.upper:.4g}, {budget}")
    return judged("undecided", f"{what} is {cost.lower:.4g} to {cost.upper:.4g}, {budget}")


# Whether a log tells what a plan decides by: what it does not tell is never taken as missing without a word.


_LEFT_OUT = ("feature_missing_all", "feature_constant", "feature_like_id")


def lacking_features(plan: Plan, log: Log) -> tuple[Finding, ...]:
    """Features that the plan decides by and that reading left out of the log.

    Raises `LogError` where the log lacks such a column, skips steps, or holds steps that the plan does not know.
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
