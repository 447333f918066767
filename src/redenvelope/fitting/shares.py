"""Who gets what: the plan's action probabilities by step and by the features they differ most over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from redenvelope.fitting.check import DecidedRows
from redenvelope.log.log import FeatureTable
from redenvelope.plan.record import ActionShares, FeatureShares, Shares, StepShares

__all__ = ["action_shares"]

FloatArray = NDArray[np.float64]

_BINS, _LABELS, _FEATURES = 5, 8, 4


@dataclass(frozen=True, eq=False)
class _Bins:
    """The rows of a log by one feature."""

    feature: str
    labels: list[str]
    of_row: NDArray[np.int64]
    """[rows], index into the labels."""


def action_shares(decided: DecidedRows) -> ActionShares:
    """What a policy gives to the users of a log, in the states they were logged in."""
    log = decided.log
    bins = [(_strength(decided.probabilities, part), part) for part in _all_bins(log.features)]
    strongest = sorted((pair for pair in bins if pair[0] > 0), key=lambda pair: -pair[0])[:_FEATURES]
    return ActionShares(
        users=len(log.users),
        rows=len(log),
        actions=log.catalogue.labels,
        by_step=_by_step(decided),
        by_feature=tuple(FeatureShares(part.feature, strength, _by_bin(decided, part)) for strength, part in strongest),
    )


def _by_step(decided: DecidedRows) -> tuple[StepShares, ...]:
    log, steps = decided.log, []
    for step in np.unique(log.step):
        rows = log.step == step
        logged = np.bincount(log.action[rows], minlength=len(log.catalogue)) / np.count_nonzero(rows)
        steps.append(
            StepShares(
                step=int(step),
                rows=int(np.count_nonzero(rows)),
                probabilities=tuple(decided.probabilities[rows].mean(axis=0).tolist()),
                logged=tuple(logged.tolist()),
                cost=float(decided.costs[rows].sum() / len(log.users)),
            )
        )
    return tuple(steps)


def _by_bin(decided: DecidedRows, bins: _Bins) -> tuple[Shares, ...]:
    parts = []
    for number, label in enumerate(bins.labels):
        rows = bins.of_row == number
        if rows.any():
            shares = tuple(decided.probabilities[rows].mean(axis=0).tolist())
            parts.append(Shares(label, int(np.count_nonzero(rows)), shares, float(decided.costs[rows].mean())))
    return tuple(parts)


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
