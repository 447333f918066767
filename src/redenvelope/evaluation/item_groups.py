"""Importance weights over groups of items, for logs with many actions.

With hundreds of items, the weight of a single item is nearly always zero and sometimes huge. Items whose predicted cost
and reward are about equal, given the user, are exchangeable for the estimate, because the baseline accounts for small
differences. So an item's ratio is replaced by its group's, π(group | s) / p(group | s) (Saito and Joachims 2022; with a
baseline, Saito, Ren and Joachims 2023), times a factor per item, step and member of the policy, chosen so that weighted
users get each item as often as under the policy. The factor corrects for items that are better or worse than predicted;
a bias remains if users differ within a group in ways that the predictions miss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import Float32Array, FloatArray
from redenvelope.evaluation.data import OffPolicyData, Table
from redenvelope.log.log import Log
from redenvelope.log.propensity import fit_assignment

FEWEST_ITEMS = 24
"""With fewer actions, weights are over single actions."""

_BY_COST, _BY_REWARD = 4, 4
"""Number of groups by predicted cost, and within each by predicted reward, about equally likely in the log."""
_SAME = 1e-6  # largest relative difference between propensities that are equal up to rounding
_UNLOGGED = 0.02  # probability that may be missing at a step, because some of its items were never logged

Behaviour = Callable[[Log], FloatArray]
"""Logged rows -> probability of every action under the behaviour policy, [rows, actions]."""


def behaviour_of(log: Log) -> Behaviour | None:
    """The behaviour policy of a log; None if some actions were not eligible, which propensities do not show.

    If propensities depend only on the step, they are known for every action. Otherwise a multinomial logistic model,
    learned from other users, is scaled to match the logged propensity of the logged action.
    """
    if log.eligible is not None:
        return None
    table = _table(log)
    if table is not None:
        return lambda rows: table[rows.step]
    model = fit_assignment(log)
    return lambda rows: _with_logged(model.probabilities(rows), rows)


def _table(log: Log) -> FloatArray | None:
    """Probability of each action at each step, [steps, actions]; None if it varies within a step."""
    shape = int(log.step.max()) + 1, len(log.catalogue)
    low, high = np.full(shape, np.inf), np.zeros(shape)
    np.minimum.at(low, (log.step, log.action), log.propensity)
    np.maximum.at(high, (log.step, log.action), log.propensity)
    totals = high.sum(axis=1)[np.unique(log.step)]
    if (high > low * (1 + _SAME)).any() or (np.abs(totals - 1 + _UNLOGGED / 2) > _UNLOGGED / 2 + _SAME).any():
        return None
    return high


def _with_logged(probabilities: FloatArray, log: Log) -> FloatArray:
    """Scale probabilities [rows, actions] so that logged actions have their logged propensity."""
    rows = np.arange(len(log))
    others = np.maximum(1 - probabilities[rows, log.action], _SAME)
    probabilities *= ((1 - log.propensity) / others)[:, None]
    probabilities[rows, log.action] = log.propensity
    return probabilities


def grouped(likely: FloatArray, outcomes: FloatArray) -> NDArray[np.intp]:
    """The group of every item in every row, [rows, actions], from its probability in the log [rows, actions] and its
    predicted reward and costs [outcomes, rows, actions]."""
    size = np.abs(outcomes[1:]).mean(axis=(1, 2), keepdims=True)
    cost = np.divide(outcomes[1:], size, out=np.zeros_like(outcomes[1:]), where=size > 0).sum(axis=0)
    by_cost = _shares(likely, np.zeros(cost.shape, np.intp), cost, _BY_COST)
    return by_cost * _BY_REWARD + _shares(likely, by_cost, outcomes[0], _BY_REWARD)


def _shares(likely: FloatArray, within: NDArray[np.intp], value: FloatArray, count: int) -> NDArray[np.intp]:
    """Divide items, sorted by value, into `count` groups of about equal probability, within existing groups [rows,
    actions]."""
    order = np.lexsort((value, within), axis=1)
    ordered, own = np.take_along_axis(likely, order, 1), np.take_along_axis(within, order, 1)
    sums = np.stack([(likely * (within == group)).sum(axis=1) for group in range(int(within.max()) + 1)], axis=1)
    before = np.take_along_axis(np.cumsum(sums, axis=1) - sums, own, 1)
    total = np.maximum(np.take_along_axis(sums, own, 1), np.finfo(float).tiny)
    middle = (np.cumsum(ordered, axis=1) - ordered / 2 - before) / total
    found = np.empty_like(order)
    np.put_along_axis(found, order, np.clip((middle * count).astype(np.intp), 0, count - 1), 1)
    return found


@dataclass(frozen=True, eq=False)
class GroupedRows:
    """Ratios over groups in the rows of some users, and sums from which the items' factors follow."""

    ratio: Table
    """Ratio of the group of the logged item, [rows, prices]."""
    stratum: NDArray[np.intp]
    """Combination of member and step of each row, [rows]."""
    action: NDArray[np.integer]
    """[rows]"""
    planned: FloatArray
    """Sum of each item's probability under the policy, [strata, prices, actions]."""
    weighted: FloatArray
    """Sum of each item's probability in the log, weighted by ratios over groups, [strata, prices, actions]."""

    @classmethod
    def of(
        cls,
        log: Log,
        probabilities: Table,
        likely: FloatArray,
        outcomes: FloatArray,
        steps: int,
        member: NDArray[np.integer] | int = 0,
        members: int = 1,
    ) -> GroupedRows:
        """From a policy's probabilities [rows, prices, actions] and the member of the policy that decides, [rows];
        `likely` and `outcomes` are as in `grouped`."""
        groups = grouped(likely, outcomes)
        in_group = np.zeros((*groups.shape, _BY_COST * _BY_REWARD), np.float32)
        np.put_along_axis(in_group, groups[:, :, None], 1.0, 2)
        stratum = member * steps + np.arange(len(log)) - np.repeat(log.starts[:-1], log.lengths)
        policy = probabilities.astype(np.float32, copy=False)
        logged = np.einsum("na,nag->ng", likely, in_group)
        shares = np.where(logged > 0, 1 / np.where(logged > 0, logged, 1.0), 0.0).astype(np.float32)
        ratios = (policy @ in_group) * shares[:, None]
        of_items: Float32Array = ratios @ in_group.transpose(0, 2, 1)
        sums = np.zeros((2, members * steps, *policy.shape[1:]))
        for own in np.unique(stratum):
            rows = stratum == own
            sums[0, own] = policy[rows].sum(axis=0, dtype=np.float64)
            sums[1, own] = np.einsum("npa,na->pa", of_items[rows], likely[rows])
        ratio = of_items[np.arange(len(log)), :, log.action].astype(probabilities.dtype)
        return cls(ratio, stratum, log.action, *sums)


def with_group_ratios(parts: Iterable[OffPolicyData], rows: Iterable[GroupedRows]) -> tuple[OffPolicyData, ...]:
    """Add ratios over groups to the data of all users; `rows` has one entry per part."""
    rows = list(rows)
    planned, weighted = sum(each.planned for each in rows), sum(each.weighted for each in rows)
    factor = np.divide(planned, weighted, out=np.zeros_like(planned), where=weighted > 0)
    return tuple(
        replace(part, group_ratio=own.ratio * factor[own.stratum, :, own.action].astype(own.ratio.dtype))
        for part, own in zip(parts, rows, strict=True)
    )
