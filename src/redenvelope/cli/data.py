"""The commands before a plan: demo, simulate, audit."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redenvelope.cli.options import (
    REFUSED,
    CampaignOption,
    ColumnsOption,
    EpisodeOption,
    EstimateOption,
    IgnoreOption,
    JsonOption,
    KnownOption,
    LogArgument,
    MissingCostOption,
    SeedOption,
    TimeOption,
    column_map,
    given_path,
    names,
    print_json,
)
from redenvelope.engine.memory import require_memory
from redenvelope.errors import UsageError
from redenvelope.files import replacing, require_writable
from redenvelope.plan.store import require_outside, require_room

if TYPE_CHECKING:
    import polars as pl

    from redenvelope.simulate.campaign import Campaign

__all__ = ["audit", "demo", "simulate"]

_BYTES_A_ROW = 300
"""That a simulated row takes while it is drawn, roughly."""


class CampaignName(StrEnum):
    """The simulated campaigns."""

    TWO_STEP = "two-step"
    ENVELOPES = "envelopes"


def demo(
    out: Annotated[
        Path, typer.Option(parser=given_path, metavar="PATH", help="Folder for the log and the plan.")
    ] = Path("demo"),
    users: Annotated[int, typer.Option(min=200, help="Number of users to simulate.")] = 20_000,
    population: Annotated[int, typer.Option(min=1, help="Number of fresh users the truth is taken on.")] = 500,
    budget: Annotated[float, typer.Option(min=0, help="Mean cost a user.")] = 4.0,
    seed: SeedOption = 0,
) -> None:
    """Simulate a campaign, make a plan from its log, and show what the plan is really worth."""
    from rich.console import Console

    from redenvelope.fitting.fit import fit
    from redenvelope.fitting.settings import FitSettings
    from redenvelope.log.columns import ColumnMap
    from redenvelope.log.read import read_log
    from redenvelope.report.plan_view import StageView, show_plan
    from redenvelope.report.saved import save_with_report
    from redenvelope.report.truth_view import plan_truth_rows, truth_sentence, truth_table

    console = Console(highlight=False, soft_wrap=True)
    campaign = _campaign(CampaignName.ENVELOPES, population)
    path = out / "campaign.parquet"
    require_room(out / "plan")
    require_writable(path)
    if path.exists() and not _is_log_of(path, campaign):
        raise UsageError(f"{path}: exists, and the demo did not write it; choose another folder with --out")
    require_memory(users * campaign.steps * _BYTES_A_ROW, f"a log of {users:,} users", "ask for fewer users")
    require_memory(population * _BYTES_A_ROW, f"a population of {population:,} users", "ask for fewer")
    console.print(f"[bold]1. simulate[/] {users:,} users get red envelopes for {campaign.steps} days → {path}")
    _write_table(campaign.log(users, seed), path)
    console.print(f"[bold]2. fit[/] the best plan for {budget:g} a user  (redenvelope fit {path} --budget {budget:g})")
    # The features of this campaign tell all of its state, and its exact truth is asked state by state.
    settings = FitSettings(seed=seed, history="none")
    with StageView(enabled=True) as view:
        plan = fit(read_log(path), budget=budget, settings=settings, progress=view.tell)
        plan = plan.with_source(path.name, ColumnMap(), datetime.now(UTC).date().isoformat())
        save_with_report(plan, out / "plan")
    show_plan(plan, out / "plan")
    console.print("[bold]3. truth[/] simulated, so it can be known: what does the plan really cost and earn?")
    shares = plan.policy.pricing.shares
    followed = [(share, partial(plan.policy.probabilities, row=row)) for row, share in enumerate(shares)]
    rows = plan_truth_rows(campaign, followed, budget)
    console.print(truth_table(rows))
    console.print(f"[bold]{truth_sentence(campaign, rows, plan.certificate)}[/]")


def simulate(
    name: Annotated[CampaignName, typer.Argument(metavar="two-step|envelopes", help="Which campaign.")],
    out: Annotated[
        Path, typer.Option(parser=given_path, metavar="PATH", help="Where to write the log (.parquet or .csv).")
    ],
    users: Annotated[int, typer.Option(min=1, help="Number of users.")] = 20_000,
    seed: SeedOption = 0,
    truth: Annotated[bool, typer.Option("--truth", help="Also print what uniform, bandit and optimum earn.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make the log of a campaign whose truth is known."""
    if out.suffix.lower() not in (".parquet", ".csv"):
        raise UsageError(f"{out}: the log is written as .parquet or .csv; choose one of the two endings")
    require_writable(out)
    require_outside(out)
    campaign = _campaign(name)
    require_memory(users * campaign.steps * _BYTES_A_ROW, f"a log of {users:,} users", "ask for fewer users")
    frame = campaign.log(users, seed)
    _write_table(frame, out)
    content: dict[str, Any] = {"log": str(out), "users": users, "rows": len(frame), "columns": frame.columns}
    if truth:
        from redenvelope.report.truth_view import truth_rows

        content["truth"] = truth_rows(campaign, _budgets(campaign))
    if as_json:
        print_json(content)
        return
    typer.echo(f"{out}: {users:,} users, {len(frame):,} rows; columns {', '.join(frame.columns)}")
    if truth:
        from rich.console import Console

        from redenvelope.report.truth_view import truth_table

        Console().print(truth_table(content["truth"]))


def audit(
    log: LogArgument,
    columns: ColumnsOption = None,
    ignore: IgnoreOption = None,
    campaign: CampaignOption = None,
    estimate_propensity: EstimateOption = False,
    time: TimeOption = None,
    episode: EpisodeOption = None,
    missing_cost: MissingCostOption = None,
    known_before: KnownOption = None,
    budget: Annotated[float | None, typer.Option(min=0, help="Mean cost a user: does it make sense here?")] = None,
    as_json: JsonOption = False,
) -> None:
    """Say whether a log can carry a plan, what is wrong with it, where, and what to do.

    Exit code 0: fit for use; 2: refused.
    """
    from rich.console import Console

    from redenvelope.audit.audit import audit_log
    from redenvelope.log.findings import Severity
    from redenvelope.log.read import inspect_log
    from redenvelope.report.audit_view import show_audit, show_findings

    mapping = column_map(log, columns, ignore, campaign, time, episode, missing_cost)
    inspection = inspect_log(log, mapping, estimate_propensity=estimate_propensity)
    result = None
    if inspection.log is not None:
        result = audit_log(inspection.log, budget, known_before=names(known_before))
    findings = inspection.findings if result is None else result.findings
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    if as_json:
        content = {"status": "refused" if errors else "fit", "findings": [item.as_dict() for item in findings]}
        print_json(content if result is None else result.as_dict() | content)
    else:
        console = Console()
        if result is None:
            show_findings(console, findings)
        else:
            show_audit(console, result)
        asked = 0 if result is None else sum(not leak.known for leak in result.leaks)
        verdict = f"[bold red]refused[/]: {errors} error(s)" if errors else "[bold green]fit for use[/]"
        if asked and not errors:
            verdict = f"[bold yellow]fit for use, not for a certificate[/]: {asked} column(s) perhaps known too late"
        console.print(f"\n{verdict}", highlight=False)
    if errors:
        raise typer.Exit(REFUSED)


def _write_table(frame: pl.DataFrame, out: Path) -> None:
    with replacing(out) as file:
        if out.suffix.lower() == ".parquet":
            frame.write_parquet(file)
        else:
            frame.write_csv(file)


def _is_log_of(path: Path, campaign: Campaign) -> bool:
    """Whether a file holds what a campaign writes, such as the log of an earlier demo that was stopped."""
    import polars as pl

    try:
        return path.is_file() and list(pl.read_parquet_schema(path)) == campaign.log(1, 0).columns
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return False


def _campaign(name: CampaignName, population: int = 1_000) -> Campaign:
    if name is CampaignName.TWO_STEP:
        from redenvelope.simulate.two_step import two_step

        return two_step()
    from redenvelope.simulate.envelopes import EnvelopeCampaign

    return EnvelopeCampaign(population=population)


def _budgets(campaign: Campaign) -> list[float]:
    """Three budgets around what giving every action equally often would cost."""
    least, uniform = campaign.cheapest().cost, campaign.uniform().cost
    return [least + share * (uniform - least) for share in (0.5, 1.0, 1.5)]
