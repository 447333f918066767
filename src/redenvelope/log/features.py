"""Which of the other columns are numbers, which are categories, which are no features at all: judged on all rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from redenvelope.log.encodings import RARE_USERS
from redenvelope.log.findings import Findings
from redenvelope.log.moments import NumberSums
from redenvelope.log.places import Found, report_places
from redenvelope.log.schema import ColumnSums, FeatureColumn
from redenvelope.log.split import SHARES
from redenvelope.log.tables import TEMPORAL
from redenvelope.log.words import MOST_LABELS, LabelSums, TextTally

__all__ = ["cost_column", "judge_feature", "report_leaks", "report_rare"]

_MIXED_SHARE = 0.5  # from this share of numbers on, text in a column is a mistake and not a label
_ID_SHARE = 0.5  # of the users: so many different labels name users or rows, not kinds
_ID_USERS = 100  # fewer users say nothing about cardinality
_ID_ROWS = 100
_HALF = 0.5
_SAID_LABELS, _SAID_SHARE = 5, 0.05  # of rare labels: a slip of the keyboard is not worth a word
_LEAK = 0.99


def judge_feature(
    name: str, sums: ColumnSums, users: int, found: Found, files: tuple[str, ...], findings: Findings
) -> FeatureColumn:
    """What a column is taken for, and every rule that it breaks."""
    if sums.kind == "date":
        findings.add("feature_calendar", column=name, count=sums.rows)
        return _left_out(name, sums, "feature_calendar")
    if sums.kind in TEMPORAL:
        findings.add("feature_duration", column=name, count=sums.rows)
    if sums.tally is None or _means_number(name, sums.tally, found, files, findings):
        return _number(name, sums, found, files, findings)
    return _category(name, sums, users, findings)


def cost_column(name: str, sums: ColumnSums) -> FeatureColumn:
    """A column that a budget sums: a number where it can be one; it is taken out of the features later."""
    if sums.numbers is None or (sums.tally is not None and sums.tally.words):
        return _left_out(name, sums, "not_a_number")
    return FeatureColumn(name, sums.kind, "number", None, not sums.numbers.changes, number=sums.numbers)


def report_leaks(features: list[FeatureColumn], findings: Findings) -> None:
    """Features that all but equal the reward or the cost were known only afterwards."""
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
    """Labels of so few users that a plan takes them together."""
    for feature in features:
        users, own = np.array(feature.label_users), np.array(feature.label_rows)
        rare = np.flatnonzero(users < RARE_USERS / SHARES[0])  # of the users, so many train
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


def _means_number(name: str, tally: TextTally, found: Found, files: tuple[str, ...], findings: Findings) -> bool:
    """Whether a column of text is a column of numbers; a few words among numbers are reported as a mistake."""
    if tally.dressed > _MIXED_SHARE * tally.filled:
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
    assert numbers is not None  # no row is anything else
    if ("feature_infinite", name) in found:
        report_places(findings, files, "feature_infinite", name, found["feature_infinite", name])
        return _left_out(name, sums, "feature_infinite")
    constant = numbers.low if numbers.low == numbers.high else None
    if why := _without_values(name, numbers.rows, numbers.missing, constant, findings):
        return _left_out(name, sums, why)
    if sums.different is not None and len(sums.different) >= _ID_ROWS:
        rows = len(sums.different)
        findings.add("feature_like_id", column=name, count=rows, distinct=rows, total=rows)
        return _left_out(name, sums, "feature_like_id")
    return FeatureColumn(name, sums.kind, "number", None, not numbers.changes, number=numbers)


def _category(name: str, sums: ColumnSums, users: int, findings: Findings) -> FeatureColumn:
    labels = sums.labels
    assert labels is not None  # text always has them
    constant = labels.labels[0] if labels.distinct == 1 else None
    if why := _without_values(name, sums.rows, labels.missing, constant, findings):
        return _left_out(name, sums, why)
    distinct = labels.distinct + (labels.missing > 0)
    # A second id of the user is constant within it, so labels are counted against users, not rows.
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
    """The rule for which a feature says nothing, if it does not; half-empty ones are used, and reported."""
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
