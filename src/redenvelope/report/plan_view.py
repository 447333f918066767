"""A fit and its plan on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from redenvelope.audit.verdicts import verdicts
from redenvelope.log.findings import Finding, Severity
from redenvelope.plan.plan import Plan
from redenvelope.plan.record import ComparedPolicy
from redenvelope.progress import Event, Phase
from redenvelope.report.rules_section import rules_sentences

__all__ = ["StageView", "show_comparison", "show_frontier", "show_plan"]

_WARNINGS = 6  # more would push the certificate off the screen


class StageView:
    """A line a stage: a spinner while it runs, then its seconds and its key figure. Silent where nobody looks."""

    def __init__(self, enabled: bool) -> None:
        self._console = Console(file=sys.stderr, highlight=False)
        columns = (SpinnerColumn(finished_text="[green]✓[/]"), TextColumn("{task.description}"), TimeElapsedColumn())
        self._progress = Progress(*columns, console=self._console, disable=not enabled or not self._console.is_terminal)
        self._enabled = enabled
        self._tasks: dict[str, TaskID] = {}
        self._starts: dict[str, float] = {}

    def tell(self, event: Event) -> None:
        """A stage begins, goes on, or is done."""
        stage, message = event.stage, escape(event.message)
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(f"[bold]{stage}[/]", total=1)
            self._starts[stage] = time.perf_counter()
        self._progress.update(self._tasks[stage], description=f"[bold]{stage}[/] {message}")
        if event.phase is Phase.DONE:
            self._progress.update(self._tasks[stage], completed=1)
            if self._enabled and not self._console.is_terminal:
                seconds = time.perf_counter() - self._starts[stage]
                self._console.print(f"{stage} ({seconds:.1f} s): {message}", soft_wrap=True)

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
    certificate, record = plan.certificate, plan.record
    console.print("\n[bold]What the log says[/]")
    for sentence in verdicts(record.audit):
        console.print(f"  • {escape(sentence)}", soft_wrap=True)
    _show_warnings(console, record.audit.findings)
    colour = "green" if certificate.is_certified else "red"
    console.print(f"\n[bold {colour}]{escape(certificate.sentence())}[/]", soft_wrap=True)
    for reason in certificate.notes:
        console.print(f"  • {escape(reason.message)}", soft_wrap=True)
    if plan.totals is not None:
        console.print(escape(plan.totals.sentence()), soft_wrap=True)
    if len(certificate.budgets) > 1:
        for each in certificate.budgets:
            console.print(f"  • {escape(each.sentence())}", soft_wrap=True)
    else:
        console.print(
            f"Price of cost λ = {certificate.dual:.4g}: one more unit of budget a user buys about that much reward.",
            soft_wrap=True,
        )
        for each in certificate.budgets:
            if each.unspent is not None and plan.totals is None:
                console.print(escape(each.total_sentence()), soft_wrap=True)
    for sentence in rules_sentences(plan) if plan.policy.rules or plan.policy.specification.explore else ():
        console.print(f"  • {escape(sentence)}", soft_wrap=True)
    if record.comparison:
        show_comparison(console, record.comparison)
    console.print(f"Plan written to {folder}; the report is {folder / 'report.html'}", soft_wrap=True)


def _show_warnings(console: Console, findings: Sequence[Finding]) -> None:
    """What the audit warned of; the log was used all the same."""
    warnings = [finding for finding in findings if finding.severity is Severity.WARNING]
    for finding in warnings[:_WARNINGS]:
        console.print(f"  [yellow]![/] {escape(f'{finding.message} → {finding.remedy}')}", soft_wrap=True)
    if len(warnings) > _WARNINGS:
        console.print(f"  … and {len(warnings) - _WARNINGS} more: redenvelope audit shows them")


def show_comparison(console: Console, rows: Sequence[ComparedPolicy]) -> None:
    """The plan beside logged behaviour, chance and the bandit."""
    table = Table(title="On the check users: means a user ± standard error; differences with intervals, paired by user")
    table.title_justify = "left"
    for name in ("policy", "cost", "reward", "cost against logged", "reward against logged"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for row in rows:
        figures = (f"{row.cost:.3f} ± {row.cost_error:.3f}", f"{row.reward:.3f} ± {row.reward_error:.3f}")
        differences = (
            _difference(row.cost_difference, row.cost_difference_lower, row.cost_difference_upper),
            _difference(row.reward_difference, row.reward_difference_lower, row.reward_difference_upper),
        )
        table.add_row(row.policy, *figures, *(("", "") if row.policy == "logged" else differences))
    console.print(table)


def _difference(estimate: float, lower: float, upper: float) -> str:
    return f"{estimate:+.3f} ({lower:+.3f} to {upper:+.3f})"


def show_frontier(content: dict[str, Any]) -> None:
    """What budgets buy."""
    console = Console(highlight=False)
    for each in content.get("budgets", ()):
        held = f"What {escape(each['name'])} buys while the other budgets are held, estimated on the check users"
        _show_budgets(console, held, each)
    if "budgets" not in content:
        _show_budgets(console, "What a budget buys, estimated on the check users", content)
    if "least_cost" in content:
        least = content["least_cost"]
        console.print(f"A reward of {least['reward']:.4g} a user costs at least {least['cost']:.4g}.")


def _show_budgets(console: Console, title: str, content: dict[str, Any]) -> None:
    table = Table(title=title, title_justify="left")
    for name in ("budget", "reward", "one more unit buys"):
        table.add_column(name, justify="right")
    for row in content["at"]:
        table.add_row(f"{row['budget']:.4g}", f"{row['reward']:.4f}", f"{row['shadow_price']:.4g}")
    console.print(table)
    if content["least_budget"] is not None:
        console.print(f"The least budget that any plan needs is {content['least_budget']:.4g} a user.")
