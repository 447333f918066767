"""Terminal output: the stages of a fit, plans, audits, the arms of an A/B test, evaluations and simulated truths."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from redenvelope.audit.audit import Audit, verdicts
from redenvelope.audit.effects import Mean
from redenvelope.evaluation.diagnostics import Weight
from redenvelope.log.findings import Finding, Severity, place
from redenvelope.plan.certificate import Certificate
from redenvelope.plan.plan import Plan
from redenvelope.plan.record import ComparedPolicy
from redenvelope.progress import Event, Phase
from redenvelope.report.markup import Spoken
from redenvelope.report.sections import rules_sentences
from redenvelope.report.summary import price_sentence
from redenvelope.simulate.campaign import Campaign, Decide, Optimum
from redenvelope.wording import counted, for_reader, number, signed

_WARNINGS = 6  # with more, the certificate would scroll off the screen
_NAMED = 4  # columns named for a warning that they share
_IN_SENTENCES = ("reward_not_monotone", "overlap_thin")  # warnings that the sentences above already contain


class StageView:
    """One line per stage: a spinner while it runs, then its duration and its key figure; silent unless enabled."""

    def __init__(self, enabled: bool) -> None:
        self._console = Console(file=sys.stderr, highlight=False)
        columns = (SpinnerColumn(finished_text="[green]✓[/]"), TextColumn("{task.description}"), TimeElapsedColumn())
        self._progress = Progress(*columns, console=self._console, disable=not enabled or not self._console.is_terminal)
        self._enabled = enabled
        self._tasks: dict[str, TaskID] = {}
        self._starts: dict[str, float] = {}

    def tell(self, event: Event) -> None:
        """Show that a stage began, progressed, or was finished."""
        stage, message = event.stage, escape(event.message)
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(f"[bold]{stage}[/]", total=1)
            self._starts[stage] = time.perf_counter()
        self._progress.update(self._tasks[stage], description=f"[bold]{stage}[/] {message}")
        if event.phase is Phase.DONE:
            self._progress.update(self._tasks[stage], completed=1)
            if self._enabled and not self._console.is_terminal:
                seconds = time.perf_counter() - self._starts[stage]
                self._console.print(f"{stage} ({seconds:.1f} s): {message}", soft_wrap=True)

    def __enter__(self) -> StageView:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def show_plan(plan: Plan, folder: Path) -> None:
    """The verdicts of the audit, the certificate, the comparison, and where the files are."""
    console = Console(highlight=False)
    certificate, record = plan.certificate, plan.record
    console.print("\n[bold]What the log says[/]")
    for sentence in verdicts(record.audit):
        console.print(f"  • {escape(sentence)}", soft_wrap=True)
    _show_warnings(console, record.audit.findings)
    colour = "yellow" if certificate.is_under_spent else "green" if certificate.is_certified else "red"
    console.print(f"\n[bold {colour}]{escape(for_reader(certificate.sentence()))}[/]", soft_wrap=True)
    for reason in certificate.notes:
        console.print(f"  • {escape(for_reader(reason.message))}", soft_wrap=True)
    if plan.totals is not None:
        console.print(escape(plan.totals.sentence()), soft_wrap=True)
    if len(certificate.budgets) > 1:
        for each in certificate.budgets:
            console.print(f"  • {escape(each.sentence())}", soft_wrap=True)
    else:
        console.print(escape(price_sentence(plan)), soft_wrap=True)
        for each in certificate.budgets:
            if each.unspent is not None and plan.totals is None:
                console.print(escape(each.total_sentence()), soft_wrap=True)
    told = plan.policy.rules or plan.policy.specification.explore or plan.policy.holdout or plan.policy.new
    for sentence in rules_sentences(plan) if told else ():
        console.print(f"  • {escape(sentence)}", soft_wrap=True)
    if record.comparison:
        show_comparison(console, record.comparison)
    if record.untargeted is not None:
        console.print(escape(record.untargeted.sentence(certificate.confidence)), soft_wrap=True)
    console.print(f"Plan written to {folder}; the report is {folder / 'report.html'}", soft_wrap=True)


def _show_warnings(console: Console, findings: Sequence[Finding]) -> None:
    """The audit's warnings, which did not prevent the use of the log."""
    warnings = [each for each in findings if each.severity is Severity.WARNING and each.rule not in _IN_SENTENCES]
    columns: dict[str, list[str]] = {}
    for finding in warnings:
        columns.setdefault(f"{finding.message} → {finding.remedy}", []).extend(
            [finding.column] if finding.column else []
        )
    for said, where in list(columns.items())[:_WARNINGS]:
        named = f"{', '.join(where[:_NAMED])}{', …' if len(where) > _NAMED else ''}: " if where else ""
        console.print(f"  [yellow]![/] {escape(named + for_reader(said))}", soft_wrap=True)
    if len(columns) > _WARNINGS:
        console.print(f"  … and {len(columns) - _WARNINGS} more: redenvelope audit shows them")


def show_comparison(console: Console, rows: Sequence[ComparedPolicy]) -> None:
    """The plan next to logged behaviour, uniform choice, the best untargeted mixture and the bandit."""
    table = _new_table(
        "On the check users: means per user ± standard error; differences with intervals, paired by user",
        ("policy", "cost", "reward", "cost against logged", "reward against logged"),
    )
    cost, reward = (_decimals([getattr(row, f"{name}_error") for row in rows]) for name in ("cost", "reward"))
    for row in rows:
        figures = (
            f"{row.cost:,{cost}} ± {row.cost_error:,{cost}}",
            f"{row.reward:,{reward}} ± {row.reward_error:,{reward}}",
        )
        differences = (
            _gap(row.cost_difference, row.cost_difference_lower, row.cost_difference_upper, cost),
            _gap(row.reward_difference, row.reward_difference_lower, row.reward_difference_upper, reward),
        )
        table.add_row(row.policy, *figures, *(("", "") if row.policy == "logged" else differences))
    console.print(table)


def _decimals(errors: Sequence[float]) -> str:
    """The format of a column of figures, with enough decimals for two digits of a typical error: those of policies
    that hardly cost anything would lengthen every figure."""
    known = sorted(error for error in errors if error > 0) or [0.01]
    return f".{min(max(1 - math.floor(math.log10(known[len(known) // 2])), 0), 8)}f"


def _gap(estimate: float, lower: float, upper: float, form: str) -> str:
    return f"{estimate:+,{form}} ({lower:+,{form}} to {upper:+,{form}})".replace("-", "−")


def _difference(estimate: float, lower: float, upper: float) -> str:
    return f"{signed(estimate)} ({signed(lower)} to {signed(upper)})"


def _figure(estimate: float, lower: float, upper: float) -> str:
    return f"{number(estimate)} ({number(lower)} to {number(upper)})"


def _new_table(title: str, heads: Sequence[str], words: Sequence[str] = ()) -> Table:
    """A table whose first column, and those named in `words`, contain words; the others contain figures."""
    table = Table(title=title, title_justify="left")
    for name in heads:
        # Break long names instead of cutting them.
        table.add_column(escape(name), justify="left" if name in (heads[0], *words) else "right", overflow="fold")
    return table


def show_frontier(content: dict[str, Any]) -> None:
    """What other budgets would buy, as a table for each budget."""
    console = Console(highlight=False)
    for each in content.get("budgets", ()):
        held = f"What {escape(each['name'])} buys while the other budgets are held, estimated on the check users"
        _show_budgets(console, held, each)
    if "budgets" not in content:
        _show_budgets(console, "What a budget buys, estimated on the check users", content)
    if "least_cost" in content:
        least = content["least_cost"]
        told = f"costs about {number(least['cost'])}, and needs a budget of {number(least['budget'])}"
        console.print(f"A reward of {number(least['reward'])} per user {told}.", soft_wrap=True)


def _show_budgets(console: Console, title: str, content: dict[str, Any]) -> None:
    table = _new_table(title, ("budget", "cost", "reward", "one more unit buys"))
    for row in content["at"]:
        table.add_row(*(number(float(row[name])) for name in ("budget", "cost", "reward", "shadow_price")))
    console.print(table if content["at"] else "No plan is known to keep this budget.")
    if content["least_budget"] is not None:
        told = f"The smallest budget that a plan is known to keep is {number(content['least_budget'])} per user."
        console.print(told, soft_wrap=True)


# An audit on a terminal.


_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.REPAIRED: "cyan"}


def show_findings(console: Console, findings: tuple[Finding, ...]) -> None:
    """Every finding with its place, examples, and remedy."""
    for finding in findings:
        colour = _COLOURS[finding.severity]
        console.print(f"[bold {colour}]{finding.severity}[/] {finding.rule}: {escape(finding.message)}")
        where = place(finding.file, finding.column, finding.rows)
        if where:
            more = ", …" if finding.rows and finding.count > len(finding.rows) else ""
            console.print(f"    where: {escape(where)}{more}")
        if finding.examples:
            more = ", …" if finding.count > len(finding.examples) else ""
            console.print(f"    such as: {escape(', '.join(dict.fromkeys(finding.examples)))}{more}")
        if finding.severity is not Severity.REPAIRED:
            # Let the terminal wrap the line: with line breaks, a command in it could not be pasted.
            console.print(f"    what to do: {escape(for_reader(finding.remedy))}", soft_wrap=True)


def show_audit(console: Console, audit: Audit) -> None:
    """The verdicts, the tables behind them, and the findings."""
    console.print(
        f"[bold]{counted(audit.users, 'user')}[/], [bold]{counted(audit.rows, 'row')}[/], "
        f"{counted(audit.steps, 'step')}, "
        f"{len(audit.actions)} actions, {counted(audit.features, 'feature')} ({audit.static_features} static), "
        f"propensities {audit.propensity_source}"
    )
    for sentence in verdicts(audit):
        console.print(f"• {escape(sentence)}")
    console.print()
    console.print(_action_table(audit))
    console.print(_overlap_table(audit))
    console.print(_figures_table(audit))
    if audit.findings:
        console.print()
        show_findings(console, audit.findings)


def _interval(mean: Mean) -> str:
    return _figure(mean.estimate, mean.lower, mean.upper)


def _action_table(audit: Audit) -> Table:
    table = _new_table(
        "Actions, by cost: mean per row with 95 % interval, weighted by 1/propensity",
        ("action", "rows", "reward", "cost", "1/propensity adds up to"),
    )
    for effect, balance in zip(audit.actions, audit.calibration, strict=True):
        mark = " [yellow]off[/]" if balance.is_off else ""
        table.add_row(
            escape(effect.label),
            f"{effect.rows:,}",
            _interval(effect.reward),
            _interval(effect.cost),
            f"{number(balance.ratio)}{mark}",
        )
    return table


def _overlap_table(audit: Audit) -> Table:
    effective = ("effective, uniform policy", "effective, best fixed action", "that step alone")
    table = _new_table(
        "Overlap: effective users for a policy after so many steps", ("steps", "users", *effective, "matching")
    )
    for overlap in audit.overlap:
        row = (overlap.users, overlap.uniform, overlap.greedy, overlap.alone, overlap.matching)
        table.add_row(str(overlap.step), *(f"{value:,.0f}" for value in row))
    return table


def _figures_table(audit: Audit) -> Table:
    table = Table(title="Figures", title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("value")
    quantiles = audit.propensity_quantiles
    table.add_row("logged reward per user", _interval(audit.logged_reward))
    table.add_row("logged cost per user", _interval(audit.logged_cost))
    table.add_row("cost of one fixed action", f"{number(audit.cheapest_cost)} to {number(audit.dearest_cost)}")
    table.add_row("propensity quantiles", ", ".join(f"{level}: {number(value)}" for level, value in quantiles.items()))
    gain = audit.assignment
    predicts = f"{number(gain.gain)} ± {number(gain.standard_error, 2)} nats per row"
    table.add_row("features predict the action by", predicts)
    for effect in audit.carry_over:
        table.add_row(
            f"carry-over on {effect.outcome}" + (f", {effect.lag} steps later" if effect.lag > 1 else ""),
            f"{number(effect.carried)} beside {number(effect.direct)} directly (p = {number(effect.p_value, 2)})",
        )
    folds = ", ".join(f"{fold.name} {fold.users:,} users / {fold.rows:,} rows" for fold in audit.folds)
    table.add_row("folds", folds or "too few users for three folds")
    return table


# The two arms of an A/B test on a terminal.


_WORDS = {
    "reward": "reward per user",
    "cost": "cost per user",
    "reward_difference": "reward beside the other arm",
    "cost_difference": "cost beside the other arm",
}
_PROMISE_COLOURS = {"kept": "green", "open": "yellow", "contradicted": "red"}


def show_arms(content: dict[str, Any], words: Spoken) -> None:
    """Means, differences, and a comparison with what the plan promised."""
    console = Console(highlight=False)
    for finding in content["findings"]:
        console.print(f"  [yellow]![/] {escape(finding)}", soft_wrap=True)
    console.print(_arms(content))
    if (spent := _budgets(content)) is not None:
        console.print(spent)
    console.print(escape(_sentence(content, words)), soft_wrap=True)
    kept = content["promise"]
    if kept is None:
        return
    console.print(_promises(kept))
    for note in kept["notes"]:
        console.print(f"  [yellow]![/] {escape(note)}", soft_wrap=True)
    sentence = kept["sentence"][:1].upper() + kept["sentence"][1:]
    console.print(f"[bold {_PROMISE_COLOURS[kept['status']]}]{escape(sentence)}.[/]", soft_wrap=True)


def _arms(content: dict[str, Any]) -> Table:
    level = f"{content['confidence']:.0%} intervals"
    heads = ("arm", "users", "reward", "cost")
    table = _new_table(f"What became of the users of both arms: means per user, {level}", heads)
    for arm in content["arms"]:
        table.add_row(escape(arm["name"]), f"{arm['users']:,}", *(_estimate(arm[name]) for name in heads[2:]))
    table.add_row("difference", "", *(_estimate(content["difference"][name], True) for name in heads[2:]), style="bold")
    return table


def _budgets(content: dict[str, Any]) -> Table | None:
    """What each budget was charged, by name; None if the cost says it all."""
    names = list(content["difference"]["costs"])
    if not names:
        return None
    table = _new_table("What was spent of each budget: means per user", ("arm", *names))
    for arm in content["arms"]:
        table.add_row(escape(arm["name"]), *(_estimate(arm["costs"][name]) for name in names))
    gaps = content["difference"]["costs"]
    table.add_row("difference", *(_estimate(gaps[name], True) for name in names), style="bold")
    return table


def _sentence(content: dict[str, Any], words: Spoken) -> str:
    reward, cost = content["difference"]["reward"], content["difference"]["cost"]
    first, second = (arm["name"] for arm in content["arms"])
    said = (
        f"A user of {first} {_surely(reward, 'earned')} {number(abs(reward['estimate']), 3)} "
        f"{'more' if reward['estimate'] >= 0 else 'less'} than one of {second}, and {_surely(cost, 'cost')} "
        f"{words.cost(abs(cost['estimate']))} {'more' if cost['estimate'] >= 0 else 'less'}."
    )
    if words.audience is not None:
        said += (
            f" {words.everybody.capitalize()} that is {words.total_reward(reward['estimate'])} reward and "
            f"{words.total_cost(cost['estimate'])} cost."
        )
    worth = content["difference"]["worth"]
    if worth is not None:
        said += (
            f" At {words.cost(content['value_per_reward'])} per unit of reward, that is worth "
            f"{words.cost(worth['estimate'])} per user ({words.cost(worth['lower'])} to {words.cost(worth['upper'])})."
        )
    return said


def _surely(gap: dict[str, float], verb: str) -> str:
    return verb if gap["lower"] > 0 or gap["upper"] < 0 else f"{verb}, within chance,"


def _promises(kept: dict[str, Any]) -> Table:
    heads = ("figure", "promised", "happened", "verdict")
    table = _new_table("What the plan promised, and what happened", heads, words=("verdict",))
    for row in kept["promises"]:
        differs = "difference" in row["what"]
        promised = f"{(signed if differs else number)(row['promised'])} ± {number(row['promised_error'], 2)}"
        named = f" ({escape(row['budget'])})" if row["budget"] else ""
        table.add_row(_WORDS[row["what"]] + named, promised, _estimate(row["found"], differs), row["verdict"])
    return table


def _estimate(row: dict[str, Any], differs: bool = False) -> str:
    if row["estimate"] is None:  # larger than the log makes possible
        return number(None)
    return (_difference if differs else _figure)(row["estimate"], row["lower"], row["upper"])


# The evaluation of a plan on a log: the verdict first, then every estimator with the objections to it.


_VERDICT_COLOURS = {"confirmed": "green", "contradicted": "red", "undecided": "yellow"}
_VERIFIED = {True: "verified again on this log", False: "NOT reproduced on this log"}


def show_evaluation(content: dict[str, Any]) -> None:
    """The result of `evaluate_plan`."""
    console = Console(highlight=False)
    certificate, logged = content["certificate"], content["logged"]
    verified = certificate["verified"]
    verdict = certificate["note"] if verified is None else _VERIFIED[verified]
    said = content["verdict"]
    told = f"[bold {_VERDICT_COLOURS[said['status']]}]{said['status'].capitalize()}:[/] {escape(said['message'])}."
    console.print(told, soft_wrap=True)
    for each in said["budgets"] if len(said["budgets"]) > 1 else ():
        console.print(
            f"  • [{_VERDICT_COLOURS[each['status']]}]{each['status']}[/]: {escape(each['message'])}", soft_wrap=True
        )
    if content["left_out_note"]:
        console.print(f"{content['left_out_note']}.", soft_wrap=True)
    for finding in (*content.get("lacking", ()), *content["drift"]):
        told = f"{finding['column']}: {finding['message']} → {finding['remedy']}"
        console.print(f"  [yellow]![/] {escape(told)}", soft_wrap=True)
    console.print(f"Certificate: {certificate['status']}, {verdict}.", soft_wrap=True)
    spent = ", ".join(f"{escape(name)} {number(cost)}" for name, cost in logged.get("costs", {}).items())
    console.print(
        f"As logged, users earned {number(logged['reward'])} and cost {spent or number(logged['cost'])} each "
        f"({content['users']:,} users). Under the plan, by every estimator:",
        soft_wrap=True,
    )
    notes: dict[str, int] = {}
    console.print(_table(content, notes))
    for note, mark in notes.items():
        console.print(f"[{mark}] {note}", soft_wrap=True, markup=False)
    if any(_refused(row) for row in content["estimates"]):
        console.print("Rows in grey must not be relied on.")
    advice = content["advice"]
    what = "Refit the plan with a newer log" if advice["do"] == "refit" else "Keep the plan"
    console.print(f"[bold]{what}[/]: {escape('; '.join(advice['reasons']))}.", soft_wrap=True)


def _table(content: dict[str, Any], notes: dict[str, int]) -> Table:
    """One row per estimator; new notes are numbered in `notes`."""
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for row in content["estimates"]:
        # With several budgets, each has a column under its name.
        rows.setdefault(row["estimator"], {})[row.get("budget", row["target"])] = row
    shown = list(next(iter(rows.values())))
    title = f"Means per user, with intervals at {content['confidence']:.0%}"
    table = _new_table(title, ("estimator", *shown, "notes"), words=("notes",))
    for estimator, targets in rows.items():
        reasons = [reason for row in targets.values() for reason in row["reasons"]]
        told = [f"{reason['weight']}: {reason['message']}" for reason in reasons]
        marks = sorted({notes.setdefault(note, len(notes) + 1) for note in told})
        refused = any(_refused(row) for row in targets.values())
        figures = [_estimate(targets[target]) for target in shown]
        numbers = escape("".join(f"[{mark}]" for mark in marks))
        table.add_row(estimator, *figures, numbers, style="dim" if refused else "")
    return table


def _refused(row: dict[str, Any]) -> bool:
    return any(reason["weight"] == Weight.REFUSAL for reason in row["reasons"])


# The true values in a simulated campaign: uniform policy, bandit and optimum, by budget.


def truth_rows(campaign: Campaign, budgets: Sequence[float]) -> list[dict[str, float | str]]:
    """The exact cost and reward of the reference policies, and of bandit and optimum at each budget."""
    rows: list[dict[str, float | str]] = []
    plain = {"cheapest": campaign.cheapest(), "uniform": campaign.uniform(), "dearest": campaign.dearest()}
    for name, value in plain.items():
        rows.append({"budget": "", "policy": name, "cost": value.cost, "reward": value.reward, "dual": ""})
    for budget in budgets:
        for name, solution in (("bandit", campaign.bandit(budget)), ("optimum", campaign.optimum(budget))):
            rows.append(_row(budget, name, solution))
    return rows


def plan_truth_rows(
    campaign: Campaign, followed: Sequence[tuple[float, Decide]], budget: float
) -> list[dict[str, float | str]]:
    """A plan next to the reference policies, and to the best that bandit and optimum achieve at the plan's cost.

    `followed` has the policies that are mixed, each with its share of the users.
    """
    values = [(share, campaign.value(decide)) for share, decide in followed]
    cost = sum(share * value.cost for share, value in values)
    reward = sum(share * value.reward for share, value in values)
    rows = [row for row in truth_rows(campaign, []) if row["policy"] != "dearest"]
    rows.append({"budget": budget, "policy": "this plan", "cost": cost, "reward": reward, "dual": ""})
    for name, best in (("bandit", campaign.bandit(cost)), ("optimum", campaign.optimum(cost))):
        rows.append(_row(cost, f"{name}, truth known", best))
    return rows


def truth_sentence(campaign: Campaign, rows: Sequence[dict[str, float | str]], given: Certificate) -> str:
    """One sentence: the share of the possible gain, the share of the budget that it took, and what was promised.

    The gain is over the cheapest plan; the possible gain is that of the optimum with the whole budget. `rows` come from
    `plan_truth_rows`.
    """
    by_name = {str(row["policy"]): (float(row["cost"]), float(row["reward"])) for row in rows}
    cost, reward = by_name["this plan"]
    nothing, best = by_name["cheapest"][1], campaign.optimum(given.budget).reward
    share = f"{(reward - nothing) / (best - nothing):.0%}" if best > nothing else "all"
    promised = f"at most {number(given.cost.upper)} per user with {given.confidence:.0%} confidence"
    spent = f"{cost / given.budget:.0%} of it" if given.budget > 0 else f"a cost of {number(cost)}"
    earned = f"The plan earns {share} of the gain that is possible with this budget, at {spent}"
    if not given.is_certified:
        return (
            f"{earned}; its certificate was refused, so nothing was promised (it would have been {promised}; in truth "
            f"it costs {number(cost)})."
        )
    kept = "and it is kept" if cost <= given.cost.upper else "and it is broken, as one in twenty may be"
    return f"{earned}. The certificate promised a cost of {promised}, {kept}: in truth the plan costs {number(cost)}."


def truth_table(rows: list[dict[str, float | str]]) -> Table:
    """A terminal table of the rows of `truth_rows`."""
    columns = {"policy": "policy", "budget": "budget", "cost": "cost", "reward": "reward", "dual": "price of cost (λ)"}
    table = _new_table("The truth of this campaign, exact: mean cost and reward per user", list(columns.values()))
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value := row[name], float) else value for name in columns))
    return table


def _row(budget: float, name: str, solution: Optimum) -> dict[str, float | str]:
    return {"budget": budget, "policy": name, "cost": solution.cost, "reward": solution.reward, "dual": solution.dual}
