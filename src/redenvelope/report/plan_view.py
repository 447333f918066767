"""A fit and its plan on a terminal."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from redenvelope.plan.plan import Plan

__all__ = ["StageView", "show_comparison", "show_frontier", "show_plan"]

_GOING_ON = re.compile(r"\d+ of \d+( \w+)?$")

_WARNINGS = 6  # more would push the certificate off the screen


class StageView:
    """A line a stage: a spinner while it runs, then its seconds and its key figure. Silent where nobody looks."""

    def __init__(self, enabled: bool) -> None:
        self._console = Console(file=sys.stderr, highlight=False)
        columns = (SpinnerColumn(finished_text="[green]✓[/]"), TextColumn("{task.description}"), TimeElapsedColumn())
        self._progress = Progress(*columns, console=self._console, disable=not enabled or not self._console.is_terminal)
        self._enabled = enabled
        self._tasks: dict[str, Any] = {}
        self._starts: dict[str, float] = {}

    def tell(self, stage: str, figure: str) -> None:
        """A stage begins (an empty figure), goes on (3 of 30), or is done."""
        going_on = _GOING_ON.search(figure) is not None
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(f"[bold]{stage}[/]", total=1)
            self._starts[stage] = time.perf_counter()
        self._progress.update(self._tasks[stage], description=f"[bold]{stage}[/] {escape(figure)}")
        if figure and not going_on:
            self._progress.update(self._tasks[stage], completed=1)
            if self._enabled and not self._console.is_terminal:
                seconds = time.perf_counter() - self._starts[stage]
                self._console.print(f"{stage} ({seconds:.1f} s): {escape(figure)}", soft_wrap=True)

    def __enter__(self) -> StageView:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def show_plan(plan: Plan, folder: Path) -> None:
    """The audit and the certificate in words, the comparison, and where everything is."""
    console = Console(highlight=False)
    certificate = plan.certificate
    console.print("\n[bold]What the log says[/]")
    for sentence in plan.record["audit"]["verdicts"]:
        console.print(f"  • {escape(sentence)}", soft_wrap=True)
    _show_warnings(console, plan.record["audit"]["findings"])
    colour = "green" if certificate.status == "certified" else "red"
    console.print(f"\n[bold {colour}]{escape(certificate.sentence())}[/]", soft_wrap=True)
    # The sentence of a refusal holds its first reason.
    for reason in certificate.reasons if certificate.status == "certified" else certificate.reasons[1:]:
        console.print(f"  • {escape(reason)}", soft_wrap=True)
    console.print(
        f"Price of cost λ = {certificate.dual:.4g}: from the cost it aims at, "
        f"{plan.record['search']['target']:.4g}, one more unit a user buys about that much reward.",
        soft_wrap=True,
    )
    show_comparison(console, plan.record["comparison"])
    console.print(f"Plan written to {folder}; the report is {folder / 'report.html'}", soft_wrap=True)


def _show_warnings(console: Console, findings: list[dict[str, Any]]) -> None:
    """What the audit warned of; the log was used all the same."""
    warnings = [finding for finding in findings if finding["severity"] == "warning"]
    for finding in warnings[:_WARNINGS]:
        text = f"{finding['message']} → {finding['remedy']}"
        console.print(f"  [yellow]![/] {escape(text)}", soft_wrap=True)
    if len(warnings) > _WARNINGS:
        console.print(f"  … and {len(warnings) - _WARNINGS} more: redenvelope audit shows them")


def show_comparison(console: Console, rows: list[dict[str, Any]]) -> None:
    """The plan beside logged behaviour, chance and the bandit."""
    table = Table(
        title="On the certify fold: means a user ± standard error; differences with intervals, paired by user"
    )
    table.title_justify = "left"
    for name in ("policy", "cost", "reward", "cost against logged", "reward against logged"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for row in rows:
        differences = [
            f"{row[f'{name}_difference']:+.3f} ({row[f'{name}_difference_lower']:+.3f} to "
            f"{row[f'{name}_difference_upper']:+.3f})"
            for name in ("cost", "reward")
        ]
        figures = [f"{row[name]:.3f} ± {row[f'{name}_error']:.3f}" for name in ("cost", "reward")]
        table.add_row(row["policy"], *figures, *([""] * 2 if row["policy"] == "logged" else differences))
    console.print(table)


def show_frontier(content: dict[str, Any]) -> None:
    """What budgets buy."""
    console = Console(highlight=False)
    table = Table(title="What a budget buys, estimated on the search fold", title_justify="left")
    for name in ("budget", "reward", "one more unit buys"):
        table.add_column(name, justify="right")
    for row in content["at"]:
        table.add_row(f"{row['budget']:.4g}", f"{row['reward']:.4f}", f"{row['shadow_price']:.4g}")
    console.print(table)
    console.print(f"The least budget that any plan needs is {content['least_budget']:.4g} a user.")
    if "least_cost" in content:
        least = content["least_cost"]
        console.print(f"A reward of {least['reward']:.4g} a user costs at least {least['cost']:.4g}.")
