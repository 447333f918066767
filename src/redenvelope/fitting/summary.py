"""Who gets what: the plan's action probabilities by step and by the features they differ most over. Plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redenvelope.chance import user_fraction
from redenvelope.log.log import FeatureTable, Log
from redenvelope.plan.policy import DeployedPolicy

__all__ = ["Allocation", "allocation_summary", "mean_allocation", "summarise"]

FloatArray = NDArray[np.float64]

_USERS, _USERS_PER_BATCH = 5_000, 2_048  # shares of 5,000 users are known to a percent or so, which a picture needs
_BINS, _LABELS, _FEATURES = 5, 8, 4


@dataclass(frozen=True, eq=False)
class Allocation:
    """What a policy would do at every row of a log."""

    probabilities: FloatArray
    """[rows, actions]."""
    costs: FloatArray
    """Expected cost of the row's decision, [rows]."""


@dataclass(frozen=True, eq=False)
class _Bins:
    """The rows of a log by one feature."""

    feature: str
    labels: list[str]
    of_row: NDArray[np.int64]
    """[rows], index into the labels."""


def allocation_summary(policy: DeployedPolicy, log: Log) -> dict[str, Any]:
    """What a policy gives to the users of a log, in the states they were logged in; large logs are sampled."""
    if len(log.users) > _USERS:
        log = log.select(user_fraction(log.users, "summary", 0) < _USERS / len(log.users))
    return summarise(mean_allocation(policy, log), log)


def mean_allocation(policy: DeployedPolicy, log: Log) -> Allocation:
    """A policy's decisions at every row, its prices mixed by their shares."""
    shares = np.asarray(policy.specification.shares)
    probabilities, costs = [], []
    for batch in log.batches(_USERS_PER_BATCH):
        planned = policy.values(batch, policy.specification.duals).probabilities
        mixed = np.einsum("rda,d->ra", planned.astype(np.float64), shares)
        probabilities.append(mixed)
        costs.append((mixed * policy.valuer.outcomes(policy.encoder.encode(batch))[1]).sum(axis=1))
    return Allocation(np.concatenate(probabilities), np.concatenate(costs))


def summarise(allocation: Allocation, log: Log) -> dict[str, Any]:
    """The summary of an allocation of the log's rows."""
    bins = [(_strength(allocation.probabilities, part), part) for part in _all_bins(log.features)]
    strongest = sorted((pair for pair in bins if pair[0] > 0), key=lambda pair: -pair[0])[:_FEATURES]
    return {
        "users": len(log.users),
        "rows": len(log),
        "actions": list(log.catalogue.labels),
        "by_step": _by_step(allocation, log),
        "by_feature": [
            {"feature": part.feature, "strength": strength, "bins": _by_bin(allocation, part)}
            for strength, part in strongest
        ],
    }


def _by_step(allocation: Allocation, log: Log) -> list[dict[str, Any]]:
    """Of each step: probabilities [actions], those logged [actions], and cost a user, which adds up over the steps."""
    steps = []
    for step in np.unique(log.step):
        rows = log.step == step
        logged = np.bincount(log.action[rows], minlength=len(log.catalogue)) / np.count_nonzero(rows)
        steps.append(
            {
                "step": int(step),
                "rows": int(np.count_nonzero(rows)),
                "probabilities": allocation.probabilities[rows].mean(axis=0).tolist(),
                "logged": logged.tolist(),
                # Over all users, not over those still there: so the steps add up to a user's total.
                "cost": float(allocation.costs[rows].sum() / len(log.users)),
            }
        )
    return steps


def _by_bin(allocation: Allocation, bins: _Bins) -> list[dict[str, Any]]:
    parts = []
    for number, label in enumerate(bins.labels):
        rows = bins.of_row == number
        if rows.any():
            parts.append(
                {
                    "label": label,
                    "rows": int(np.count_nonzero(rows)),
                    "probabilities": allocation.probabilities[rows].mean(axis=0).tolist(),
                    "cost": float(allocation.costs[rows].mean()),
                }
            )
    return parts


def _strength(probabilities: FloatArray, bins: _Bins) -> float:
    """Share of the variance of probabilities [rows, actions] that the bins explain, less what chance would."""
    counts = np.bincount(bins.of_row, minlength=len(bins.labels)).astype(np.float64)
    used = int(np.count_nonzero(counts))
    rows = len(bins.of_row)
    if used < 2 or rows <= used:
        return 0.0
    centred = probabilities - probabilities.mean(axis=0)
    sums = np.stack([np.bincount(bins.of_row, column, len(counts)) for column in centred.T], axis=1)
    between = float((sums**2 / np.maximum(counts, 1.0)[:, None]).sum())
    total = float((centred**2).sum())
    within = (total - between) / (rows - used)
    # Rounding alone makes differences of about 1e-16: an allocation that is the same for all has no strong feature.
    return max(0.0, (between - (used - 1) * within) / total) if total > 1e-12 * rows else 0.0


def _all_bins(features: FeatureTable) -> Iterator[_Bins]:
    for place, name in enumerate(features.numeric_names):
        yield _number_bins(name, features.numeric[:, place].astype(np.float64))
    for place, name in enumerate(features.category_names):
        yield _category_bins(name, features.codes[:, place], features.labels[place])


def _number_bins(name: str, values: FloatArray) -> _Bins:
    """Few values have a bin each, many are cut at quantiles; missing values have a bin of their own."""
    present = values[~np.isnan(values)]
    distinct = np.unique(present)
    if len(distinct) <= _BINS:
        labels = [f"{value:.4g}" for value in distinct]
        of_row = np.searchsorted(distinct, values)
    else:
        edges = np.unique(np.quantile(present, np.arange(1, _BINS) / _BINS))
        edges = edges[edges < distinct[-1]]
        if not len(edges):  # most values are the greatest
            edges = distinct[-2:-1]
        shown = [f"{edge:.3g}" for edge in edges]
        middle = [f"{low} to {high}" for low, high in pairwise(shown)]
        labels = [f"up to {shown[0]}", *middle, f"over {shown[-1]}"]
        of_row = np.searchsorted(edges, values)
    return _Bins(name, [*labels, "(missing)"], np.where(np.isnan(values), len(labels), of_row).astype(np.int64))


def _category_bins(name: str, codes: NDArray[np.int32], labels: tuple[str, ...]) -> _Bins:
    """The most frequent labels, the others together, and the missing."""
    frequent = np.argsort(-np.bincount(codes[codes >= 0], minlength=len(labels)), kind="stable")[:_LABELS]
    kept = np.sort(frequent)
    place = np.full(len(labels) + 1, len(kept), dtype=np.int64)
    place[kept] = np.arange(len(kept))
    place[-1] = len(kept) + 1  # where the code of a missing value, −1, points
    return _Bins(name, [*(labels[code] for code in kept), "(others)", "(missing)"], place[codes])
