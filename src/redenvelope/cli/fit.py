"""The commands that make a plan: fit and reprice."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from redenvelope.cli import options
from redenvelope.cli.guard import listening, stop_if_interrupted
from redenvelope.errors import UsageError
from redenvelope.files import is_address

if TYPE_CHECKING:
    from redenvelope.plan.plan import Plan


def fit(
    log: options.LogArgument,
    out: Annotated[Path, options.path_option("Folder for the plan.")],
    budget: Annotated[float | None, options.amount_option("Budget as mean cost per user.")] = None,
    budget_total: Annotated[float | None, options.amount_option("Budget as total cost; needs --audience.")] = None,
    audience: options.Audience = None,
    currency: options.Currency = None,
    value_per_reward: options.ValuePerReward = None,
    target_reward: Annotated[
        float | None, typer.Option(help="Mean reward per user to reach at the least cost, instead of a budget.")
    ] = None,
    maximise: options.Maximise = None,
    method: Annotated[str, typer.Option(help="How the plan decides: auto, planned, learned or bandit.")] = "auto",
    horizon: Annotated[int | None, typer.Option(help="Depth of the trees that decide, in steps.")] = None,
    no_leaf_values: Annotated[
        bool, typer.Option("--no-leaf-values", help="Leave out what follows the trees, as in the paper.")
    ] = False,
    temperature: Annotated[
        float | None, typer.Option(help="Weight of entropy; 0 always takes the best action.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence level of the certificate.")] = 0.95,
    seed: options.Seed = 0,
    history: Annotated[
        str, typer.Option(help="Whether the plan may use the user's earlier steps: auto or none.")
    ] = "auto",
    columns: options.Columns = None,
    ignore: options.Ignore = None,
    campaign: options.CampaignFile = None,
    items: options.Items = None,
    estimate_propensity: options.EstimatePropensity = False,
    time: options.Time = None,
    episode: options.Episode = None,
    cluster: options.Cluster = None,
    missing_cost: options.MissingCost = None,
    dates: options.Dates = None,
    known_before: options.KnownBefore = None,
    explore: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Exploration share: decisions drawn evenly among the eligible actions, so that the next log can be "
            "learned from. By default the campaign's, or at most 0.02, less where the budget is tight.",
            show_default=False,
        ),
    ] = None,
    most_per_user: Annotated[
        float | None,
        options.amount_option(
            "The most that a user may cost over the campaign: logged costs are cut there, and serve enforces it.",
            "--most-per-user",
        ),
    ] = None,
    cross_fit: Annotated[
        int,
        typer.Option(
            "--cross-fit",
            min=1,
            max=20,
            metavar="GROUPS",
            help="Groups of users, each of which checks a member of the plan made of the others: with 2, all users "
            "check, bounds are narrower, and fit takes up to twice as long. 1 checks one fold.",
        ),
    ] = 1,
    cache: options.Cache = True,
    work: options.Work = None,
    engine: options.Engine = None,
    parts: options.Parts = None,
    train_users: options.TrainUsers = None,
    check_users: options.CheckUsers = None,
    as_json: options.Json = False,
) -> None:
    """Make the best plan for a budget, and check it on held-out users.

    A log larger than memory is partitioned by user in a work folder, --work, and processed part by part.

    Exit code 0: certified; 2: the log or an option is wrong; 3: the plan is written, its certificate refused;
    4: certified, but less than half of the budget is used although more would earn more.
    """
    from redenvelope.cli.lakes import Question, fitted, lake_options
    from redenvelope.fitting.fit import fit as fit_plan
    from redenvelope.fitting.holdout import logged_by_user
    from redenvelope.fitting.objective import objective_of
    from redenvelope.fitting.settings import FitSettings
    from redenvelope.fitting.stage_cache import usual_cache
    from redenvelope.log.findings import readable
    from redenvelope.log.formats.sql import place_name
    from redenvelope.log.read import read_log
    from redenvelope.plan.money import Money
    from redenvelope.plan.storage import require_room
    from redenvelope.progress import Stages
    from redenvelope.report.page import save_with_report

    settings = FitSettings(
        method=method,  # type: ignore[arg-type]
        horizon=horizon,
        leaf_values=not no_leaf_values,
        temperature=temperature,
        confidence=confidence,
        seed=seed,
        history=history,  # type: ignore[arg-type]
        known_before=options.split_names(known_before),
        explore=explore,
        most_per_user=most_per_user,
        cross_fit=cross_fit,
    )
    wanted = options.budget_per_user(budget, budget_total, audience)
    for_profit = options.is_for_profit(maximise, value_per_reward, wanted, target_reward)
    told = Money().told(currency, audience, value_per_reward)  # so that nonsense is refused at once
    lake = lake_options(log, work, engine, parts, train_users, check_users)
    require_room(out)
    stages_cache = usual_cache() if cache else None
    with listening(as_json) as listen:
        stages = Stages(listen)
        stages.begin("log")
        given = options.read_campaign(log, columns, ignore, campaign, time, episode, missing_cost, dates, cluster)
        given = options.with_items(given, items)
        if not for_profit and wanted is None and target_reward is None and not given.budgets:
            raise UsageError(
                "give a goal: --budget, the mean cost per user; --budget-total with --audience; --target-reward; "
                "--maximise profit with --value-per-reward; or [[budget]] in a campaign file"
            )
        if not for_profit:
            objective_of(wanted, target_reward, given, confidence, audience)  # refused before a long log is read
        question = Question(wanted, target_reward, given, audience, settings, listen, stages_cache)
        if lake is None:
            rows = read_log(log, given.columns, estimate_propensity=estimate_propensity)
            stages.finish("log", repr(rows))
            # For profit, the price is known, but the budget only once the ladder is: until then, take the logged cost.
            question = question._replace(budget=float(logged_by_user(rows)[1].mean())) if for_profit else question
            plan = fit_plan(rows, **question._asdict())
        elif for_profit:
            raise UsageError("--maximise profit reads the log into memory; leave out --work and --engine")
        else:
            plan = fitted(log, lake, question, estimate_propensity)
        if for_profit:
            plan = plan.with_money(told).reprice(budget=plan.profit_budget(value_per_reward or 0.0), audience=audience)
        source = readable(place_name(log if is_address(log) else Path(log).name))
        plan = plan.with_source(source, given.columns, datetime.now(UTC).date().isoformat())
        plan = plan.with_money(plan.record.money.told(told.currency, told.audience, told.value_per_reward))
        stop_if_interrupted()
        save_with_report(plan, out)
    if stages_cache is not None and "--debug" in sys.argv:
        for note in stages_cache.notes:
            typer.echo(f"cache: {note}", err=True)
    _tell(plan, out, as_json)


def reprice(
    plan: options.PlanArgument,
    out: Annotated[Path, options.path_option("Folder for the repriced plan; may be the plan's own.")],
    budget: options.NamedBudget = None,
    budget_total: options.NamedTotal = None,
    audience: options.Audience = None,
    currency: options.Currency = None,
    value_per_reward: options.ValuePerReward = None,
    target_reward: Annotated[
        float | None, typer.Option(help="Mean reward per user to reach at the least cost, instead of a budget.")
    ] = None,
    maximise: options.Maximise = None,
    confidence: Annotated[
        float | None,
        typer.Option(help="Confidence level of the certificate; by default the plan's.", show_default=False),
    ] = None,
    for_all_prices: Annotated[
        bool,
        typer.Option(
            "--for-all-prices", help="Use bounds that hold for all budgets at once, so that one may be chosen by them."
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Give a plan another budget or target in seconds.

    No log is needed, and the new plan has a certificate of its own.

    Exit code 0: certified; 2: an option is wrong; 3: the plan is written, its certificate refused;
    4: certified, but less than half of the budget is used although more would earn more.
    """
    from redenvelope.plan.plan import Plan
    from redenvelope.plan.reprice import reprice as reprice_plan
    from redenvelope.plan.storage import require_room
    from redenvelope.report.page import save_with_report

    require_room(out)
    opened = Plan.load(plan)
    wanted = options.named_budgets(opened, budget, budget_total, audience)
    # Settings that are not given again are those with which the plan was made.
    money = opened.record.money.told(currency, audience, value_per_reward)
    if options.is_for_profit(maximise, money.value_per_reward, wanted, target_reward):
        wanted = {opened.certificate.budgets[0].name: opened.profit_budget(money.value_per_reward or 0.0)}
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
    """Show a written plan, and exit with its code."""
    from redenvelope.report.terminal import show_plan
    from redenvelope.serialization import to_plain

    beside, level = plan.record.untargeted, plan.certificate.confidence
    if as_json:
        content = {
            "plan": str(out),
            "certificate": plan.certificate.as_dict(),
            "comparison": to_plain(plan.record.comparison),
            "untargeted": None if beside is None else to_plain(beside) | {"sentence": beside.sentence(level)},
            "totals": to_plain(plan.totals),
            "currency": plan.record.money.currency or None,
            "exploration": to_plain(plan.record.exploration),
            "rules": [rule.sentence() for rule in plan.policy.rules],
            "holdout": plan.policy.holdout,
            "new": {each.label: each.share for each in plan.policy.new},
        }
        options.print_json(content)
    else:
        show_plan(plan, out)
    if not plan.certificate.is_certified:
        raise typer.Exit(options.NOT_CERTIFIED)
    if plan.certificate.is_under_spent:
        raise typer.Exit(options.UNDER_SPENT)
