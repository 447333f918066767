"""The sections about what the plan rests on: who gets what, whether the model can be believed, and the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redenvelope.audit.audit import Audit, verdicts
from redenvelope.audit.effects import counted_reversals
from redenvelope.audit.overlap import StepOverlap
from redenvelope.log.findings import Finding, place
from redenvelope.models.fidelity import OutcomeFidelity, RollOutFidelity
from redenvelope.plan.plan import Plan
from redenvelope.report.drawing import (
    ACCENT,
    GOLD,
    HALF,
    INK,
    SECOND,
    draw,
    finite,
    layered,
    round_marks,
    short_labels,
    values,
)
from redenvelope.report.markup import Chart, Spoken, figure, folded, interval, items, number, table, text
from redenvelope.report.who_gets_what import FEATURES_FIRST, feature_chart


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


# What the log can speak for: actions as logged, and users left after so many steps.


_KINDS = ("uniform policy", "fixed, step alone", "fixed, all steps")


def action_chart(audit: Audit) -> Chart | None:
    """Reward against cost of each action, with intervals."""
    import altair as alt

    rows: list[dict[str, Any]] = []
    shortened = short_labels([effect.label for effect in audit.actions], 14)
    for effect, shown in zip(audit.actions, shortened, strict=True):
        row: dict[str, Any] = {}
        for target, mean in (("reward", effect.reward), ("cost", effect.cost)):
            ends = {f"{target}_lower": mean.lower, f"{target}_upper": mean.upper}
            row |= {f"{target}_estimate": mean.estimate} | ends
        if finite(row, *row):  # an action that was never logged has no mean
            note = f"{effect.label}: cost {number(effect.cost.estimate)}, reward {number(effect.reward.estimate)}"
            rows.append(row | {"action": shown, "note": note})
    if not rows:
        return None
    middle = (min(row["cost_estimate"] for row in rows) + max(row["cost_estimate"] for row in rows)) / 2
    sides = [
        alt.Chart(values([row for row in rows if (row["cost_estimate"] > middle) is right])).mark_text(
            align="right" if right else "left",
            dx=-8 if right else 8,
            dy=-9 if right else 9,
            color=INK,
            fontSize=12,
            aria=False,
        )
        for right in (False, True)  # labels stand inwards, so that none leaves the drawing
    ]
    cost = alt.X("cost_estimate:Q", title="mean cost a decision", axis=alt.Axis(tickCount=5))
    reward = alt.Y("reward_estimate:Q", title="mean reward a decision", scale=alt.Scale(zero=False))
    chart = alt.Chart(values(rows))
    drawn = layered(
        chart.mark_rule(color=SECOND, strokeWidth=1.5, opacity=0.6, aria=False).encode(
            x=cost, y=alt.Y("reward_lower:Q", title="mean reward a decision"), y2="reward_upper:Q"
        ),
        chart.mark_rule(color=SECOND, strokeWidth=1.5, opacity=0.6, aria=False).encode(
            x=alt.X("cost_lower:Q", title="mean cost a decision"), x2="cost_upper:Q", y=reward
        ),
        chart.mark_point(color=SECOND, filled=True, size=60, opacity=1).encode(x=cost, y=reward, description="note:N"),
        *(side.encode(x=cost, y=reward, text="action:N") for side in sides),
    )
    caption = (
        "A point that lies lower than one to its left is money for less: "
        f"{counted_reversals(audit.reversals)} beyond chance."
        if audit.reversals
        else "The points should rise to the right, as they do here within chance: dearer is better."
    )
    return Chart("Actions as logged", caption, draw(drawn, HALF, 260))


def overlap_chart(audit: Audit) -> Chart | None:
    """Effective number of users after so many steps."""
    import altair as alt

    rows: list[dict[str, Any]] = [
        {
            "step": entry.step,
            "kind": kind,
            "users": users,
            "note": f"{kind}, {entry.step} step(s): {number(round(users))} effective users",
        }
        for entry in audit.overlap
        for kind, users in zip(_KINDS, (entry.uniform, entry.alone, entry.greedy), strict=True)
        if users > 0  # nobody has no logarithm
    ]
    if not rows:
        return None
    counts = [row["users"] for row in rows]
    marks = round_marks(min(1.0, *counts), 10 * max(counts))
    step = alt.X("step:O", title="steps weighed", axis=alt.Axis(labelAngle=0, grid=False))
    users = alt.Y(
        "users:Q", title="effective users", scale=alt.Scale(type="log"), axis=alt.Axis(format=",~r", values=marks)
    )
    scale = alt.Scale(domain=list(_KINDS), range=[SECOND, GOLD, ACCENT])
    colour = alt.Color("kind:N", legend=alt.Legend(columns=2), scale=scale)
    chart = alt.Chart(values(rows))
    drawn = layered(
        chart.mark_line(strokeWidth=2, aria=False).encode(x=step, y=users, color=colour),
        chart.mark_point(filled=True, size=50, opacity=1).encode(x=step, y=users, color=colour, description="note:N"),
    )
    alive, steps = audit.steps_alive, len(audit.overlap)
    caption = "Weighing all steps leaves ever fewer users who speak for another policy (logarithmic)" + (
        f"; after {alive} of {steps} steps too few to certify a fixed action. A certificate weighs step by step."
        if alive < steps
        else f"; after all {steps} there are still enough to certify."
    )
    return Chart("Overlap by step", caption, draw(drawn, HALF, 280))


# Whether the model may be believed: predicted against observed, action by action.


_TWO_SIDED_95 = 1.96


def prediction_chart(outcome: str, fidelity: OutcomeFidelity, labels: Sequence[str]) -> Chart:
    """Predicted and observed mean of each action, on users who did not train the model."""
    import altair as alt

    rows: list[dict[str, Any]] = []
    for part in fidelity.actions:
        label, reach = labels[part.action], _TWO_SIDED_95 * part.standard_error
        shared = {"action": label, "lower": part.observed - reach, "upper": part.observed + reach}
        for kind, value in (("observed", part.observed), ("predicted", part.predicted)):
            note = f"{label}: {kind} {number(value)} over {number(part.rows)} rows"
            rows.append({**shared, "kind": kind, "value": value, "note": note})
    action = alt.Y("action:N", title=None, sort=None, axis=alt.Axis(grid=True))
    mean = alt.X("value:Q", title=f"mean {outcome} a decision", axis=alt.Axis(tickCount=4))
    colour = alt.Color("kind:N", scale=alt.Scale(domain=["observed", "predicted"], range=[INK, ACCENT]))
    shape = alt.Shape("kind:N", scale=alt.Scale(domain=["observed", "predicted"], range=["circle", "diamond"]))
    size = alt.Size("kind:N", scale=alt.Scale(domain=["observed", "predicted"], range=[70, 60]))
    chart = alt.Chart(values(rows))
    drawn = layered(
        chart.mark_rule(strokeWidth=3, opacity=0.35, color=INK, aria=False).encode(
            y=action, x=alt.X("lower:Q", title=f"mean {outcome} a decision"), x2="upper:Q"
        ),
        chart.mark_point(filled=True, opacity=1).encode(
            y=action, x=mean, color=colour, shape=shape, size=size, description="note:N"
        ),
    )
    apart = [row for row in rows if row["kind"] == "predicted" and not row["lower"] <= row["value"] <= row["upper"]]
    count = len(fidelity.actions)
    verdict = (
        "all predictions lie within the intervals"
        if not apart
        else f"{len(apart)} of {count} predictions lie outside of the 95 % interval of what happened"
    )
    height = 70 + 30 * count
    caption = f"By cost; a diamond on its dot is an action the model prices right: {verdict}."
    return Chart(f"Predicted and observed {outcome}", caption, draw(drawn, HALF, height))
