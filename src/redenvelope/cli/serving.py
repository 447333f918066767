"""The commands that run a campaign: serve, token, and those for ledgers."""

from __future__ import annotations

import gc
import logging
import os
import re
import sys
from contextlib import closing
from decimal import Decimal
from getpass import getuser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from redenvelope.cli import options
from redenvelope.errors import UsageError
from redenvelope.files import require_writable

if TYPE_CHECKING:
    from redenvelope.ledger.records import Command, Fund
    from redenvelope.serve.admission import Tokens


_HEAD = re.compile("[0-9a-fA-F]{12,64}")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(
    plan: options.PlanArgument,
    ledger: Annotated[
        str, typer.Option(metavar="URL", help="URL of the ledger: sqlite:///PATH or postgresql://USER@HOST/DATABASE.")
    ],
    budget_total: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]AMOUNT",
            help="The most that may be spent, in units of currency. With several budgets, give one for each. Not "
            "needed if the ledger exists.",
        ),
    ] = None,
    audience: Annotated[
        int | None, typer.Option(min=1, help="Number of users that the budget is for. Pacing needs it.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Other machines can connect only with --tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 chooses a free one.")] = 8080,
    tokens: Annotated[
        Path | None, typer.Option(metavar="PATH", help="File of tokens, as redenvelope token writes it.")
    ] = None,
    amounts: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME:]ACTION=AMOUNT,…",
            help="The most that each action can cost, in units of currency. By default, its cost in the plan's log.",
        ),
    ] = None,
    user_cap: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]AMOUNT", help="The most that may be spent per user, in units of currency."),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="strict holds the face value of an offer, overbook its expected cost. By default that of the ledger; "
            "strict in a new one."
        ),
    ] = None,
    hold_hours: Annotated[
        float, typer.Option(min=0.001, help="Hours until a hold expires; at most ten years.")
    ] = 168.0,
    minor_units: Annotated[
        int | None,
        typer.Option(min=1, help="Minor units per unit of currency. By default those of the ledger; 100 in a new one."),
    ] = None,
    pace: Annotated[bool, typer.Option(help="Pace the prices by what is left of the budgets.")] = True,
    log_format: Annotated[
        str, typer.Option(metavar="text|json", help="Form of the log; json has a line per request, with its id.")
    ] = "text",
    webhook: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where alerts are sent (money low, budget reached, …), signed with the secret in the environment "
            "variable REDENVELOPE_WEBHOOK_SECRET.",
        ),
    ] = None,
    wrong_features: Annotated[
        str,
        typer.Option(
            metavar="refuse|count",
            help="Requests with features that the plan does not know, lacks or cannot read: refuse them, or decide "
            "without these features and count.",
        ),
    ] = "refuse",
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, max=2**32 - 1, help="Seed of a new ledger, to repeat a trial. By default it is drawn at random."
        ),
    ] = None,
) -> None:
    """Decide over HTTP, and pay from a ledger that never overspends.

    SIGTERM shuts it down gracefully (exit code 0); SIGHUP loads the plan folder
    and the file of tokens again.
    """
    options.require_installed()
    from redenvelope.ledger.ledger import open_ledger, steady_clock
    from redenvelope.ledger.records import COUNTED, Fund
    from redenvelope.plan.plan import Plan
    from redenvelope.serve.alerts import SECRET_VARIABLE, WebhookSettings
    from redenvelope.serve.app import new_app
    from redenvelope.serve.funds import charge_table_of, funded_budgets, funds_for
    from redenvelope.serve.server import bound, run
    from redenvelope.serve.service import Service
    from redenvelope.serve.settings import PacingSettings, ServeSettings

    def settings_in(mode: str, units: int) -> ServeSettings:
        return ServeSettings(
            mode=mode,  # type: ignore[arg-type]
            hold_milliseconds=_milliseconds(hold_hours),
            minor_units=units,
            audience=audience,
            pacing=PacingSettings() if pace else None,
            wrong_features=wrong_features,  # type: ignore[arg-type]
        )

    settings_in(mode or "strict", minor_units or 100)
    hook = None if webhook is None else WebhookSettings(webhook, os.environ.get(SECRET_VARIABLE, ""))
    known = _tokens(tokens, host)
    _log_to_stderr(log_format)
    totals, caps = _by_name(budget_total or [], "--budget-total"), _by_name(user_cap or [], "--user-cap")
    most = _by_label(amounts or [])
    loaded = Plan.load(plan)
    if totals:
        caps = capped_by_plan(caps, loaded.certificate.most_per_user)
        # Find mistakes before a ledger is created.
        checked = settings_in(mode or "strict", minor_units or 100)
        wanted = funds_for(funded_budgets(loaded, checked.minor_units), totals, caps, 0)
        charge_table_of(loaded, [fund.budget for fund in wanted], most, checked)
    with bound(host, port) as opened:
        found = open_ledger(ledger, create=bool(totals), seed=seed)
        if found.database.is_new:
            typer.echo("no ledger at this URL yet; created a new one", err=True)
        own = [Fund(one.budget, one.total, 0, one.user_cap, one.measure, one.minor_units) for one in found.balances()]
        if not (totals or own):
            raise UsageError("--budget-total is missing; give --budget-total AMOUNT, the most that may be spent")
        units = minor_units or next((one.minor_units for one in own if one.measure != COUNTED), 100)
        settings = settings_in(mode or found.identity()["mode"] or "strict", units)
        clock = steady_clock(found.now())
        if caps and not totals:
            totals = {one.budget if own[1:] else "": f"{Decimal(one.total) / one.minor_units:f}" for one in own}
        funds = funds_for(funded_budgets(loaded, units), totals, caps, clock()) if totals else own
        typer.echo("starting: the first start of a plan compiles it, which takes some seconds", err=True)
        service = Service(plan, found, funds, settings, most, clock, hook)
        where = f"http://{f'[{host}]' if ':' in host else host}:{opened.getsockname()[1]}"
        if audience is None:
            typer.echo("without --audience the prices are not paced: the number of users to come is unknown", err=True)
        run(new_app(service, known), service, opened, lambda: typer.echo(f"serving at {where}  (the page: {where}/)"))


def token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the caller.")],
    roles: Annotated[str, typer.Option(metavar="ROLE,…", help="Roles of the token: decide, settle, read, admin.")],
    file: Annotated[
        Path, typer.Option(metavar="PATH", help="File of tokens, to which the hash of the secret is added.")
    ],
) -> None:
    """Create a token for a caller of serve. The secret is printed once; the file has only its hash."""
    from redenvelope.files import writing
    from redenvelope.serve.admission import new_token

    secret, line = new_token(name, roles.split(","))
    with writing(file):
        new = not file.exists()
        begun = not new and not file.read_bytes().endswith(b"\n")  # edited by hand
        with file.open("a", encoding="utf-8") as opened:
            opened.write("\n" * begun + f"{line}\n")
        if new:
            file.chmod(0o600)
    typer.echo(secret)


def _log_to_stderr(form: str) -> None:
    """Log the service, each request if the log is JSON, and the HTTP server's errors (anybody can cause warnings)."""
    from redenvelope.serve.monitoring import JsonLines

    if form not in ("text", "json"):
        raise UsageError(f"--log-format {form}: write text or json")
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else text)
    requests = logging.INFO if form == "json" else logging.WARNING
    for name, level in (("redenvelope", logging.INFO), ("uvicorn", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False
    logging.getLogger("redenvelope.serve.requests").setLevel(requests)


def _milliseconds(hours: float) -> int:
    """--hold-hours in milliseconds."""
    from redenvelope.serve.settings import LONGEST_HOLD_HOURS

    if not hours <= LONGEST_HOLD_HOURS:  # also true for NaN
        raise UsageError(f"--hold-hours {hours:g}: give at most {LONGEST_HOLD_HOURS:,} hours, which is ten years")
    return round(hours * 3_600_000)


def _by_name(given: list[str], option: str) -> dict[str, str]:
    """Amounts as text by budget name; "" if no name was given."""
    found: dict[str, str] = {}
    for entry in given:
        name, _, amount = entry.rpartition("=")
        if name.strip() in found:
            raise UsageError(f"{option} {entry}: the budget is given twice; give it once")
        found[name.strip()] = amount.strip()
    return found


def capped_by_plan(caps: dict[str, str], most: float | None) -> dict[str, str]:
    """The given cap per user, or the one that the plan is certified for; a larger one is refused."""
    if most is None:
        return caps
    given = next(iter(caps.values()), None)
    if given is None:
        typer.echo(f"--user-cap {most:.10g}: the plan is certified with this cap per user", err=True)
        return {"": f"{most:.10g}"}
    try:
        larger = float(given) > most
    except ValueError:
        larger = False  # reported when amounts are parsed
    if larger:
        raise UsageError(
            f"--user-cap {given}: the plan is certified for at most {most:.10g} per user; give at most that, or fit "
            "with a larger --most-per-user"
        )
    return caps


def _by_label(given: list[str]) -> dict[str, dict[str, float]] | None:
    """Amounts by budget ("" if no name was given) and action."""
    found: dict[str, dict[str, float]] = {}
    for entry in given:
        before, colon, after = entry.partition(
            ":"
        )  # a colon at the start ends an empty name, so that labels may contain colons
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
        raise UsageError(f"--host {host} is open to other machines; give --tokens, or listen on 127.0.0.1")
    typer.echo("warning: without --tokens, everybody on this machine has all roles", err=True)
    return None


ledger = typer.Typer(
    name="ledger",
    help="Create, change, verify, back up or export a ledger.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

LedgerArgument = Annotated[
    str, typer.Argument(metavar="URL", help="URL of the ledger: sqlite:///PATH or postgresql://USER@HOST/DATABASE.")
]


By = Annotated[str, typer.Option(metavar="NAME", help="Who does this, for the record. By default, who is logged in.")]
Totals = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]AMOUNT", help="The most that may be spent, in units of currency; of several budgets, by name."
    ),
]
Caps = Annotated[
    list[str] | None,
    typer.Option(metavar="[NAME=]AMOUNT", help="The most that may be spent per user, in units of currency."),
]
HoldMode = Annotated[
    str | None, typer.Option(help="strict holds the face value of an offer, overbook its expected cost.")
]


@ledger.command()
def create(
    url: LedgerArgument,
    budget_total: Totals = None,
    user_cap: Caps = None,
    mode: HoldMode = None,
    plan: Annotated[
        Path | None, typer.Option(metavar="PLAN", help="The plan, whose budgets these are. Needed for several budgets.")
    ] = None,
    campaign: Annotated[str, typer.Option(metavar="NAME", help="Name of the campaign.")] = "",
    currency: Annotated[str, typer.Option(metavar="CODE", help="Currency of the amounts, e.g. EUR.")] = "",
    minor_units: Annotated[int, typer.Option(min=1, help="Minor units per unit of currency.")] = 100,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=2**32 - 1, help="Seed of its draws, to repeat a trial. By default drawn at random."),
    ] = None,
    by: By = "",
) -> None:
    """Create a ledger, also in the place of one that has gone missing. Without totals, serve gives it its budgets.

    Exit code 2: there is a ledger already.
    """
    from redenvelope.ledger.ledger import create_ledger, steady_clock
    from redenvelope.ledger.records import Identify

    now, wanted = steady_clock()(), _mode(mode)
    totals, caps = _by_name(budget_total or [], "--budget-total"), _by_name(user_cap or [], "--user-cap")
    if caps and not totals:
        raise UsageError("--user-cap is the cap of a budget; also give --budget-total")
    funds = _new_funds(plan, totals, caps, minor_units, now, _who(by)) if totals else []
    with closing(create_ledger(url, seed)) as opened:
        opened.apply([Identify(now, campaign, currency, wanted or ("strict" if funds else ""), _who(by)), *funds])
        typer.echo(f"created ledger {opened.database.ledger}")


def _new_funds(
    plan: Path | None, totals: dict[str, str], caps: dict[str, str], minor_units: int, now: int, by: str
) -> list[Fund]:
    from dataclasses import replace

    from redenvelope.plan.plan import Plan
    from redenvelope.serve.funds import ONLY, FundedBudget, funded_budgets, funds_for

    if plan is not None:
        loaded = Plan.load(plan)
        budgets, caps = funded_budgets(loaded, minor_units), capped_by_plan(caps, loaded.certificate.most_per_user)
    elif len(totals) > 1:
        raise UsageError("several budgets also need --plan PLAN, which says what each of them measures")
    else:
        budgets = (FundedBudget(next(iter(totals)) or ONLY, "cost", minor_units),)
    return [replace(one, by=by) for one in funds_for(budgets, totals, caps, now)]


def _mode(mode: str | None) -> str | None:
    if mode not in (None, "strict", "overbook"):
        raise UsageError(f"--mode {mode}: write strict or overbook")
    return mode


def _who(by: str) -> str:
    """The name of the person who changes a ledger."""
    if by:
        return by
    try:
        return getuser()
    except (KeyError, OSError):  # a user without a name
        return f"user {os.getuid()}"


@ledger.command()
def change(
    url: LedgerArgument,
    budget_total: Totals = None,
    user_cap: Caps = None,
    no_user_cap: Annotated[
        list[str] | None, typer.Option(metavar="[NAME]", help="Remove the cap per user of a budget.")
    ] = None,
    mode: HoldMode = None,
    campaign: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the campaign.")] = None,
    by: By = "",
) -> None:
    """Change totals, caps per user or the mode of a ledger, with a record of who did it and when.

    A total is never set below what is spent and held. A user above a new cap
    keeps what was given, and gets nothing more. A service that is running sees
    totals and caps at once, and the mode when it is started again.
    """
    from dataclasses import replace

    from redenvelope.ledger.ledger import open_ledger
    from redenvelope.ledger.records import Fund, Identify, Refused
    from redenvelope.serve.funds import minor_amount

    totals, caps = _by_name(budget_total or [], "--budget-total"), _by_name(user_cap or [], "--user-cap")
    wanted, lifted = _mode(mode), {name.strip() for name in no_user_cap or ()}
    if lifted & caps.keys():
        raise UsageError("--no-user-cap and --user-cap contradict each other; give one of them")
    with closing(open_ledger(url, create=False)) as opened:
        balances, now = {one.budget: one for one in opened.balances()}, opened.now()
        for name in (*totals, *caps, *lifted):
            if name not in balances and (name or len(balances) != 1):
                known = ", ".join(map(repr, balances)) or "none yet: serve gives them"
                raise UsageError(f"the ledger has no budget {name!r}; its budgets are {known}")
        commands: list[Command] = [Identify(now, campaign, None, wanted, _who(by))]
        for name, one in balances.items():
            given = {name, ""} if len(balances) == 1 else {name}
            before = (one.total, one.user_cap)
            fund = Fund(name, one.total, now, one.user_cap, one.measure, one.minor_units, _who(by), before)
            for key in given & totals.keys():
                fund = replace(fund, total=minor_amount(totals[key], one.minor_units, "--budget-total"))
            for key in given & caps.keys():
                fund = replace(fund, user_cap=minor_amount(caps[key], one.minor_units, "--user-cap"))
            if fund.total < one.held + one.spent:  # check before anything is changed
                least = (one.held + one.spent) / one.minor_units
                raise UsageError(f"--budget-total: {least:,.10g} of {name!r} are spent and held; give at least that")
            commands.append(replace(fund, user_cap=None) if given & lifted else fund)
        last = opened.identity()["event"]
        for result in opened.apply(commands):
            if isinstance(result, Refused):
                raise UsageError(result.message)
        typer.echo("changed" if opened.identity()["event"] != last else "nothing to change")


@ledger.command()
def forget(url: LedgerArgument, user: Annotated[str, typer.Argument(metavar="USER")], by: By = "") -> None:
    """Erase what identifies a user: the id, features, requests and states. Amounts, actions and the chain stay.

    Back-ups are not changed: forget the user in each (a back-up is a ledger, at
    sqlite:///FILE). Exit code 2: the ledger has no such user.
    """
    from redenvelope.ledger.ledger import open_ledger
    from redenvelope.ledger.records import Done, Forget, canonical_user

    with closing(open_ledger(url, create=False)) as opened:
        (done,) = opened.apply([Forget(canonical_user(user), opened.now(), _who(by))])
        is_clean = opened.database.clean_up()
    assert isinstance(done, Done)
    if not is_clean:
        typer.echo(
            "somebody reads the ledger, so its -wal file still has what was erased; run it again later", err=True
        )
    if not done.count:
        raise UsageError(f"the ledger has no user {user!r}; nothing was changed")
    typer.echo(f"{done.count:,} decision(s) no longer identify the user")


@ledger.command()
def backup(url: LedgerArgument, file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")]) -> None:
    """Write a ledger as of one moment into a file, while it is in use, and verify the file.

    The file is a ledger in SQLite, whatever database it was made from.
    Exit code 3: what was written is not sound.
    """
    from redenvelope.ledger.archive import back_up

    require_writable(file)
    found = back_up(url, file)
    typer.echo(f"{file}: {found.decisions:,} decisions, {found.events:,} events")
    typer.echo(f"head of the chain: {found.head}")
    for difference in found.differences:
        typer.echo(str(difference), err=True)
    if not found.is_sound:
        raise typer.Exit(options.NOT_CERTIFIED)


@ledger.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Back-up, as redenvelope ledger backup writes it.")],
    url: LedgerArgument,
    replace: Annotated[
        bool, typer.Option(help="Give up what the ledger at the URL has recorded since the back-up.")
    ] = False,
    by: By = "",
) -> None:
    """Make a ledger what it was when it was backed up, in a new epoch.

    Ids of decisions that were made after the back-up are refused from then on. A
    service that has the ledger open refuses to go on; start it again.
    """
    from redenvelope.ledger.archive import restore as restore_ledger

    found = restore_ledger(file, url, replace, _who(by))
    typer.echo(
        f"restored ledger {found['ledger']} with {int(found['event']) - 1:,} events; its epoch is {found['epoch']}"
    )


@ledger.command()
def migrate(url: LedgerArgument, by: By = "") -> None:
    """Bring a ledger of an older format (4 or 5) to the one of this version; stop its service first.

    All or nothing: a ledger that contradicts itself is left as it is.
    """
    from redenvelope.ledger.archive import migrate as migrate_ledger

    before, found = migrate_ledger(url, _who(by))
    typer.echo(f"migrated from format {before}: {found.decisions:,} decisions, {found.events:,} events")


@ledger.command()
def verify(
    url: LedgerArgument,
    head: Annotated[
        str,
        typer.Option(
            metavar="HEX",
            help="A head of the chain that was kept elsewhere (from /v1/campaign, /metrics or a back-up), or its first "
            "12 digits: the events up to it have to be as they were.",
        ),
    ] = "",
    as_json: options.Json = False,
) -> None:
    """Recompute the chain of hashes and every balance from the events, check the database, and report differences.

    Nothing is written, so that an archive can be verified. Exit code 0: no
    difference; 2: the ledger cannot be opened; 3: differences.
    """
    from redenvelope.ledger.ledger import open_ledger
    from redenvelope.ledger.ledger import verify as verify_ledger

    if head and not _HEAD.fullmatch(head):
        raise UsageError(f"--head {head[:80]!r}: give at least 12 hexadecimal digits of a head")
    gc.disable()  # it would scan millions of rows again and again
    with closing(open_ledger(url, read_only=True)) as opened:
        found = verify_ledger(opened, head)
    gc.enable()
    if as_json:
        options.print_json(found.as_dict())
    else:
        for one in found.budgets:
            left = one["total"] - one["held"] - one["spent"]
            typer.echo(
                f"{one['budget']}: total {one['total']:,}, spent {one['spent']:,}, held {one['held']:,}, left {left:,} "
                "(minor units)"
            )
        for difference in found.differences:
            typer.echo(str(difference), err=True)
        for what in found.unchecked:
            typer.echo(f"not checked: {what}", err=True)
        verdict = "every row matches the events" if found.is_sound else "rows differ from the events"
        typer.echo(f"{found.decisions:,} decisions, {found.events:,} events: {verdict}")
        if found.head_event is not None:
            later = f"; the {found.events - found.head_event:,} later ones are covered by the chain alone"
            typer.echo(f"events up to {found.head_event:,} are those of the head that was kept elsewhere{later}")
        elif found.head and not head:
            typer.echo(f"head of the chain: {found.head}")
            typer.echo(
                "keep it elsewhere and give it with --head: last events that are removed, or a ledger that is "
                "rewritten as a whole, are found by nothing else"
            )
    if not found.is_sound:
        raise typer.Exit(options.NOT_CERTIFIED)


@ledger.command()
def export(
    url: LedgerArgument,
    out: Annotated[Path, options.path_option("File to write the log to (.parquet).")],
    minor_units: Annotated[
        int | None, typer.Option(min=1, help="Minor units per unit of currency. By default, those of each budget.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Write the decisions and their outcomes as a log, for audit and fit.

    The log is as of one moment. Users with an open decision are left out, and
    those who were forgotten; an expired decision has cost 0. A campaign.toml next to the log has the plan's
    budgets and rules, and the columns that are not features.
    """
    from redenvelope.ledger.export import export_log
    from redenvelope.ledger.ledger import open_ledger

    if out.suffix.lower() != ".parquet":
        raise UsageError(f"{out}: the log is a parquet file; use the ending .parquet")
    require_writable(out)
    with closing(open_ledger(url, read_only=True)) as opened:
        found = export_log(opened, out, minor_units)
    if as_json:
        content = {"rows": found.rows, "users": found.users, "open_users": found.open_users, "expired": found.expired}
        options.print_json({"log": str(out), **content, "forgotten_users": found.forgotten_users})
        return
    typer.echo(f"{out}: {found.rows:,} rows of {found.users:,} users, {found.expired:,} of which expired")
    if found.open_users:
        typer.echo(f"{found.open_users:,} user(s) with an open decision are left out", err=True)
    if found.forgotten_users:
        typer.echo(f"{found.forgotten_users:,} user(s) who were forgotten are left out", err=True)
    for feature, name in found.renamed.items():
        typer.echo(f"feature {feature!r} has the name of a column of the log; it is in the log as {name!r}", err=True)
    if found.campaign_file is not None:
        typer.echo(f"{found.campaign_file}: written for logs in this folder: budgets, rules, and columns to ignore")
    else:
        typer.echo("campaign.toml exists and was not changed; make it ignore the columns price and plan", err=True)
