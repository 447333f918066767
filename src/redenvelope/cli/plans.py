"""The commands around a plan: fit, reprice, allocate, evaluate, frontier, report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from redenvelope.cli.budgets import NamedBudgetOption, NamedTotalOption, budget_a_user, named_budgets
from redenvelope.cli.interrupts import heeding_interrupts, stop_if_interrupted
from redenvelope.cli.options import (
    NOT_CERTIFIED,
    AudienceOption,
    CacheOption,
    CampaignOption,
    ColumnsOption,
    CurrencyOption,
    EpisodeOption,
    EstimateOption,
    IgnoreOption,
    JsonOption,
    KnownOption,
    LogArgument,
    MissingCostOption,
    PlanArgument,
    SeedOption,
    TimeOption,
    ValueOption,
    given_path,
    names,
    print_json,
    read_campaign,
)
from redenvelope.errors import UsageError
from redenvelope.files import replacing, require_writable, same_file
from redenvelope.progress import Event

if TYPE_CHECKING:
    from redenvelope.plan.plan import Plan

__all__ = ["allocate", "evaluate", "fit", "frontier", "report", "reprice"]


def fit(
    log: LogArgument,
    out: Annotated[Path, typer.Option(parser=given_path, metavar="PATH", help="Folder for the plan.")],
    budget: Annotated[float | None, typer.Option(min=0, help="Mean cost a user.")] = None,
    budget_total: Annotated[float | None, typer.Option(min=0, help="Total cost; needs --audience.")] = None,
    audience: AudienceOption = None,
    currency: CurrencyOption = None,
    value_per_reward: ValueOption = None,
    target_reward: Annotated[float | None, typer.Option(help="Mean reward a user: the cheapest plan for it.")] = None,
    method: Annotated[str, typer.Option(help="auto, planned, learned or bandit.")] = "auto",
    horizon: Annotated[int | None, typer.Option(help="Steps to plan ahead.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Weight of entropy; 0 takes the best action.")] = None,
    solver: Annotated[
        str | None, typer.Option(help="Not needed any more: the price is read off a table.", hidden=True)
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of the certificate.")] = 0.95,
    seed: SeedOption = 0,
    history: Annotated[
        str, typer.Option(help="auto or none: whether a plan may decide by what happened to a user before.")
    ] = "auto",
    columns: ColumnsOption = None,
    ignore: IgnoreOption = None,
    campaign: CampaignOption = None,
    estimate_propensity: EstimateOption = False,
    time: TimeOption = None,
    episode: EpisodeOption = None,
    missing_cost: MissingCostOption = None,
    known_before: KnownOption = None,
    explore: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Share of decisions drawn evenly among what is eligible, so that they are a log to learn from; "
            "without, the campaign's, or 0.05.",
            show_default=False,
        ),
    ] = None,
    cache: CacheOption = True,
    as_json: JsonOption = False,
) -> None:
    """Make the best plan for a budget from a log, check it on users apart, and write it to a folder.

    Exit code 0: certified; 2: the log or an option is wrong; 3: the plan is written, its certificate refused.
    """
    from redenvelope.fitting.cache import usual_cache
    from redenvelope.fitting.fit import fit as fit_plan
    from redenvelope.fitting.settings import FitSettings
    from redenvelope.log.findings import readable
    from redenvelope.log.read import read_log
    from redenvelope.plan.amounts import Money
    from redenvelope.plan.store import require_room
    from redenvelope.progress import Stages
    from redenvelope.report.saved import save_with_report

    settings = FitSettings(
        method=method,  # type: ignore[arg-type]
        horizon=horizon,
        temperature=temperature,
        confidence=confidence,
        seed=seed,
        history=history,  # type: ignore[arg-type]
        known_before=names(known_before),
        explore=explore,
    )
    wanted = budget_a_user(budget, budget_total, audience)
    money = Money().told(currency, audience, value_per_reward)
    _heed_solver(solver)
    require_room(out)
    kept = usual_cache() if cache else None
    with _listener(as_json) as listen:
        stages = Stages(listen)
        stages.begin("log")
        asked = read_campaign(log, columns, ignore, campaign, time, episode, missing_cost)
        rows = read_log(log, asked.columns, estimate_propensity=estimate_propensity)
        stages.finish("log", repr(rows))
        plan = fit_plan(
            rows,
            budget=wanted,
            target_reward=target_reward,
            campaign=asked,
            audience=audience,
            settings=settings,
            progress=listen,
            cache=kept,
        )
        plan = plan.with_source(readable(Path(log).name), asked.columns, datetime.now(UTC).date().isoformat())
        plan = plan.with_money(money)
        stop_if_interrupted()
        save_with_report(plan, out)
    if kept is not None and "--debug" in sys.argv:
        for note in kept.notes:
            typer.echo(f"cache: {note}", err=True)
    _tell(plan, out, as_json)


def reprice(
    plan: PlanArgument,
    out: Annotated[
        Path,
        typer.Option(
            parser=given_path, metavar="PATH", help="Folder for the repriced plan; may be that of the plan itself."
        ),
    ],
    budget: NamedBudgetOption = None,
    budget_total: NamedTotalOption = None,
    audience: AudienceOption = None,
    currency: CurrencyOption = None,
    value_per_reward: ValueOption = None,
    target_reward: Annotated[float | None, typer.Option(help="Mean reward a user: the cheapest plan for it.")] = None,
    confidence: Annotated[
        float | None, typer.Option(help="Of the certificate; without, that of the plan.", show_default=False)
    ] = None,
    for_all_prices: Annotated[
        bool, typer.Option("--for-all-prices", help="Bounds that hold for every budget at once, to choose one by them.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Take another budget or target for a plan, in seconds and without the log, with a certificate of its own.

    Exit code 0: certified; 2: an option is wrong; 3: the plan is written, its certificate refused.
    """
    from redenvelope.plan.plan import Plan
    from redenvelope.plan.reprice import reprice as reprice_plan
    from redenvelope.plan.store import require_room
    from redenvelope.report.saved import save_with_report

    require_room(out)
    opened = Plan.load(plan)
    wanted = named_budgets(opened, budget, budget_total, audience)
    # What was not said again is as it was when the plan was made.
    money = opened.record.money.told(currency, audience, value_per_reward)
    again = reprice_plan(
        opened.with_money(money),
        budget=wanted,
        target_reward=target_reward,
        audience=audience,
        confidence=confidence,
        for_all_prices=for_all_prices,
    )
    save_with_report(again, out)
    _tell(again, out, as_json)


def _tell(plan: Plan, out: Path, as_json: bool) -> None:
    """A plan that was written, and the exit code."""
    from redenvelope.plain import to_plain
    from redenvelope.report.plan_view import show_plan

    if as_json:
        compared = to_plain(plan.record.comparison)
        explored, rules = to_plain(plan.record.exploration), [rule.sentence() for rule in plan.policy.rules]
        total = None if plan.totals is None else plan.totals.as_dict()
        content = {"plan": str(out), "certificate": plan.certificate.as_dict(), "comparison": compared, "totals": total}
        content |= {"currency": plan.record.money.currency or None, "exploration": explored, "rules": rules}
        print_json(content)
    else:
        show_plan(plan, out)
    if not plan.certificate.is_certified:
        raise typer.Exit(NOT_CERTIFIED)


def allocate(
    plan: PlanArgument,
    users: Annotated[
        Path,
        typer.Argument(parser=given_path, metavar="USERS", help="Parquet or CSV with user, step and the features."),
    ],
    out: Annotated[
        Path, typer.Option(parser=given_path, metavar="PATH", help="Where to write the decisions (.parquet or .csv).")
    ],
    seed: SeedOption = 0,
    columns: Annotated[
        str | None,
        typer.Option(help="Your names of user and step; without, those of the plan's log.", metavar="ROLE=NAME,…"),
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(
            parser=given_path,
            metavar="PAST",
            help="Parquet or CSV with user, step, action, reward and cost of the users' earlier steps; needed past the "
            "first step by plans that decide by them.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Decide what each user gets at this step, with the probability it was drawn with."""
    from redenvelope.log.columns import ColumnMap
    from redenvelope.plan.allocate import allocate_file
    from redenvelope.plan.plan import Plan
    from redenvelope.plan.store import require_outside

    opened = Plan.load(plan)
    if same_file(out.parent, plan):
        raise UsageError(f"{out}: is in the plan's own folder; write the decisions somewhere else")
    require_outside(out)
    certificate = opened.certificate
    named = None if columns is None else ColumnMap.parse(columns)
    summary = allocate_file(opened, users, out, seed, named, history)
    if not certificate.is_certified:
        typer.echo(f"warning: this plan's certificate was refused: {certificate.reasons[0].message}", err=True)
    if as_json:
        print_json(summary.as_dict() | {"certificate": certificate.status})
        return
    for finding in summary.findings:
        typer.echo(str(finding), err=True)
    spent = ", ".join(f"{name} {cost:.4g}" for name, cost in summary.expected_costs.items())
    told = f"expected costs {spent}" if spent else f"expected cost {summary.expected_cost:.4g}"
    typer.echo(f"{out}: {summary.users:,} decisions, {told} a decision")


def evaluate(
    plan: PlanArgument,
    log: LogArgument,
    columns: ColumnsOption = None,
    ignore: IgnoreOption = None,
    campaign: CampaignOption = None,
    estimate_propensity: EstimateOption = False,
    time: TimeOption = None,
    episode: EpisodeOption = None,
    missing_cost: MissingCostOption = None,
    confidence: Annotated[float, typer.Option(help="Of the two-sided intervals.")] = 0.95,
    all_users: Annotated[
        bool,
        typer.Option("--all-users", help="These are new people: leave nobody out."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say whether a log bears a plan's certificate out; estimate reward and cost by every estimator, with intervals.

    Exit code 0: not contradicted; 2: the log or an option is wrong; 3: the log contradicts the certificate.
    """
    from redenvelope.fitting.evaluate import evaluate_plan
    from redenvelope.log.read import read_log
    from redenvelope.plan.plan import Plan

    opened = Plan.load(plan)
    mapping = read_campaign(log, columns, ignore, campaign, time, episode, missing_cost).columns
    # What was not said again is as it was when the plan was made.
    known = opened.columns
    if not mapping.names and not mapping.ignored:
        mapping = known.reading(mapping.time, mapping.episode, mapping.missing_cost)
    mapping = replace(mapping, costs=known.costs)
    rows = read_log(log, mapping, estimate_propensity=estimate_propensity)
    content = evaluate_plan(opened, rows, confidence, all_users)
    if as_json:
        print_json(content)
    else:
        from redenvelope.report.evaluation_view import show_evaluation

        show_evaluation(content)
    if content["verdict"]["status"] == "contradicted":
        raise typer.Exit(NOT_CERTIFIED)


def frontier(
    plan: PlanArgument,
    budget: Annotated[
        list[str] | None,
        typer.Option(help="What would this mean cost a user buy? Of several budgets, by name.", metavar="[NAME=]B"),
    ] = None,
    reward: Annotated[float | None, typer.Option(help="What is the least cost of this mean reward a user?")] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what other budgets would buy: the frontier, shadow prices, and what 10 % more is worth."""
    from redenvelope.plan.plan import Plan
    from redenvelope.plan.questions import answer

    opened = Plan.load(plan)
    content = answer(opened, named_budgets(opened, budget, None, None), reward)
    if as_json:
        print_json(content)
        return
    from redenvelope.report.plan_view import show_frontier

    show_frontier(content)


def report(
    plan: PlanArgument,
    out: Annotated[
        Path, typer.Option(parser=given_path, metavar="PATH", help="Where to write the page (.html).")
    ] = Path("report.html"),
    audience: AudienceOption = None,
    currency: CurrencyOption = None,
    value_per_reward: ValueOption = None,
) -> None:
    """Write a plan's report again: one self-contained page, readable without a network.

    What is not said of audience, currency and value is as it was when the plan was made.
    """
    from redenvelope.plan.plan import Plan
    from redenvelope.plan.store import require_outside
    from redenvelope.report.page import render_report
    from redenvelope.report.saved import save_with_report

    if out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{out}: the report is written as .html; choose that ending")
    require_writable(out)
    opened = Plan.load(plan)
    opened = opened.with_money(opened.record.money.told(currency, audience, value_per_reward))
    if same_file(out.parent, plan) and out.name == "report.html":
        save_with_report(opened, plan)  # a file of the plan's own, which knows its hash
        typer.echo(f"{out}: written anew")
        return
    require_outside(out)
    page = render_report(opened).encode()
    with replacing(out) as file:
        file.write(page)
    typer.echo(f"{out}: {len(page) // 1024:,} kB")


def _heed_solver(solver: str | None) -> None:
    """An option of old: whoever still gives it is told, and nothing else changes."""
    from redenvelope.dual.solvers import SOLVERS

    if solver is None:
        return
    if solver not in SOLVERS:
        raise UsageError(f"there is no solver {solver!r}; choose among {', '.join(SOLVERS)}, or leave the option out")
    typer.echo("--solver changes nothing: fit reads the price off a table, exactly", err=True)


@contextmanager
def _listener(quiet: bool) -> Iterator[Callable[[Event], None]]:
    """A live view of the stages, to be told events; Ctrl-C is heeded whenever it is told something."""
    from redenvelope.report.plan_view import StageView

    with heeding_interrupts(), StageView(enabled=not quiet) as view:

        def listen(event: Event) -> None:
            stop_if_interrupted()
            view.tell(event)

        yield listen
