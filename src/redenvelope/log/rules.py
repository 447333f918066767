"""The rules for logs: the severity, the message and the remedy of each.

`{count:row}` is the number of rows with its noun ("1 row", "2 rows"); `findings.py` fills in the place and the figures.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Rule(NamedTuple):
    """A rule's severity, its message and its remedy."""

    severity: Literal["error", "warning", "repaired"]
    message: str
    remedy: str


_NOTHING = "nothing to do"

_FILE_RULES = {
    "file_unreadable": Rule("error", "the file cannot be read: {reason}", "check the path and its permissions"),
    "file_empty": Rule("error", "the file is empty", "export it again, or leave it out"),
    "file_no_rows": Rule("error", "there are columns but no rows", "export it again, or leave it out"),
    "file_truncated": Rule(
        "error", "the file is truncated or damaged: {reason}", "copy or export it again; do not repair it by hand"
    ),
    "file_kind": Rule(
        "error",
        "judging by its first bytes, the file is {held}, not {expected}",
        "export the table as parquet, CSV or TSV in UTF-8 (gzip is fine), and name it accordingly",
    ),
    "file_too_large": Rule(
        "error",
        "reading the file takes about {needed} of memory; {left} is available",
        "let fit and audit partition the log by user on disk, with --work FOLDER; or use more memory: parquet takes "
        "less than text, and less still without long columns (--ignore)",
    ),
    "file_unpacks": Rule(
        "error",
        "{packed} decompress to more than {times} times as much, which no log does",
        "check what the file holds; if it is a log, export it as parquet",
    ),
    "columns_too_many": Rule(
        "error",
        "the table has {count:,} columns; at most {limit:,} are allowed",
        "keep the features that a decision could depend on, one per column",
    ),
    "text_too_long": Rule(
        "error",
        "{count:value} longer than 10,000 bytes: neither labels nor numbers",
        "leave the column out with --ignore {column}; if no value should be that long, look for an unclosed quote",
    ),
    "file_undecodable": Rule(
        "error",
        "the file contains bytes that are not UTF-8 text",
        "export it as UTF-8 (CSV UTF-8 in a spreadsheet), or convert it: iconv -f WINDOWS-1252 -t UTF-8 OLD > NEW",
    ),
    "files_hidden": Rule(
        "repaired",
        "{count:table} not read: hidden, or in a hidden folder (names that begin with . or _)",
        "nothing to do, or rename them if they are part of the log",
    ),
    "files_no_tables": Rule(
        "warning",
        "{count:file} in the folder in formats that are not supported",
        "export them as parquet, CSV or TSV if they are part of the log, or move them elsewhere",
    ),
    "csv_ragged_row": Rule(
        "error",
        "{count:row} without the {width} fields of the header",
        "quote the values that contain the delimiter, or export as parquet",
    ),
    "csv_unclosed_quote": Rule(
        "error", "a quoted value is never closed", "close the quote near the given line, or export as parquet"
    ),
    "column_missing": Rule(
        "error",
        "there is no column for {column!r} ({meaning}); the columns are {present}",
        "name it; a guess ({why}): {guess}",
    ),
    "columns_missing": Rule(
        "error",
        "there are no columns for {count} roles: {roles}; the columns are {present}",
        "name them; a guess ({why}): {guess}",
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
        "check its spelling and capitals: --ignore {nearest}; otherwise the column you mean is used as a feature",
    ),
    "column_unnamed": Rule("repaired", "{count:column} without a name left out", "name it if it is a feature"),
    "column_from_folders": Rule(
        "repaired",
        "the column was read from the names of folders ({column}=…), for {count:file}",
        "nothing to do, or --ignore {column}",
    ),
    "column_nested": Rule(
        "warning",
        "the column holds lists, records or bytes ({type}), not single values; left out",
        "if it matters, add one column per fact: a list's length, whether it contains a label, a field of a record",
    ),
    "role_nested": Rule(
        "error",
        "the column holds lists, records or bytes ({type}), not single values",
        "write one value per row, and one row per decision",
    ),
    "workbook_engine": Rule(
        "error",
        "the file is a workbook, and the package that reads workbooks is not installed",
        "pip install 'redenvelope[excel]', or save the sheet as CSV UTF-8 (semicolons and decimal commas are fine)",
    ),
    "workbook_sheets": Rule(
        "warning",
        "the workbook has {count} sheets; the first, {sheet!r}, was read",
        "nothing to do, or save the sheet you mean as a workbook of its own",
    ),
    "dates_relative": Rule(
        "repaired",
        "dates were made relative to {column}, the time of each decision: {made}",
        "nothing to do; tables of users to decide for need {column} and the other dates in the same form as the log",
    ),
    "dates_not_relative": Rule(
        "warning",
        "dates could not be made relative: {why}",
        "name the time of each decision with --time, or add the columns yourself: its weekday, days since a date",
    ),
    "date_outside": Rule(
        "error",
        "{count:value} outside the years 1 to 9999, or not a time of day",
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
    "byte_order_mark": Rule("repaired", "a byte order mark was skipped", _NOTHING),
    "carriage_returns": Rule("repaired", "lines end in CRLF, which was read as a line end", _NOTHING),
    "delimiter": Rule("repaired", "fields are separated by {delimiter}, not by commas", _NOTHING),
    "number_dress": Rule("repaired", "{count:value} written with {dress}; read as numbers", _NOTHING),
    "truth_in_words": Rule("repaired", "{count:value} of {yes!r} or {no!r} read as 1 and 0", _NOTHING),
    "holdout_left_out": Rule(
        "repaired",
        "{count:row} of held-out users left out: they got the cheapest action for sure, which tells nothing of others",
        "nothing to do; `redenvelope compare` compares them with the plan's users",
    ),
    "cost_filled": Rule("repaired", "{count:row} without a cost, which was set to {value} (--missing-cost)", _NOTHING),
    "decimal_comma": Rule("repaired", "{count:number} written with a decimal comma", _NOTHING),
    "integer_widths": Rule("repaired", "files store this number with different widths; read as the widest", _NOTHING),
    "column_order": Rule("repaired", "columns are ordered differently in {other_file}; matched by name", _NOTHING),
}

_FIT_RULES = {
    "fit_step_gap": Rule(
        "error",
        "{count:row} after a missing step of the user, so sequences cannot be weighted and no plan can be certified",
        "include every step, or number the decisions of each user without gaps",
    ),
    "rules_forbid_logged": Rule(
        "warning",
        "{count:row} with an action that the campaign's rules forbid: {rows_left:,} rows ({rows_share:.0%}) and the "
        "complete histories of {users_left:,} of {users:,} users remain as evidence for a plan that follows the rules",
        "nothing to do if the certificate's bounds are narrow enough; otherwise use a longer log, or one logged under "
        "these rules",
    ),
    "fit_few_users": Rule(
        "error",
        "the log has {count:user}, which leaves {fewest} to tune or to check on; at least {needed} are needed",
        "use about {enough} users in all, and a few thousand for a certificate",
    ),
    "fit_few_clusters": Rule(
        "error",
        "the log has {count:cluster} (--cluster), which leaves {checking} to check on; at least {needed} are needed, "
        "because users of one cluster count as one observation",
        "use a log of about {enough} clusters, or a smaller unit within which users are independent",
    ),
}

_ITEM_RULES = {
    "items_no_action": Rule(
        "error",
        "the item catalogue has no column named action; it has {present}",
        'name the column with the actions\' labels action, or say its name (action = "{nearest}" under [items])',
    ),
    "items_twice": Rule(
        "error", "{count:action} standing in the item catalogue more than once", "keep one row per action"
    ),
    "items_missing": Rule(
        "error",
        "{count:action} of the log missing in the item catalogue",
        "add a row for each, with the label that the log has; or fit without a catalogue",
    ),
    "items_not_logged": Rule(
        "warning",
        "{count:item} of the catalogue never logged: what they earn and cost is not known, and no plan gives them",
        "to introduce one, name it in [[new]] of the campaign file; if it is a slip, write it as in the log",
    ),
    "items_column_kind": Rule(
        "warning",
        "the column holds {kind} values, which are no attribute",
        "write what matters as a number or a text, such as the days that an item is valid",
    ),
    "items_single": Rule(
        "warning",
        "the column has {count:value}, nearly one for each action: it says nothing that several items share",
        "add a column with what they share, such as the category",
    ),
    "items_empty": Rule(
        "warning",
        "{count:value} missing in the catalogue; numbers count as the mean, texts as a value of their own",
        "fill them in where they are known",
    ),
    "items_no_attributes": Rule(
        "warning",
        "no column of the catalogue says what several actions share: it is not used",
        "add numbers (an amount) or texts (a category) beside action",
    ),
}

_EVALUATION_RULES = {
    "evaluate_steps": Rule(
        "error",
        "{count:row} with a step outside the plan's campaign, which runs from {first} to {last}",
        "leave these rows out, or number the steps as in the log that the plan was fitted on",
    ),
    "evaluate_feature_missing": Rule(
        "error",
        "the log has no column {column!r}, on which the plan's decisions depend, so they cannot be evaluated",
        "add the column the plan was fitted with, or name yours with --columns",
    ),
    "evaluate_feature_kind": Rule(
        "error",
        "{column!r} holds labels where the plan expects numbers, or numbers where it expects labels",
        "write the column as in the log that the plan was fitted on",
    ),
    "evaluate_feature_left_out": Rule(
        "warning",
        "the plan's decisions depend on {column!r}, which was left out of this log ({why}); taken as missing in every "
        "row",
        "evaluate the plan on a log in which the column varies",
    ),
}

_SERVING_RULES = {
    "serving_column_missing": Rule(
        "warning",
        "the table has no column {column!r}; taken as missing in every row",
        "add the column the plan was fitted with",
    ),
    "serving_nothing_eligible": Rule(
        "warning",
        "{count:row} with no eligible action under the rules; assigned {label!r}, the cheapest action",
        "keep one action, such as sending nothing, free of rules and in every list of eligible actions",
    ),
    "serving_not_a_number": Rule("warning", "{count:value} not a number; taken as missing", "write plain numbers"),
    "drift_number": Rule(
        "warning",
        "its mean is {mean:.4g}, and was {before:.4g} in training: {deviations:.1f} standard deviations away",
        "leave out columns that only count time, such as dates; if the users have changed, fit a new plan on a newer "
        "log",
    ),
    "drift_category": Rule(
        "warning",
        "{share} of the rows have a label that never occurred in training",
        "fit a new plan on a newer log if the labels have changed for good",
    ),
    "serving_unseen_label": Rule(
        "warning",
        "{count:value} that never occurred in training; taken as 'other'",
        "fit a new plan if the labels have changed for good",
    ),
    "serving_rare_label": Rule(
        "warning",
        "{count:value} that fewer than {least} users each had in training; taken as 'other', as in training",
        "nothing to do, or merge rare labels into larger groups and fit a new plan",
    ),
    "serving_outside": Rule(
        "warning",
        "{count:value} ({share}), from {reach}, outside the range of training, {low} to {high}",
        "nothing to do if they are few; leave out columns that only count time, such as dates; if the users have "
        "changed, fit a new plan on a newer log",
    ),
}

_ROW_RULES = {
    "user_null": Rule("error", "{count:row} without a user", "remove the rows, or repair the export of the id"),
    "user_type": Rule(
        "error", "user ids are {type}, neither text nor integers", "write the id as text or as an integer"
    ),
    "user_not_finite": Rule("error", "{count:NaN or infinite id}", "remove the rows, or repair the export of the id"),
    "user_not_integer": Rule("error", "{count:id} with a fraction", "store the id as text or as an integer"),
    "user_too_large": Rule(
        "error",
        "{count:id} stored as decimal numbers so large (2^53 or more; 2^24 in 32 bits) that neighbouring ids become "
        "the same number",
        "store the id as text or as an integer",
    ),
    "cluster_null": Rule(
        "warning",
        "{count:row} without a cluster (--cluster): their users count as clusters of their own",
        "nothing to do if these users are independent of all others; else fill in the column",
    ),
    "cluster_changes": Rule(
        "error",
        "{count:row} in another cluster than their user's first row (--cluster): clusters that share users are not "
        "independent",
        "write the first cluster of a user in all of the user's rows, or name a larger cluster that contains both",
    ),
    "user_float": Rule("repaired", "ids stored as decimal numbers were read as integers", _NOTHING),
    "step_null": Rule("error", "{count:row} without a step", "number the decisions of each user: 0, 1, 2, …"),
    "step_not_integer": Rule(
        "error",
        "{count:step} that cannot be read as a whole number",
        "number the decisions of each user: 0, 1, 2, …; if they are times, use --time {name}",
    ),
    "step_too_large": Rule(
        "error",
        "{count:step} beyond ±1,000,000,000: these look like times, not like numbers of decisions",
        "have them numbered in the order of time: --time {name}",
    ),
    "step_span": Rule(
        "error",
        "steps run from {first} to {last}, a campaign of {span:,} steps; at most {limit:,} are allowed",
        "number the decisions of each user: 0, 1, 2, …",
    ),
    "step_float": Rule("repaired", "steps stored as decimal numbers were read as integers", _NOTHING),
    "rows_conflict": Rule(
        "error",
        "{count:row} with the same user and step as another row, but different values",
        "if these are several waves of the same users, name the column that tells them apart with --episode "
        "{episode}; if steps restart, number them by --time; otherwise keep one row per user and step",
    ),
    "time_null": Rule("error", "{count:row} without a time to number steps by", "repair the export of the time"),
    "time_unreadable": Rule("error", "{count:value} not a time", "write them as 2024-01-31 or 2024-01-31 14:05:00"),
    "steps_numbered": Rule(
        "repaired",
        "steps were numbered by the time of {count:row}: 0 to {last} in the order of each {whose}",
        "nothing to do; when deciding, pass `step`, the index of the decision, starting at 0",
    ),
    "episodes": Rule(
        "repaired",
        "users have {count:episode}, told apart by {column!r}{why}: each is a sequence of its own, and users are "
        "counted once",
        "nothing to do; budgets are means per user and episode",
    ),
    "episode_null": Rule("error", "{count:row} without an episode", "fill in the column"),
    "rows_duplicated": Rule("repaired", "{count:row} dropped as exact copies of another row", _NOTHING),
    "rows_unordered": Rule("repaired", "{count:row} out of order; sorted by user and step", _NOTHING),
    "step_gap": Rule(
        "warning",
        "{count:row} after a missing step of the user, so the next state is not the next decision",
        "add the missing rows; sequential off-policy estimates are refused while they are missing",
    ),
    "few_users": Rule(
        "warning",
        "the log has only {count:user}, too few to train on some and check on others",
        "use a longer log; a few thousand users is a start",
    ),
}

_VALUE_RULES = {
    "not_a_number": Rule(
        "error",
        "{count:value} that cannot be read as a number",
        "write plain numbers; keep the rows, whatever their outcome",
    ),
    "value_percentage": Rule(
        "error",
        "{count:value} written as a percentage, among others that are not",
        "write all of them the same way: 25% is 0.25",
    ),
    "value_currency": Rule(
        "error",
        "{count:value} with a currency sign that cannot be read: several currencies, or separators with different "
        "meanings",
        "write plain numbers in one currency: €1,200.50 is 1200.50",
    ),
    "value_separators": Rule(
        "error",
        "{count:value} with separators that could mark thousands or decimals, or that other values contradict",
        "write plain numbers with a decimal point and nothing else: 1,200.50 and 1 200,50 are 1200.50",
    ),
    "value_null": Rule(
        "error",
        "{count:row} without a {column}",
        "fill in the values; removing rows because of their outcome would bias every estimate",
    ),
    "cost_null": Rule(
        "error",
        "{count:row} without a cost",
        "if a missing cost means that nothing was redeemed, pass --missing-cost 0; otherwise fill in the values and "
        "keep the rows: removing them because of their outcome would bias every estimate",
    ),
    "value_nan": Rule("error", "{count:NaN value}", "fill in the values, and keep the rows"),
    "value_infinite": Rule("error", "{count:value} that are infinite", "repair the export; it divided by zero"),
    "value_too_large": Rule(
        "error",
        "{count:value} beyond ±1e15, where sums over users are no longer exact",
        "repair the export, or write the column in a larger unit",
    ),
    "action_null": Rule(
        "error", "{count:row} without an action", "if nothing was sent, that is an action too: call it 'none' or 0"
    ),
    "action_single": Rule(
        "error",
        "every row has the same action {label!r}: there is nothing to choose between",
        "log at least two actions",
    ),
    "action_rare": Rule(
        "warning",
        "{count} of {actions} actions have fewer than 50 rows each, too few to estimate their effects",
        "log them more often, or merge each with a similar one",
    ),
    "action_label_form": Rule(
        "repaired", "{count:label} that are the same number written differently (5 and 5.0); merged", _NOTHING
    ),
    "action_too_many": Rule(
        "error",
        "{count:,} different actions look like an amount or an id, not a catalogue",
        "bin them into at most {limit} actions",
    ),
    "eligible_not_logged": Rule(
        "warning",
        "{count:row} with an action that its own list of eligible actions lacks; taken as eligible",
        "list what could have been given at the time, including the logged action",
    ),
    "eligible_no_lists": Rule(
        "error",
        "{count:row} with an action that its own list of eligible actions lacks, more than half of all: the column is "
        "no list of actions, or writes them otherwise",
        "name another column with --columns eligible=YOUR_COLUMN, or write the labels as in the column of actions (in "
        "text with | between them)",
    ),
    "propensity_missing": Rule(
        "error",
        "there is no column for 'propensity' ({meaning}); the columns are {present}",
        "name it, or have it estimated with --estimate-propensity; a guess ({why}): {guess}",
    ),
    "propensity_not_positive": Rule(
        "error",
        "{count:row} with a propensity of 0 or less, although the action was logged",
        "store the probability of the logged action at the time it was drawn",
    ),
    "propensity_too_small": Rule(
        "error",
        "{count:row} with a propensity below 1e-9, so that one row would outweigh a billion others",
        "store the probability that the action was drawn with, and keep a floor under it",
    ),
    "propensity_above_one": Rule(
        "error",
        "{count:row} with a propensity above 1",
        "store the probability of the logged action, not a score or an odds ratio",
    ),
    "propensity_percentage": Rule(
        "error", "propensities run from {low} to {high} and look like percentages", "divide them by 100"
    ),
    "propensity_deterministic": Rule(
        "error",
        "every propensity is 1: the behaviour policy never randomised, so no other policy can be evaluated on its log",
        "log with some randomisation; until then no plan can be certified from this log",
    ),
    "propensity_tiny": Rule(
        "warning",
        "{count:row} with a propensity below 0.001, each weighing more than 1,000 others",
        "keep a floor under the behaviour policy's probabilities",
    ),
    "propensity_uniform_claim": Rule(
        "warning",
        "every propensity is 1/{actions}, but the actions were logged {shares} times (χ² p = {p_value:.1g})",
        "store the probabilities that were used, or re-estimate them with --estimate-propensity",
    ),
    "propensity_estimated": Rule(
        "warning",
        "propensities were estimated from the features, cross-fitted by user; all results that use them say so",
        "log the probabilities next time: estimation cannot correct for an unobserved cause of the assignment",
    ),
    "propensity_not_estimable": Rule(
        "error",
        "propensities cannot be estimated from {count:user}: each user's are estimated from other users",
        "use a longer log, or log the probabilities",
    ),
    "cost_negative": Rule("error", "{count:row} with a negative cost", "log refunds as reward, or as a cost of 0"),
    "cost_constant": Rule(
        "error",
        "every row costs {value}, so a budget cannot affect the choice of action",
        "check which column is the cost; without differences there is no budget problem",
    ),
    "reward_constant": Rule(
        "warning", "every reward is {value}, so no plan can earn more than another", "check which column is the reward"
    ),
    "mostly_zero": Rule(
        "warning",
        "{share} of the values are 0, which leaves very little to learn from",
        "use a more frequent outcome, or a longer log",
    ),
}

_FEATURE_RULES = {
    "feature_missing_all": Rule("warning", "every value is missing; left out", "drop the column, or repair the export"),
    "feature_missing_half": Rule(
        "warning", "{share} of the values are missing", "check the join that filled this column"
    ),
    "feature_infinite": Rule(
        "error",
        "{count:value} infinite or too large for a 32-bit number",
        "repair the export, or leave the column out with --ignore {column}",
    ),
    "feature_mixed": Rule(
        "error",
        "{count:value} of text in a column of numbers: it is neither a category nor a number",
        "write a number in every row (90 for 90+), or a label in every row (60 to 69), or leave the column out with "
        "--ignore {column}",
    ),
    "feature_number_as_text": Rule(
        "warning",
        "{count:value} that look like percentages, amounts or numbers with separators; not read as numbers",
        "write plain numbers if that is what they are (25% is 0.25, €1,200.50 is 1200.50)",
    ),
    "feature_constant": Rule("warning", "every value is {value}; left out", _NOTHING),
    "feature_like_id": Rule(
        "warning",
        "{distinct} different values in {total} rows look like an id, not a feature; left out",
        "bin it into fewer categories if it carries meaning; if it names what users share (a household, a store), and "
        "the action was chosen for all of them together, --cluster {column}",
    ),
    "feature_rare_labels": Rule(
        "warning",
        "{count} of {labels} labels have fewer than {least} users each, {rows_concerned} rows in all ({share}): too "
        "few to learn from, so plans treat them all as 'other'",
        "nothing to do, or merge them into larger groups (regions for cities)",
    ),
    "feature_leak": Rule(
        "error",
        "it almost equals the {outcome} (correlation {correlation:.4f}), so it was only known afterwards",
        "leave it out with --ignore {column}",
    ),
    "feature_calendar": Rule(
        "warning",
        "it holds dates, and was left out: future users have dates that training never saw",
        "nothing to do, or --dates relative for the weekday of each decision and the days from other dates to it; to "
        "number steps by it, --time {column}; if it separates episodes of the same users, --episode {column}",
    ),
    "feature_duration": Rule("repaired", "times of day and durations were read as fractions of a day", _NOTHING),
    "feature_none": Rule(
        "warning",
        "the log has no features, so every user will be treated alike",
        "join what was known at the time of the decision",
    ),
}

_AUDIT_RULES = {
    "propensity_miscalibrated": Rule(
        "warning",
        "action {label!r}: the sum of 1/propensity is {ratio:.3f} of the number of rows, not 1 (z = {z:+.1f})",
        "{remedy}",
    ),
    "draws_depend_on_past": Rule(
        "warning",
        "draws depend on the {before} of the step before, beyond their propensities: odds are off by {size} "
        "(z = {z:+.1f})",
        "{remedy}; until then nothing is certified",
    ),
    "action_never_given": Rule(
        "warning",
        "{count:row} where {group} never got {label!r}; about {expected} would have, if they could get it",
        "if they could not, add a rule to campaign.toml: [[rule]] {rule_to_add}; or list what each row could get in a "
        "column: --columns eligible=YOUR_COLUMN",
    ),
    "feature_suspected_leak": Rule(
        "warning",
        "it {evidence}; was it known when the action was chosen?",
        "leave it out with --ignore {column}, or confirm that it was known with --known-before {column}; until then "
        "no plan is certified",
    ),
    "feature_tells_action": Rule(
        "warning",
        "it {evidence}; was it recorded after the decision, or were other probabilities used?",
        "leave it out with --ignore {column}, repair the propensities, or confirm that it was known with "
        "--known-before {column}; until then no plan is certified",
    ),
    "assigned_by_cluster": Rule(
        "warning",
        "users with the same value were assigned together: over {count:value} with several users, the action is "
        "{share} (z = {z:.0f}), so users are not independent and errors that count users are too small",
        "name it with --cluster {column}: folds, errors and certificates then count clusters; no plan is certified "
        "without",
    ),
    "feature_said_known": Rule(
        "warning",
        "it {evidence}; it is assumed known when the action was chosen (--known-before)",
        "nothing to do if it was: certificates state that they rely on it",
    ),
    "cost_booked_later": Rule(
        "warning",
        "costs seem to be booked late: {share} of an action's effect on the cost appears {later}, not in its own row",
        "book each cost in the row of the decision that caused it (join redemptions to their offer, not to the week "
        "they fall in); the last step's costs need rows too, or they are missing from the budget",
    ),
    "reward_not_monotone": Rule(
        "warning",
        "a higher cost does not always earn more: action {dear!r} costs more than {cheap!r} "
        "({dear_cost:.4g} against {cheap_cost:.4g}) and earns less ({dear_reward:.4g} against {cheap_reward:.4g})",
        "nothing to do: plans do not need the assumption, but monotone response models will not be used",
    ),
    "budget_infeasible": Rule(
        "warning",
        "the budget of {budget:.4g} per user is below {least:.4g}, the cost of the cheapest action in logged states",
        "nothing to do yet: a plan leads users to other states, which may cost less; its frontier shows the smallest "
        "feasible budget",
    ),
    "budget_slack": Rule(
        "warning",
        "the budget of {budget:.4g} per user is above {most:.4g}, the cost of the most expensive action: it does not "
        "bind",
        "choose a budget below {most:.4g} if it is meant to bind",
    ),
    "overlap_thin": Rule(
        "warning",
        "too few effective users {when}: of {users:user}, {effective:.0f} effective ones are left for a fixed action "
        "by step {at_step}, and {needed} are needed among the {share} held out for the check",
        "plan few steps ahead, prefer plans close to the logged behaviour, or log more users",
    ),
}

RULES: dict[str, Rule] = (
    _FILE_RULES
    | _ROW_RULES
    | _VALUE_RULES
    | _FEATURE_RULES
    | _AUDIT_RULES
    | _FIT_RULES
    | _ITEM_RULES
    | _EVALUATION_RULES
    | _SERVING_RULES
)
"""All rules, by name."""
