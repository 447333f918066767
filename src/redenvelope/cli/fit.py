"""The commands that make a plan: fit and reprice."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from redenvelope.cli.guard import listening, stop_if_interrupted
from redenvelope.cli.options import (
    NOT_CERTIFIED,
    AudienceOption,
    CacheOption,
    CampaignOption,
    CheckUsersOption,
    ColumnsOption,
    CurrencyOption,
    DatesOption,
    EngineOption,
    EpisodeOption,
    EstimateOption,
    IgnoreOption,
    JsonOption,
    KnownOption,
    LogArgument,
    MissingCostOption,
    NamedBudgetOption,
    NamedTotalOption,
    PartsOption,
    PlanArgument,
    SeedOption,
    TimeOption,
    TrainUsersOption,
    ValueOption,
    WorkOption,
    budget_a_user,
    given_path,
    named_budgets,
    names,
    print_json,
    read_campaign,
)

if TYPE_CHECKING:
    from redenvelope.plan.plan import Plan


def fit(
    log: LogArgument,
    out: Annotated[Path, typer.Option(parser=given_path, metavar="PATH", help="Folder for the plan.")],
    budget: Annotated[float | None, typer.Option(min=0, help="Mean cost per user.")] = None,
    budget_total: Annotated[float | None, typer.Option(min=0, help="Total cost; needs --audience.")] = None,
    audience: AudienceOption = None,
    currency: CurrencyOption = None,
    value_per_reward: ValueOption = None,
    target_reward: Annotated[float | None, typer.Option(help="Mean reward per user: the cheapest plan for it.")] = None,
    method: Annotated[str, typer.Option(help="auto, planned, learned or bandit.")] = "auto",
    horizon: Annotated[int | None, typer.Option(help="Steps to plan ahead.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Weight of entropy; 0 takes the best action.")] = None,
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
    dates: DatesOption = None,
    known_before: KnownOption = None,
    explore: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Share of decisions drawn evenly among what is eligible, so that they are a log to learn from; "
            "without, the campaign's, or 0.02.",
            show_default=False,
        ),
    ] = None,
    cache: CacheOption = True,
    work: WorkOption = None,
    engine: EngineOption = None,
    parts: PartsOption = None,
    train_users: TrainUsersOption = None,
    check_users: CheckUsersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make the best plan for a budget from a log, check it on users apart, and write it to a folder.

    A log that no memory holds is divided by user in a folder of its own, --work, and passed over part by part.

    Exit code 0: certified; 2: the log or an option is wrong; 3: the plan is written, its certificate refused.
    """
    from redenvelope.cli.lakes import Question, fitted
    from redenvelope.cli.lakes import lake_options as lake_asked
    from redenvelope.fitting.fit import fit as fit_plan
    from redenvelope.fitting.settings import FitSettings
    from redenvelope.fitting.stage_cache import usual_cache
    from redenvelope.log.findings import readable
    from redenvelope.log.read import read_log
    from redenvelope.plan.money import Money
    from redenvelope.plan.storage import require_room
    from redenvelope.progress import Stages
    from redenvelope.report.page import save_with_report

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
    lake = lake_asked(work, engine, parts, train_users, check_users)
    require_room(out)
    kept = usual_cache() if cache else None
    with listening(as_json) as listen:
        stages = Stages(listen)
        stages.begin("log")
        asked = read_campaign(log, columns, ignore, campaign, time, episode, missing_cost, dates)
        question = Question(wanted, target_reward, asked, audience, settings, listen, kept)
        if lake is None:
            rows = read_log(log, asked.columns, estimate_propensity=estimate_propensity)
            stages.finish("log", repr(rows))
            plan = fit_plan(rows, **question._asdict())
        else:
            plan = fitted(log, lake, question, estimate_propensity)
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
    target_reward: Annotated[float | None, typer.Option(help="Mean reward per user: the cheapest plan for it.")] = None,
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
    from redenvelope.plan.storage import require_room
    from redenvelope.report.page import save_with_report

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
    from redenvelope.report.terminal import show_plan
    from redenvelope.serialization import to_plain

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
