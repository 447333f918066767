"""Every rule a log is held to: how grave it is, what it says, and what to do about it.

The sentences are filled with the place and the figures where the rule is broken (see `findings.py`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

# What a rule of a log is made of.


class Rule(NamedTuple):
    """A rule's class, its sentence, and its remedy."""

    severity: Literal["error", "warning", "repaired"]
    message: str
    remedy: str


# The rules for files and their columns, before any value means something.


FILE_RULES = {
    "file_unreadable": Rule("error", "the file cannot be read: {reason}", "check the path and its permissions"),
    "file_empty": Rule("error", "the file is empty", "export it again, or leave it out"),
    "file_no_rows": Rule("error", "the file has a header but no rows", "export it again, or leave it out"),
    "file_truncated": Rule(
        "error",
        "the file is cut off or damaged: {reason}",
        "copy or export it again; do not repair it by hand",
    ),
    "file_kind": Rule(
        "error",
        "by how it begins, the file holds {held}, not {expected}",
        "export the table as parquet, CSV or TSV in UTF-8 (gzip is fine), and name it so",
    ),
    "file_too_large": Rule(
        "error",
        "reading the file needs about {needed} of memory, and {left} are left",
        "let fit and audit divide the log by user in a folder, with --work FOLDER; or bring more memory: parquet needs "
        "less than text, and less still with --ignore of long columns",
    ),
    "file_unpacks": Rule(
        "error",
        "{packed} unpack to more than {times} times as much: no log is packed so tightly",
        "check what the file holds; if it is a log, export it as parquet",
    ),
    "columns_too_many": Rule(
        "error",
        "the table has {count:,} columns, where {limit:,} are the most",
        "keep the features that a decision could depend on, one a column",
    ),
    "text_too_long": Rule(
        "error",
        "{count} value(s) are longer than 10,000 bytes: neither labels nor numbers",
        "leave the column out with --ignore {column}; if none should be so long, look for a quote that is never closed",
    ),
    "file_undecodable": Rule(
        "error",
        "the file holds bytes that are not UTF-8 text",
        "export it as UTF-8 (CSV UTF-8 in a spreadsheet)",
    ),
    "files_hidden": Rule(
        "repaired",
        "{count} table(s) are hidden, or lie in hidden folders (names that begin with . or _), and were not read",
        "nothing to do, or rename them if they are part of the log",
    ),
    "files_no_tables": Rule(
        "warning",
        "{count} file(s) in the folder are of kinds that are not read here",
        "export them as parquet, CSV or TSV if they are part of the log, or move them elsewhere",
    ),
    "csv_ragged_row": Rule(
        "error",
        "{count} row(s) do not have the {width} fields of the header",
        "quote the values that hold the delimiter, or export as parquet",
    ),
    "csv_unclosed_quote": Rule(
        "error", "a quoted value is never closed", "close the quote near the line named, or export as parquet"
    ),
    "column_missing": Rule(
        "error",
        "there is no column for {column!r} ({meaning}); the columns are {present}",
        "name it, as guessed here from names and contents, or better: {guess}",
    ),
    "columns_missing": Rule(
        "error",
        "there are no columns for {count} roles: {roles}; the columns are {present}",
        "name them, as guessed here from names and contents, or better: {guess}",
    ),
    "column_named_missing": Rule(
        "error",
        "there is no column {mapped!r}, which was named for {column!r} ({meaning}); the columns are {present}",
        "check its spelling and capitals: {option}",
    ),
    "column_duplicated": Rule("error", "two columns have this name", "rename or remove one of them"),
    "column_shadowed": Rule(
        "error",
        "the table has a column {column!r} besides {mapped!r}, which is mapped to that role",
        "leave the other one out with --ignore {column}",
    ),
    "column_not_there": Rule(
        "error",
        "there is no column {column!r} to leave out; the columns are {present}",
        "check its spelling and capitals: --ignore {nearest}; the column you meant would be used as a feature",
    ),
    "column_unnamed": Rule("repaired", "a column has no name; it was left out", "name it if it is a feature"),
    "column_from_folders": Rule(
        "repaired",
        "{count} file(s) lie in folders named {column}=…, which was read as a column",
        "nothing to do, or --ignore {column}",
    ),
    "column_nested": Rule(
        "warning",
        "the column holds lists, records or bytes ({type}), not single values; left out",
        "if it matters, add a column for each thing that it tells: the length of a list, whether a label is in it, a "
        "field of a record",
    ),
    "role_nested": Rule(
        "error",
        "the column holds lists, records or bytes ({type}), not single values",
        "write one value a row: one row for each decision",
    ),
    "workbook_engine": Rule(
        "error",
        "the file is a workbook, and reading one needs an engine that is not installed",
        "pip install 'redenvelope[excel]', or save the sheet as CSV UTF-8 (semicolons and decimal commas are fine)",
    ),
    "workbook_sheets": Rule(
        "warning",
        "the workbook has {count} sheets; the first, {sheet!r}, was read",
        "nothing to do, or save the sheet that you mean in a workbook of its own",
    ),
    "dates_relative": Rule(
        "repaired",
        "dates were made relative to {column}, when decisions were made: {made}",
        "nothing to do; tables to decide for need {column}, and the other dates, as the log has them",
    ),
    "dates_not_relative": Rule(
        "warning",
        "dates could not be made relative: {why}",
        "name the time of each decision with --time, or make the columns yourself: its weekday, days since a date",
    ),
    "date_outside": Rule(
        "error",
        "{count} value(s) are dates outside of the years 1 to 9999, or no times of a day",
        "repair the export, or leave the column out with --ignore {column}",
    ),
    "type_clash": Rule(
        "error",
        "the column is {type} in this file but {other_type} in {other_file}",
        "write all files with the same types",
    ),
    "columns_differ": Rule(
        "error",
        "the file lacks this column, which {other_file} has",
        "write all files with the same columns, or leave it out with --ignore {column}",
    ),
    "byte_order_mark": Rule("repaired", "a byte order mark was skipped", "nothing to do"),
    "carriage_returns": Rule("repaired", "lines end in CRLF; read as line ends", "nothing to do"),
    "delimiter": Rule("repaired", "fields are separated by {delimiter}, not by a comma", "nothing to do"),
    "number_dress": Rule("repaired", "{count} number(s) are written with {dress}; read as numbers", "nothing to do"),
    "truth_in_words": Rule("repaired", "{count} value(s) say {yes!r} or {no!r}; read as 1 and 0", "nothing to do"),
    "cost_filled": Rule(
        "repaired",
        "{count} row(s) have no cost; it was taken as {value}, as --missing-cost says",
        "nothing to do",
    ),
    "decimal_comma": Rule("repaired", "{count} number(s) are written with a decimal comma", "nothing to do"),
    "integer_widths": Rule(
        "repaired", "files store this number with different widths; read as the widest", "nothing to do"
    ),
    "column_order": Rule(
        "repaired", "columns stand in another order than in {other_file}; matched by name", "nothing to do"
    ),
}


# The rules for what a log or a table is used for: to make a plan, to judge one, to decide by one.


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


_ROW_RULES = {
    "user_null": Rule("error", "{count} row(s) have no user", "remove the rows, or repair the export of the id"),
    "user_type": Rule("error", "users are {type}, neither text nor integers", "use the id as text or as an integer"),
    "user_not_finite": Rule(
        "error", "{count} id(s) are NaN or infinite", "remove the rows, or repair the export of the id"
    ),
    "user_not_integer": Rule(
        "error", "{count} id(s) are numbers with a fraction", "store the id as text or as an integer"
    ),
    "user_too_large": Rule(
        "error",
        "{count} id(s) are decimal numbers so large (2^53 or more; 2^24 in 32 bits) that neighbouring ids become the "
        "same number",
        "store the id as text or as an integer",
    ),
    "user_float": Rule("repaired", "ids stored as decimal numbers were read as integers", "nothing to do"),
    "step_null": Rule("error", "{count} row(s) have no step", "number the decisions of each user: 0, 1, 2, …"),
    "step_not_integer": Rule(
        "error",
        "{count} step(s) are not whole numbers",
        "number the decisions of each user: 0, 1, 2, …; if they are times, --time {name} does it",
    ),
    "step_too_large": Rule(
        "error",
        "{count} step(s) are beyond ±1,000,000,000: they look like times, not like numbers of decisions",
        "have them numbered in the order of time: --time {name}",
    ),
    "step_span": Rule(
        "error",
        "steps run from {first} to {last}: a campaign of {span:,} steps, where {limit:,} are the most",
        "number the decisions of each user: 0, 1, 2, …",
    ),
    "step_float": Rule("repaired", "steps stored as decimal numbers were read as integers", "nothing to do"),
    "rows_conflict": Rule(
        "error",
        "{count} row(s) share a user and step with another row but differ from it",
        "a second wave of the same users? name the column that tells waves apart with --episode {episode}; steps that "
        "start anew? number them by --time; otherwise keep one row for each user and step",
    ),
    "time_null": Rule("error", "{count} row(s) have no time to number steps by", "repair the export of the time"),
    "time_unreadable": Rule(
        "error",
        "{count} value(s) are no times",
        "write them as 2024-01-31 or 2024-01-31 14:05:00",
    ),
    "steps_numbered": Rule(
        "repaired",
        "steps were numbered by the time of {count} row(s): 0 to {last} in the order of each {whose}",
        "nothing to do; when deciding, say with `step` the how-manieth decision it is, from 0",
    ),
    "episodes": Rule(
        "repaired",
        "users come in {count} episodes, told apart by {column!r}{why}: each is a sequence of its own, users are "
        "counted once",
        "nothing to do; budgets are means of a user and episode",
    ),
    "episode_null": Rule("error", "{count} row(s) do not say which episode they belong to", "fill the column in"),
    "rows_duplicated": Rule("repaired", "{count} exact copies of a row were dropped", "nothing to do"),
    "rows_unordered": Rule("repaired", "{count} row(s) stood out of order; sorted by user and step", "nothing to do"),
    "step_gap": Rule(
        "warning",
        "{count} row(s) skip a step of their user, so the next state is not the next decision",
        "add the missing rows; sequential off-policy estimates are refused while they are missing",
    ),
    "few_users": Rule(
        "warning",
        "there are only {count} users, too few to train on some and check on others",
        "bring a longer log; a few thousand users is a start",
    ),
}

_VALUE_RULES = {
    "not_a_number": Rule(
        "error", "{count} value(s) are not numbers", "write plain numbers; keep the rows, whatever came of them"
    ),
    "value_percentage": Rule(
        "error",
        "{count} value(s) look like percentages, among others that do not",
        "write all of them one way: 25% is 0.25",
    ),
    "value_currency": Rule(
        "error",
        "{count} value(s) look like amounts with a currency sign that cannot be read: several currencies, or "
        "separators that mean one thing here and another there",
        "write plain numbers in one currency: €1,200.50 is 1200.50",
    ),
    "value_separators": Rule(
        "error",
        "{count} value(s) have separators that other values contradict, or that may stand before thousands or before "
        "decimals",
        "write plain numbers with a decimal point and nothing else: 1,200.50 and 1 200,50 are 1200.50",
    ),
    "value_null": Rule(
        "error",
        "{count} row(s) have no {column}",
        "fill the values in; rows that are removed because of what came of them would bias every estimate",
    ),
    "cost_null": Rule(
        "error",
        "{count} row(s) have no cost",
        "empty where nothing was redeemed? say so with --missing-cost 0; otherwise fill the values in, and keep the "
        "rows: leaving them out because of what came of them would bias every estimate",
    ),
    "value_nan": Rule("error", "{count} value(s) are NaN", "fill the values in, and keep the rows"),
    "value_infinite": Rule("error", "{count} value(s) are infinite", "repair the export that divided by zero"),
    "value_too_large": Rule(
        "error",
        "{count} value(s) are beyond ±1e15, where sums over users are not exact any more",
        "repair the export, or write the column in a larger unit",
    ),
    "action_null": Rule(
        "error",
        "{count} row(s) have no action",
        "if nothing was sent, that is an action too: call it 'none' or 0",
    ),
    "action_single": Rule(
        "error",
        "every row has the same action {label!r}: there is nothing to choose between",
        "log at least two actions",
    ),
    "action_rare": Rule(
        "warning",
        "{count} of {actions} actions have fewer than 50 rows each: what they earn is hardly known",
        "log them more often, or merge each with a neighbour",
    ),
    "action_label_form": Rule(
        "repaired",
        "{count} label(s) are the same number written differently (5 and 5.0); merged",
        "nothing to do",
    ),
    "action_too_many": Rule(
        "error",
        "there are {count} different actions; this looks like an amount or an id, not a catalogue",
        "bin it into at most {limit} actions",
    ),
    "eligible_not_logged": Rule(
        "warning",
        "{count} row(s) logged an action that their own list of eligible ones does not hold; it is taken as eligible",
        "list what might have been given at the time, the logged action included",
    ),
    "propensity_missing": Rule(
        "error",
        "there is no column for 'propensity' ({meaning}); the columns are {present}",
        "name it, or have it estimated with --estimate-propensity; guessed from names and contents: {guess}",
    ),
    "propensity_not_positive": Rule(
        "error",
        "{count} propensities are 0 or less, yet the action was logged",
        "store the probability of the logged action at the time it was drawn",
    ),
    "propensity_too_small": Rule(
        "error",
        "{count} propensities are below 1e-9: a row that weighs more than a billion others carries nothing",
        "store the probability that the action was really drawn with, and keep a floor under it",
    ),
    "propensity_above_one": Rule(
        "error",
        "{count} propensities are above 1",
        "store the probability of the logged action, not a score or an odds ratio",
    ),
    "propensity_percentage": Rule(
        "error", "propensities run from {low} to {high} and look like percentages", "divide them by 100"
    ),
    "propensity_deterministic": Rule(
        "error",
        "every propensity is 1: the logger never chose at random, so no other policy can be weighed against it",
        "log with some randomisation; until then no plan can be certified from this log",
    ),
    "propensity_tiny": Rule(
        "warning",
        "{count} propensities are below 0.001; each such row weighs more than 1,000 others",
        "keep a floor under the logger's probabilities",
    ),
    "propensity_uniform_claim": Rule(
        "warning",
        "every propensity is 1/{actions}, but the actions were logged {shares} times (χ² p = {p_value:.1g})",
        "store the probabilities that were really used, or re-estimate them with --estimate-propensity",
    ),
    "propensity_estimated": Rule(
        "warning",
        "propensities were estimated from the features, cross-fitted by user; everything that uses them says so",
        "log the probabilities next time: an unseen cause of the assignment cannot be estimated away",
    ),
    "propensity_not_estimable": Rule(
        "error",
        "propensities cannot be estimated from {count} user(s): each is estimated from other users than itself",
        "bring a longer log, or log the probabilities",
    ),
    "cost_negative": Rule("error", "{count} costs are negative", "log refunds as reward, or as a cost of 0"),
    "cost_constant": Rule(
        "error",
        "every row costs {value}: a price on cost has nothing to act on",
        "check which column is the cost; without differences there is no budget problem",
    ),
    "reward_constant": Rule(
        "warning",
        "every reward is {value}: no plan can earn more than another",
        "check which column is the reward",
    ),
    "mostly_zero": Rule(
        "warning",
        "{share} of the values are 0: very little to learn from",
        "use a more frequent outcome, or a longer log",
    ),
}

_FEATURE_RULES = {
    "feature_missing_all": Rule("warning", "every value is missing; left out", "drop the column or repair the export"),
    "feature_missing_half": Rule(
        "warning", "{share} of the values are missing", "check the join that filled this column"
    ),
    "feature_infinite": Rule(
        "error",
        "{count} value(s) are infinite or too large for a 32-bit number",
        "repair the export, or leave the column out with --ignore {column}",
    ),
    "feature_mixed": Rule(
        "error",
        "{count} value(s) are text in a column of numbers: it is neither a category nor a number",
        "repair the values, or leave the column out with --ignore {column}",
    ),
    "feature_number_as_text": Rule(
        "warning",
        "{count} value(s) look like percentages, amounts or numbers with separators; they were not read as numbers",
        "write plain numbers if they are meant (25% is 0.25, €1,200.50 is 1200.50)",
    ),
    "feature_constant": Rule("warning", "every value is {value}; left out", "nothing to do"),
    "feature_like_id": Rule(
        "warning",
        "{distinct} different values in {total} rows look like an id, not a feature; left out",
        "bin it into fewer categories if it carries meaning",
    ),
    "feature_rare_labels": Rule(
        "warning",
        "{count} of {labels} labels have fewer than {least} users each, {rows_concerned} rows in all ({share}): too "
        "few to learn from, so a plan takes them together as 'other'",
        "nothing to do, or join them into larger groups (regions for cities)",
    ),
    "feature_leak": Rule(
        "error",
        "it is almost the same as the {outcome} (correlation {correlation:.4f}): it was known only afterwards",
        "leave it out with --ignore {column}",
    ),
    "feature_calendar": Rule(
        "warning",
        "it holds dates, and was left out: whoever is decided for later has dates that training never saw",
        "nothing to do, or --dates relative for the weekday of a decision and the days from other dates to it; if "
        "steps should be numbered by it, --time {column}; if it tells waves of the same users apart, --episode "
        "{column}",
    ),
    "feature_duration": Rule("repaired", "times of day and durations were read as parts of a day", "nothing to do"),
    "feature_none": Rule(
        "warning",
        "the log has no features: every user will be treated alike",
        "join what was known at the time of the decision",
    ),
}

_ESTIMATION_RULES = {
    "propensity_miscalibrated": Rule(
        "warning",
        "action {label!r}: 1/propensity adds up to {ratio:.3f} of the rows where it should be 1 (z = {z:+.1f})",
        "check that the propensity is of the logged action at that step, or use --estimate-propensity",
    ),
    "feature_suspected_leak": Rule(
        "warning",
        "it {evidence}; was it known when the action was chosen?",
        "leave it out with --ignore {column}, or say that it was known with --known-before {column}; until then no "
        "plan is certified",
    ),
    "feature_tells_action": Rule(
        "warning",
        "it {evidence}; was it recorded after the decision, or were other probabilities used?",
        "leave it out with --ignore {column}, repair the propensities, or say that it was known with --known-before "
        "{column}; until then no plan is certified",
    ),
    "feature_said_known": Rule(
        "warning",
        "it {evidence}; it counts as known when the action was chosen, because --known-before says so",
        "nothing to do if that is so: certificates say that they rest on it",
    ),
    "cost_booked_later": Rule(
        "warning",
        "costs seem to be booked later: {share} of what an action changes in the cost shows in the row of the next "
        "step, not in its own",
        "book each cost in the row of the decision that caused it (join redemptions to the offer that they are of, not "
        "to the week they fall in); the last step's costs need rows too, or they are missing from the budget",
    ),
    "reward_not_monotone": Rule(
        "warning",
        "dearer is not always better: action {dear!r} costs more than {cheap!r} "
        "({dear_cost:.4g} against {cheap_cost:.4g}) and earns less ({dear_reward:.4g} against {cheap_reward:.4g})",
        "nothing to do: plans do not need the assumption, but monotone response models will not be used",
    ),
    "budget_infeasible": Rule(
        "warning",
        "the budget of {budget:.4g} a user is below the {least:.4g} that the cheapest action costs in the situations "
        "that were logged",
        "nothing to do yet: a plan leads users into other situations, which may cost less; its frontier says what the "
        "least budget is",
    ),
    "budget_slack": Rule(
        "warning",
        "the budget of {budget:.4g} a user is above the {most:.4g} that the dearest action costs: it does not bind",
        "ask for less than {most:.4g} if you want the budget to matter",
    ),
    "overlap_thin": Rule(
        "warning",
        "trajectory weights die after {steps} step(s): of {users} users, {effective:.0f} effective ones are left "
        "for a fixed action by step {at_step}, and {needed} are needed among the {share} who check",
        "plan for few steps ahead, prefer plans near the logged behaviour, or log more users",
    ),
}

RULES: dict[str, Rule] = FILE_RULES | _ROW_RULES | _VALUE_RULES | _FEATURE_RULES | _ESTIMATION_RULES | USE_RULES
"""Every rule by its name."""
