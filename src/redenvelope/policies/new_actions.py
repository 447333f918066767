"""New actions: offered at random to a small share, so that the next log knows them.

Nothing in the log says what they earn and cost, so no plan chooses them and no certificate covers them. They are drawn
beside the plan: what they may add to the mean cost is bounded by the most that a decision costs, and set aside from the
budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from redenvelope.arrays import BoolArray, FloatArray
from redenvelope.campaign.rows import places_of
from redenvelope.log.encoding.table import serving_numbers, serving_text
from redenvelope.log.log import ActionCatalogue


@dataclass(frozen=True)
class IntroducedAction:
    """An action of a deployed policy that its log does not have."""

    label: str
    like: int
    """The known action (by index) whose rules it follows, and as which it counts in a user's history."""
    share: float
    """Share of the decisions that give it, of users who may get it."""
    charges: tuple[float, ...]
    """The most that it costs each budget, [budgets]."""
    dearest: tuple[float, ...]
    """The most that any decision costs each budget, [budgets]."""
    added: tuple[float, ...]
    """The most that it adds to the mean cost per user, which is set aside from each budget, [budgets].

    A user whom it is not drawn for is decided for as without it. Where it is drawn, it costs at most `charges`; every
    later decision may be another than without it, and costs at most `dearest`.
    """
    mixture: tuple[float, ...]
    """Weights with which the outcomes of the known actions predict its own, [actions]."""


New = Sequence[IntroducedAction]


def with_new(new: New, probabilities: FloatArray, may: BoolArray) -> FloatArray:
    """Probabilities [users, actions] with those of new actions beside them; `may` [users, new]: who may get them."""
    shares = may * np.array([each.share for each in new])
    return np.concatenate([probabilities * (1 - shares.sum(axis=1, keepdims=True)), shares], axis=1)


def extrapolated(new: New, outcomes: FloatArray) -> FloatArray:
    """Outcomes [outcomes, users, actions] with those predicted for new actions, [outcomes, users, actions + new].

    They are never beyond those of the user's known actions.
    """
    if not new:
        return outcomes
    mixtures = np.array([each.mixture for each in new]).T
    found = np.clip(outcomes @ mixtures, *(end(axis=2, keepdims=True) for end in (outcomes.min, outcomes.max)))
    return np.concatenate([outcomes, found], axis=2)


def charged(new: New, outcomes: FloatArray) -> FloatArray:
    """As `extrapolated`, for one step, with the most that new actions cost instead of predicted costs."""
    found = extrapolated(new, outcomes)
    found[1:, :, -len(new) :] = np.array([each.charges for each in new]).T[:, None]
    return found


def known_history(new: New, catalogue: ActionCatalogue, past: Any) -> Any:
    """A user's earlier steps, a table or rows, in which new actions count as the known ones that they are like."""
    if not new or past is None:
        return past
    labels = tuple(each.label for each in new)
    likes: list[Any] = [catalogue.labels[each.like] for each in new]
    if not isinstance(past, pl.DataFrame):
        return [_known_row(row, labels, likes, catalogue.numeric) for row in past]
    if "action" not in past.columns:
        return past
    action = serving_numbers(past["action"])[0] if catalogue.numeric else serving_text(past["action"])
    kind: type = float if catalogue.numeric else str
    return past.with_columns(action.replace(list(map(kind, labels)), list(map(kind, likes))).alias("action"))


def _known_row(row: Mapping[str, Any], labels: tuple[str, ...], likes: list[Any], numeric: bool) -> Mapping[str, Any]:
    (place,) = places_of((str(row.get("action")),), labels, numeric)
    return row if place is None else {**row, "action": likes[place]}
