"""Who gets what: the plan's action probabilities by step and by the features they differ most over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from redenvelope.fitting.bins import Bins, all_bins
from redenvelope.fitting.check import DecidedRows, Shown
from redenvelope.fitting.examples import examples
from redenvelope.fitting.groups import grouped_steps
from redenvelope.plan.ladder import Place
from redenvelope.plan.policy import DeployedPolicy
from redenvelope.plan.record import ActionShares, FeatureShares, Shares, StepShares

__all__ = ["action_shares", "who_gets_what"]

FloatArray = NDArray[np.float64]

_FEATURES = 4


def who_gets_what(shown: Shown, policy: DeployedPolicy, place: Place) -> ActionShares:
    """What a policy at a place of its ladder gives to the users that are shown: shares, groups and examples."""
    decided = shown.decided(policy, place)
    bins = list(all_bins(decided.log.features))
    shares = action_shares(decided, bins)
    steps = grouped_steps(decided, bins)
    strongest = [part.feature for part in shares.by_feature]
    return replace(
        shares,
        groups=tuple(step.told for step in steps),
        examples=examples(shown, decided, policy, steps[0], strongest),
    )


def action_shares(decided: DecidedRows, bins: Sequence[Bins] = ()) -> ActionShares:
    """What a policy gives to the users of a log, in the states they were logged in; `bins` of the features, where they
    are known already."""
    log = decided.log
    judged = [(_strength(decided.probabilities, part), part) for part in bins or all_bins(log.features)]
    strongest = sorted((pair for pair in judged if pair[0] > 0), key=lambda pair: -pair[0])[:_FEATURES]
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
                logged_cost=float(log.cost[rows].sum() / len(log.users)),
            )
        )
    return tuple(steps)


def _by_bin(decided: DecidedRows, bins: Bins) -> tuple[Shares, ...]:
    parts = []
    for number, label in enumerate(bins.labels):
        rows = bins.of_row == number
        if rows.any():
            shares = tuple(decided.probabilities[rows].mean(axis=0).tolist())
            parts.append(Shares(label, int(np.count_nonzero(rows)), shares, float(decided.costs[rows].mean())))
    return tuple(parts)


def _strength(probabilities: FloatArray, bins: Bins) -> float:
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
