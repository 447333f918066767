"""Two arms of a roll-out on a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from redenvelope.report.spoken import Spoken

__all__ = ["show_arms"]

_WORDS = {
    "reward": "reward a user",
    "cost": "cost a user",
    "reward_difference": "reward beside the other arm",
    "cost_difference": "cost beside the other arm",
}
_COLOURS = {"kept": "green", "open": "yellow", "contradicted": "red"}


def show_arms(content: dict[str, Any], words: Spoken) -> None:
    """Means, differences, and what was promised."""
    console = Console(highlight=False)
    for finding in content["findings"]:
        console.print(f"  [yellow]![/] {escape(finding)}", soft_wrap=True)
    console.print(_arms(content))
    if (spent := _budgets(content)) is not None:
        console.print(spent)
    console.print(escape(_sentence(content, words)), soft_wrap=True)
    kept = content["promise"]
    if kept is None:
        return
    console.print(_promises(kept))
    for note in kept["notes"]:
        console.print(f"  [yellow]![/] {escape(note)}", soft_wrap=True)
    sentence = kept["sentence"][:1].upper() + kept["sentence"][1:]
    console.print(f"[bold {_COLOURS[kept['status']]}]{escape(sentence)}.[/]", soft_wrap=True)


def _arms(content: dict[str, Any]) -> Table:
    level = f"{content['confidence']:.0%} intervals"
    table = Table(title=f"What became of the users of both arms: means a user, {level}", title_justify="left")
    for name in ("arm", "users", "reward", "cost"):
        table.add_column(name, justify="left" if name == "arm" else "right")
    for arm in content["arms"]:
        table.add_row(escape(arm["name"]), f"{arm['users']:,}", *(_figure(arm[name]) for name in ("reward", "cost")))
    gaps = (_figure(content["difference"][name], "+") for name in ("reward", "cost"))
    table.add_row("difference", "", *gaps, style="bold")
    return table


def _budgets(content: dict[str, Any]) -> Table | None:
    """What was spent of each budget by its name, where that is not the cost alone."""
    names = list(content["difference"]["costs"])
    if not names:
        return None
    table = Table(title="What was spent of each budget: means a user", title_justify="left")
    for name in ("arm", *names):
        table.add_column(escape(name), justify="left" if name == "arm" else "right")
    for arm in content["arms"]:
        table.add_row(escape(arm["name"]), *(_figure(arm["costs"][name]) for name in names))
    table.add_row("difference", *(_figure(content["difference"]["costs"][name], "+") for name in names), style="bold")
    return table


def _sentence(content: dict[str, Any], words: Spoken) -> str:
    reward, cost = content["difference"]["reward"], content["difference"]["cost"]
    first, second = (arm["name"] for arm in content["arms"])
    said = (
        f"A user of {first} {_surely(reward, 'earned')} {abs(reward['estimate']):.3g} "
        f"{'more' if reward['estimate'] >= 0 else 'less'} than one of {second}, and {_surely(cost, 'cost')} "
        f"{words.cost(abs(cost['estimate']))} {'more' if cost['estimate'] >= 0 else 'less'}."
    )
    if words.audience is not None:
        said += (
            f" {words.everybody.capitalize()} that is {words.total_reward(reward['estimate'])} reward and "
            f"{words.total_cost(cost['estimate'])} cost."
        )
    worth = content["difference"]["worth"]
    if worth is not None:
        said += (
            f" At {words.cost(content['value_per_reward'])} a unit of reward that is worth "
            f"{words.cost(worth['estimate'])} a user ({words.cost(worth['lower'])} to {words.cost(worth['upper'])})."
        )
    return said


def _surely(gap: dict[str, float], verb: str) -> str:
    return verb if gap["lower"] > 0 or gap["upper"] < 0 else f"{verb}, within chance,"


def _promises(kept: dict[str, Any]) -> Table:
    table = Table(title="What the plan promised, and what happened", title_justify="left")
    for name in ("figure", "promised", "happened", ""):
        table.add_column(name, justify="left" if name in ("figure", "") else "right")
    for row in kept["promises"]:
        sign = "+" if "difference" in row["what"] else ""
        promised = f"{row['promised']:{sign}.4g} ± {row['promised_error']:.2g}"
        named = f" ({escape(row['budget'])})" if row["budget"] else ""
        table.add_row(_WORDS[row["what"]] + named, promised, _figure(row["found"], sign), row["verdict"])
    return table


def _figure(row: dict[str, float], sign: str = "") -> str:
    return f"{row['estimate']:{sign}.4g} ({row['lower']:{sign}.4g} to {row['upper']:{sign}.4g})"
