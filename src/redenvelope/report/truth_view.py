"""What a simulated campaign is really worth: uniform, bandit and optimum, by budget."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from redenvelope.plan.certificate import Certificate
from redenvelope.simulate.campaign import Campaign, Decide, Optimum

__all__ = ["plan_truth_rows", "truth_rows", "truth_sentence", "truth_table"]


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


def plan_truth_rows(
    campaign: Campaign, followed: Sequence[tuple[float, Decide]], budget: float
) -> list[dict[str, float | str]]:
    """A plan beside the plain policies, and beside the best that bandit and optimum make of what the plan spends.

    Shares of the users follow one policy each.
    """
    values = [(share, campaign.value(decide)) for share, decide in followed]
    cost = sum(share * value.cost for share, value in values)
    reward = sum(share * value.reward for share, value in values)
    rows = [row for row in truth_rows(campaign, []) if row["policy"] != "dearest"]
    rows.append({"budget": budget, "policy": "this plan", "cost": cost, "reward": reward, "dual": ""})
    for name, best in (("bandit", campaign.bandit(cost)), ("optimum", campaign.optimum(cost))):
        rows.append(_row(cost, f"{name}, truth known", best))
    return rows


def truth_sentence(campaign: Campaign, rows: Sequence[dict[str, float | str]], given: Certificate) -> str:
    """What it all came to: the share of the possible gain, at what share of the budget, and what was promised.

    The gain is over the cheapest plan; what is possible, the optimum makes of the whole budget. `rows` are those of
    `plan_truth_rows`.
    """
    by_name = {str(row["policy"]): (float(row["cost"]), float(row["reward"])) for row in rows}
    cost, reward = by_name["this plan"]
    nothing, best = by_name["cheapest"][1], campaign.optimum(given.budget).reward
    share = f"{(reward - nothing) / (best - nothing):.0%}" if best > nothing else "all"
    promised = f"at most {given.cost.upper:.4g} a user with {given.confidence:.0%} confidence"
    spent = f"{cost / given.budget:.0%} of it" if given.budget > 0 else f"a cost of {cost:.4g}"
    earned = f"The plan earns {share} of the gain that is possible with this budget, at {spent}"
    if not given.is_certified:
        return (
            f"{earned}; its certificate was refused, so nothing was promised (it would have been {promised}; in truth "
            f"it costs {cost:.4g})."
        )
    kept = "and so it is" if cost <= given.cost.upper else "which it breaks: one in twenty may"
    return f"{earned}. The certificate promised a cost of {promised}, {kept}: in truth it costs {cost:.4g}."


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
