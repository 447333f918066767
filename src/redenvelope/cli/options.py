"""Options that several commands share, how their values are parsed, and the JSON that commands print."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redenvelope.errors import UsageError
from redenvelope.files import is_address
from redenvelope.wording import counted

if TYPE_CHECKING:
    from redenvelope.campaign.campaign import Campaign
    from redenvelope.plan.plan import Plan


REFUSED, NOT_CERTIFIED, UNDER_SPENT = 2, 3, 4
"""Exit codes: an input or option is wrong; a certificate is refused or contradicted; a plan is certified but leaves
more than half of a budget that would earn more."""


def given_path(given: str | Path) -> Path:
    """Parse a path; an empty text, for example from an unset variable, would silently mean the working folder.

    Defaults, which already are paths, pass through here too.
    """
    return Path(given_text(str(given)))


def given_text(text: str) -> str:
    """Parse a path or a glob; see `given_path`."""
    if not text.strip():
        raise typer.BadParameter("an empty text names no file or folder; give it a name (. is the folder you are in)")
    return text


def given_amount(given: str | float | None) -> float | None:
    """Parse an amount; separators and currencies are refused because they are ambiguous."""
    try:
        amount = None if given is None else float(given)
    except ValueError:
        amount = math.nan
    if amount is not None and not 0 <= amount < math.inf:
        raise typer.BadParameter(f"{given!r} is not a plain number of 0 or more, such as 4.5 or 200000")
    return amount


def amount_option(told: str, *names: str) -> Any:
    """An option for an amount; `told` is its help text."""
    return typer.Option(*names, parser=given_amount, metavar="AMOUNT", help=told)


def given_place(given: str | Path) -> str | Path:
    """Parse a path; an address of an object store or a database stays as it is."""
    return given if isinstance(given, str) and is_address(given) else given_path(given)


def path_option(told: str) -> Any:
    """An option for a path; `told` is its help text."""
    return typer.Option(parser=given_path, metavar="PATH", help=told)


def table_option(told: str, *names: str) -> Any:
    """An option for a table, given by a path or an address; `told` is its help text."""
    return typer.Option(*names, parser=given_place, metavar="PATH", help=told)


PlanArgument = Annotated[
    Path, typer.Argument(parser=given_path, metavar="PLAN", help="A plan folder, as written by `fit`.")
]
LogArgument = Annotated[
    str,
    typer.Argument(
        parser=given_text,
        metavar="LOG",
        help="The log: a Parquet, CSV or TSV file, a folder, a glob, an object store (s3://bucket/log/*.parquet) or a "
        "database (postgresql://USER@HOST/DATABASE?table=NAME, duckdb:///FILE?query=SELECT …).",
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        help="Names of the columns in your table, such as user=customer_id,reward=active.", metavar="ROLE=NAME,…"
    ),
]
Ignore = Annotated[str | None, typer.Option(help="Columns that must not be used as features.", metavar="NAME,…")]
KnownBefore = Annotated[
    str | None,
    typer.Option(
        "--known-before",
        help="Features that were known before the action was chosen, although the audit suspects them.",
        metavar="NAME,…",
    ),
]
Time = Annotated[
    str | None,
    typer.Option("--time", help="Column with the time of each decision; steps are numbered by it.", metavar="NAME"),
]
Episode = Annotated[
    str | None,
    typer.Option(
        "--episode",
        help="Column that separates episodes of the same users; folders such as week=1/ are recognised.",
        metavar="NAME",
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Column of villages, households or stores whose users are not independent; folds and errors count them.",
        metavar="NAME",
    ),
]
MissingCost = Annotated[
    float | None, amount_option("Cost of rows whose cost is empty: 0 if nothing was redeemed.", "--missing-cost")
]
Dates = Annotated[
    str | None,
    typer.Option(
        "--dates",
        help="What becomes of date columns: leave-out (the default), or relative, the weekday of the decision and the "
        "days between it and other dates.",
        metavar="WHAT",
    ),
]
CampaignFile = Annotated[
    Path | None,
    typer.Option(
        "--campaign",
        help="A campaign.toml with columns, budgets, rules and exploration; one beside the log is found by itself.",
    ),
]
Items = Annotated[
    Path | None,
    typer.Option(
        "--items",
        parser=given_path,
        metavar="PATH",
        help="The item catalogue: a table with a row per action (column action) and what is known of it, such as an "
        "amount and a category, by which models share strength.",
    ),
]
EstimatePropensity = Annotated[
    bool, typer.Option("--estimate-propensity", help="Estimate missing propensities from the features.")
]
Currency = Annotated[str | None, typer.Option("--currency", help="Currency of the costs, such as EUR.", metavar="CODE")]
Audience = Annotated[
    int | None, typer.Option(min=1, max=10**12, help="Number of users the plan is for; totals are reported for them.")
]
ValuePerReward = Annotated[
    float | None,
    amount_option(
        "Worth of a unit of reward in the currency; shows which budget pays for itself.", "--value-per-reward"
    ),
]
Cache = Annotated[
    bool,
    typer.Option(
        "--cache/--no-cache",
        help="Cache finished stages (in $REDENVELOPE_CACHE, or the user's cache folder), so that another budget or an "
        "interrupted fit does not train again.",
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="Where passes over the data run: local, ray (a cluster on this machine), ray://HOST:PORT, ray:HOST:PORT "
        "or ray:auto.",
        metavar="NAME",
        show_default=False,
    ),
]
Work = Annotated[
    Path | None,
    typer.Option(
        "--work",
        parser=given_path,
        metavar="PATH",
        help="Work folder in which a table larger than memory is partitioned by user; reused when it exists.",
    ),
]
Parts = Annotated[
    int | None,
    typer.Option(
        "--parts", help="Number of parts, a power of two; by default, parts have about a million rows each.", min=1
    ),
]
TrainUsers = Annotated[
    int | None,
    typer.Option(
        "--train-users",
        min=1,
        help="With --work: largest number of users who train the models, chosen by their ids (default 200,000).",
        show_default=False,
    ),
]
CheckUsers = Annotated[
    int | None,
    typer.Option(
        "--check-users",
        min=1,
        help="With --work: largest number of users who check the plan, chosen by their ids (default 200,000).",
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="The same seed gives the same result.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]


def read_campaign(
    log: str,
    columns: str | None,
    ignore: str | None,
    campaign: Path | None,
    time: str | None = None,
    episode: str | None = None,
    missing_cost: float | None = None,
    dates: str | None = None,
    cluster: str | None = None,
) -> Campaign:
    """The campaign of the options and of a campaign file; a file next to the log is found automatically."""
    from redenvelope.campaign.campaign import Campaign
    from redenvelope.log.columns import ColumnMap

    given = ColumnMap.parse(columns, ignore).reading(time, episode, missing_cost, dates, cluster)
    path = campaign or (None if is_address(log) else _beside(Path(log)))
    if path is None:
        return Campaign(given)
    found = Campaign.from_toml(path)
    held = (("columns", found.columns.names), ("items", found.items is not None), ("a control group", found.holdout))
    said = [counted(len(each), noun) for each, noun in ((found.budgets, "budget"), (found.rules, "rule")) if each]
    said = [name for name, there in held if there] + said
    if columns is not None and campaign is not None and found.columns.names:
        raise UsageError("--columns and --campaign both name the columns; use one of the two")
    typer.echo(f"{', '.join(said) or 'campaign'} from {path}", err=True)
    return found.reading(given)


def with_items(campaign: Campaign, items: Path | None) -> Campaign:
    """The campaign with the item catalogue of the option, if it was given."""
    from redenvelope.campaign.items import Catalogue

    return campaign if items is None else replace(campaign, items=Catalogue.read(items))


def split_names(given: str | None) -> tuple[str, ...]:
    """The names in a text like `one,another`."""
    return tuple(name.strip() for name in (given or "").split(",") if name.strip())


def _beside(log: Path) -> Path | None:
    """The campaign file next to a log, or in its folder; None if there is none."""
    try:
        found = (log if log.is_dir() else log.parent) / "campaign.toml"
        return found if found.is_file() else None
    except (OSError, ValueError):  # an impossible file name; reading the log reports it
        return None


def print_json(content: dict[str, Any]) -> None:
    """Print one JSON document; numbers that JSON cannot represent become null."""
    typer.echo(json.dumps(_plain(content), indent=2, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def require_installed() -> None:
    """Refuse to serve without the packages of the `serve` extra."""
    try:
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise UsageError("serving needs a few more packages; run: pip install 'redenvelope[serve]'") from None


NamedBudget = Annotated[
    list[str] | None,
    typer.Option(
        "--budget", help="Budget as mean cost per user; with several budgets, by name (repeatable).", metavar="[NAME=]B"
    ),
]
NamedTotal = Annotated[
    list[str] | None,
    typer.Option("--budget-total", help="Budget as total cost; needs --audience.", metavar="[NAME=]TOTAL"),
]


Maximise = Annotated[
    str | None,
    typer.Option(
        help="Instead of a budget: profit, with --value-per-reward, is the budget at which the last euro earns a euro.",
        metavar="profit",
    ),
]


def is_for_profit(maximise: str | None, value: float | None, budget: Any, target: float | None) -> bool:
    """Whether profit is to be maximised; refuses options that contradict it."""
    if maximise is None:
        return False
    if maximise != "profit":
        raise UsageError(f"--maximise takes profit, not {maximise!r}")
    if budget is not None or target is not None:
        raise UsageError("--maximise profit finds the budget; leave out --budget, --budget-total and --target-reward")
    if value is None:
        raise UsageError("--maximise profit also needs --value-per-reward, what a unit of reward is worth in money")
    return True


def budget_per_user(budget: float | None, total: float | None, audience: int | None) -> float | None:
    """The budget as a mean per user."""
    if total is None:
        return budget
    if budget is not None or audience is None:
        raise UsageError("give either --budget, or --budget-total together with --audience, the number of users")
    return total / audience


def named_budgets(
    plan: Plan, budgets: list[str] | None, totals: list[str] | None, audience: int | None
) -> dict[str, float] | None:
    """Budgets by name, as mean costs per user; an entry without a name is for the first budget."""
    if not budgets and not totals:
        return None
    if totals and audience is None:
        raise UsageError("--budget-total also needs --audience, the number of users")
    wanted: dict[str, float] = {}
    first = plan.certificate.budgets[0].name
    for option, given, users in (("--budget", budgets, 1), ("--budget-total", totals, audience or 1)):
        for entry in given or ():
            name, separator, number = entry.rpartition("=")
            name = name.strip() if separator else first
            if name in wanted:
                raise UsageError(f"{option} {entry}: a budget of {name!r} is given twice; keep one")
            wanted[name] = _amount(option, entry, number) / users
    return wanted


def _amount(option: str, entry: str, written: str) -> float:
    try:
        return given_amount(written) or 0.0
    except typer.BadParameter as error:
        raise UsageError(f"{option} {entry}: {error.message}; or NAME=NUMBER, e.g. coupons=4") from None
