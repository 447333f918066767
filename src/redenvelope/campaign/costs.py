"""Charges: the cost that counts against each budget, row by row, in a log or in a table of outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from redenvelope.arrays import FloatArray
from redenvelope.campaign.conditions import columns_of, holds
from redenvelope.campaign.records import Budget, Mistake, refuse
from redenvelope.campaign.rows import FrameRows, TableRows, places_of
from redenvelope.log.cleaning.ids import read_steps
from redenvelope.log.columns import column
from redenvelope.log.encoding.table import serving_numbers, serving_text
from redenvelope.log.log import FeatureTable, Log


def is_plain(budgets: Sequence[Budget]) -> bool:
    """Whether the only budget, if any, is of the log's own cost in all rows, so that costs are as logged."""
    return all(
        budget.summed == "cost" and budget.steps is None and budget.where is None for budget in budgets[:1]
    ) and (len(budgets) < 2)


def cost_columns(budgets: Sequence[Budget]) -> tuple[str, ...]:
    """Columns other than cost and reward that budgets sum; in order, without repetition."""
    summed = [budget.summed for budget in budgets if budget.summed not in (None, "cost", "reward")]
    return tuple(dict.fromkeys(str(name) for name in summed))


def charged_log(log: Log, budgets: Sequence[Budget]) -> Log:
    """The log with the cost of each budget; columns that budgets sum are no longer features.

    Cost of a budget = (its column, or 1 if the action is counted) × (the step is one of its steps) × (its condition is
    true in the row).
    """
    if is_plain(budgets):
        return log
    further = tuple((name, _column(log, name)) for name in cost_columns(budgets))
    measured = {"reward": log.reward, "cost": log.cost, **dict(further)}
    _refuse_odd(budgets, measured)
    charged = tuple((budget.name, _cost(budget, log, measured)) for budget in budgets)
    taken = {name for name, _ in further}
    kept = tuple(finding for finding in log.findings if finding.column not in taken)
    return replace(log, features=_without(log.features, taken), further=further, charged=charged, findings=kept)


def capped_log(log: Log, most: float | None) -> Log:
    """The log of a campaign in which no user costs more than `most`: a user's costs are truncated from the step on at
    which their sum would exceed it, as a ledger with this cap would have paid."""
    if most is None:
        return log
    charged = tuple((name, _cut(log, values, most)) for name, values in log.charged)
    return replace(log, cost=_cut(log, log.cost, most), charged=charged)


def _cut(log: Log, values: FloatArray, most: float) -> FloatArray:
    """Costs truncated at the user's remaining cap, [rows]."""
    spent = np.cumsum(values) - values
    before = spent - np.repeat(spent[log.starts[:-1]], log.lengths)
    return np.clip(most - before, 0.0, values)


def without_costs(log: Log, budgets: Sequence[Budget]) -> Log:
    """The log as measured, without the columns that budgets sum, for the audit."""
    return replace(charged_log(log, budgets), further=(), charged=())


def _cost(budget: Budget, log: Log, measured: dict[str, FloatArray]) -> FloatArray:
    """The cost of a budget in each row, [rows]."""
    if budget.count is not None:
        places = places_of(budget.count, log.catalogue.labels, log.catalogue.numeric)
        cost = np.isin(log.action, [place for place in places if place is not None]).astype(np.float64)
    else:
        cost = measured[str(budget.summed)].copy()
    if budget.steps is not None:
        cost *= np.isin(log.step, budget.steps)
    if budget.condition is not None:
        cost *= holds(budget.condition, TableRows(log.features, log.step))
    return cost


def _column(log: Log, name: str) -> FloatArray:
    """A numeric feature, [rows], or the same column of a log that was already charged; NaN if there is none."""
    known = dict(log.further)
    if name in known:
        return known[name]
    if name not in log.features.numeric_names:
        return np.full(len(log), np.nan)
    return log.features.numeric[:, log.features.numeric_names.index(name)].astype(np.float64)


def _refuse_odd(budgets: Sequence[Budget], measured: dict[str, FloatArray]) -> None:
    """Refuse missing costs, which would count as zero, and negative costs, which would offset others."""
    found = []
    for number, budget in enumerate(budgets, start=1):
        if budget.summed in (None, "cost"):
            continue
        values, place = measured[str(budget.summed)], f"[[budget]] {number}, column"
        missing, negative = int(np.isnan(values).sum()), int((values < 0).sum())
        if missing:
            message = f"{budget.summed!r} is missing or not a number in {missing:,} of {len(values):,} rows; write 0 "
            found.append(Mistake(place, message + "where nothing was spent"))
        if negative:
            message = f"{budget.summed!r} is below 0 in {negative:,} of {len(values):,} rows; a cost is at least 0"
            found.append(Mistake(place, message))
    refuse(found)


def _without(features: FeatureTable, names: set[str]) -> FeatureTable:
    """The features without some numeric columns."""
    kept = [place for place, name in enumerate(features.numeric_names) if name not in names]
    if len(kept) == len(features.numeric_names):
        return features
    return replace(
        features,
        numeric_names=tuple(features.numeric_names[place] for place in kept),
        numeric=np.asfortranarray(features.numeric[:, kept]),
        static=features.static - names,
    )


# Tables of outcomes that are not logs; their columns may not determine every budget's cost.


def charges_of(
    frame: pl.DataFrame, budgets: Sequence[Budget], texts: frozenset[str], numeric: bool
) -> Mapping[str, FloatArray | str]:
    """Budget -> the charge of each row of a table, [rows], or the reason why it is unknown.

    Columns have the names of their roles. `texts` are the columns that are text in the log, `numeric` says whether its
    actions are numbers. Empty if the only budget is of the cost itself.
    """
    if is_plain(budgets):
        return {}
    return {budget.name: _charge(budget, frame, texts, numeric) for budget in budgets}


def _charge(budget: Budget, frame: pl.DataFrame, texts: frozenset[str], numeric: bool) -> FloatArray | str:
    needed = {"action" if budget.count is not None else str(budget.summed)}
    needed |= {"step"} if budget.steps is not None else set()
    needed |= set() if budget.condition is None else set(columns_of(budget.condition))
    lacking = sorted(needed - set(frame.columns))
    if lacking:
        return f"the table has no column {lacking[0]!r}"
    if budget.count is not None:
        labels = serving_text(column(frame, "action"))
        known = tuple(labels.drop_nulls().unique().sort())
        counted = [known[place] for place in places_of(budget.count, known, numeric) if place is not None]
        cost = labels.is_in(counted).fill_null(False).to_numpy().astype(np.float64)
    else:
        values, lost = serving_numbers(column(frame, str(budget.summed)))
        if lost.any() or values.null_count():
            return f"the column {budget.summed!r} is not a number in {int((lost | values.is_null()).sum()):,} rows"
        cost = values.to_numpy().astype(np.float64)
    if budget.steps is not None:
        cost = cost * read_steps(frame["step"]).is_in(list(budget.steps)).fill_null(False).to_numpy()
    if budget.condition is not None:
        cost = cost * holds(budget.condition, FrameRows(frame, texts))
    return cost
