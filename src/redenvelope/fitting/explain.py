"""Who gets what: the plan's action probabilities by step, by feature, by group of users, and in examples.

Groups are the leaves of a small decision tree over the features, grown per step to separate the plan's decisions. The
tree only describes: a group's figures are means of the plan's probabilities for its users.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray
from redenvelope.fitting.holdout import DecidedRows, Shown
from redenvelope.log.log import FeatureTable
from redenvelope.plan.ladder import Place
from redenvelope.plan.policy import DeployedPolicy, Rows
from redenvelope.plan.record import (
    ActionShares,
    Alternative,
    Condition,
    Example,
    FeatureShares,
    Group,
    Shares,
    StepGroups,
    StepShares,
)
from redenvelope.policies.action_values import ActionValues

_STEPS, _GROUPS, _DEEPEST = 5, 5, 3
_LEAST_SHARE = 0.04
"""Smallest share of a step's rows that a group may have."""
_LEAST_GAIN = 0.02
"""Smallest share of the variance of decisions that a split must explain."""
_NAMED = 3
"""Most labels that a condition lists; with more, it lists the excluded labels, or counts."""
_FEATURES, _EXAMPLES, _KNOWN = 4, 4, 5
"""Number of features, of examples, and of values per example that are shown."""


def who_gets_what(shown: Shown, policy: DeployedPolicy, place: Place) -> ActionShares:
    """What a policy at a place of its ladder gives the shown users: shares, groups and examples."""
    decided = shown.decided(policy, place)
    bins = list(all_bins(decided.log.features))
    shares = action_shares(decided, bins)
    steps = grouped_steps(decided, bins)
    strongest = [part.feature for part in shares.by_feature]
    return replace(
        shares,
        groups=tuple(step.groups for step in steps),
        examples=examples(shown, decided, policy, steps[0], strongest),
    )


def action_shares(decided: DecidedRows, bins: Sequence[Bins] = ()) -> ActionShares:
    """A policy's decisions in the logged states, by step and feature; `bins` are the binned features, if known."""
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
    """Share of the variance of probabilities [rows, actions] that the bins explain, corrected for chance."""
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
    # If all users get the same, rounding leaves differences of about 1e-16, which no feature explains.
    return max(0.0, (between - (used - 1) * within) / total) if total > 1e-12 * rows else 0.0


@dataclass(frozen=True, eq=False)
class GroupedStep:
    """The groups of a step and their rows."""

    groups: StepGroups
    rows: list[NDArray[np.int64]]
    """Indices into the decided rows, by group."""


@dataclass(frozen=True, eq=False)
class _Cut:
    """A split of a leaf: the bins of one feature that go to either side."""

    gain: float
    feature: int
    sides: tuple[frozenset[int], frozenset[int]]


@dataclass(frozen=True, eq=False)
class _Leaf:
    rows: NDArray[np.int64]
    allowed: Mapping[int, frozenset[int]]
    """The remaining bins of each feature that was split on."""
    cut: _Cut | None


def grouped_steps(decided: DecidedRows, bins: Sequence[Bins]) -> list[GroupedStep]:
    """Users in groups, most expensive first, at every step or, if there are many steps, at evenly spaced ones."""
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
    """Sum of squares of rows [rows, actions] about their mean."""
    return float(((given - given.mean(axis=0)) ** 2).sum())


def _grown(decided: DecidedRows, bins: Sequence[Bins], rows: NDArray[np.int64], total: float) -> list[_Leaf]:
    """Grow a tree by splitting, each time, the leaf whose split explains most."""
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
    """The split with the least variance within its two sides."""
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
            # Rows are centred, so the right side's sum is minus the left side's.
            gains = np.where(fits, (moved**2).sum(axis=1) * (1 / np.maximum(left, 1) + 1 / np.maximum(right, 1)), 0.0)
            if len(gains) and gains.max() > (best.gain if best else 0.0):
                at = int(gains.argmax()) + 1
                sides = frozenset(order[:at].tolist()), frozenset(order[at:].tolist())
                best = _Cut(float(gains.max()), feature, sides)
    return best


def _orders(part: Bins, counts: FloatArray, spent: FloatArray) -> Iterator[NDArray[np.int64]]:
    """Orders of the non-empty bins along which to split: numbers ascending with missing values at either end,
    categories by their mean cost."""
    used = np.flatnonzero(counts)
    if part.edges is None:
        yield used[np.argsort(spent[used] / counts[used], kind="stable")]
        return
    missing = len(part.labels) - 1
    yield used
    if used[-1] == missing:
        yield np.concatenate([used[-1:], used[:-1]])


def _conditions(leaf: _Leaf, bins: Sequence[Bins], rows: NDArray[np.int64]) -> Iterator[Condition]:
    for feature, allowed in leaf.allowed.items():
        part = bins[feature]
        there = sorted(set(np.unique(part.of_row[rows]).tolist()))
        yield Condition(part.feature, "is " + _words(part, sorted(allowed & set(there)), there))


def _words(part: Bins, allowed: list[int], there: list[int]) -> str:
    """The allowed bins of a feature in words, relative to the bins that occur."""
    missing = len(part.labels) - 1
    named = [place for place in allowed if place != missing]
    others = [place for place in there if place != missing and place not in named]
    aside = " or missing" if missing in allowed and named else ""
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


MISSING, OTHERS = "(missing)", "(others)"
_BINS, _LABELS = 5, 8
_FEW_ABOVE = 1 / 3
"""Each of the smallest whole numbers has its own bin if at most this share of values is larger."""
_DIGITS = 15  # the precision of a double


@dataclass(frozen=True, eq=False)
class Bins:
    """The rows of a log, binned by one feature."""

    feature: str
    labels: list[str]
    of_row: NDArray[np.int64]
    """Index into the labels, [rows]."""
    edges: FloatArray | None = None
    """Largest value of each bin but the last, [bins - 1]; None for categories."""


def all_bins(features: FeatureTable) -> Iterator[Bins]:
    """Every feature in bins."""
    for place, name in enumerate(features.numeric_names):
        yield _number_bins(name, features.numeric[:, place].astype(np.float64))
    for place, name in enumerate(features.category_names):
        yield _category_bins(name, features.codes[:, place], features.labels[place])


def plain_numbers(values: Sequence[float], digits: int = 3) -> list[str]:
    """Numbers without exponents, with enough digits to tell them apart."""
    different = len(set(values))
    while True:
        shown = [_plain(value, digits) for value in values]
        if len(set(shown)) >= different or digits >= _DIGITS:
            return shown
        digits += 1


def between(low: float | None, high: float | None, whole: bool) -> str:
    """The interval (low, high] in words; None is unbounded. `whole` numbers are described by possible values."""
    if not whole:
        ends = plain_numbers([end for end in (low, high) if end is not None])
        return f"at most {ends[0]}" if low is None else f"over {ends[0]}" if high is None else " to ".join(ends)
    first, last = ("" if end is None else _plain(end, _DIGITS) for end in (None if low is None else low + 1, high))
    if low is None or high is None:
        return f"at most {last}" if low is None else f"{first} or more"
    return last if first == last else f"{first} to {last}"


def _plain(value: float, digits: int) -> str:
    if value == 0 or not np.isfinite(value):
        return f"{value:g}"
    places = max(digits - 1 - int(np.floor(np.log10(abs(value)))), 0)
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _number_bins(name: str, values: FloatArray) -> Bins:
    """One bin per value where there are few, else quantiles; missing values have their own bin."""
    present = values[~np.isnan(values)]
    distinct = np.unique(present)
    if len(distinct) <= _BINS:
        labels = _few(distinct)
        edges, of_row = distinct[:-1], np.searchsorted(distinct, values)
    else:
        edges = _edges(present, distinct)
        labels = _labels(edges, distinct)
        of_row = np.searchsorted(edges, values)
    of_row = np.where(np.isnan(values), len(labels), of_row).astype(np.int64)
    return Bins(name, [*labels, MISSING], of_row, edges)


def _few(distinct: FloatArray) -> list[str]:
    """Labels for one bin per value; the values 0 and 1 mean a boolean."""
    if distinct.tolist() == [0.0, 1.0]:
        return ["no", "yes"]
    return plain_numbers(distinct.tolist(), 4)


def _edges(present: FloatArray, distinct: FloatArray) -> FloatArray:
    """Largest value of each bin but the last, [bins - 1]."""
    if _whole(distinct) and np.mean(present > distinct[_BINS - 2]) <= _FEW_ABOVE:
        return distinct[: _BINS - 1]  # mostly small counts: one bin each
    cut = np.quantile(present, np.arange(1, _BINS) / _BINS)
    edges = np.unique(np.floor(cut) if _whole(distinct) else cut)
    edges = edges[(edges >= distinct[0]) & (edges < distinct[-1])]
    return edges if len(edges) else distinct[-2:-1]  # most values equal the maximum


def _labels(edges: FloatArray, distinct: FloatArray) -> list[str]:
    whole = _whole(distinct)
    if whole:  # both ends are known, so a bin of one value can be named by it
        ends = [float(distinct[0]) - 1, *edges.tolist(), float(distinct[-1])]
        last = len(edges) if distinct[-1] > edges[-1] + 1 else None
        return [between(low, None if at == last else high, True) for at, (low, high) in enumerate(pairwise(ends))]
    shown = plain_numbers(edges.tolist())
    return [f"up to {shown[0]}", *(f"{low} to {high}" for low, high in pairwise(shown)), f"over {shown[-1]}"]


def _whole(values: FloatArray) -> bool:
    return bool((values == np.floor(values)).all())


def _category_bins(name: str, codes: NDArray[np.int32], labels: tuple[str, ...]) -> Bins:
    """One bin for each of the most frequent labels, one for the others, and one for missing values."""
    frequent = np.argsort(-np.bincount(codes[codes >= 0], minlength=len(labels)), kind="stable")[:_LABELS]
    named = np.sort(frequent)
    place = np.full(len(labels) + 1, len(named), dtype=np.int64)
    place[named] = np.arange(len(named))
    place[-1] = len(named) + 1  # the code of a missing value is −1
    return Bins(name, [*(labels[code] for code in named), OTHERS, MISSING], place[codes])


def examples(
    shown: Shown, decided: DecidedRows, policy: DeployedPolicy, step: GroupedStep, strongest: Sequence[str]
) -> tuple[Example, ...]:
    """The most typical user of some groups of a step, with the value of every action; different decisions come first.

    `strongest` are the features that explain most of the decisions.
    """
    groups = _different(step)
    rows = np.array([_typical(decided, step.rows[place]) for place in groups], dtype=np.int64)
    pricing = policy.pricing
    price = int(np.argmax(pricing.shares))  # the price that most users follow
    states, left = shown.encoded.states[rows], shown.encoded.steps_left[rows]
    eligibility = None if shown.encoded.eligibility is None else shown.encoded.eligibility[rows]

    def of_member(own: DeployedPolicy, some: Rows) -> ActionValues:
        of_member = None if eligibility is None else eligibility[some]
        return own.valuer.values(states[some], left[some], pricing.table[[price]], of_member)

    values = ActionValues(*policy.by_member(shown.encoded.row_keys[rows], of_member, (0, 0, 1)))
    q, chances, to_go = (np.asarray(part, dtype=np.float64) for part in (values.q, values.probabilities, values.to_go))
    found = []
    for at, (place, row) in enumerate(zip(groups, rows, strict=True)):
        named = [condition.feature for condition in step.groups.groups[place].conditions]
        figures = np.stack([chances[at, 0], *to_go[:2, at, 0], q[at, 0]], axis=1).tolist()
        alternatives = tuple(
            Alternative(label, *values) for label, values in zip(policy.catalogue.labels, figures, strict=True)
        )
        wanted = list(dict.fromkeys([*named, *strongest]))[:_KNOWN]
        found.append(Example(step.groups.step, known_values(decided.log.features, int(row), wanted), alternatives))
    return tuple(found)


def known_values(features: FeatureTable, row: int, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Some features of a row, as text."""
    return tuple((name, _value(features, row, name)) for name in names)


def _value(features: FeatureTable, row: int, name: str) -> str:
    if name in features.category_names:
        place = features.category_names.index(name)
        code = int(features.codes[row, place])
        return MISSING if code < 0 else features.labels[place][code]
    column = features.numeric[:, features.numeric_names.index(name)]
    if np.isnan(column[row]):
        return MISSING
    present = column[~np.isnan(column)]
    if set(np.unique(present[:10_000]).tolist()) <= {0.0, 1.0}:
        return "yes" if column[row] else "no"
    return plain_numbers([float(column[row])], 4)[0]


def _different(step: GroupedStep) -> list[int]:
    """Indices of some groups: first the largest for each most likely action, then others by size."""
    order = sorted(range(len(step.rows)), key=lambda place: -len(step.rows[place]))
    first: dict[int, int] = {}
    for place in order:
        first.setdefault(int(np.argmax(step.groups.groups[place].probabilities)), place)
    chosen = [*first.values(), *(place for place in order if place not in first.values())][:_EXAMPLES]
    return sorted(chosen)


def _typical(decided: DecidedRows, rows: NDArray[np.int64]) -> int:
    """The row whose probabilities are closest to its group's mean."""
    given = decided.probabilities[rows]
    return int(rows[((given - given.mean(axis=0)) ** 2).sum(axis=1).argmin()])
