"""An audit on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from redenvelope.audit.audit import Audit
from redenvelope.audit.effects import Mean
from redenvelope.audit.verdicts import verdicts
from redenvelope.log.findings import Finding, Severity, place

__all__ = ["show_audit", "show_findings"]

_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.REPAIRED: "cyan"}


def show_findings(console: Console, findings: tuple[Finding, ...]) -> None:
    """Every finding: what, where, examples, and what to do."""
    for finding in findings:
        colour = _COLOURS[finding.severity]
        console.print(f"[bold {colour}]{finding.severity}[/] {finding.rule}: {escape(finding.message)}")
        where = place(finding.file, finding.column, finding.rows)
        if where:
            more = ", …" if finding.rows and finding.count > len(finding.rows) else ""
            console.print(f"    where: {escape(where)}{more}")
        if finding.examples:
            more = ", …" if finding.count > len(finding.examples) else ""
            console.print(f"    such as: {escape(', '.join(finding.examples))}{more}")
        if finding.severity is not Severity.REPAIRED:
            # Left to the terminal to wrap: a line that was broken here could not be pasted.
            console.print(f"    what to do: {escape(finding.remedy)}", soft_wrap=True)


def show_audit(console: Console, audit: Audit) -> None:
    """The verdicts in words, then the tables behind them, then the findings."""
    console.print(
        f"[bold]{audit.users:,}[/] users, [bold]{audit.rows:,}[/] rows, {audit.steps} steps, "
        f"{len(audit.actions)} actions, {audit.features} features ({audit.static_features} static), "
        f"propensities {audit.propensity_source}"
    )
    for sentence in verdicts(audit):
        console.print(f"• {escape(sentence)}")
    console.print()
    console.print(_action_table(audit))
    console.print(_overlap_table(audit))
    console.print(_figures_table(audit))
    if audit.findings:
        console.print()
        show_findings(console, audit.findings)


def _interval(mean: Mean) -> str:
    return f"{mean.estimate:.4g} [dim]({mean.lower:.4g} to {mean.upper:.4g})[/]"


def _action_table(audit: Audit) -> Table:
    table = Table(
        title="Actions, by cost: mean a row with 95 % interval, weighted by 1/propensity", title_justify="left"
    )
    for name in ("action", "rows", "reward", "cost", "1/propensity adds up to"):
        table.add_column(name, justify="left" if name == "action" else "right")
    for effect, balance in zip(audit.actions, audit.calibration, strict=True):
        mark = " [yellow]off[/]" if balance.is_off else ""
        table.add_row(
            escape(effect.label),
            f"{effect.rows:,}",
            _interval(effect.reward),
            _interval(effect.cost),
            f"{balance.ratio:.3f}{mark}",
        )
    return table


def _overlap_table(audit: Audit) -> Table:
    table = Table(title="Overlap: users left to speak for a policy after so many steps", title_justify="left")
    heads = (
        "steps",
        "users",
        "effective, uniform policy",
        "effective, best fixed action",
        "that step alone",
        "matching",
    )
    for name in heads:
        table.add_column(name, justify="right")
    for overlap in audit.overlap:
        row = (overlap.users, overlap.uniform, overlap.greedy, overlap.alone, overlap.matching)
        table.add_row(str(overlap.step), *(f"{value:,.0f}" for value in row))
    return table


def _figures_table(audit: Audit) -> Table:
    table = Table(title="Figures", title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("value")
    quantiles = audit.propensity_quantiles
    table.add_row("logged reward a user", _interval(audit.logged_reward))
    table.add_row("logged cost a user", _interval(audit.logged_cost))
    table.add_row("cost of one fixed action", f"{audit.cheapest_cost:.4g} to {audit.dearest_cost:.4g}")
    table.add_row("propensity quantiles", ", ".join(f"{level}: {value:.3g}" for level, value in quantiles.items()))
    gain = audit.assignment
    table.add_row("features predict the action by", f"{gain.gain:.4f} ± {gain.standard_error:.4f} nats a row")
    for effect in audit.carry_over:
        table.add_row(
            f"carry-over on {effect.outcome}",
            f"{effect.carried:.4g} beside {effect.direct:.4g} directly (p = {effect.p_value:.2g})",
        )
    folds = ", ".join(f"{fold.name} {fold.users:,} users / {fold.rows:,} rows" for fold in audit.folds)
    table.add_row("folds", folds or "too few users for three folds")
    return table
