"""The commands. Heavy parts are imported by the command that needs them, so that help is instant."""

from __future__ import annotations

import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redenvelope.errors import LogError, RedenvelopeError, UsageError

if TYPE_CHECKING:
    from redenvelope.log.columns import ColumnMap
    from redenvelope.simulate.campaign import Campaign

__all__ = ["app", "main"]

app = typer.Typer(
    name="redenvelope",
    help="From a log of past incentives to the best spending plan a budget can buy, proved before a cent is spent.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

REFUSED = 2


class CampaignName(StrEnum):
    """The simulated campaigns."""

    TWO_STEP = "two-step"
    ENVELOPES = "envelopes"


LogArgument = Annotated[str, typer.Argument(metavar="LOG", help="Parquet, CSV or TSV: a file, a folder or a glob.")]
ColumnsOption = Annotated[
    str | None, typer.Option(help="Your names of the columns: user=customer_id,reward=active", metavar="ROLE=NAME,…")
]
IgnoreOption = Annotated[str | None, typer.Option(help="Columns that are not features.", metavar="NAME,…")]
CampaignOption = Annotated[
    Path | None,
    typer.Option("--campaign", help="A campaign.toml with [columns] and ignore; found by itself beside the log."),
]
EstimateOption = Annotated[
    bool, typer.Option("--estimate-propensity", help="Estimate missing propensities from the features, by user.")
]
SeedOption = Annotated[int, typer.Option(min=0, help="The same seed gives the same result.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]


@app.callback()
def _root() -> None:
    """Keep the commands in the order they are used."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the log.")] = Path("demo"),
    users: Annotated[int, typer.Option(min=100, help="Number of users to simulate.")] = 20_000,
    population: Annotated[int, typer.Option(min=1, help="Number of fresh users the truth is taken on.")] = 1_000,
    seed: SeedOption = 0,
) -> None:
    """Simulate a campaign, audit its log, and print what the best plan would be worth."""
    from rich.console import Console

    from redenvelope.audit.audit import audit as audit_log
    from redenvelope.log.read import read_log
    from redenvelope.report.audit_view import show_audit
    from redenvelope.report.truth_view import truth_rows, truth_table

    console = Console()
    campaign = _campaign(CampaignName.ENVELOPES, population)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "campaign.parquet"
    console.print(f"[bold]1. simulate[/] {users:,} users get red envelopes for {campaign.steps} days → {path}")
    campaign.log(users, seed).write_parquet(path)
    console.print(f"[bold]2. audit[/] can this log carry a plan?  (redenvelope audit {path})")
    show_audit(console, audit_log(read_log(path)))
    console.print("[bold]3. truth[/] simulated, so it can be known: what would the best plan be worth?")
    console.print(truth_table(truth_rows(campaign, _budgets(campaign))))


@app.command()
def simulate(
    name: Annotated[CampaignName, typer.Argument(metavar="two-step|envelopes", help="Which campaign.")],
    out: Annotated[Path, typer.Option(help="Where to write the log (.parquet or .csv).")],
    users: Annotated[int, typer.Option(min=1, help="Number of users.")] = 20_000,
    seed: SeedOption = 0,
    truth: Annotated[bool, typer.Option("--truth", help="Also print what uniform, bandit and optimum earn.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make the log of a campaign whose truth is known."""
    if out.suffix.lower() not in (".parquet", ".csv"):
        raise UsageError(f"{out}: the log is written as .parquet or .csv; choose one of the two endings")
    campaign = _campaign(name)
    frame = campaign.log(users, seed)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.suffix.lower() == ".parquet":
            frame.write_parquet(out)
        else:
            frame.write_csv(out)
    except OSError as error:
        raise UsageError(f"{out}: cannot be written ({error.strerror or error})") from None
    content: dict[str, Any] = {"log": str(out), "users": users, "rows": len(frame), "columns": frame.columns}
    if truth:
        from redenvelope.report.truth_view import truth_rows

        content["truth"] = truth_rows(campaign, _budgets(campaign))
    if as_json:
        _print_json(content)
        return
    typer.echo(f"{out}: {users:,} users, {len(frame):,} rows; columns {', '.join(frame.columns)}")
    if truth:
        from rich.console import Console

        from redenvelope.report.truth_view import truth_table

        Console().print(truth_table(content["truth"]))


@app.command()
def audit(
    log: LogArgument,
    columns: ColumnsOption = None,
    ignore: IgnoreOption = None,
    campaign: CampaignOption = None,
    estimate_propensity: EstimateOption = False,
    budget: Annotated[float | None, typer.Option(min=0, help="Mean cost a user: does it make sense here?")] = None,
    as_json: JsonOption = False,
) -> None:
    """Say whether a log can carry a plan, what is wrong with it, where, and what to do.

    Exit code 0: fit for use; 2: refused.
    """
    from rich.console import Console

    from redenvelope.audit.audit import audit as audit_log
    from redenvelope.log.findings import Severity
    from redenvelope.log.read import inspect_log
    from redenvelope.report.audit_view import show_audit, show_findings

    mapping = _column_map(log, columns, ignore, campaign)
    inspection = inspect_log(log, mapping, estimate_propensity=estimate_propensity)
    result = audit_log(inspection.log, budget) if inspection.log is not None else None
    findings = inspection.findings if result is None else result.findings
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    if as_json:
        content = {"status": "refused" if errors else "fit", "findings": [item.as_dict() for item in findings]}
        _print_json(content if result is None else result.as_dict() | content)
    else:
        console = Console()
        if result is None:
            show_findings(console, findings)
        else:
            show_audit(console, result)
        verdict = f"[bold red]refused[/]: {errors} error(s)" if errors else "[bold green]fit for use[/]"
        console.print(f"\n{verdict}", highlight=False)
    if errors:
        raise typer.Exit(REFUSED)


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


def _column_map(log: str, columns: str | None, ignore: str | None, campaign: Path | None) -> ColumnMap:
    """The columns as given by flags or by a campaign file; one beside the log is found by itself."""
    from redenvelope.log.columns import ColumnMap

    given = ColumnMap.parse(columns, ignore)
    beside = (Path(log) if Path(log).is_dir() else Path(log).parent) / "campaign.toml"
    path = campaign or (beside if beside.is_file() and columns is None else None)
    if path is None:
        return given
    if columns is not None:
        raise UsageError("--columns and --campaign both name the columns; use one of the two")
    typer.echo(f"columns from {path}", err=True)
    from_file = ColumnMap.from_toml(path)
    return ColumnMap(from_file.names, from_file.ignored | given.ignored)


def _print_json(content: dict[str, Any]) -> None:
    """One JSON document; a number that JSON cannot hold becomes null."""
    typer.echo(json.dumps(_plain(content), indent=2, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def main() -> None:
    """Run a command; the user's mistakes become a few lines on stderr and exit code 2, never a traceback."""
    # The large products run in XLA and polars, which bring their own threads; threads of BLAS for the small ones
    # that remain would only wait for each other, and on busy cores they cost ten times what they save.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        app()
    except LogError as error:
        print(f"redenvelope: the log cannot be used, {len(error.findings)} error(s):\n{error}", file=sys.stderr)
        sys.exit(REFUSED)
    except RedenvelopeError as error:
        print(f"redenvelope: {error}", file=sys.stderr)
        sys.exit(REFUSED)
    except KeyboardInterrupt:
        print("redenvelope: interrupted", file=sys.stderr)
        sys.exit(130)
