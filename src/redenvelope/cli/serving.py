"""The commands that run a campaign: serve, token."""

from __future__ import annotations

import logging
import math
import sys
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from redenvelope.cli.options import PlanArgument, SeedOption, require_installed
from redenvelope.errors import UsageError

if TYPE_CHECKING:
    from redenvelope.serve.tokens import Tokens

__all__ = ["serve", "token"]

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
BUDGET = "budget"
"""What the only budget is called in the ledger."""


def serve(
    plan: PlanArgument,
    ledger: Annotated[str, typer.Option(metavar="URL", help="sqlite:///PATH or postgresql://USER@HOST/DATABASE.")],
    budget_total: Annotated[
        str, typer.Option(metavar="AMOUNT", help="What may be spent in all, in units of currency; never exceeded.")
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
        str | None,
        typer.Option(
            metavar="ACTION=AMOUNT,…",
            help="The most that each action costs, in units of currency; without, as the plan's log had it.",
        ),
    ] = None,
    user_cap: Annotated[
        str | None, typer.Option(metavar="AMOUNT", help="The most that one user may cost, in units of currency.")
    ] = None,
    mode: Annotated[str, typer.Option(help="strict holds face value; overbook what is expected.")] = "strict",
    hold_hours: Annotated[float, typer.Option(min=0.001, help="How long an offer stands.")] = 168.0,
    minor_units: Annotated[int, typer.Option(min=1, help="Minor units in a unit of currency.")] = 100,
    pace: Annotated[bool, typer.Option(help="Let the price follow the money.")] = True,
    seed: SeedOption = 0,
) -> None:
    """Run a campaign: decisions over HTTP, paid from a ledger, at a price that follows the money.

    SIGTERM ends it in good order (exit code 0), SIGHUP takes the plan folder anew.
    """
    require_installed()
    from redenvelope.ledger.clock import steady_clock
    from redenvelope.ledger.ledger import open_ledger
    from redenvelope.ledger.records import Fund
    from redenvelope.serve.app import new_app
    from redenvelope.serve.server import bound, run
    from redenvelope.serve.service import Service
    from redenvelope.serve.settings import PacingSettings, ServeSettings

    settings = ServeSettings(
        mode=mode,  # type: ignore[arg-type]
        hold_milliseconds=round(hold_hours * 3_600_000),
        minor_units=minor_units,
        seed=seed,
        audience=audience,
        pacing=PacingSettings() if pace else None,
    )
    known = _tokens(tokens, host)
    _log_to_stderr()
    clock = steady_clock()
    total = minor_amount(budget_total, minor_units, "--budget-total")
    cap = None if user_cap is None else minor_amount(user_cap, minor_units, "--user-cap")
    opened = bound(host, port)
    fund = Fund(BUDGET, total, clock(), cap)
    service = Service(plan, open_ledger(ledger), [fund], settings, _by_label(amounts), clock)
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
    from redenvelope.serve.tokens import new_token

    secret, line = new_token(name, roles.split(","))
    with writing(file):
        new = not file.exists()
        with file.open("a", encoding="utf-8") as opened:
            opened.write(f"{line}\n")
        if new:
            file.chmod(0o600)
    typer.echo(secret)


def minor_amount(text: str, minor_units: int, option: str) -> int:
    """An amount of currency as minor units, exactly: no binary fraction on the way."""
    try:
        amount = Decimal(text) * minor_units
    except InvalidOperation:
        raise UsageError(f"{option}: {text!r} is no amount; write a number such as 2500 or 2500.50") from None
    if not amount.is_finite() or amount != amount.to_integral_value() or not 0 <= amount < 2**53:
        raise UsageError(f"{option}: {text!r} is no amount of at least 0 with {math.log10(minor_units):g} decimals")
    return int(amount)


def _log_to_stderr() -> None:
    """What the service says of itself; other libraries keep quiet."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for name, level in (("redenvelope", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False


def _by_label(amounts: str | None) -> dict[str, float] | None:
    if amounts is None:
        return None
    found: dict[str, float] = {}
    for pair in filter(None, amounts.split(",")):
        label, separator, value = pair.rpartition("=")
        try:
            found[label.strip()] = float(value)
        except ValueError:
            separator = ""
        if not separator:
            raise UsageError(f"--amounts: cannot read {pair!r}; write ACTION=AMOUNT, e.g. coupon=5")
    return found


def _tokens(path: Path | None, host: str) -> Tokens | None:
    from redenvelope.serve.tokens import Tokens

    if path is not None:
        return Tokens.read(path)
    if host not in _LOOPBACK:
        raise UsageError(f"--host {host} is reached from elsewhere: give --tokens, or listen on 127.0.0.1")
    typer.echo("warning: without --tokens everybody on this machine may decide, settle and look", err=True)
    return None
