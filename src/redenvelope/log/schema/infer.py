"""Inferring the schema from the statistics of all parts, reporting violations, and assembling logs by the schema.

`finish` decides what each column means (number, category or left out) and checks the values; `assemble` makes a `Log`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import sqrt

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.log.cleaning.number_formats import LOOKS
from redenvelope.log.eligibility import mask_of_texts
from redenvelope.log.encoding.layout import RARE_USERS
from redenvelope.log.findings import Findings, Found, report_places
from redenvelope.log.limits import MOST_ACTIONS, MOST_STEPS
from redenvelope.log.log import SHARES, ActionCatalogue, FeatureTable, Log
from redenvelope.log.schema.coerce import number_labels
from redenvelope.log.schema.keys import KeySums, report_keys
from redenvelope.log.schema.rows import EPISODE_GUESS, OUTCOMES, Rows, copies_and_conflicts
from redenvelope.log.schema.schema import (
    ActionRows,
    ActionSums,
    ColumnSums,
    FeatureColumn,
    Schema,
    SchemaSums,
    label_forms,
    ranked_actions,
)
from redenvelope.log.schema.statistics import NumberSums, OutcomeSums
from redenvelope.log.schema.text import MOST_LABELS, LabelSums, TextTally, Words
from redenvelope.log.tables import TEMPORAL

_FEW_USERS = 100


def finish(
    sums: SchemaSums, keys: KeySums, files: tuple[str, ...], findings: Findings, costs: tuple[str, ...] = ()
) -> Schema:
    """The schema of a log with these statistics; `findings` are those of its files, and the log's are added to them.

    `costs` are columns that budgets sum, which may have properties that a feature may not have.
    """
    report_keys(keys, files, findings)
    span = sums.last_step - sums.first_step + 1
    if span > MOST_STEPS:
        findings.add(
            "step_span", column="step", first=sums.first_step, last=sums.last_step, span=span, limit=MOST_STEPS
        )
    actions, numeric = _actions(sums, files, findings)
    unlisted = sums.found.get(("eligible_not_logged", "action"))
    contradicted = unlisted is not None and 2 * unlisted.count > sums.rows
    rule = "eligible_no_lists" if contradicted else "eligible_not_logged"
    report_places(findings, files, rule, "action", unlisted)
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
    if not findings.refused:  # rows in conflict are counted only once
        _report_rare_actions(actions, findings)
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
    """Report unsorted rows, duplicates, conflicts and gaps."""
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


# Checks of values: several actions, valid propensities, outcomes that vary.


_RARE_ACTION_ROWS = 50
_MOSTLY_ZERO = 0.999
_ROUNDED = 0.02  # relative, because a third is often stored as 0.33
_SURE = 1e-6  # p-value; with millions of rows, any honest rounding is "significant" at 5 %


def report_values(role: str, found: Found, files: tuple[str, ...], findings: Findings) -> None:
    """Report values of an outcome or a propensity that are not numbers."""
    for rule in ("value_null", "cost_null", *LOOKS, "not_a_number", "value_nan", "value_infinite", "value_too_large"):
        report_places(findings, files, rule, role, found.get((rule, role)))


def check_actions(
    sums: ActionSums, forms: dict[str, str], actions: tuple[ActionRows, ...], rows: int, findings: Findings
) -> None:
    """Check that there are several actions, but not too many, and that labels have one form."""
    if len(actions) < len(forms):
        changed = [label for label in sums.labels if forms[label] != label]
        findings.add("action_label_form", column="action", count=len(changed), examples=changed)
    if len(actions) == 1:
        findings.add("action_single", column="action", count=rows, label=actions[0].label)
        return
    if len(actions) > MOST_ACTIONS:
        findings.add("action_too_many", column="action", count=len(actions), limit=MOST_ACTIONS)


def _report_rare_actions(actions: tuple[ActionRows, ...], findings: Findings) -> None:
    rare = [action for action in actions if action.rows < _RARE_ACTION_ROWS]
    if rare:
        rare.sort(key=lambda action: (-action.rows, action.order))
        examples = [f"{action.label!r} ({action.rows})" for action in rare]
        findings.add("action_rare", column="action", count=len(rare), actions=len(actions), examples=examples)


def check_propensity(
    sums: OutcomeSums, actions: tuple[ActionRows, ...], found: Found, files: tuple[str, ...], findings: Findings
) -> None:
    """Check that propensities are probabilities, leave a choice, and agree with the logged actions."""
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
    """Test a constant propensity of 1/K, which claims that all actions were equally likely."""
    counts = np.array([action.rows for action in actions], dtype=np.float64)
    if len(counts) < 2 or abs(claimed * len(counts) - 1) > _ROUNDED:
        return
    freedom, statistic = len(counts) - 1, float(((counts - counts.mean()) ** 2).sum() / counts.mean())
    # Four standard deviations are far from certain, but most logs stop here and need not load scipy.
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
    """Check that costs are not negative and that they differ, because a price acts on differences."""
    report_places(findings, files, "cost_negative", "cost", found.get(("cost_negative", "cost")))
    if _is_constant(sums):
        findings.add("cost_constant", column="cost", count=sums.rows, value=sums.low)
    else:
        _check_zeros("cost", sums, findings)


def check_reward(sums: OutcomeSums, findings: Findings) -> None:
    """Check that rewards differ and are not almost always zero."""
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


# Features: which columns are numbers, categories, or left out, judged by all rows.


_MIXED_SHARE = 0.5  # from this share of numbers on, text in a column counts as a mistake
_ID_SHARE = 0.5  # of the users; more labels than this identify users or rows
_ID_USERS = 100  # with fewer users, cardinality says nothing
_ID_ROWS = 100
_HALF = 0.5
_MOST_CLASSES = 50
_FIGURE = r"\d+(?:[.,]\d+)?"
_CLASS = re.compile(rf"{_FIGURE}\s*\+|[<>≤≥]=?\s*{_FIGURE}|{_FIGURE}\s*[-–]\s*{_FIGURE}|{_FIGURE} (?:or|and) \w+")
"""Labels of classes of numbers: 5+, <1, 18-24, 3 or more."""
_SAID_LABELS, _SAID_SHARE = 5, 0.05  # of rare labels; below both, they may be typing errors and are not reported
_LEAK = 0.99


def judge_feature(
    name: str, sums: ColumnSums, users: int, found: Found, files: tuple[str, ...], findings: Findings
) -> FeatureColumn:
    """The role of a column; reports every rule that it violates."""
    if sums.kind == "date":
        findings.add("feature_calendar", column=name, count=sums.rows)
        return _left_out(name, sums, "feature_calendar")
    if sums.kind in TEMPORAL:
        findings.add("feature_duration", column=name, count=sums.rows)
    if sums.tally is not None and _is_top_coded(sums):
        return _category(name, sums, users, findings)
    if sums.tally is None or _means_number(name, sums.tally, found, files, findings):
        return _number(name, sums, found, files, findings)
    return _category(name, sums, users, findings)


def cost_column(name: str, sums: ColumnSums) -> FeatureColumn:
    """The schema entry of a column that a budget sums, a number if possible; it is removed from the features later."""
    if sums.numbers is None or (sums.tally is not None and sums.tally.words):
        return _left_out(name, sums, "not_a_number")
    return FeatureColumn(name, sums.kind, "number", None, not sums.numbers.changes, number=sums.numbers)


def report_leaks(features: list[FeatureColumn], findings: Findings) -> None:
    """Report features that nearly equal the reward or the cost: they must have been known only afterwards."""
    for variable, outcome in enumerate(("reward", "cost"), start=1):
        for feature in features:
            if feature.number is None:
                continue
            correlation = feature.number.moments.correlation(variable)
            if abs(correlation) > _LEAK:
                findings.add(
                    "feature_leak",
                    column=feature.name,
                    count=feature.number.rows,
                    outcome=outcome,
                    correlation=correlation,
                )


def report_rare(features: Sequence[FeatureColumn], rows: int, findings: Findings) -> None:
    """Report labels with so few users that a plan pools them."""
    for feature in features:
        users, own = np.array(feature.label_users), np.array(feature.label_rows)
        rare = np.flatnonzero(users < RARE_USERS / SHARES[0])  # only this share of the users trains
        if feature.role != "category" or (len(rare) < _SAID_LABELS and own[rare].sum() < _SAID_SHARE * rows):
            continue
        order = rare[np.argsort(-own[rare], kind="stable")]
        findings.add(
            "feature_rare_labels",
            column=feature.name,
            count=len(rare),
            labels=f"{len(users):,}",
            rows_concerned=f"{int(own[rare].sum()):,}",
            share=f"{own[rare].sum() / rows:.0%}",
            least=round(RARE_USERS / SHARES[0]),
            examples=[feature.labels[place] for place in order],
        )


def _is_top_coded(sums: ColumnSums) -> bool:
    """Whether a column mixes a few numbers with classes of numbers, such as 0, 1, 2, 3+, so that all are labels."""
    if sums.labels is None or sums.labels.distinct > _MOST_CLASSES:
        return False
    return any(_CLASS.fullmatch(label.strip()) for label in sums.labels.labels)


def _means_number(name: str, tally: TextTally, found: Found, files: tuple[str, ...], findings: Findings) -> bool:
    """Whether a text column holds numbers; a few words among numbers are reported as a mistake."""
    if tally.formatted > _MIXED_SHARE * tally.filled:
        report_places(findings, files, "feature_number_as_text", name, found.get(("feature_number_as_text", name)))
        return False
    if not tally.numbers or tally.zero_codes:
        return False
    if not tally.words:
        return True
    if tally.words <= (1 - _MIXED_SHARE) * tally.filled:
        report_places(findings, files, "feature_mixed", name, found.get(("feature_mixed", name)))
    return False


def _number(name: str, sums: ColumnSums, found: Found, files: tuple[str, ...], findings: Findings) -> FeatureColumn:
    numbers = sums.numbers
    assert numbers is not None  # every row is a number
    if ("feature_infinite", name) in found:
        report_places(findings, files, "feature_infinite", name, found["feature_infinite", name])
        return _left_out(name, sums, "feature_infinite")
    constant = numbers.low if numbers.low == numbers.high else None
    if why := _without_values(name, numbers.rows, numbers.missing, constant, findings):
        return _left_out(name, sums, why)
    if (rows := sums.distinct) >= _ID_ROWS:
        findings.add("feature_like_id", column=name, count=rows, distinct=rows, total=rows)
        return _left_out(name, sums, "feature_like_id")
    return FeatureColumn(name, sums.kind, "number", None, not numbers.changes, number=numbers)


def _category(name: str, sums: ColumnSums, users: int, findings: Findings) -> FeatureColumn:
    labels = sums.labels
    assert labels is not None  # text columns have label statistics
    constant = labels.labels[0] if labels.distinct == 1 else None
    if why := _without_values(name, sums.rows, labels.missing, constant, findings):
        return _left_out(name, sums, why)
    distinct = labels.distinct + (labels.missing > 0)
    # A second id of the user is constant within users, so labels are compared with users instead of rows.
    if distinct > MOST_LABELS or (users >= _ID_USERS and distinct > _ID_SHARE * users):
        findings.add("feature_like_id", column=name, count=distinct, distinct=distinct, total=sums.rows)
        return _left_out(name, sums, "feature_like_id")
    return FeatureColumn(
        name,
        sums.kind,
        "category",
        None,
        not labels.changes,
        labels=labels.labels,
        label_rows=tuple(labels.rows.tolist()),
        label_users=tuple(labels.users.tolist()),
    )


def _without_values(name: str, rows: int, missing: int, constant: float | str | None, findings: Findings) -> str | None:
    """The rule by which a feature without information is left out, if so; half-empty ones are used and reported."""
    if missing == rows:
        findings.add("feature_missing_all", column=name, count=missing)
        return "feature_missing_all"
    if not missing and constant is not None:
        findings.add("feature_constant", column=name, count=rows, value=constant)
        return "feature_constant"
    if missing > _HALF * rows:
        findings.add("feature_missing_half", column=name, count=missing, share=f"{missing / rows:.1%}")
    return None


def _left_out(name: str, sums: ColumnSums, why: str) -> FeatureColumn:
    return FeatureColumn(name, sums.kind, "left out", why, _never_changes(sums.numbers, sums.labels))


def _never_changes(numbers: NumberSums | None, labels: LabelSums | None) -> bool:
    if numbers is not None:
        return not numbers.changes
    return labels is not None and not labels.changes


# Assembling a `Log` from rows and the schema of the whole log.


def assemble(rows: Rows, schema: Schema) -> Log:
    """The log of some users' rows, read by the schema of all rows, which must not be refused."""
    assert rows.action is not None  # otherwise the schema would be refused
    catalogue = schema.catalogue
    written = rows.action.values
    if catalogue.numeric and rows.action_kind == "text":
        written = number_labels(written.cast(pl.Float64))
    action = _coded(Words(written, rows.action.codes), catalogue.labels)
    log = Log(
        users=rows.users,
        starts=rows.starts,
        step=rows.step,
        action=action,
        # Missing propensities are estimated afterwards.
        propensity=rows.outcomes.get("propensity", np.ones(len(rows))),
        reward=rows.outcomes["reward"],
        cost=rows.outcomes["cost"],
        features=_feature_table(rows, schema),
        catalogue=catalogue,
        findings=schema.findings,
        eligible=None if rows.eligible is None else _eligible(rows.eligible, action, catalogue),
        clusters=rows.clusters,
    )
    return log if rows.clusters is None else log.reordered(np.argsort(rows.clusters, kind="stable"))


def _eligible(listed: Words, action: NDArray[np.int32], catalogue: ActionCatalogue) -> NDArray[np.bool_]:
    """Eligible actions of each row, [rows, actions]: those listed, or all without a list, and the logged one."""
    mask = mask_of_texts(list(listed.values), catalogue)
    eligible = np.concatenate([mask, np.ones((1, len(catalogue)), dtype=bool)])[listed.codes]
    eligible[np.arange(len(action)), action] = True
    return np.asarray(eligible)


def _coded(words: Words, labels: tuple[str, ...]) -> NDArray[np.int32]:
    """The index of each row's value among the labels, [rows]; missing is −1."""
    place = {label: code for code, label in enumerate(labels)}
    lookup = np.array([place.get(value, -1) for value in words.values] + [-1], dtype=np.int32)
    return lookup[words.codes]


def _feature_table(rows: Rows, schema: Schema) -> FeatureTable:
    names = tuple(feature.name for feature in schema.numbers)
    codes = np.empty((len(rows), len(schema.categories)), dtype=np.int32, order="F")
    for place, feature in enumerate(schema.categories):
        words = rows.features[feature.name].words
        assert words is not None  # a category has few labels, so every part has its words
        codes[:, place] = _coded(words, feature.labels)
    return FeatureTable(
        numeric_names=names,
        numeric=rows.numeric if names == rows.numeric_names else _side_by_side(rows, names),
        category_names=tuple(feature.name for feature in schema.categories),
        codes=codes,
        labels=tuple(feature.labels for feature in schema.categories),
        static=frozenset(feature.name for feature in schema.features if feature.static and feature.role != "left out"),
    )


def _side_by_side(rows: Rows, names: tuple[str, ...]) -> NDArray[np.float32]:
    numeric = np.empty((len(rows), len(names)), dtype=np.float32, order="F")
    for place, name in enumerate(names):
        numbers = rows.features[name].numbers
        assert numbers is not None  # a column with numbers in all rows has them in these
        numeric[:, place] = numbers
    return numeric
