"""What a simulated campaign is really worth: uniform, bandit and optimum, by budget."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from redenvelope.simulate.campaign import Campaign, Optimum

__all__ = ["truth_rows", "truth_table"]


def truth_rows(campaign: Campaign, budgets: Sequence[float]) -> list[dict[str, float | str]]:
    """The exact cost and reward of the plain policies, and of bandit and optimum at each budget."""
    rows: list[dict[str, float | str]] = []
    plain = {"cheapest": campaign.cheapest(), "uniform": campaign.uniform(), "dearest": campaign.dearest()}
    for name, value in plain.items():
        rows.append({"budget": "", "policy": name, "cost": value.cost, "reward": value.reward, "dual": ""})
    for budget in budgets:
        for name, solution in (("bandit", campaign.bandit(budget)), ("optimum", campaign.optimum(budget))):
            rows.append(_row(budget, name, solution))
    return rows


def truth_table(rows: list[dict[str, float | str]]) -> Table:
    """The rows of `truth_rows` for a terminal."""
    table = Table(title="The truth of this campaign, exact: mean cost and reward a user", title_justify="left")
    for name in ("budget", "policy", "cost", "reward", "price of cost (λ)"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for row in rows:
        figures = [row["budget"], row["cost"], row["reward"], row["dual"]]
        budget, cost, reward, dual = (f"{value:.4f}" if isinstance(value, float) else value for value in figures)
        table.add_row(budget, str(row["policy"]), cost, reward, dual)
    return table


def _row(budget: float, name: str, solution: Optimum) -> dict[str, float | str]:
    return {
        "budget": budget,
        "policy": name,
        "cost": solution.cost,
        "reward": solution.reward,
        "dual": solution.dual,
    }
