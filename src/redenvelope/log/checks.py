"""What the values of a log must be: actions to choose between, usable propensities, outcomes that vary."""

from __future__ import annotations

import numpy as np
import polars as pl

from redenvelope.log.findings import Findings
from redenvelope.log.tables import Table

__all__ = ["check_actions", "check_cost", "check_propensity", "check_reward"]

_RARE_ACTION_ROWS = 50
_MOST_ACTIONS = 1_000
_TINY_PROPENSITY = 0.001
_MOSTLY_ZERO = 0.999
_ROUNDED = 0.02  # relative: a third is often stored as 0.33
_SURE = 1e-6  # p-value: with millions of rows every honest rounding is "significant" at 5 %


def check_actions(labels: pl.Series, findings: Findings) -> None:
    """There must be something to choose between, and enough rows of each."""
    counts = labels.drop_nulls().value_counts(sort=True)
    if len(counts) == 1:
        findings.add("action_single", column="action", count=len(labels), label=counts.row(0)[0])
        return
    if len(counts) > _MOST_ACTIONS:
        findings.add("action_too_many", column="action", count=len(counts), limit=_MOST_ACTIONS)
        return
    rare = [f"{label!r} ({rows})" for label, rows in counts.iter_rows() if rows < _RARE_ACTION_ROWS]
    if rare:
        findings.add("action_rare", column="action", count=len(rare), actions=len(counts), examples=rare)


def check_propensity(table: Table, propensity: pl.Series, labels: pl.Series | None, findings: Findings) -> None:
    """Propensities must be probabilities, leave a choice, and agree with what was logged."""
    finite = propensity.filter(propensity.is_finite())
    if finite.is_empty():
        return
    low, high = float(finite.min()), float(finite.max())  # type: ignore[arg-type]
    if high > 1 and high <= 100 and float(finite.median()) > 1:  # type: ignore[arg-type]
        findings.add("propensity_percentage", column="propensity", count=len(finite), low=low, high=high)
        return
    table.report(findings, "propensity_not_positive", "propensity", (propensity <= 0).fill_null(False))
    above = (propensity > 1) & propensity.is_finite()
    table.report(findings, "propensity_above_one", "propensity", above.fill_null(False))
    if low == high == 1:
        findings.add("propensity_deterministic", column="propensity", count=len(finite))
        return
    tiny = (propensity > 0) & (propensity < _TINY_PROPENSITY)
    table.report(findings, "propensity_tiny", "propensity", tiny.fill_null(False))
    if labels is not None and low == high:
        _check_uniform_claim(low, labels, findings)


def _check_uniform_claim(claimed: float, labels: pl.Series, findings: Findings) -> None:
    """A constant propensity of 1/K is a claim that all actions were equally likely: test it."""
    from scipy.stats import chisquare

    counts = np.array(labels.drop_nulls().value_counts()["count"].to_list(), dtype=np.float64)
    if len(counts) < 2 or abs(claimed * len(counts) - 1) > _ROUNDED:
        return
    p_value = float(chisquare(counts).pvalue)
    if p_value < _SURE:
        findings.add(
            "propensity_uniform_claim",
            column="propensity",
            count=len(labels),
            actions=len(counts),
            shares=f"between {counts.min():.0f} and {counts.max():.0f}",
            p_value=p_value,
        )


def check_cost(table: Table, cost: pl.Series, findings: Findings) -> None:
    """Costs must not be negative, and must differ: a price acts on differences."""
    table.report(findings, "cost_negative", "cost", (cost < 0).fill_null(False))
    if _is_constant(cost):
        findings.add("cost_constant", column="cost", count=len(cost), value=cost[0])
    else:
        _check_zeros("cost", cost, findings)


def check_reward(reward: pl.Series, findings: Findings) -> None:
    """Rewards should differ, and not be almost always zero."""
    if _is_constant(reward):
        findings.add("reward_constant", column="reward", count=len(reward), value=reward[0])
    else:
        _check_zeros("reward", reward, findings)


def _is_constant(values: pl.Series) -> bool:
    return not values.null_count() and len(values) > 0 and values.min() == values.max()


def _check_zeros(role: str, values: pl.Series, findings: Findings) -> None:
    count = int((values == 0).sum())
    share = count / max(len(values), 1)
    if share > _MOSTLY_ZERO:
        findings.add("mostly_zero", column=role, count=count, share=f"{share:.2%}")
