"""The sections about what the plan rests on: who gets what, whether the model can be believed, and the log."""

from __future__ import annotations

from collections.abc import Sequence

from redenvelope.audit.audit import Audit
from redenvelope.audit.overlap import StepOverlap
from redenvelope.audit.verdicts import verdicts
from redenvelope.log.findings import Finding, place
from redenvelope.models.followed import RollOutFidelity
from redenvelope.plan.plan import Plan
from redenvelope.report.allocation_charts import feature_chart
from redenvelope.report.audit_charts import action_chart, overlap_chart
from redenvelope.report.markup import figure, folded, interval, items, number, table, text
from redenvelope.report.model_charts import prediction_chart
from redenvelope.report.spoken import Spoken
from redenvelope.report.who_section import FEATURES_FIRST

__all__ = ["allocation_section", "log_section", "model_section"]


def allocation_section(plan: Plan) -> str:
    """Who gets what, in figures, and by features that decide less."""
    given, words = plan.record.shares, Spoken.of(plan)
    if given is None:
        return ""
    labels = given.actions
    charts = [feature_chart(feature, labels, words) for feature in given.by_feature[FEATURES_FIRST:]]
    introduction = (
        f"Shares are of {number(given.users)} check users, in the situations they were logged in; following the plan "
        "would change those situations somewhat."
    )
    rows = [
        (f"step {entry.step}, {kind}", *(f"{share:.1%}" for share in probabilities))
        for entry in given.by_step
        for kind, probabilities in (("plan", entry.probabilities), ("logged", entry.logged))
    ]
    shares = table("Shares of the actions by step, in the plan and as logged", ("step", *labels), rows)
    drawn = "".join(figure(chart) for chart in charts)
    return folded(
        "allocation",
        "Who gets what, in figures",
        f"<p>{text(introduction)}</p>",
        f'<div class="pair">{drawn}</div>' if drawn else "",
        shares,
    )


def model_section(plan: Plan) -> str:
    """Whether the model can be believed."""
    fidelity, labels = plan.record.fidelity, plan.catalogue.labels
    verdict = (
        f"On {number(fidelity.users)} users who did not train it, the model stays within its thresholds: "
        "it is trusted to plan ahead."
        if fidelity.trusted
        else "The model is not trusted to plan ahead:"
    )
    charts = "".join(figure(prediction_chart(outcome.name, outcome, labels)) for outcome in fidelity.outcomes)
    return folded(
        "model",
        "Can the model be believed?",
        f"<p>{text(verdict)}</p>",
        items(fidelity.reasons),
        f'<div class="pair">{charts}</div>',
        _roll_outs(fidelity.roll_outs),
    )


def _roll_outs(roll_outs: Sequence[RollOutFidelity]) -> str:
    rows = []
    for part in roll_outs:
        ratio = round(part.state_error / part.unchanged_error, 3) if part.unchanged_error else None
        sums = [value for outcome in part.outcomes for value in (outcome.predicted, outcome.observed)]
        rows.append((number(part.depth), *map(number, sums), number(ratio, 2)))
    names = [outcome.name for outcome in roll_outs[0].outcomes] if roll_outs else []
    heads = ("steps", *(head for name in names for head in (f"{name}, predicted", "observed")), "state error")
    return table(
        "Followed along logged actions: sums over the steps; a state error below 1 beats “nothing changes”", heads, rows
    )


def log_section(plan: Plan) -> str:
    """What the log says about itself."""
    audit = plan.record.audit
    size = (
        f"{number(audit.users)} users, {number(audit.rows)} rows, {number(audit.steps)} steps, "
        f"{number(audit.features)} features ({number(audit.static_features)} of them static); "
        f"propensities {audit.propensity_source}."
    )
    charts = figure(action_chart(audit)) + figure(overlap_chart(audit))
    return folded(
        "log",
        "The log",
        f"<p>{text(size)}</p>",
        items(verdicts(audit)),
        _findings(audit.findings),
        f'<div class="pair">{charts}</div>' if charts else "",
        _actions(audit),
        _overlap(audit.overlap),
    )


def _findings(findings: Sequence[Finding]) -> str:
    rows = []
    for finding in findings:
        examples = f" (such as {', '.join(finding.examples)})" if finding.examples else ""
        where = place(finding.file, finding.column, finding.rows)
        rows.append((finding.severity, finding.message + examples, where or "–", finding.remedy))
    heads = ("severity", "finding", "where", "what to do")
    return table("Findings", heads, rows, len(heads)) or "<p>The audit has no findings.</p>"


def _actions(audit: Audit) -> str:
    rows = [
        (
            effect.label,
            number(effect.rows),
            number(effect.reward.estimate),
            interval(effect.reward.lower, effect.reward.upper),
            number(effect.cost.estimate),
            interval(effect.cost.lower, effect.cost.upper),
            number(balance.ratio, 3),
        )
        for effect, balance in zip(audit.actions, audit.calibration, strict=True)
    ]
    heads = ("action", "rows", "reward", "95 % interval", "cost", "95 % interval", "1/propensity adds up to")
    return table("Actions by cost: mean a decision, weighted by 1/propensity", heads, rows)


def _overlap(overlap: Sequence[StepOverlap]) -> str:
    rows = [
        (
            number(entry.step),
            number(entry.users),
            *(number(round(users)) for users in (entry.uniform, entry.greedy, entry.alone)),
            number(entry.matching),
        )
        for entry in overlap
    ]
    effective = ("effective, uniform policy", "effective, best fixed action", "that step alone")
    heads = ("steps", "users", *effective, "users who match it")
    return table("Overlap: users left to speak for a policy after so many steps", heads, rows)
