"""The rules for what a log or a table is used for: to make a plan, to judge one, to decide by one."""

from __future__ import annotations

from redenvelope.log.rule import Rule

__all__ = ["USE_RULES"]

_FIT_RULES = {
    "fit_step_gap": Rule(
        "error",
        "{count} row(s) skip a step of their user, so no sequence can be weighed and no plan certified",
        "bring every step, or number the decisions of each user without gaps",
    ),
    "rules_forbid_logged": Rule(
        "warning",
        "{count} row(s) hold what the rules forbid now: {rows_left:,} rows ({rows_share:.0%}) and {users_left:,} of "
        "{users:,} users from first to last are left to speak for a plan that keeps the rules",
        "nothing, if the certificate's bounds are narrow enough; else bring a longer log, or one made by these rules",
    ),
    "fit_few_users": Rule(
        "error",
        "the log has {count} users, which leaves {fewest} to tune or to check on, where at least {needed} are needed",
        "bring about {enough} users in all, and a few thousand for a certificate",
    ),
}

_EVALUATION_RULES = {
    "evaluate_steps": Rule(
        "error",
        "{count} row(s) are of steps that the plan does not know: its campaign goes from {first} to {last}",
        "leave these rows out, or number the steps as in the log that the plan was made from",
    ),
    "evaluate_feature_missing": Rule(
        "error",
        "the log has no column {column!r}, which the plan decides by: it would be judged by decisions it does not make",
        "add the column the plan was made with, or name yours with --columns",
    ),
    "evaluate_feature_kind": Rule(
        "error",
        "{column!r} holds labels where the plan knows numbers, or numbers where it knows labels",
        "write the column as it was in the log that the plan was made from",
    ),
    "evaluate_feature_left_out": Rule(
        "warning",
        "the plan decides by {column!r}, which was not read from this log ({why}); it is taken as missing in every row",
        "judge the plan on a log in which the column varies",
    ),
}

_SERVING_RULES = {
    "serving_column_missing": Rule(
        "warning",
        "the table has no column {column!r}; it is taken as missing in every row",
        "add the column the plan was made with",
    ),
    "serving_nothing_eligible": Rule(
        "warning",
        "the rules leave {count} row(s) nothing to get; they get {label!r}, the cheapest action",
        "leave one action, such as sending nothing, without rules, and in every list of what is eligible",
    ),
    "serving_not_a_number": Rule(
        "warning", "{count} value(s) are not numbers; taken as missing", "write plain numbers"
    ),
    "drift_number": Rule(
        "warning",
        "its mean is {mean:.4g}, where it was {before:.4g} in training: {deviations:.1f} standard deviations away",
        "leave out what only counts time, such as dates; if users have changed, fit a new plan on a newer log",
    ),
    "drift_category": Rule(
        "warning",
        "{share} of the rows have a label that training never saw",
        "fit a new plan on a newer log when the labels have changed for good",
    ),
    "serving_unseen_label": Rule(
        "warning",
        "{count} value(s) were never seen in training; taken as 'other'",
        "fit a new plan when the labels have changed for good",
    ),
    "serving_rare_label": Rule(
        "warning",
        "{count} value(s) were seen in training, but with fewer than {least} users each; taken as 'other', as there",
        "nothing to do, or join rare labels into larger groups and fit a new plan",
    ),
    "serving_outside": Rule(
        "warning",
        "{count} value(s) ({share}), from {reach}, are outside of {low} to {high}, which is all that training saw",
        "leave out what only counts time, such as dates; if users have changed, fit a new plan on a newer log",
    ),
}

USE_RULES: dict[str, Rule] = _FIT_RULES | _EVALUATION_RULES | _SERVING_RULES
