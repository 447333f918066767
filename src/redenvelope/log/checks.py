"""What the values of a log must be: actions to choose between, usable propensities, outcomes that vary."""

from __future__ import annotations

from math import sqrt

import numpy as np

from redenvelope.log.action_sums import ActionRows, ActionSums
from redenvelope.log.findings import Findings
from redenvelope.log.limits import MOST_ACTIONS
from redenvelope.log.numbers import LOOKS
from redenvelope.log.outcome_sums import OutcomeSums
from redenvelope.log.places import Found, report_places

__all__ = ["check_actions", "check_cost", "check_propensity", "check_reward", "report_values"]

_RARE_ACTION_ROWS = 50
_MOSTLY_ZERO = 0.999
_ROUNDED = 0.02  # relative: a third is often stored as 0.33
_SURE = 1e-6  # p-value: with millions of rows every honest rounding is "significant" at 5 %


def report_values(role: str, found: Found, files: tuple[str, ...], findings: Findings) -> None:
    """Report the values of an outcome or a propensity that are no numbers."""
    for rule in ("value_null", "cost_null", *LOOKS, "not_a_number", "value_nan", "value_infinite", "value_too_large"):
        report_places(findings, files, rule, role, found.get((rule, role)))


def check_actions(
    sums: ActionSums, forms: dict[str, str], actions: tuple[ActionRows, ...], rows: int, findings: Findings
) -> None:
    """There must be something to choose between, and enough rows of each."""
    if len(actions) < len(forms):
        changed = [label for label in sums.labels if forms[label] != label]
        findings.add("action_label_form", column="action", count=len(changed), examples=changed)
    if len(actions) == 1:
        findings.add("action_single", column="action", count=rows, label=actions[0].label)
        return
    if len(actions) > MOST_ACTIONS:
        findings.add("action_too_many", column="action", count=len(actions), limit=MOST_ACTIONS)
        return
    rare = [action for action in actions if action.rows < _RARE_ACTION_ROWS]
    if rare:
        rare.sort(key=lambda action: (-action.rows, action.order))
        examples = [f"{action.label!r} ({action.rows})" for action in rare]
        findings.add("action_rare", column="action", count=len(rare), actions=len(actions), examples=examples)


def check_propensity(
    sums: OutcomeSums, actions: tuple[ActionRows, ...], found: Found, files: tuple[str, ...], findings: Findings
) -> None:
    """Propensities must be probabilities, leave a choice, and agree with what was logged."""
    if not sums.finite:
        return
    low, high = sums.low, sums.high
    if 1 < high <= 100 and 2 * sums.above_one > sums.finite:
        findings.add("propensity_percentage", column="propensity", count=sums.finite, low=low, high=high)
        return
    for rule in ("propensity_not_positive", "propensity_too_small", "propensity_above_one"):
        report_places(findings, files, rule, "propensity", found.get((rule, "propensity")))
    if low == high == 1:
        findings.add("propensity_deterministic", column="propensity", count=sums.finite)
        return
    report_places(findings, files, "propensity_tiny", "propensity", found.get(("propensity_tiny", "propensity")))
    if low == high:
        _check_uniform_claim(low, actions, findings)


def _check_uniform_claim(claimed: float, actions: tuple[ActionRows, ...], findings: Findings) -> None:
    """A constant propensity of 1/K is a claim that all actions were equally likely: test it."""
    counts = np.array([action.rows for action in actions], dtype=np.float64)
    if len(counts) < 2 or abs(claimed * len(counts) - 1) > _ROUNDED:
        return
    freedom, statistic = len(counts) - 1, float(((counts - counts.mean()) ** 2).sum() / counts.mean())
    # Four standard deviations are less than sure; most logs need nothing that takes longer to load than to read them.
    if statistic <= freedom + 4 * sqrt(2 * freedom):
        return
    from scipy.special import chdtrc

    p_value = float(chdtrc(freedom, statistic))
    if p_value < _SURE:
        findings.add(
            "propensity_uniform_claim",
            column="propensity",
            count=int(counts.sum()),
            actions=len(counts),
            shares=f"between {counts.min():.0f} and {counts.max():.0f}",
            p_value=p_value,
        )


def check_cost(sums: OutcomeSums, found: Found, files: tuple[str, ...], findings: Findings) -> None:
    """Costs must not be negative, and must differ: a price acts on differences."""
    report_places(findings, files, "cost_negative", "cost", found.get(("cost_negative", "cost")))
    if _is_constant(sums):
        findings.add("cost_constant", column="cost", count=sums.rows, value=sums.low)
    else:
        _check_zeros("cost", sums, findings)


def check_reward(sums: OutcomeSums, findings: Findings) -> None:
    """Rewards should differ, and not be almost always zero."""
    if _is_constant(sums):
        findings.add("reward_constant", column="reward", count=sums.rows, value=sums.low)
    else:
        _check_zeros("reward", sums, findings)


def _is_constant(sums: OutcomeSums) -> bool:
    return sums.finite == sums.rows > 0 and sums.low == sums.high


def _check_zeros(role: str, sums: OutcomeSums, findings: Findings) -> None:
    share = sums.zeros / max(sums.rows, 1)
    if share > _MOSTLY_ZERO:
        findings.add("mostly_zero", column=role, count=sums.zeros, share=f"{share:.2%}")
