"""What counts against each budget in a table of outcomes that is no log: as far as its columns tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.campaign.conditions import columns_of, holds
from redenvelope.campaign.costs import is_plain
from redenvelope.campaign.records import Budget
from redenvelope.campaign.rows import FrameRows, places_of
from redenvelope.log.ids import read_steps
from redenvelope.log.named import column
from redenvelope.log.serving_frame import serving_numbers, serving_text

__all__ = ["charges_of"]

FloatArray = NDArray[np.float64]


def charges_of(
    frame: pl.DataFrame, budgets: Sequence[Budget], texts: frozenset[str], numeric: bool
) -> Mapping[str, FloatArray | str]:
    """Budget -> what each row of a table counts against it, [rows], or why that cannot be told.

    Columns have the names of their roles. `texts` are those that are text in the log, `numeric` whether its actions are
    numbers. Nothing where the only budget is the cost itself.
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
            return (
                f"the column {budget.summed!r} is empty or no number in {int((lost | values.is_null()).sum()):,} rows"
            )
        cost = values.to_numpy().astype(np.float64)
    if budget.steps is not None:
        cost = cost * read_steps(frame["step"]).is_in(list(budget.steps)).fill_null(False).to_numpy()
    if budget.condition is not None:
        cost = cost * holds(budget.condition, FrameRows(frame, texts))
    return cost
