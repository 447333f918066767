"""The command after a roll-out: two arms beside each other, and beside what a plan promised."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from redenvelope.cli.options import (
    NOT_CERTIFIED,
    AudienceOption,
    ColumnsOption,
    CurrencyOption,
    JsonOption,
    ValueOption,
    print_json,
)
from redenvelope.errors import UsageError

if TYPE_CHECKING:
    from redenvelope.log.arms import Arm, Charges
    from redenvelope.log.columns import ColumnMap
    from redenvelope.plan.plan import Plan

__all__ = ["compare"]


def compare(
    first: Annotated[
        str,
        typer.Argument(
            metavar="ARM_A", help="What became of the users who followed the plan; or one table of both arms."
        ),
    ],
    second: Annotated[
        str | None, typer.Argument(metavar="[ARM_B]", help="What became of the others.", show_default=False)
    ] = None,
    arm: Annotated[
        str | None, typer.Option("--arm", help="One table: the column that tells the arms apart.", metavar="COLUMN")
    ] = None,
    followed: Annotated[
        str | None, typer.Option("--first", help="The value of that column for the plan's arm.", metavar="VALUE")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", help="The plan that was rolled out: was its promise kept?", metavar="PLAN")
    ] = None,
    share: Annotated[
        float | None, typer.Option(help="Share of users meant for ARM_A, such as 0.5: was the lot drawn so?")
    ] = None,
    columns: ColumnsOption = None,
    confidence: Annotated[float, typer.Option(help="Of the two-sided intervals.")] = 0.95,
    audience: AudienceOption = None,
    currency: CurrencyOption = None,
    value_per_reward: ValueOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a plan really cost and earned against another way, where users were given to either by lot.

    Both tables need user, reward and cost; a user may have many rows, and propensities are not needed.
    Exit code 0: compared, and no promise broken; 2: a table or an option is wrong; 3: the plan broke its budget
    (or missed its target) for sure.
    """
    from redenvelope.plan.amounts import Money
    from redenvelope.plan.rolled_out import compare_arms
    from redenvelope.report.compare_view import show_arms
    from redenvelope.report.spoken import Spoken

    if not 0.5 <= confidence < 1:
        raise UsageError(f"the confidence is a share between 0.5 and 1, such as 0.95, not {confidence}")
    if share is not None and not 0 < share < 1:
        raise UsageError(f"the share of users meant for the first arm is between 0 and 1, such as 0.5, not {share}")
    opened = _opened(plan)
    money = (opened.record.money if opened else Money()).told(currency, audience, value_per_reward)
    arms = _arms(first, second, arm, followed, _columns(columns, opened), _charges(opened))
    content = compare_arms(arms, opened, confidence, share, money.value_per_reward)
    if as_json:
        print_json(content)
    else:
        show_arms(content, Spoken(money.currency, money.audience))
    if content["promise"] is not None and content["promise"]["status"] == "contradicted":
        raise typer.Exit(NOT_CERTIFIED)


def _opened(plan: Path | None) -> Plan | None:
    from redenvelope.plan.plan import Plan

    return None if plan is None else Plan.load(plan)


def _columns(columns: str | None, plan: Plan | None) -> ColumnMap:
    """As given; what was not said is as it was when the plan was made."""
    from redenvelope.log.columns import ColumnMap

    return ColumnMap.parse(columns) if columns is not None or plan is None else plan.columns


def _charges(plan: Plan | None) -> Charges | None:
    """What counts against the budgets of a plan, where they are more than the cost."""
    from redenvelope.campaign.charged_table import charges_of

    if plan is None:
        return None
    texts = frozenset(category.name for category in plan.policy.encoder.categories)
    return partial(charges_of, budgets=plan.record.budgets, texts=texts, numeric=plan.catalogue.numeric)


def _arms(
    first: str,
    second: str | None,
    arm: str | None,
    followed: str | None,
    columns: ColumnMap,
    charges: Charges | None,
) -> tuple[Arm, Arm]:
    from redenvelope.log.arms import read_arm, read_both_arms

    if second is None:
        if arm is None:
            raise UsageError("give two tables, or one and the column that tells the arms apart: --arm COLUMN")
        return read_both_arms(first, arm, followed, columns, charges)
    if arm is not None or followed is not None:
        raise UsageError("--arm and --first are for one table of both arms; of two tables, the first is the plan's arm")
    one, other = (read_arm(each, columns, charges=charges) for each in (first, second))
    shared = one.users & other.users
    if shared:
        raise UsageError(
            f"{len(shared):,} user(s) are in both arms, such as {min(shared)!r}; a user belongs to one arm: leave "
            "these out, or correct the tables"
        )
    return one, other
