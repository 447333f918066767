"""A plan on a log, on a terminal: the verdict first, every estimator beside it, and what speaks against each."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from redenvelope.evaluation.reasons import Weight

__all__ = ["show_evaluation"]

_COLOURS = {"confirmed": "green", "contradicted": "red", "undecided": "yellow"}
_VERIFIED = {True: "verified again on this log", False: "NOT reproduced on this log"}


def show_evaluation(content: dict[str, Any]) -> None:
    """What `evaluate_plan` found."""
    console = Console(highlight=False)
    certificate, logged = content["certificate"], content["logged"]
    verified = certificate["verified"]
    verdict = certificate["note"] if verified is None else _VERIFIED[verified]
    said = content["verdict"]
    told = f"[bold {_COLOURS[said['status']]}]{said['status'].capitalize()}:[/] {escape(said['message'])}."
    console.print(told, soft_wrap=True)
    for each in said["budgets"] if len(said["budgets"]) > 1 else ():
        console.print(f"  • [{_COLOURS[each['status']]}]{each['status']}[/]: {escape(each['message'])}", soft_wrap=True)
    if content["left_out"]:
        console.print(f"{content['left_out']:,} users were left out: by their ids, the plan was made with them.")
    for finding in (*content.get("lacking", ()), *content["drift"]):
        told = f"{finding['column']}: {finding['message']} → {finding['remedy']}"
        console.print(f"  [yellow]![/] {escape(told)}", soft_wrap=True)
    console.print(f"Certificate: {certificate['status']}, {verdict}.", soft_wrap=True)
    spent = ", ".join(f"{escape(name)} {cost:.4g}" for name, cost in logged.get("costs", {}).items())
    console.print(
        f"As logged, a user earned {logged['reward']:.4g} and cost {spent or format(logged['cost'], '.4g')} "
        f"({content['users']:,} users). Under the plan, by every estimator:",
        soft_wrap=True,
    )
    notes: dict[str, int] = {}
    console.print(_table(content, notes))
    for note, number in notes.items():
        console.print(f"[{number}] {note}", soft_wrap=True, markup=False)
    if any(_refused(row) for row in content["estimates"]):
        console.print("Rows in grey must not be relied on.")


def _table(content: dict[str, Any], notes: dict[str, int]) -> Table:
    """A row an estimator and component; new notes are numbered into `notes`."""
    table = Table(title=f"Means a user, with intervals at {content['confidence']:.0%}", title_justify="left")
    rows: dict[tuple[str, int, float], dict[str, dict[str, Any]]] = {}
    component = 0
    for row in content["estimates"]:
        component += row["target"] == "reward"  # the first of a component
        # Several budgets have a column each, by their names.
        target = row.get("budget", row["target"])
        rows.setdefault((row["estimator"], component, row["share"]), {})[target] = row
    shown = list(next(iter(rows.values())))
    for name in ("estimator", *shown, "notes"):
        table.add_column(escape(name), justify="right" if name in shown else "left")
    for (estimator, _, share), targets in rows.items():
        reasons = [reason for row in targets.values() for reason in row["reasons"]]
        told = [f"{reason['weight']}: {reason['message']}" for reason in reasons]
        marks = sorted({notes.setdefault(note, len(notes) + 1) for note in told})
        label = estimator if share == 1 else f"{estimator} ({share:.0%} of users)"
        refused = any(_refused(row) for row in targets.values())
        figures = [_figure(targets[target]) for target in shown]
        numbers = escape("".join(f"[{mark}]" for mark in marks))
        table.add_row(label, *figures, numbers, style="dim" if refused else "")
    return table


def _figure(row: dict[str, Any]) -> str:
    return f"{row['estimate']:.4g} ({row['lower']:.4g} to {row['upper']:.4g})"


def _refused(row: dict[str, Any]) -> bool:
    return any(reason["weight"] == Weight.REFUSAL for reason in row["reasons"])
