"""The commands that use a plan: allocate, power, explain, evaluate, frontier, report, compare."""

from __future__ import annotations

import glob
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from redenvelope.cli import options
from redenvelope.errors import UsageError
from redenvelope.files import is_address, require_writable, same_file
from redenvelope.wording import counted, number


def allocate(
    plan: options.PlanArgument,
    users: Annotated[
        str,
        typer.Argument(
            parser=options.given_text,
            metavar="USERS",
            help="Parquet or CSV with user, step and the features: a file, a database (postgresql://…?table=NAME), or, "
            "at any size, a folder, a glob or the address of an object store.",
        ),
    ],
    out: Annotated[
        Any,
        options.table_option(
            "Where to write the decisions: .parquet or .csv for a file, a folder for several, a table "
            "(postgresql://…?table=NAME, with &mode=replace or &mode=append where it exists) or s3://….parquet."
        ),
    ],
    seed: options.Seed = 0,
    columns: Annotated[
        str | None,
        typer.Option(
            help="Names of user and step in your table; by default those of the plan's log.", metavar="ROLE=NAME,…"
        ),
    ] = None,
    history: Annotated[
        Any,
        options.table_option(
            "Parquet, CSV or a database with user, step, action, reward and cost of the users' earlier steps; needed "
            "past the first step by plans that decide by them."
        ),
    ] = None,
    engine: options.Engine = None,
    work: options.Work = None,
    parts: options.Parts = None,
    as_json: options.Json = False,
) -> None:
    """Decide what each user gets, and with which probability.

    Several files, of any size, become a folder of decisions, one part at a time. A run that was stopped resumes where
    it was, and each user is decided for once.
    """
    from redenvelope.log.columns import ColumnMap
    from redenvelope.log.formats.sql import place_name
    from redenvelope.plan.allocate import allocate_file
    from redenvelope.plan.plan import Plan
    from redenvelope.plan.storage import require_outside

    opened = Plan.load(plan)
    if not is_address(out):
        if same_file(out.parent, plan):
            raise UsageError(f"{out}: is in the plan's own folder; write the decisions somewhere else")
        require_outside(out)
    certificate = opened.certificate
    named = None if columns is None else ColumnMap.parse(columns)
    if _is_one_file(users) and (engine, work, parts) == (None, None, None):
        summary = allocate_file(opened, users, out, seed, named, history)
    else:
        from redenvelope.cli.lakes import allocated

        summary = allocated(opened, users, out, seed, named, history, engine, work, parts, quiet=as_json)
    if not certificate.is_certified:
        typer.echo(f"warning: this plan's certificate was refused: {certificate.reasons[0].message}", err=True)
    if as_json:
        options.print_json(summary.as_dict() | {"certificate": certificate.status})
        return
    for finding in summary.findings:
        typer.echo(str(finding), err=True)
    spent = ", ".join(f"{name} {number(cost)}" for name, cost in summary.expected_costs.items())
    told = f"expected costs {spent}" if spent else f"expected cost {number(summary.expected_cost)}"
    held_out = "" if summary.held_out is None else f"; {summary.held_out:,} of them in the control group"
    typer.echo(f"{place_name(out)}: {summary.users:,} decisions, {told} per decision{held_out}")


def _is_one_file(users: str) -> bool:
    """Whether this is one table; also true if nothing exists there, which is reported when it is read."""
    from redenvelope.log.formats.sql import is_database

    if is_address(users):
        return is_database(users) or (users.lower().endswith((".parquet", ".pq")) and not glob.has_magic(users))
    try:
        several = Path(users).is_dir() or glob.has_magic(users)
        return Path(users).is_file() or not several
    except (OSError, ValueError):
        return True


def power(
    plan: options.PlanArgument,
    share: Annotated[float, typer.Option(help="Share of users who follow the plan in the test.")] = 0.5,
    confidence: Annotated[float, typer.Option(help="Confidence level of the two-sided intervals.")] = 0.95,
    sure: Annotated[float, typer.Option("--power", help="Probability of seeing the gain if it is there.")] = 0.8,
    gain: Annotated[
        float | None,
        typer.Option(help="Gain of reward per user to see; by default what the check users say.", show_default=False),
    ] = None,
    users_per_week: Annotated[
        int | None, typer.Option("--users-per-week", min=1, help="Users who join the test per week, for its length.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Say how many users and weeks an A/B test of a plan needs."""
    from redenvelope.plan.plan import Plan
    from redenvelope.plan.rollout_check import users_for_test

    said = {"share": share, "confidence": confidence, "power": sure, "gain": gain, "users_per_week": users_per_week}
    content = users_for_test(Plan.load(plan), **said)  # type: ignore[arg-type]
    if as_json:
        options.print_json(content)
        return
    for case in filter(None, (content, content.get("cautious"))):
        weeks = "" if case["weeks"] is None else f", {counted(case['weeks'], 'week')} until they have all joined"
        if case is not content:
            typer.echo("If the gain is as small as its interval allows:")
        typer.echo(
            f"To see a gain of {number(case['gain'])} reward per user with probability {sure:.0%}, at {confidence:.0%} "
            f"confidence: {case['plan_users']:,} users follow the plan, and {case['other_users']:,} today's "
            f"policy{weeks}."
        )
    if gain is None and "cautious" not in content:
        typer.echo("The interval of this gain contains 0: there may be nothing to see, however many users join.")


def explain(
    plan: options.PlanArgument,
    users: Annotated[list[str], typer.Argument(metavar="USER…", help="Ids of the users to explain.")],
    table: Annotated[Any, options.table_option("Table of users.", "--users")],
    history: Annotated[Any, options.table_option("Earlier steps of the users, as in allocate.")] = None,
    columns: options.Columns = None,
    seed: options.Seed = 0,
    as_json: options.Json = False,
) -> None:
    """Say why users get what they get.

    The alternatives, what each earns, costs and is worth at the price of the budget, and the rules that applied.

    The table is the one that allocate decides for: user, step and the features.
    """
    from redenvelope.log.columns import ColumnMap
    from redenvelope.plan.allocate import rows_of_users
    from redenvelope.plan.decide import Decider
    from redenvelope.plan.plan import Plan

    opened = Plan.load(plan)
    decider = Decider(opened, seed)
    found = rows_of_users(opened, table, users, None if columns is None else ColumnMap.parse(columns), history)
    explained = [decider.explain(row, history=past) for row, past in found]
    if as_json:
        options.print_json({"plan": str(plan), "users": [each.as_dict() for each in explained]})
        return
    typer.echo("\n\n".join(map(str, explained)))


def evaluate(
    plan: options.PlanArgument,
    log: options.LogArgument,
    columns: options.Columns = None,
    ignore: options.Ignore = None,
    campaign: options.CampaignFile = None,
    estimate_propensity: options.EstimatePropensity = False,
    time: options.Time = None,
    episode: options.Episode = None,
    cluster: options.Cluster = None,
    missing_cost: options.MissingCost = None,
    confidence: Annotated[float, typer.Option(help="Confidence level of the two-sided intervals.")] = 0.95,
    all_users: Annotated[
        bool, typer.Option("--all-users", help="Leave nobody out: all users of this log are new.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Say whether a newer log confirms a plan, and whether to refit.

    Every estimator's reward and cost, with intervals.

    Exit code 0: not contradicted; 2: the log or an option is wrong; 3: the log contradicts the certificate.
    """
    from redenvelope.fitting.evaluate import evaluate_plan
    from redenvelope.log.read import read_log
    from redenvelope.plan.plan import Plan

    opened = Plan.load(plan)
    mapping = options.read_campaign(
        log, columns, ignore, campaign, time, episode, missing_cost, cluster=cluster
    ).columns
    # Settings that are not given again are those with which the plan was made.
    known = opened.columns
    if not mapping.names and not mapping.ignored:
        mapping = known.reading(mapping.time, mapping.episode, mapping.missing_cost, cluster=mapping.cluster)
    mapping = replace(mapping, costs=known.costs, dates=known.dates, cluster=mapping.cluster or known.cluster)
    rows = read_log(log, mapping, estimate_propensity=estimate_propensity)
    content = evaluate_plan(opened, rows, confidence, all_users)
    if as_json:
        options.print_json(content)
    else:
        from redenvelope.report.terminal import show_evaluation

        show_evaluation(content)
    if content["verdict"]["status"] == "contradicted":
        raise typer.Exit(options.NOT_CERTIFIED)


def frontier(
    plan: options.PlanArgument,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            help="Show what this mean cost per user would buy; with several budgets, by name.", metavar="[NAME=]B"
        ),
    ] = None,
    reward: Annotated[float | None, typer.Option(help="Show the least cost of this mean reward per user.")] = None,
    as_json: options.Json = False,
) -> None:
    """Say what other budgets would buy."""
    from redenvelope.plan.plan import Plan
    from redenvelope.plan.reprice import answer

    opened = Plan.load(plan)
    content = answer(opened, options.named_budgets(opened, budget, None, None), reward)
    if as_json:
        options.print_json(content)
        return
    from redenvelope.report.terminal import show_frontier

    show_frontier(content)


def report(
    plan: options.PlanArgument,
    out: Annotated[Path, options.path_option("Where to write the page (.html).")] = Path("report.html"),
    audience: options.Audience = None,
    currency: options.Currency = None,
    value_per_reward: options.ValuePerReward = None,
) -> None:
    """Write a plan's report again, as one self-contained page.

    Audience, currency and value stay as they were when the plan was made, unless given.
    """
    from redenvelope.plan.plan import Plan
    from redenvelope.plan.storage import require_outside
    from redenvelope.report.page import require_html, save_with_report, write_report

    require_html(out)
    require_writable(out)
    opened = Plan.load(plan)
    opened = opened.with_money(opened.record.money.told(currency, audience, value_per_reward))
    if same_file(out.parent, plan) and out.name == "report.html":
        save_with_report(opened, plan)  # the plan's own file, whose hash is in the manifest
        typer.echo(f"{out}: written anew")
        return
    require_outside(out)
    write_report(opened, out)
    typer.echo(f"{out}: {out.stat().st_size // 1024:,} kB")


# The command after a roll-out: compare two arms, with each other and with what the plan promised.


def compare(
    first: Annotated[
        str,
        typer.Argument(
            metavar="ARM_A",
            help="Outcomes of the users who followed the plan, or one table of both arms (without --arm, the column "
            "'holdout' marks the control group).",
        ),
    ],
    second: Annotated[
        str | None, typer.Argument(metavar="[ARM_B]", help="Outcomes of the other users.", show_default=False)
    ] = None,
    arm: Annotated[
        str | None, typer.Option("--arm", help="With one table: the column that names the arm.", metavar="COLUMN")
    ] = None,
    followed: Annotated[
        str | None, typer.Option("--first", help="Value of that column for the plan's arm.", metavar="VALUE")
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", help="The plan that was rolled out; its certificate is checked.", metavar="PLAN"),
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(help="Share of users assigned to ARM_A, such as 0.5; the assignment is checked against it."),
    ] = None,
    columns: options.Columns = None,
    confidence: Annotated[float, typer.Option(help="Confidence level of the two-sided intervals.")] = 0.95,
    audience: options.Audience = None,
    currency: options.Currency = None,
    value_per_reward: options.ValuePerReward = None,
    as_json: options.Json = False,
) -> None:
    """Compare the two arms of an A/B test, and with what was promised.

    Both tables need user, reward and cost; a user may have many rows, and propensities are not needed.
    Exit code 0: compared, and no promise broken; 2: a table or an option is wrong; 3: the plan broke its budget
    (or missed its target) for sure.
    """
    from redenvelope.log.columns import ColumnMap
    from redenvelope.plan.money import Money
    from redenvelope.plan.plan import Plan
    from redenvelope.plan.rollout_check import compare_outcomes
    from redenvelope.report.markup import Spoken
    from redenvelope.report.terminal import show_arms

    opened = None if plan is None else Plan.load(plan)
    money = (opened.record.money if opened else Money()).told(currency, audience, value_per_reward)
    named = None if columns is None else ColumnMap.parse(columns)
    content = compare_outcomes(opened, (first, second), arm, followed, named, confidence, share, money.value_per_reward)
    if as_json:
        options.print_json(content)
    else:
        show_arms(content, Spoken(money.currency, money.audience))
    if content["promise"] is not None and content["promise"]["status"] == "contradicted":
        raise typer.Exit(options.NOT_CERTIFIED)
