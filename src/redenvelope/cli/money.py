"""The commands around a ledger: verify, export."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from redenvelope.cli.options import NOT_CERTIFIED, JsonOption, given_path, print_json
from redenvelope.errors import UsageError
from redenvelope.files import require_writable

__all__ = ["ledger"]

ledger = typer.Typer(
    name="ledger", help="Look into the ledger of a campaign.", no_args_is_help=True, rich_markup_mode=None
)

LedgerArgument = Annotated[
    str, typer.Argument(metavar="URL", help="sqlite:///PATH or postgresql://USER@HOST/DATABASE.")
]


@ledger.command()
def verify(url: LedgerArgument, as_json: JsonOption = False) -> None:
    """Recompute every balance from the entries, and name what differs.

    Exit code 0: nothing differs; 2: the ledger cannot be opened; 3: something differs.
    """
    from redenvelope.ledger.ledger import open_ledger
    from redenvelope.ledger.verify import verify as verify_ledger

    with closing(open_ledger(url, create=False)) as opened:
        found = verify_ledger(opened)
    if as_json:
        print_json(found.as_dict())
    else:
        for one in found.budgets:
            left = one["total"] - one["held"] - one["spent"]
            typer.echo(
                f"{one['budget']}: total {one['total']:,}, spent {one['spent']:,}, held {one['held']:,}, left {left:,} "
                "(minor units)"
            )
        for difference in found.differences:
            typer.echo(str(difference), err=True)
        verdict = "every balance is what the entries say" if found.is_sound else "the books differ from the entries"
        typer.echo(f"{found.decisions:,} decisions, {found.entries:,} entries: {verdict}")
    if not found.is_sound:
        raise typer.Exit(NOT_CERTIFIED)


@ledger.command()
def export(
    url: LedgerArgument,
    out: Annotated[Path, typer.Option(parser=given_path, metavar="PATH", help="Where to write the log (.parquet).")],
    minor_units: Annotated[
        int | None, typer.Option(min=1, help="Minor units in a unit of currency; without, as they were served.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the decisions and what came of them as a log, for audit and fit.

    Users of whom a decision is still open are left out; a decision that expired earned and cost nothing. A file
    campaign.toml beside the log says which columns are no features.
    """
    from redenvelope.ledger.export import export_log
    from redenvelope.ledger.ledger import open_ledger

    if out.suffix.lower() != ".parquet":
        raise UsageError(f"{out}: the log is written as .parquet; choose that ending")
    require_writable(out)
    with closing(open_ledger(url, create=False)) as opened:
        found = export_log(opened, out, minor_units)
    if as_json:
        content = {"rows": found.rows, "users": found.users, "open_users": found.open_users, "expired": found.expired}
        print_json({"log": str(out), **content})
        return
    typer.echo(f"{out}: {found.rows:,} rows of {found.users:,} users, {found.expired:,} of which expired")
    if found.open_users:
        typer.echo(f"{found.open_users:,} user(s) with a decision that is still open are left out", err=True)
    if found.campaign_file is None:
        typer.echo("a campaign.toml was there already: let it ignore the columns price and plan", err=True)
