"""Every rule a log is held to: how grave it is, what it says, and what to do about it.

The sentences are filled with the place and the figures where the rule is broken (see `findings.py`).
"""

from __future__ import annotations

from redenvelope.log.file_rules import FILE_RULES
from redenvelope.log.rule import Rule
from redenvelope.log.use_rules import USE_RULES

__all__ = ["RULES", "Rule"]


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
