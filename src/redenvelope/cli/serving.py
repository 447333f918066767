"""The commands that run a campaign: serve, token."""

from __future__ import annotations

import logging
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from redenvelope.cli.options import NOT_CERTIFIED, JsonOption, PlanArgument, given_path, print_json, require_installed
from redenvelope.errors import UsageError
from redenvelope.files import require_writable

if TYPE_CHECKING:
    from redenvelope.serve.admission import Tokens


_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(
    plan: PlanArgument,
    ledger: Annotated[str, typer.Option(metavar="URL", help="sqlite:///PATH or postgresql://USER@HOST/DATABASE.")],
    budget_total: Annotated[
        list[str],
        typer.Option(
            metavar="[NAME=]AMOUNT",
            help="What may be spent in all, in units of currency; never exceeded. Of several budgets by name, each.",
        ),
    ],
    audience: Annotated[
        int | None, typer.Option(min=1, help="Users that the budget is for; without it the price cannot be paced.")
    ] = None,
    host: Annotated[str, typer.Option(help="Where to listen; beyond this machine only with --tokens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8080,
    tokens: Annotated[
        Path | None, typer.Option(metavar="PATH", help="A file of tokens, as redenvelope token makes it.")
    ] = None,
    amounts: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME:]ACTION=AMOUNT,…",
            help="The most that each action costs, in units of currency; without, as the plan's log had it.",
        ),
    ] = None,
    user_cap: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]AMOUNT", help="The most that one user may cost, in units of currency."),
    ] = None,
    mode: Annotated[str, typer.Option(help="strict holds face value; overbook what is expected.")] = "strict",
    hold_hours: Annotated[float, typer.Option(min=0.001, help="How long an offer stands; at most ten years.")] = 168.0,
    minor_units: Annotated[int, typer.Option(min=1, help="Minor units in a unit of currency.")] = 100,
    pace: Annotated[bool, typer.Option(help="Let the price follow the money.")] = True,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=2**32 - 1, help="Of a new ledger's draws, to repeat a trial; without, one is drawn."),
    ] = None,
) -> None:
    """Run a campaign: decisions over HTTP, paid from a ledger, at a price that follows the money.

    SIGTERM ends it in good order (exit code 0), SIGHUP takes the plan folder anew.
    """
    require_installed()
    from redenvelope.ledger.ledger import open_ledger, steady_clock
    from redenvelope.plan.plan import Plan
    from redenvelope.serve.app import new_app
    from redenvelope.serve.funds import funded_budgets as kept_budgets
    from redenvelope.serve.funds import funds_for
    from redenvelope.serve.server import bound, run
    from redenvelope.serve.service import Service
    from redenvelope.serve.settings import PacingSettings, ServeSettings

    settings = ServeSettings(
        mode=mode,  # type: ignore[arg-type]
        hold_milliseconds=_milliseconds(hold_hours),
        minor_units=minor_units,
        audience=audience,
        pacing=PacingSettings() if pace else None,
    )
    known = _tokens(tokens, host)
    _log_to_stderr()
    clock = steady_clock()
    totals, caps = _by_name(budget_total, "--budget-total"), _by_name(user_cap or [], "--user-cap")
    most = _by_label(amounts or [])
    funds = funds_for(kept_budgets(Plan.load(plan), minor_units), totals, caps, clock())
    with bound(host, port) as opened:
        service = Service(plan, open_ledger(ledger, seed=seed), funds, settings, most, clock)
        where = f"http://{f'[{host}]' if ':' in host else host}:{opened.getsockname()[1]}"
        if audience is None:
            typer.echo("without --audience the price stays as it is: who is still to come is not known", err=True)
        run(new_app(service, known), service, opened, lambda: typer.echo(f"serving at {where}  (the page: {where}/)"))


def token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose token it is.")],
    roles: Annotated[str, typer.Option(metavar="ROLE,…", help="decide, settle, read, admin.")],
    file: Annotated[Path, typer.Option(metavar="PATH", help="Where its hash is kept; it is added.")],
) -> None:
    """Make a token for callers of serve: the secret is shown once, only its hash is kept."""
    from redenvelope.files import writing
    from redenvelope.serve.admission import new_token

    secret, line = new_token(name, roles.split(","))
    with writing(file):
        new = not file.exists()
        with file.open("a", encoding="utf-8") as opened:
            opened.write(f"{line}\n")
        if new:
            file.chmod(0o600)
    typer.echo(secret)


def _log_to_stderr() -> None:
    """What the service says of itself; other libraries keep quiet."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for name, level in (("redenvelope", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False


def _milliseconds(hours: float) -> int:
    """Of --hold-hours."""
    from redenvelope.serve.settings import LONGEST_HOLD_HOURS

    if hours > LONGEST_HOLD_HOURS:
        said = f"--hold-hours {hours:g}: an offer stands for at most {LONGEST_HOLD_HOURS:,} hours, which is ten years"
        raise UsageError(f"{said}; give fewer")
    return round(hours * 3_600_000)


def _by_name(given: list[str], option: str) -> dict[str, str]:
    """Amounts by the budget's name, as they were written; "" where none was given."""
    found: dict[str, str] = {}
    for entry in given:
        name, _, amount = entry.rpartition("=")
        if name.strip() in found:
            raise UsageError(f"{option} {entry}: the budget is given twice; keep one")
        found[name.strip()] = amount.strip()
    return found


def _by_label(given: list[str]) -> dict[str, dict[str, float]] | None:
    """Amounts by budget ("" where none was named) and action."""
    found: dict[str, dict[str, float]] = {}
    for entry in given:
        before, colon, after = entry.partition(":")  # one at the very beginning lets labels have others
        name, pairs = (before, after) if colon else ("", entry)
        own = found.setdefault(name.strip(), {})
        for pair in filter(None, pairs.split(",")):
            label, separator, value = pair.rpartition("=")
            try:
                own[label.strip()] = float(value)
            except ValueError:
                separator = ""
            if not separator:
                raise UsageError(f"--amounts: cannot read {pair!r}; write ACTION=AMOUNT, e.g. coupon=5")
    return found or None


def _tokens(path: Path | None, host: str) -> Tokens | None:
    from redenvelope.serve.admission import Tokens

    if path is not None:
        return Tokens.read(path)
    if host not in _LOOPBACK:
        raise UsageError(f"--host {host} is reached from elsewhere: give --tokens, or listen on 127.0.0.1")
    typer.echo("warning: without --tokens everybody on this machine may decide, settle and look", err=True)
    return None


# The commands around a ledger: verify, export.


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
