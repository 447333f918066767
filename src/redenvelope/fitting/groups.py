"""Who gets what, in a few groups a step: a small tree over the features that separate decisions most.

The tree explains, it does not decide: what a group gets is the mean of what the plan gives its users.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.fitting.bins import MISSING, Bins, between
from redenvelope.fitting.check import DecidedRows
from redenvelope.plan.who import Condition, Group, StepGroups

__all__ = ["GroupedStep", "grouped_steps"]

FloatArray = NDArray[np.float64]

_STEPS, _GROUPS, _DEEPEST = 5, 5, 3
_LEAST_SHARE = 0.04
"""Of a step's rows that a group holds at least: smaller ones are no news."""
_LEAST_GAIN = 0.02
"""Of the differences in what users get that a further cut must explain."""
_NAMED = 3
"""Labels that a condition names; beyond, it names those that are not in it, or counts."""


@dataclass(frozen=True, eq=False)
class GroupedStep:
    """The groups of a step, and which rows are in which."""

    told: StepGroups
    rows: list[NDArray[np.int64]]
    """Of each group, indices into the decided rows."""


@dataclass(frozen=True, eq=False)
class _Cut:
    """A way to divide a leaf: the bins of one feature that go to either side."""

    gain: float
    feature: int
    sides: tuple[frozenset[int], frozenset[int]]


@dataclass(frozen=True, eq=False)
class _Leaf:
    rows: NDArray[np.int64]
    allowed: Mapping[int, frozenset[int]]
    """Feature -> the bins that are left of it, where a cut was made."""
    cut: _Cut | None


def grouped_steps(decided: DecidedRows, bins: Sequence[Bins]) -> list[GroupedStep]:
    """The users of some steps in groups, the dearest first; of many steps the first, the last and some between."""
    steps = np.unique(decided.log.step)
    if len(steps) > _STEPS:
        steps = steps[np.unique(np.linspace(0, len(steps) - 1, _STEPS).round().astype(int))]
    return [_grouped(decided, bins, int(step)) for step in steps]


def _grouped(decided: DecidedRows, bins: Sequence[Bins], step: int) -> GroupedStep:
    rows = np.flatnonzero(decided.log.step == step)
    total = _spread(decided.probabilities[rows])
    leaves = _grown(decided, bins, rows, total) if total > 1e-12 * len(rows) else [_Leaf(rows, {}, None)]
    leaves = sorted(leaves, key=lambda leaf: -float(decided.costs[leaf.rows].mean()))
    within = sum(_spread(decided.probabilities[leaf.rows]) for leaf in leaves)
    groups = tuple(
        Group(
            conditions=tuple(_conditions(leaf, bins, rows)),
            rows=len(leaf.rows),
            probabilities=tuple(decided.probabilities[leaf.rows].mean(axis=0).tolist()),
            cost=float(decided.costs[leaf.rows].mean()),
        )
        for leaf in leaves
    )
    explained = 1 - within / total if len(leaves) > 1 else 0.0
    return GroupedStep(StepGroups(step, len(rows), explained, groups), [leaf.rows for leaf in leaves])


def _spread(given: FloatArray) -> float:
    """How much rows [rows, actions] differ: squares about their mean."""
    return float(((given - given.mean(axis=0)) ** 2).sum())


def _grown(decided: DecidedRows, bins: Sequence[Bins], rows: NDArray[np.int64], total: float) -> list[_Leaf]:
    """Leaves, cut one after the other where most is explained."""
    least_rows = max(_LEAST_SHARE * len(rows), 1.0)

    def leaf(rows: NDArray[np.int64], allowed: Mapping[int, frozenset[int]]) -> _Leaf:
        cut = _best_cut(decided, bins, rows, least_rows) if len(allowed) < _DEEPEST else None
        return _Leaf(rows, allowed, cut if cut is not None and cut.gain >= _LEAST_GAIN * total else None)

    leaves = [leaf(rows, {})]
    while len(leaves) < _GROUPS:
        place = max(range(len(leaves)), key=lambda at: cut.gain if (cut := leaves[at].cut) else -1.0)
        chosen = leaves[place].cut
        if chosen is None:
            break
        of_row = bins[chosen.feature].of_row[leaves[place].rows]
        parts = [
            leaf(leaves[place].rows[np.isin(of_row, list(side))], {**leaves[place].allowed, chosen.feature: side})
            for side in chosen.sides
        ]
        leaves[place : place + 1] = parts
    return leaves


def _best_cut(decided: DecidedRows, bins: Sequence[Bins], rows: NDArray[np.int64], least_rows: float) -> _Cut | None:
    """The cut after which what users get differs least within the two sides."""
    given, costs = decided.probabilities[rows], decided.costs[rows]
    centred = given - given.mean(axis=0)
    best: _Cut | None = None
    for feature, part in enumerate(bins):
        of_row, size = part.of_row[rows], len(part.labels)
        counts = np.bincount(of_row, minlength=size).astype(np.float64)
        sums = np.stack([np.bincount(of_row, column, size) for column in centred.T], axis=1)
        spent = np.bincount(of_row, costs, size).astype(np.float64)
        for order in _orders(part, counts, spent):
            left, moved = np.cumsum(counts[order])[:-1], np.cumsum(sums[order], axis=0)[:-1]
            right = len(rows) - left
            fits = (left >= least_rows) & (right >= least_rows)
            # The rows are centred, so that what the right side holds is minus what the left does.
            gains = np.where(fits, (moved**2).sum(axis=1) * (1 / np.maximum(left, 1) + 1 / np.maximum(right, 1)), 0.0)
            if len(gains) and gains.max() > (best.gain if best else 0.0):
                at = int(gains.argmax()) + 1
                sides = frozenset(order[:at].tolist()), frozenset(order[at:].tolist())
                best = _Cut(float(gains.max()), feature, sides)
    return best


def _orders(part: Bins, counts: FloatArray, spent: FloatArray) -> Iterator[NDArray[np.int64]]:
    """Orders of the bins that hold rows, along which to cut: numbers as they rise, the missing at either end;
    categories by what is spent on them."""
    held = np.flatnonzero(counts)
    if part.edges is None:
        yield held[np.argsort(spent[held] / counts[held], kind="stable")]
        return
    missing = len(part.labels) - 1
    yield held
    if held[-1] == missing:
        yield np.concatenate([held[-1:], held[:-1]])


def _conditions(leaf: _Leaf, bins: Sequence[Bins], rows: NDArray[np.int64]) -> Iterator[Condition]:
    for feature, kept in leaf.allowed.items():
        part = bins[feature]
        there = sorted(set(np.unique(part.of_row[rows]).tolist()))
        yield Condition(part.feature, "is " + _words(part, sorted(kept & set(there)), there))


def _words(part: Bins, kept: list[int], there: list[int]) -> str:
    """The bins that are left of a feature, of those that are there at all."""
    missing = len(part.labels) - 1
    named = [place for place in kept if place != missing]
    others = [place for place in there if place != missing and place not in named]
    aside = " or missing" if missing in kept and named else ""
    if not named:
        return "missing"
    if not others:
        return "known" if missing in there else "anything"
    if part.edges is not None and len(named) > 1:
        return _range(part, named, others) + aside
    if len(named) <= _NAMED or len(others) > _NAMED:
        shown = [_bare(part.labels[place]) for place in named[:_NAMED]]
        more = [f"{len(named) - _NAMED} more"] if len(named) > _NAMED else []
        return _listed([*shown, *more]) + aside
    return "not " + _listed([_bare(part.labels[place]) for place in others]) + aside


def _range(part: Bins, named: list[int], others: list[int]) -> str:
    assert part.edges is not None
    whole = bool((part.edges == np.floor(part.edges)).all())
    low = None if min(named) < min(others) else float(part.edges[min(named) - 1])
    high = None if max(named) > max(others) else float(part.edges[max(named)])
    return between(low, high, whole)


def _bare(label: str) -> str:
    return label.strip("()") if label in (MISSING, "(others)") else label


def _listed(names: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
