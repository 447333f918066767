"""The sections about what the plan rests on: who gets what, whether the model can be believed, and the log."""

from __future__ import annotations

from typing import Any

from redenvelope.log.findings import place
from redenvelope.plan.plan import Plan
from redenvelope.report.allocation_charts import cost_by_step_chart, feature_chart, step_chart
from redenvelope.report.audit_charts import action_chart, overlap_chart
from redenvelope.report.markup import figure, items, number, section, table, text
from redenvelope.report.model_charts import prediction_chart

__all__ = ["allocation_section", "log_section", "model_section"]


def allocation_section(plan: Plan) -> str:
    """Who gets what."""
    summary = plan.record.get("allocation") or {}
    steps, features = summary.get("by_step") or [], summary.get("by_feature") or []
    if not steps:
        return ""
    labels = summary.get("actions") or list(plan.catalogue.labels)
    charts = [step_chart(steps, labels), cost_by_step_chart(steps)]
    charts += [feature_chart(entry, labels) for entry in features]
    introduction = (
        f"What the plan would give to {number(summary.get('users'))} users of the certify fold, in the situations they "
        "were logged in; following the plan would change those situations somewhat."
    )
    rows = [
        (f"step {entry['step']}, {kind}", *(f"{share:.1%}" for share in entry[field]))
        for entry in steps
        for field, kind in (("probabilities", "plan"), ("logged", "logged"))
        if len(entry.get(field, ())) == len(labels)
    ]
    shares = table("Shares of the actions by step, in the plan and as logged", ("step", *labels), rows)
    return section(
        "allocation",
        "Who gets what",
        f"<p>{text(introduction)}</p>",
        f'<div class="pair">{"".join(figure(chart) for chart in charts)}</div>',
        f"<details><summary>The figures, beside what was logged</summary>{shares}</details>" if shares else "",
    )


def model_section(plan: Plan) -> str:
    """Whether the model can be believed."""
    fidelity = plan.record.get("fidelity") or {}
    if not fidelity:
        return ""
    reasons = fidelity.get("reasons") or ()
    trusted = fidelity.get("trusted", not reasons)
    verdict = (
        f"On {number(fidelity.get('users'))} users who did not train it, the model stays within its thresholds: "
        "it is trusted to plan ahead."
        if trusted
        else "The model is not trusted to plan ahead:"
    )
    labels = plan.catalogue.labels
    charts = "".join(
        figure(prediction_chart(outcome, fidelity.get(outcome) or {}, labels)) for outcome in ("reward", "cost")
    )
    return section(
        "model",
        "Can the model be believed?",
        f"<p>{text(verdict)}</p>",
        items(reasons),
        f'<div class="pair">{charts}</div>' if charts else "",
        _roll_outs(fidelity.get("roll_outs") or ()),
    )


def _roll_outs(entries: Any) -> str:
    rows = []
    for entry in entries:
        unchanged = entry.get("unchanged_error")
        ratio = round(entry["state_error"] / unchanged, 3) if unchanged else None
        rows.append(
            (
                number(entry.get("depth")),
                *(
                    number(entry.get(f"{kind}_{outcome}"))
                    for outcome in ("reward", "cost")
                    for kind in ("predicted", "observed")
                ),
                number(ratio, 2),
            )
        )
    heads = ("steps", "reward, predicted", "observed", "cost, predicted", "observed", "state error")
    return table(
        "Followed along logged actions: sums over the steps; a state error below 1 beats “nothing changes”", heads, rows
    )


def log_section(plan: Plan) -> str:
    """What the log says about itself."""
    audit = plan.record.get("audit") or {}
    if not audit:
        return ""
    size = (
        f"{number(audit.get('users'))} users, {number(audit.get('rows'))} rows, {number(audit.get('steps'))} steps, "
        f"{number(audit.get('features'))} features ({number(audit.get('static_features'))} of them static); "
        f"propensities {audit.get('propensity_source')}."
    )
    charts = figure(action_chart(audit)) + figure(overlap_chart(audit))
    return section(
        "log",
        "The log",
        f"<p>{text(size)}</p>",
        items(audit.get("verdicts") or ()),
        _findings(audit),
        f'<div class="pair">{charts}</div>' if charts else "",
        _actions(audit),
        _overlap(audit),
    )


def _findings(audit: dict[str, Any]) -> str:
    findings = audit.get("findings") or ()
    rows = []
    for finding in findings:
        examples = ", ".join(finding.get("examples") or ())
        message = f"{finding.get('message')} (such as {examples})" if examples else finding.get("message")
        where = place(finding.get("file"), finding.get("column"), finding.get("rows") or ())
        rows.append((finding.get("severity"), message, where or "–", finding.get("remedy")))
    heads = ("severity", "finding", "where", "what to do")
    return table("Findings", heads, rows, len(heads)) or "<p>The audit has no findings.</p>"


def _actions(audit: dict[str, Any]) -> str:
    balance = {entry["label"]: entry.get("ratio") for entry in audit.get("calibration") or ()}
    rows = [
        (
            effect["label"],
            number(effect.get("rows")),
            number(effect["reward"]["estimate"]),
            _interval(effect["reward"]),
            number(effect["cost"]["estimate"]),
            _interval(effect["cost"]),
            number(balance.get(effect["label"]), 3),
        )
        for effect in audit.get("actions") or ()
    ]
    heads = ("action", "rows", "reward", "95 % interval", "cost", "95 % interval", "1/propensity adds up to")
    return table("Actions by cost: mean a decision, weighted by 1/propensity", heads, rows)


def _interval(mean: dict[str, Any]) -> str:
    return f"{number(mean.get('lower'), 3)} to {number(mean.get('upper'), 3)}"


def _overlap(audit: dict[str, Any]) -> str:
    rows = [
        (
            number(entry.get("step")),
            *(number(round(entry[name])) for name in ("users", "uniform", "greedy")),
            number(round(entry["alone"])) if "alone" in entry else "–",
            number(round(entry["matching"])),
        )
        for entry in audit.get("overlap") or ()
    ]
    effective = ("effective, uniform policy", "effective, best fixed action", "that step alone")
    heads = ("steps", "users", *effective, "users who match it")
    return table("Overlap: users left to speak for a policy after so many steps", heads, rows)
