"""From the sums of all parts to the schema: what the log's columns mean, and everything that is wrong with it."""

from __future__ import annotations

from redenvelope.log.action_sums import ActionRows, label_forms, ranked_actions
from redenvelope.log.checks import check_actions, check_cost, check_propensity, check_reward, report_values
from redenvelope.log.copies import copies_and_conflicts
from redenvelope.log.features import cost_column, judge_feature, report_leaks, report_rare
from redenvelope.log.findings import Findings
from redenvelope.log.keys import KeySums, report_keys
from redenvelope.log.limits import MOST_STEPS
from redenvelope.log.places import report_places
from redenvelope.log.rows import EPISODE_GUESS, OUTCOMES
from redenvelope.log.schema import FeatureColumn, Schema, SchemaSums

__all__ = ["finish"]

_FEW_USERS = 100


def finish(
    sums: SchemaSums, keys: KeySums, files: tuple[str, ...], findings: Findings, costs: tuple[str, ...] = ()
) -> Schema:
    """What the sums of a whole log mean; `findings` are those of its files, to which the log's own are added.

    `costs` are columns that budgets sum: they may be all that a feature may not.
    """
    report_keys(keys, files, findings)
    span = sums.last_step - sums.first_step + 1
    if span > MOST_STEPS:
        findings.add(
            "step_span", column="step", first=sums.first_step, last=sums.last_step, span=span, limit=MOST_STEPS
        )
    actions, numeric = _actions(sums, files, findings)
    report_places(findings, files, "eligible_not_logged", "action", sums.found.get(("eligible_not_logged", "action")))
    for role in OUTCOMES:
        report_values(role, sums.found, files, findings)
    if "propensity" in sums.outcomes:
        check_propensity(sums.outcomes["propensity"], actions, sums.found, files, findings)
    if "reward" in sums.outcomes:
        check_reward(sums.outcomes["reward"], findings)
    if "cost" in sums.outcomes:
        check_cost(sums.outcomes["cost"], sums.found, files, findings)
    features = [
        cost_column(name, column)
        if name in costs
        else judge_feature(name, column, sums.users, sums.found, files, findings)
        for name, column in sums.features.items()
    ]
    report_leaks([feature for feature in features if feature.name not in costs], findings)
    _report_order(sums, keys, numeric, features, files, findings)
    if not findings.refused and sums.users < _FEW_USERS:
        findings.add("few_users", column="user", count=sums.users)
    if not findings.refused:
        report_rare(features, sums.rows, findings)
    if not findings.refused and all(feature.role == "left out" for feature in features):
        findings.add("feature_none")
    return Schema(
        users=sums.users,
        rows=sums.rows,
        first_step=sums.first_step,
        last_step=sums.last_step,
        whole_ids=keys.whole_ids,
        actions=actions,
        numeric_actions=numeric,
        features=tuple(features),
        findings=findings.sorted(),
    )


def _actions(sums: SchemaSums, files: tuple[str, ...], findings: Findings) -> tuple[tuple[ActionRows, ...], bool]:
    for rule in ("action_null", "value_nan", "value_infinite"):
        report_places(findings, files, rule, "action", sums.found.get((rule, "action")))
    if sums.actions is None:
        return (), False
    forms, numeric = label_forms(sums.actions)
    actions = ranked_actions(sums.actions, forms, numeric)
    check_actions(sums.actions, forms, actions, sums.rows, findings)
    return actions, numeric


def _report_order(
    sums: SchemaSums,
    keys: KeySums,
    numeric_actions: bool,
    features: list[FeatureColumn],
    files: tuple[str, ...],
    findings: Findings,
) -> None:
    """Report rows out of order, copies, conflicts and gaps."""
    meanings = {"number": "number", "category": "text"}
    used = {(feature.name, meanings[feature.role]) for feature in features if feature.role in meanings}
    used.add(("action", "number" if numeric_actions else "text"))
    copies, conflicts = copies_and_conflicts(sums.shared, frozenset(used))
    report_places(findings, files, "rows_unordered", "step", keys.found.get(("rows_unordered", "step")))
    report_places(findings, files, "rows_duplicated", "step", copies)
    told = [(places.count, name) for (rule, name), places in sums.found.items() if rule == EPISODE_GUESS]
    guess = max(told, default=(0, "YOUR_COLUMN"))[1]
    report_places(findings, files, "rows_conflict", "step", conflicts, episode=guess)
    report_places(findings, files, "step_gap", "step", sums.found.get(("step_gap", "step")))
