"""The commands before a plan: demo, simulate, audit."""

from __future__ import annotations

import http.client
import json
import time as clock
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redenvelope.cli import options
from redenvelope.engine.memory import require_memory
from redenvelope.errors import UsageError
from redenvelope.files import replacing, require_writable
from redenvelope.wording import counted, number

if TYPE_CHECKING:
    import polars as pl

    from redenvelope.plan.plan import Plan
    from redenvelope.simulate.campaign import Campaign
    from redenvelope.simulate.envelopes import EnvelopeCampaign, EnvelopeCrowd, RuledEnvelopes


_BYTES_PER_ROW = 300
"""Approximate bytes per simulated row while it is drawn."""


def demo(
    out: Annotated[Path, options.path_option("Folder for the log and the plan.")] = Path("demo"),
    users: Annotated[int, typer.Option(min=200, help="Number of users to simulate.")] = 20_000,
    population: Annotated[int, typer.Option(min=1, help="Number of fresh users on whom the truth is computed.")] = 500,
    budget: Annotated[float, typer.Option(min=0, help="Budget as mean cost per user.")] = 4.0,
    seed: options.Seed = 0,
    live: Annotated[
        bool, typer.Option("--live", help="Then serve the plan to simulated users, with a page to watch it.")
    ] = False,
    crowd: Annotated[int, typer.Option(min=20, help="Number of users of the live part.")] = 1_000,
    seconds: Annotated[float, typer.Option(min=0, help="Shortest duration of the live part, in seconds.")] = 60.0,
) -> None:
    """Simulate a campaign, make a plan, and show its true worth."""
    from rich.console import Console

    from redenvelope.fitting.fit import fit
    from redenvelope.fitting.settings import FitSettings
    from redenvelope.log.columns import ColumnMap
    from redenvelope.log.read import read_log
    from redenvelope.plan.storage import require_room
    from redenvelope.report.page import save_with_report
    from redenvelope.report.terminal import StageView, plan_truth_rows, show_plan, truth_sentence, truth_table
    from redenvelope.simulate.envelopes import EnvelopeCampaign

    if live:
        options.require_installed()
    console = Console(highlight=False, soft_wrap=True)
    campaign = EnvelopeCampaign(population=population)
    path = out / "campaign.parquet"
    require_room(out / "plan")
    require_writable(path)
    if path.exists() and not _is_log_of(path, campaign):
        raise UsageError(f"{path}: exists, and the demo did not write it; choose another folder with --out")
    require_memory(users * campaign.steps * _BYTES_PER_ROW, f"a log of {users:,} users", "ask for fewer users")
    require_memory(population * _BYTES_PER_ROW, f"a population of {population:,} users", "ask for fewer")
    console.print(
        f"[bold]1. simulate[/] a log of {users:,} users who get red envelopes for {campaign.steps} days → {path}"
    )
    _write_table(campaign.log(users, seed), path)
    console.print(
        f"[bold]2. fit[/] the best plan for {budget:g} per user  (redenvelope fit {path} --budget {budget:g} "
        f"--history none --out {out / 'plan'})"
    )
    # The features of this campaign describe its state completely, and its exact truth is computed by state.
    settings = FitSettings(seed=seed, history="none")
    with StageView(enabled=True) as view:
        plan = fit(read_log(path), budget=budget, settings=settings, progress=view.tell)
        plan = plan.with_source(path.name, ColumnMap(), datetime.now(UTC).date().isoformat())
        save_with_report(plan, out / "plan")
    show_plan(plan, out / "plan")
    console.print("[bold]3. truth[/] of this simulated campaign: what does the plan really cost and earn?")
    shares = plan.policy.pricing.shares
    followed = [(share, partial(plan.policy.probabilities, row=row)) for row, share in enumerate(shares)]
    rows = plan_truth_rows(campaign, followed, budget)
    console.print(truth_table(rows))
    console.print(f"[bold]{truth_sentence(campaign, rows, plan.certificate)}[/]")
    if live:
        _go_live(campaign, plan, out, budget, crowd, seconds)


def simulate(
    name: Annotated[
        str, typer.Argument(metavar="CAMPAIGN", help="The campaign: two-step, envelopes or envelopes-rules.")
    ],
    out: Annotated[Path, options.path_option("Where to write the log (.parquet or .csv).")],
    users: Annotated[int, typer.Option(min=1, help="Number of users.")] = 20_000,
    seed: options.Seed = 0,
    truth: Annotated[
        bool, typer.Option("--truth", help="Also print what the uniform policy, the bandit and the optimum earn.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Write the log of a simulated campaign whose truth is known.

    The campaign with rules has two budgets, a cap and an eligibility: its campaign.toml is written beside the log.
    """
    from redenvelope.plan.storage import require_outside
    from redenvelope.simulate.envelopes import EnvelopeCampaign
    from redenvelope.simulate.finite import two_step

    if name not in ("two-step", "envelopes", "envelopes-rules"):
        raise UsageError(f"there is no campaign {name!r}; simulate two-step, envelopes or envelopes-rules")
    if out.suffix.lower() not in (".parquet", ".csv"):
        raise UsageError(f"{out}: the log is written as .parquet or .csv; choose one of the two endings")
    require_writable(out)
    require_outside(out)
    if name == "envelopes-rules":
        _simulate_rules(out, users, seed, truth, as_json)
        return
    campaign: Campaign = two_step() if name == "two-step" else EnvelopeCampaign(population=1_000)
    require_memory(users * campaign.steps * _BYTES_PER_ROW, f"a log of {users:,} users", "ask for fewer users")
    frame = campaign.log(users, seed)
    _write_table(frame, out)
    content: dict[str, Any] = {"log": str(out), "users": users, "rows": len(frame), "columns": frame.columns}
    if truth:
        from redenvelope.report.terminal import truth_rows

        content["truth"] = truth_rows(campaign, _budgets(campaign))
    if as_json:
        options.print_json(content)
        return
    typer.echo(f"{out}: {users:,} users, {len(frame):,} rows; columns {', '.join(frame.columns)}")
    if truth:
        from rich.console import Console

        from redenvelope.report.terminal import truth_table

        Console().print(truth_table(content["truth"]))


def _simulate_rules(out: Path, users: int, seed: int, truth: bool, as_json: bool) -> None:
    """Write the log of the campaign with rules, and its campaign file."""
    from redenvelope.simulate.envelopes import EnvelopeCampaign, RuledEnvelopes

    campaign = RuledEnvelopes(EnvelopeCampaign(population=300))
    rules, content = out.parent / "campaign.toml", campaign.toml()
    if rules.exists() and rules.read_text(encoding="utf-8") != content:
        raise UsageError(f"{rules}: exists, and is not this campaign's; choose another folder with --out")
    require_memory(users * campaign.steps * _BYTES_PER_ROW, f"a log of {users:,} users", "ask for fewer users")
    frame = campaign.log(users, seed)
    _write_table(frame, out)
    with replacing(rules) as file:
        file.write(content.encode())
    told: dict[str, Any] = {"log": str(out), "campaign": str(rules), "users": users, "rows": len(frame)}
    if truth:
        told["truth"] = _truth_of_rules(campaign)
    if as_json:
        options.print_json(told | {"columns": frame.columns})
        return
    typer.echo(f"{out}: {users:,} users, {len(frame):,} rows; columns {', '.join(frame.columns)}")
    typer.echo(f"{rules}: two budgets and two rules, which fit reads by itself")
    for row in told.get("truth", ()):
        costs = ", ".join(f"{name} {number(cost)}" for name, cost in row["costs"].items())
        typer.echo(f"  {row['policy']}: earns {number(row['reward'])} per user; {costs}")


def _truth_of_rules(campaign: RuledEnvelopes) -> list[dict[str, Any]]:
    """Reward and costs of sending nothing, of the optimum within rules and budgets, and of the one without budgets."""
    from redenvelope.dual.column_generation import solve_budgets

    names = [budget.name for budget in campaign.rules.budgets]
    best = solve_budgets(campaign.price, campaign.limits)
    free = campaign.price([[0.0, 0.0]])[:, 0]
    nothing = campaign.cheapest().outcomes
    policies = {"nothing": nothing.tolist(), "optimum": [best.reward, *best.costs.tolist()], "no budget": free.tolist()}
    rows: list[dict[str, Any]] = [
        {"policy": policy, "reward": outcomes[0], "costs": dict(zip(names, outcomes[1:], strict=True))}
        for policy, outcomes in policies.items()
    ]
    rows[1]["duals"] = dict(zip(names, best.duals.tolist(), strict=True))
    return rows


def audit(
    log: options.LogArgument,
    columns: options.Columns = None,
    ignore: options.Ignore = None,
    campaign: options.CampaignFile = None,
    estimate_propensity: options.EstimatePropensity = False,
    time: options.Time = None,
    episode: options.Episode = None,
    cluster: options.Cluster = None,
    missing_cost: options.MissingCost = None,
    dates: options.Dates = None,
    known_before: options.KnownBefore = None,
    budget: Annotated[
        float | None, options.amount_option("Budget as mean cost per user; the audit says whether it makes sense here.")
    ] = None,
    work: options.Work = None,
    engine: options.Engine = None,
    parts: options.Parts = None,
    as_json: options.Json = False,
) -> None:
    """Check whether a log can support a plan, and what to correct in it.

    Every finding says what is wrong, where, and what to do.

    A log larger than memory is partitioned by user in a work folder, --work, and processed part by part.

    Exit code 0: fit for use; 2: refused.
    """
    from rich.console import Console

    from redenvelope.audit.audit import audit_log
    from redenvelope.campaign.costs import without_costs
    from redenvelope.cli.lakes import audited, lake_options
    from redenvelope.log.findings import Severity
    from redenvelope.log.read import inspect_log
    from redenvelope.report.terminal import show_audit, show_findings

    given = options.read_campaign(log, columns, ignore, campaign, time, episode, missing_cost, dates, cluster)
    known = options.split_names(known_before)
    result, lake = None, lake_options(log, work, engine, parts)
    if lake is not None:
        result, found = audited(log, lake, given, budget, known, estimate_propensity, quiet=as_json)
    else:
        inspection = inspect_log(log, given.columns, estimate_propensity=estimate_propensity)
        found = inspection.findings
        if inspection.log is not None:
            given.check(inspection.log)
            rows = inspection.log
            if given.rules:  # actions that the rules forbid could not be drawn
                from redenvelope.fitting.learn import as_logged_under

                rows = as_logged_under(rows, given.rules)
            result = audit_log(without_costs(rows, given.budgets), budget, known_before=known)
    findings = found if result is None else result.findings
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    if as_json:
        content = {"status": "refused" if errors else "fit", "findings": [item.as_dict() for item in findings]}
        options.print_json(content if result is None else result.as_dict() | content)
    else:
        console = Console()
        if result is None:
            show_findings(console, findings)
        else:
            show_audit(console, result)
        late = 0 if result is None else sum(not leak.known for leak in result.leaks)
        against = [f"{counted(late, 'column')} may have been known too late"] if late else []
        against += sorted({finding.rule for finding in findings} & _AGAINST_CERTIFICATES)
        verdict = f"[bold red]refused[/]: {counted(errors, 'error')}" if errors else "[bold green]fit for use[/]"
        if against and not errors:
            verdict = f"[bold yellow]fit for use, not for a certificate[/]: {', '.join(against)}"
        console.print(f"\n{verdict}", highlight=False)
    if errors:
        raise typer.Exit(options.REFUSED)


_AGAINST_CERTIFICATES = {"propensity_miscalibrated", "draws_depend_on_past", "assigned_by_cluster"}
"""Warnings of the audit that lead to a refused certificate."""


def _write_table(frame: pl.DataFrame, out: Path) -> None:
    with replacing(out) as file:
        if out.suffix.lower() == ".parquet":
            frame.write_parquet(file)
        else:
            frame.write_csv(file)


def _is_log_of(path: Path, campaign: Campaign) -> bool:
    """Whether a file has the columns of a campaign's log, for example from an earlier demo that was stopped."""
    import polars as pl

    try:
        return path.is_file() and list(pl.read_parquet_schema(path)) == campaign.log(1, 0).columns
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return False


def _budgets(campaign: Campaign) -> list[float]:
    """Three budgets around the cost of the uniform policy."""
    least, uniform = campaign.cheapest().cost, campaign.uniform().cost
    return [least + share * (uniform - least) for share in (0.5, 1.0, 1.5)]


# The live part of the demo: a service, and simulated users who send requests over HTTP.


_TOGETHER = 20
"""Number of users who arrive at the same time."""


def _go_live(campaign: EnvelopeCampaign, plan: Plan, out: Path, budget: float, crowd: int, seconds: float) -> None:
    """Serve a plan for about `seconds` to users who redeem more often than those of the log."""
    from redenvelope.ledger.ledger import create_ledger
    from redenvelope.ledger.records import Fund
    from redenvelope.serve.server import serving
    from redenvelope.serve.service import Service
    from redenvelope.serve.settings import ServeSettings
    from redenvelope.simulate.envelopes import EnvelopeCrowd

    ledger = out / "ledger.db"
    for old in (ledger, ledger.with_name("ledger.db-wal"), ledger.with_name("ledger.db-shm")):
        old.unlink(missing_ok=True)  # from an earlier demo
    settings = ServeSettings(audience=crowd)
    total = round(100 * budget * crowd)
    service = Service(out / "plan", create_ledger(f"sqlite:///{ledger}", seed=0), [Fund("budget", total, 0)], settings)
    people = EnvelopeCrowd(campaign, crowd, seed=7, consumption=1.2)
    typer.echo("4. live: starting the service")
    with serving(service) as port, closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        typer.echo(f"{crowd:,} users who redeem a fifth more often than the log said; watch http://127.0.0.1:{port}/")
        earned = _walk_in(people, plan, connection, campaign.steps, seconds)
        found = _answered(connection, "GET", "/v1/campaign")
    money = found["budgets"][0]
    optimum = campaign.optimum(budget)
    typer.echo(
        f"spent {money['spent'] / 100:,.2f} of {total / 100:,.2f} ({money['spent'] / total:.1%}), never above; "
        f"{len(found['price_notes'])} changes of the price"
    )
    typer.echo(
        f"earned {number(earned / crowd)} per user; the plan said {number(plan.certificate.reward.estimate)} for "
        f"{number(plan.certificate.cost.estimate)} per user, and the optimum of the campaign as it was logged is "
        f"{number(optimum.reward)} for {number(optimum.cost)}"
    )
    typer.echo(f"redenvelope ledger verify sqlite:///{ledger}")


def _walk_in(
    people: EnvelopeCrowd, plan: Plan, connection: http.client.HTTPConnection, steps: int, seconds: float
) -> float:
    """Decide for all users and settle, over HTTP; returns the total reward."""
    import numpy as np

    places = {float(label): place for place, label in enumerate(plan.catalogue.labels)}
    earned, began = 0.0, clock.monotonic()
    for first in range(0, len(people), _TOGETHER):
        rows = np.arange(first, min(first + _TOGETHER, len(people)))
        for step in range(steps):
            requests = [
                {"request_id": f"{row}-{step}", "user": int(row), "features": features}
                for row, features in zip(rows, people.seen(rows, step), strict=True)
            ]
            answers = _answered(connection, "POST", "/v1/decisions/batch", {"decisions": requests})["answers"]
            given = np.array([places[float(answer["action"])] for answer in answers])
            rewards, costs = people.happen(rows, given)
            outcomes = [
                {"decision_id": answer["decision_id"], "reward": reward, "amount": round(100 * cost)}
                for answer, reward, cost in zip(answers, rewards.tolist(), costs.tolist(), strict=True)
            ]
            _answered(connection, "POST", "/v1/outcomes/batch", {"outcomes": outcomes})
            earned += float(rewards.sum())
        clock.sleep(max(0.0, seconds * rows[-1] / len(people) - (clock.monotonic() - began)))
    return earned


def _answered(connection: http.client.HTTPConnection, method: str, path: str, content: Any = None) -> Any:
    body = None if content is None else json.dumps(content)
    connection.request(method, path, body, {"content-type": "application/json"})
    return json.loads(connection.getresponse().read())
