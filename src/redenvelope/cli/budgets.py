"""Budgets as the commands take them: a number, a total for an audience, or several by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from redenvelope.errors import UsageError

if TYPE_CHECKING:
    from redenvelope.plan.plan import Plan

__all__ = ["NamedBudgetOption", "NamedTotalOption", "budget_a_user", "named_budgets"]

NamedBudgetOption = Annotated[
    list[str] | None,
    typer.Option("--budget", help="Mean cost a user; of several budgets, by name (repeatable).", metavar="[NAME=]B"),
]
NamedTotalOption = Annotated[
    list[str] | None,
    typer.Option("--budget-total", help="Total cost; needs --audience.", metavar="[NAME=]TOTAL"),
]


def budget_a_user(budget: float | None, total: float | None, audience: int | None) -> float | None:
    """The budget as a mean a user."""
    if total is None:
        return budget
    if budget is not None or audience is None:
        raise UsageError("give --budget, or --budget-total together with --audience")
    return total / audience


def named_budgets(
    plan: Plan, budgets: list[str] | None, totals: list[str] | None, audience: int | None
) -> dict[str, float] | None:
    """Budgets by their names as means a user; one without a name is the first's."""
    if not budgets and not totals:
        return None
    if totals and audience is None:
        raise UsageError("--budget-total is for a whole audience; say how many users that are, with --audience")
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
        value = float(written)
    except ValueError:
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise UsageError(f"{option} {entry}: write a number of at least 0, or NAME=NUMBER, e.g. coupons=4")
    return value
