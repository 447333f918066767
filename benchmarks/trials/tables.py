"""What many campaigns say: coverage of bounds, and plans in closed loop, a line a family."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import beta

Rows = Sequence[dict[str, Any]]


def limits(hits: int, count: int) -> tuple[float, float]:
    """The exact (Clopper-Pearson) 95 % interval of a share."""
    lower = 0.0 if hits == 0 else float(beta.ppf(0.025, hits, count - hits + 1))
    upper = 1.0 if hits == count else float(beta.ppf(0.975, hits + 1, count - hits))
    return lower, upper


def interval(hits: int, count: int) -> str:
    """A share with its exact interval."""
    if not count:
        return "none"
    lower, upper = limits(hits, count)
    return f"{hits} of {count} = {hits / count:.1%} [{lower:.1%}, {upper:.1%}]"


def report_coverage(title: str, rows: Rows) -> None:
    """Bounds of one family."""
    sizes = ", ".join(f"{size:,}" for size in sorted({row["users"] for row in rows}))
    print(f"\n{title}: one-sided 95 % bounds of cost on {sizes} fresh users, {len(rows)} campaigns")
    for name in rows[0]["fresh"]:
        figures = [(row["fresh"][name], row["true_cost"]) for row in rows]
        used = [(figure, truth) for figure, truth in figures if not figure["refused"]]
        bias = np.mean([(figure["estimate"] - truth) / truth for figure, truth in figures])
        error = np.median([figure["error"] / truth for figure, truth in figures])
        skewness = np.median([figure["skewness"] for figure, _ in figures])
        print(f"  {name}: off by {bias:+.2%} on average; standard error {error:.1%}; skewness {skewness:.1f}")
        for bound in rows[0]["fresh"][name]["bounds"]:
            print(f"    {bound:<24} {_covered(figures, bound)}   (bar 93 %)")
            if len(used) < len(figures):
                print(f"      where it is not refused {_covered(used, bound)}")


def _covered(figures: Sequence[tuple[dict[str, Any], float]], bound: str) -> str:
    return interval(sum(figure["bounds"][bound] >= truth for figure, truth in figures), len(figures))


def report_plans(title: str, rows: Rows) -> None:
    """Plans of one family."""
    certified = [row for row in rows if row["certified"]]
    planned = [row for row in rows if "true_cost" in row]
    over = [row for row in certified if row["true_cost"] > row["budget"]]
    spent = [row["true_cost"] / row["budget"] for row in certified]
    worst = max((row["true_cost"] / row["budget"] - 1 for row in over), default=0.0)
    excess = np.array([row["plug_in_cost"] / row["budget"] - 1 for row in planned])
    known = max((row["truth_error"] / row["budget"] for row in planned), default=0.0)
    print(f"\n{title}: plans in closed loop, {len(rows)} campaigns; the truth is known to ± {known:.1%} of the budget")
    print(f"  certified                              {interval(len(certified), len(rows))}")
    print(f"  of those over the budget in truth      {interval(len(over), len(certified))}   (promised: 5 %)")
    print(f"    the worst of them by                 {worst:+.1%}")
    print(f"  bound covers the truth, certified      {interval(_bounded(certified), len(certified))}")
    print(f"  bound covers the truth, all plans      {interval(_bounded(planned), len(planned))}")
    print(f"  share of the budget spent, certified   {np.mean(spent) if spent else float('nan'):.1%}")
    again = [spent for row in planned for spent in row.get("fresh_checks_spent", ())]
    if again:
        firm = np.array([spent for spent in again if spent is not None])
        print(f"  checked by other users: certified      {interval(len(firm), len(again))}")
        print(f"    of those over the budget in truth    {interval(int((firm > 1).sum()), len(firm))}")
    gains = [row["gain"] for row in rows if row.get("gain") is not None]
    if gains:
        print(f"  share of the optimum's gain, all plans {np.mean(gains):.3f}, at equal budget")
    print(f"  refusals by rule                       {refusals(rows) or 'none'}")
    print(f"  plug-in plan over the budget           {interval(int((excess > 0).sum()), len(excess))}")
    print(f"  made by                                {dict(Counter(row['method'] for row in planned))}")
    print(f"  seconds of a processor, a campaign     {np.mean([row['processor_seconds'] for row in rows]):.1f}")


def refusals(rows: Rows) -> str:
    """How often each rule refused a plan; a plan may have several."""
    found = Counter(rule for row in rows if not row["certified"] for rule in sorted(set(row["rules"])))
    return ", ".join(f"{rule} {count}" for rule, count in found.most_common())


def _bounded(rows: Rows) -> int:
    return sum(row["bound"] >= row["true_cost"] for row in rows)


_HEAD = (
    "family",
    "campaigns",
    "certified",
    "over the budget [95 % interval]",
    "worst",
    "covers",
    "spent",
    "gain",
    "refused by",
)


def summary(rows: Rows) -> str:
    """A line a family, as a table in Markdown."""
    lines = [f"| {' | '.join(_HEAD)} |", f"|{'---|' * len(_HEAD)}"]
    for family in dict.fromkeys(row["family"] for row in rows):
        own = [row for row in rows if row["family"] == family]
        lines.append(f"| {' | '.join(_line(family, own))} |")
    return "\n".join(lines)


def _line(family: str, rows: Rows) -> tuple[str, ...]:
    certified = [row for row in rows if row["certified"]]
    if not certified:
        return (family, str(len(rows)), "0", "", "", "", "", "", refusals(rows))
    shares = np.array([row["true_cost"] / row["budget"] for row in certified])
    over = int((shares > 1).sum())
    lower, upper = limits(over, len(certified))
    return (
        family,
        str(len(rows)),
        str(len(certified)),
        f"{over} = {over / len(certified):.1%} [{lower:.1%}, {upper:.1%}]",
        f"{max(shares.max() - 1, 0):+.1%}",
        f"{_bounded(certified) / len(certified):.1%}",
        f"{shares.mean():.1%}",
        f"{np.mean(gains):.3f}" if (gains := [row["gain"] for row in rows if row.get("gain") is not None]) else "",
        refusals(rows),
    )
