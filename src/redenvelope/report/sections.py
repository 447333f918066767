"""The sections for reviewers: frontier, search for the price, rules, allocation, model and log, with their charts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from redenvelope.audit.audit import Audit, verdicts
from redenvelope.audit.effects import counted_reversals
from redenvelope.audit.overlap import StepOverlap
from redenvelope.log.findings import Finding, place
from redenvelope.models.fidelity import OutcomeFidelity, RollOutFidelity
from redenvelope.plan.plan import Plan
from redenvelope.plan.record import ComparedPolicy, Source
from redenvelope.policies.new_actions import extrapolated
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
from redenvelope.report.frontier_charts import by_price_chart, frontier_chart, ladder_chart
from redenvelope.report.markup import Chart, Spoken, figure, folded, items, table, text
from redenvelope.report.who_gets_what import FEATURES_FIRST, feature_chart
from redenvelope.wording import counted, interval, number, price_label, signed

# The sections about the plan: what a budget buys, how the price was found, how the plan was made.


_NEAR = 5  # rungs shown on either side of the plan's


def frontier_section(plan: Plan) -> str:
    """The frontier: what other budgets would buy."""
    comparison, certificate = plan.record.comparison, plan.certificate
    level = f"{certificate.confidence:.0%} interval"
    if len(certificate.budgets) > 1:
        return _several_frontiers(plan, level)
    pair = figure(by_price_chart(plan.frontier, "cost", certificate))
    pair += figure(by_price_chart(plan.frontier, "reward", certificate))
    return folded(
        "frontier",
        "The frontier and its prices",
        figure(frontier_chart(plan.frontier, certificate, comparison)),
        _policies(comparison, level),
        f'<div class="pair">{pair}</div>' if pair else "",
        _frontier_table(plan, level),
    )


def _several_frontiers(plan: Plan, level: str) -> str:
    """The frontier of each of several budgets while the others are held."""
    parts = [_policies(plan.record.comparison, level)]
    for each in plan.certificate.budgets:
        own = plan.of(each)
        chart = figure(frontier_chart(own.frontier, own.certificate, ()))
        if not own.frontier.height:
            chart = items([f"Whatever {each.name} may be, the other budgets cannot be kept."])
        parts += [f"<h3>{text(each.name)}, the others held</h3>", chart, _frontier_table(own, level)]
    return folded("frontier", "What each budget buys", *parts)


def _policies(comparison: Sequence[ComparedPolicy], level: str) -> str:
    heads = ("policy", "cost", "reward", "reward beside logged", level)
    rows = []
    for row in comparison:
        beside = signed(row.reward_difference), interval(row.reward_difference_lower, row.reward_difference_upper)
        differs = ("–", "–") if row.policy == "logged" else beside
        rows.append((row.policy, number(row.cost), number(row.reward), *differs))
    note = "<p>Untargeted: each user draws one action for the whole campaign, whatever is known of them.</p>"
    shown = table("Policies side by side: means per user, on the check users", heads, rows)
    return shown + (note if any(row.policy == "untargeted" for row in comparison) else "")


def _frontier_table(plan: Plan, level: str) -> str:
    rows = [
        (
            price_label(row["dual"]),
            number(row["cost"]),
            interval(row["cost_lower"], row["cost_upper"]),
            number(row["reward"]),
            interval(row["reward_lower"], row["reward_upper"]),
            number(row["model_cost"]),
            number(row["model_reward"]),
        )
        for row in plan.frontier.sort("dual").to_dicts()
    ]
    heads = ("price λ", "cost", level, "reward", level, "model’s cost", "model’s reward")
    return table("The frontier, point by point, per user", heads, rows, words=0)


def search_section(plan: Plan) -> str:
    """How the price was found: the fixed-sequence test and the rungs around the plan's."""
    certificate, ladder, stop = plan.certificate, plan.ladder, plan.record.stop
    level = f"{certificate.confidence:.0%}"
    tested, first = (
        (f"at most {number(certificate.budget)}", "the cheapest plan up")
        if certificate.target_reward is None
        else (f"at least {number(certificate.target_reward)}", "the dearest plan down")
    )
    bound = "the cost" if certificate.target_reward is None else "the reward"
    if len(certificate.budgets) > 1:
        bound, tested = "every cost", "within its budget"
    plans = "plans" if len(certificate.budgets) > 1 else "prices"
    ordered = f"before the {number(ladder.people)} check users were looked at"
    if certificate.members > 1:
        ordered = f"by what the {certificate.members} members of the plan predict for users who did not train them"
    sentences = [
        f"{len(ladder.rungs)} {plans} were put in order {ordered}. "
        f"From {first}, each was tested on them: is {bound} {tested}, with {level} confidence? The "
        "walk ends at the first that fails. An error requires the first plan that breaks the promise to pass, so the "
        "confidence holds for the whole walk."
    ]
    if len(certificate.budgets) > 1:
        sentences.append(
            "Each is the best mixture for all budgets made tighter or wider by one number, from the tightest that "
            f"can be kept on; this one mixes {len(plan.policy.pricing.shares)} plans, to which users are drawn once."
        )
    elif stop.place.share:
        sentences.append(
            f"Between two prices their plans are mixed: {stop.place.share:.0%} of the users, drawn once each, follow "
            "the cheaper price."
        )
    if ladder.unreliable.any():
        sentences.append(
            f"{int(ladder.unreliable.sum())} of the prices were stepped over: too few logged users got what they "
            "would give."
        )
    near = range(max(stop.place.rung - _NEAR, 0), min(stop.place.rung + _NEAR + 1, len(ladder.rungs)))
    lower, upper = ladder.bounds(certificate.confidence)
    several = len(certificate.budgets) > 1
    costs = [each.name for each in certificate.budgets] if several else ["cost per user"]
    rows = [
        [
            *(() if several else (price_label(ladder.rungs[rung].prices[0]),)),
            *(number(bound[place, rung]) for place in range(1, 1 + len(costs)) for bound in (ladder.means, upper)),
            number(ladder.means[0, rung]),
            number(lower[0, rung]),
        ]
        for rung in near
    ]
    heads = [*(() if several else ("price λ",)), *(head for name in costs for head in (name, f"at most ({level})"))]
    around = table(
        "Plans near this one" if several else "Prices near the plan’s",
        [*heads, "reward per user", f"at least ({level})"],
        rows,
        words=0,
    )
    chart = "" if several else figure(ladder_chart(ladder, near, certificate))
    return folded("search", "How the price was found", items(sentences), f'<div class="pair top">{chart}{around}</div>')


def making_section(plan: Plan) -> str:
    """How the plan was made: source, method, folds and settings."""
    wanted, pricing, record = plan.policy.specification, plan.policy.pricing, plan.record
    rows: list[tuple[str, object]] = [
        *(_source(record.source) if record.source is not None else ()),
        ("method", wanted.method),
        ("steps planned ahead", _ahead(plan)),
        ("temperature", number(wanted.temperature, 3)),
        ("share of decisions left to chance", number(wanted.explore, 3)),
        (
            "price λ",
            ("; " if pricing.budgets > 1 else ", ").join(" and ".join(map(price_label, row)) for row in pricing.prices),
        ),
        ("share of users at each price", ", ".join(f"{share:.1%}" for share in pricing.shares)),
        ("estimator of the certificate", plan.certificate.cost.estimator),
        ("standard error of the cost", number(plan.certificate.cost.standard_error, 3)),
        ("standard error of the reward", number(plan.certificate.reward.standard_error, 3)),
    ]
    for name, fold in record.folds.items():
        rows.append((f"users who {name}", f"{number(fold.users)} ({number(fold.rows)} rows)"))
    asked = (("confidence", record.confidence), ("seed", record.seed))
    rows += [(name, _plain(value)) for name, value in (*asked, *plan.certificate.diagnostics.items())]
    hashes = (("policy, sha256", plan.certificate.policy_sha256), ("check fold, sha256", plan.certificate.fold_sha256))
    shown = [(name.replace("_", " "), value) for name, value in (*rows, *hashes)]
    told = (words[:1].upper() + words[1:] + "." for words in (record.sample, record.history, record.targeting) if words)
    notes = items((*told, *record.planner.notes))
    return folded("making", "How it was made", notes, table("Settings and diagnostics", ("what", "value"), shown, 2))


def _source(source: Source) -> Iterator[tuple[str, str]]:
    """The log's name, the date, and the names of its columns."""
    yield "log", source.log
    yield "made on", source.date
    renamed = ", ".join(f"{role} = {name}" for role, name in source.columns.items() if role != name)
    yield "columns of the log", renamed or "named as here"
    if source.ignored:
        yield "columns left out", ", ".join(source.ignored)


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple | np.ndarray):
        return ", ".join(_plain(part) for part in value)
    return number(value) if isinstance(value, int | float) else str(value)


# The section about rules and exploration.


_USERS = 10_000  # of a next log, as an example


def rules_section(plan: Plan) -> str:
    """Who may get what, and the share of random decisions."""
    return folded("rules", "Rules and exploration", items(tuple(rules_sentences(plan))))


def rules_sentences(plan: Plan) -> Iterator[str]:
    """The rules and their effect on the log, exploration and the control group, one sentence each."""
    rules = plan.policy.rules
    if not rules:
        yield "There are no rules: every user may get every action at every step."
    for rule in rules:
        yield f"Rule: {rule.sentence()}."
    for finding in plan.record.audit.findings:
        if finding.rule == "rules_forbid_logged":
            yield finding.message[:1].upper() + finding.message[1:] + "."
    yield from _exploration(plan)
    yield from _new_actions(plan)
    if plan.policy.holdout:
        whole, following = plan.record.money.audience, plan.money.audience
        counted = "" if whole is None else f", {following:,} of {whole:,} users"
        yield (
            f"{plan.policy.holdout:.1%} of the users, chosen by the hash of their ids, are held out: a control group "
            f"that gets the cheapest eligible action. Certificate and sums are of the others alone{counted}."
        )


def _new_actions(plan: Plan) -> Iterator[str]:
    effects = {one.label: (one.reward.estimate, one.cost.estimate) for one in plan.record.audit.actions}
    known = np.array([effects[label] for label in plan.catalogue.labels]).T[:, None]
    for new in plan.policy.new:
        reward, cost = extrapolated([new], known)[:, 0, -1]
        yield (
            f"New: {new.label!r} is not in the log. It is drawn for {new.share:.2g} of the decisions, for users who "
            f"may get {plan.catalogue.labels[new.like]!r}. Extrapolated from the actions that it resembles, it earns "
            f"{number(reward)} and costs {number(cost)} each time. The certificate does not cover it: it adds at most "
            f"{number(new.added[0])} to the mean cost per user, if it costs at most {number(new.charges[0])} and no "
            f"decision more than {number(new.dearest[0])}, and so much of the budget is set aside."
        )


def _exploration(plan: Plan) -> Iterator[str]:
    share, record = plan.policy.specification.explore, plan.record.exploration
    if not share:
        yield (
            "There is no exploration beyond the temperature (explore 0): the next plan can learn little from these "
            "decisions."
        )
        return
    yield (
        f"Exploration: {share:.1%} of the decisions are drawn evenly among the eligible actions. The price, the "
        "certificate and the propensities include it."
    )
    if record is None:
        return
    reward = plan.certificate.reward.estimate
    beside = f" ({record.reward_lost / abs(reward):.1%} of it)" if reward else ""
    yield (
        f"By the model, it gives up {number(record.reward_lost, 3)} of reward per user{beside} at the same cost. In "
        f"return, {_USERS:,} users decided for will count as about {record.effective_share * _USERS:,.0f} effective "
        "users at every step when a plan that draws all actions evenly is checked."
    )


# The sections about the evidence: who gets what, whether the model can be trusted, and the log.


def allocation_section(plan: Plan) -> str:
    """Who gets what in figures, and by the features that matter less."""
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
    """How well the model predicts held-out users."""
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


def _ahead(plan: Plan) -> str:
    """How many steps the plan looks ahead, and the result of the alternatives."""
    wanted, found = plan.policy.specification, plan.record.planner.lookahead
    said = f"{min(wanted.horizon, wanted.steps)} of {wanted.steps}"
    said += ", then values to go" if wanted.leaf_values else ""
    if found is None:
        return said
    lost = ", ".join(f"{name} {share:.1%}" for name, share in found.loss.items())
    return f"{said} (of the gain in the model, steps ahead lose: {lost})"


def _roll_outs(roll_outs: Sequence[RollOutFidelity]) -> str:
    rows = []
    for part in roll_outs:
        ratio = round(part.state_error / part.unchanged_error, 3) if part.unchanged_error else None
        sums = [value for outcome in part.outcomes for value in (outcome.predicted, outcome.observed)]
        rows.append((number(part.depth), *map(number, sums), number(ratio, 2)))
    names = [outcome.name for outcome in roll_outs[0].outcomes] if roll_outs else []
    heads = ("steps", *(head for name in names for head in (f"{name}, predicted", "observed")), "state error")
    return table(
        "Rolled out along logged actions: sums over steps; a state error below 1 beats “nothing changes”", heads, rows
    )


def log_section(plan: Plan) -> str:
    """What the audit says about the log."""
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
    return table("Actions by cost: mean per decision, weighted by 1/propensity", heads, rows)


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
    return table("Overlap: effective users for a policy after so many steps", heads, rows)


# Charts of the log: actions as logged, and effective users after so many steps.


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
        if finite(row, *row):  # an action without rows has no mean
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
        for right in (False, True)  # labels point inwards, so that none leaves the chart
    ]
    cost = alt.X("cost_estimate:Q", title="mean cost per decision", axis=alt.Axis(tickCount=5))
    reward = alt.Y("reward_estimate:Q", title="mean reward per decision", scale=alt.Scale(zero=False))
    chart = alt.Chart(values(rows))
    drawn = layered(
        chart.mark_rule(color=SECOND, strokeWidth=1.5, opacity=0.6, aria=False).encode(
            x=cost, y=alt.Y("reward_lower:Q", title="mean reward per decision"), y2="reward_upper:Q"
        ),
        chart.mark_rule(color=SECOND, strokeWidth=1.5, opacity=0.6, aria=False).encode(
            x=alt.X("cost_lower:Q", title="mean cost per decision"), x2="cost_upper:Q", y=reward
        ),
        chart.mark_point(color=SECOND, filled=True, size=60, opacity=1).encode(x=cost, y=reward, description="note:N"),
        *(side.encode(x=cost, y=reward, text="action:N") for side in sides),
    )
    caption = (
        "A point that is lower than one to its left costs more and earns less: "
        f"{counted_reversals(audit.reversals)} beyond chance."
        if audit.reversals
        else "The points should rise to the right, as they do here within chance: more expensive actions earn more."
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
            "note": f"{kind}, {counted(entry.step, 'step')}: {number(round(users))} effective users",
        }
        for entry in audit.overlap
        for kind, users in zip(_KINDS, (entry.uniform, entry.alone, entry.greedy), strict=True)
        if users > 0  # 0 has no logarithm
    ]
    if not rows:
        return None
    counts = [row["users"] for row in rows]
    marks = round_marks(min(1.0, *counts), 10 * max(counts))
    step = alt.X("step:O", title="steps weighted", axis=alt.Axis(labelAngle=0, grid=False))
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
    caption = (
        "With every further step that is weighted, fewer effective users are left for another policy (logarithmic)"
        + (
            f"; after {alive} of {steps} steps too few to certify a fixed action. A certificate weights step by step."
            if alive < steps
            else f"; after all {steps} there are still enough to certify."
        )
    )
    return Chart("Overlap by step", caption, draw(drawn, HALF, 280))


# The chart of the model: predicted against observed, action by action.


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
    mean = alt.X("value:Q", title=f"mean {outcome} per decision", axis=alt.Axis(tickCount=4))
    colour = alt.Color("kind:N", scale=alt.Scale(domain=["observed", "predicted"], range=[INK, ACCENT]))
    shape = alt.Shape("kind:N", scale=alt.Scale(domain=["observed", "predicted"], range=["circle", "diamond"]))
    size = alt.Size("kind:N", scale=alt.Scale(domain=["observed", "predicted"], range=[70, 60]))
    chart = alt.Chart(values(rows))
    drawn = layered(
        chart.mark_rule(strokeWidth=3, opacity=0.35, color=INK, aria=False).encode(
            y=action, x=alt.X("lower:Q", title=f"mean {outcome} per decision"), x2="upper:Q"
        ),
        chart.mark_point(filled=True, opacity=1).encode(
            y=action, x=mean, color=colour, shape=shape, size=size, description="note:N"
        ),
    )
    apart = [row for row in rows if row["kind"] == "predicted" and not row["lower"] <= row["value"] <= row["upper"]]
    count = len(fidelity.actions)
    verdict = (
        "all predictions are within the intervals"
        if not apart
        else f"{len(apart)} of {count} predictions are outside the 95 % interval of what happened"
    )
    height = 70 + 30 * count
    caption = f"By cost; a diamond on its dot is an action that the model predicts right: {verdict}."
    return Chart(f"Predicted and observed {outcome}", caption, draw(drawn, HALF, height))
