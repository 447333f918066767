"""Leakage: columns that predict the outcome or the action too well to have been known when the action was chosen.

A column is suspected if it explains most of an outcome on held-out users, or if it depends on the drawn action given
the propensity (`randomization.py`); it is cleared if the draws show that it was known. `Evidence` has what is tested.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray, IntArray
from redenvelope.audit.randomization import Lottery, lottery, one_of_each
from redenvelope.audit.statistics import ROUNDING, Cells, category_cells, number_cells
from redenvelope.errors import UsageError
from redenvelope.log.columns import nearest_name
from redenvelope.log.findings import Findings
from redenvelope.log.log import Log, join_logs
from redenvelope.randomness import fold, fraction

LeakKind = Literal["same row", "next row", "only row", "total", "one step", "effect", "action"]

SUSPECT = 0.5
"""Held-out R² of an outcome's residual given action, step and previous row, from which a column is suspected."""

_CANCEL = 0.5  # squares of users' sums over sums of squares: given a trait, steps are independent and do not cancel
_SURE = 5.0  # standard errors; strict, because hundreds of columns are tested in several ways
_SURE_OF_MANY = 6.0  # the same for a sum of squares, whose tail is heavier
_EFFECT = 0.1  # smallest share of the action's effect on the outcome that is in the column
_SIGNAL = 0.03  # relative to the noise of a row: in large logs, rounding of propensities alone causes smaller ones
_ODDS = 0.05  # mean relative difference of odds from the logged ones; the same reason
_CLEAR, _CLEARED = 3.0, 0.5  # standard errors by which a column differs from a leak, and its largest share
_HARDLY, _INTERPLAY = (0.02, 0.03)  # shares explained by the action: of the outcome, and of a column's residual
_MOST_PAIRS = 4_500
_MOST_STEPS = 50


@dataclass(frozen=True)
class Leak:
    """A column that may have been unknown when the action was chosen, and why."""

    column: str
    kind: LeakKind
    outcome: str
    """The outcome that it predicts; "action" if it predicts only the action."""
    now: float
    """Held-out R² of the outcome, share of the action's effect, or relative difference of the action's odds."""
    before: float
    """The same figure for what was known before, as far as it can be estimated."""
    z: float
    """Dependence of the column on the action beyond the logged propensities, in standard errors; 0 if there is none."""
    step: int | None = None
    """The step whose outcome it predicts, if it is a single one."""
    known: bool = False
    """Whether the user confirmed that it was known (--known-before)."""

    @property
    def evidence(self) -> str:
        """The evidence in words, a sentence without its subject."""
        now, before = f"{min(self.now, 1.0):.0%}", f"{max(self.before, 0.0):.0%}"
        predicts = f"predicts the {self.outcome}"
        fit = f"held-out R² {now} of what action and step leave"
        return {
            "same row": f"{predicts} in the same row ({fit}; the user's previous row: {before})",
            "next row": f"{predicts} in the NEXT row ({fit}; that row's own value: {before})",
            "only row": f"{predicts} in the same row ({fit})",
            "total": f"{predicts} over a user's complete campaign ({fit}; a trait would explain about {before}): "
            "given its value, the steps of a user offset one another",
            "one step": f"{predicts} at step {self.step} ({fit}; at other steps: {before})",
            "effect": f"moves with the action as the {self.outcome} does: it contains {now} of the action's effect "
            f"(z = {self.z:.0f}), although nothing known before can depend on the action given its propensity",
            "action": f"predicts which action was sent: given its value, the odds of actions differ by {now} from the "
            f"logged propensities (z = {self.z:.0f}), which should contain all that was known before",
        }[self.kind]


def suspected_leaks(sample: Sequence[Log], known_before: Collection[str] = ()) -> tuple[Leak, ...]:
    """The suspected columns, in column order; `sample` is a log in parts, or a sample of its users."""
    _require_features(sample, known_before)
    if sum(len(part.users) for part in sample) < FEWEST_USERS:
        return ()
    evidence = Evidence(join_logs(sample))
    found = [_judged(evidence, column) for column in evidence.columns()]
    return tuple(replace(leak, known=leak.column in known_before) for leak in found if leak is not None)


def report_leaks(leaks: Iterable[Leak], findings: Findings) -> None:
    """Report each leak under the rule of its kind."""
    for leak in leaks:
        contradicts = leak.kind in ("effect", "action")
        rule = "feature_tells_action" if contradicts else "feature_suspected_leak"
        findings.add("feature_said_known" if leak.known else rule, column=leak.column, evidence=leak.evidence)


def _require_features(sample: Sequence[Log], names: Collection[str]) -> None:
    """Refuse names that are not features: a misspelt name would leave the intended column under suspicion."""
    features = sample[0].features.names if sample else ()
    unknown = sorted(set(names) - set(features))
    if unknown and sample:
        nearest = nearest_name(unknown[0], features)
        meant = f"; did you mean {nearest!r}?" if nearest else f"; the features are {', '.join(features[:30])}"
        raise UsageError(f"--known-before: {unknown[0]!r} is not a feature of this log{meant}")


def _judged(evidence: Evidence, column: Column) -> Leak | None:
    moves = _clearest_move(evidence, column) if evidence.drawn else None
    tells = max(_tells(evidence, column), key=lambda leak: leak.now, default=None)
    if tells is None:
        return moves
    return tells if moves is None else replace(tells, z=moves.z)


def _clearest_move(evidence: Evidence, column: Column) -> Leak | None:
    """Evidence that a column depends on the action: for the outcome that it predicts best, or the action itself."""
    moves = {leak.outcome: leak for leak in sorted(_moves(evidence, column), key=lambda leak: leak.z)}
    if not moves:
        return _departs(evidence, column)
    told = dict.fromkeys(moves, 0.0)
    for outcome, left in zip(evidence.log.outcome_names, evidence.left, strict=True):
        if outcome in moves:
            told[outcome] = share_told(left, column.cells, evidence.fold, evidence.folds)
    clearest = moves[max(told, key=lambda outcome: told[outcome])]
    if max(told.values()) < _HARDLY:  # it predicts outcomes only as far as the action does, so it predicts the action
        return _departs(evidence, column) or clearest
    return clearest


def _tells(evidence: Evidence, column: Column) -> Iterator[Leak]:
    """Where a column predicts an outcome better than anything known could, unless the draws show that it was known."""
    for place, outcome in enumerate(evidence.log.outcome_names):
        if not evidence.left[place].any():
            continue
        if not evidence.has_past:
            yield from _of_only_rows(evidence, column, place, outcome)
        elif column.static:
            yield from _of_totals(evidence, column, place, outcome)
            yield from _of_one_step(evidence, column, place, outcome)
        else:
            yield from _of_later_rows(evidence, column, place, outcome)


def _of_only_rows(evidence: Evidence, column: Column, place: int, outcome: str) -> Iterator[Leak]:
    now = share_told(evidence.left[place], column.cells, evidence.fold, evidence.folds)
    if now >= SUSPECT and not _cleared(evidence, evidence.draws, evidence.outcomes[place], column.cells, place):
        yield Leak(column.name, "only row", outcome, now, 0.0, 0.0)


def _of_later_rows(evidence: Evidence, column: Column, place: int, outcome: str) -> Iterator[Leak]:
    """Compare a dynamic column with its own value in the previous row, and with that row's outcomes."""
    here, draws = evidence.following, evidence.later_draws
    rest, whole = evidence.later_left[place], evidence.left[place][here]

    def told(cells: Cells) -> float:
        return share_told(rest, cells, draws.fold, draws.folds)

    def of_whole(share: float) -> float:
        return 1 - (1 - share) * float(rest @ rest) / float(whole @ whole)

    own, before = column.cells.at(here), column.cells.at(here - 1)
    by_own, by_before = told(own), max(told(before), 0.0)
    designs = [own] if column.change is None else [own, column.change]
    if own.count**2 <= _MOST_PAIRS:
        designs.append(before.beside(own))
    for cells in designs:  # the simplest first, because its R² is the most precise
        now = told(cells)
        if beyond(now, by_before) >= SUSPECT:
            if not _cleared(evidence, draws, evidence.outcomes[place][here], cells, place):
                yield Leak(column.name, "same row", outcome, of_whole(now), of_whole(by_before), 0.0)
            return
    ahead = by_before >= SUSPECT and beyond(by_before, by_own) >= SUSPECT
    if ahead and not _cleared(evidence, draws, evidence.outcomes[place][here], before, place):
        yield Leak(column.name, "next row", outcome, of_whole(by_before), of_whole(max(by_own, 0.0)), 0.0)


def _of_totals(evidence: Evidence, column: Column, place: int, outcome: str) -> Iterator[Leak]:
    """Compare a static column with users' sums over all steps: given a trait, steps are independent or similar; given a
    function of their sum, they compensate for each other."""
    log, left = evidence.log, evidence.left[place]
    within = residuals(left, column.cells, evidence.fold, evidence.folds)
    alike, cancelled = step_agreement(left, log.user_of_row), step_agreement(within, log.user_of_row)
    totals, rest = log.sums_by_user(left), log.sums_by_user(within)
    now = 1 - float(rest @ rest) / max(float(totals @ totals), np.finfo(float).tiny)
    if alike and now >= SUSPECT and cancelled < _CANCEL * min(alike, 1.0):
        correlation = min(max((alike - 1) / (len(log) / len(log.users) - 1), 0.0), 1.0)
        yield Leak(column.name, "total", outcome, now, 1 - (1 - correlation) / max(alike, 1.0), 0.0)


def _of_one_step(evidence: Evidence, column: Column, place: int, outcome: str) -> Iterator[Leak]:
    """Compare a static column with the outcome of each step: a trait predicts several of them."""
    left, steps = evidence.left[place], int(evidence.step.max()) + 1
    if not 2 <= steps <= _MOST_STEPS:
        return
    shares = shares_by_step(left, column.cells, evidence.step, steps, evidence.fold, evidence.folds)
    shares[np.bincount(evidence.step, minlength=steps) < FEWEST_USERS] = 0.0
    top = int(np.argmax(shares))
    others = float(np.delete(shares, top).max())
    if shares[top] < SUSPECT or others > shares[top] / 2:
        return
    rows = np.flatnonzero(evidence.step == top)
    if not _cleared(evidence, evidence.draws.at(rows), evidence.outcomes[place][rows], column.cells.at(rows), place):
        yield Leak(column.name, "one step", outcome, float(shares[top]), others, 0.0, evidence.log.first_step + top)


def _cleared(evidence: Evidence, draws: Lottery, values: FloatArray, cells: Cells, place: int) -> bool:
    """Whether the draws show that a column was known before, however well it predicts the outcome `values` [rows].

    A column computed from an outcome depends on the action as the outcome does, with a share of 1. If the action hardly
    affects the outcome, it also hardly affects it among rows with equal values of such a column, whereas a column that
    was known before may determine the effect of the action.
    """
    if not evidence.drawn:
        return False
    moved = draws.moved(cells, place)
    if moved.share >= _CLEARED:
        return False
    if moved.share + _CLEAR * moved.error < 1:
        return True
    action = Cells(draws.action, len(draws.shares))

    def told(by: Cells) -> float:
        return share_told(values, by, draws.fold, draws.folds)

    return told(action) < _HARDLY and beyond(told(cells.beside(action)), told(cells)) >= _INTERPLAY


def _moves(evidence: Evidence, column: Column) -> Iterator[Leak]:
    """Where a column's prediction of an outcome depends on the action of its own row or of the next."""
    designs = [(evidence.draws, column.cells)]
    if not column.static and evidence.has_past:
        here, later = evidence.following, evidence.later_draws
        designs.append((later, column.cells.at(here - 1)))
        if column.change is not None:
            designs.append((later, column.change))
    for draws, cells in designs:
        for place, outcome in enumerate(evidence.log.outcome_names):
            moved = draws.moved(cells, place)
            if moved.z >= max(_SURE, _SIGNAL * len(draws.action) ** 0.5) and moved.share >= _EFFECT:
                yield Leak(column.name, "effect", outcome, moved.share, 0.0, moved.z)


def _departs(evidence: Evidence, column: Column) -> Leak | None:
    """Evidence that a column predicts the action, whatever it says about outcomes."""
    size, z = evidence.draws.departure(column.cells)
    if not column.static and evidence.has_past:
        later = evidence.later_draws.departure(column.cells.at(evidence.following - 1))
        size, z = max((size, z), later, key=lambda found: found[1])
    if z >= _SURE_OF_MANY and size >= _ODDS:
        return Leak(column.name, "action", "action", size, 0.0, z)
    return None


# What columns are tested against: residuals of outcomes given action, step and previous row, and the draws of actions.


FEWEST_USERS = 200
"""Fewest users; with fewer, a held-out R² is meaningless."""

_FOLDS = 5
_ACTIONS = 50  # the most frequent; all others are combined
_LAST_DIGITS = 1e-6  # relative size of the last digits of float32 numbers
_FOLLOWING = 0.2  # share of rows with a previous row from which on columns are compared with it


@dataclass(frozen=True, eq=False)
class Column:
    """One feature, binned in cells."""

    name: str
    static: bool
    cells: Cells
    """Cells of all rows."""
    change: Cells | None
    """Cells of the difference from the previous row, for rows that have one; None for categories and static ones."""


def leak_sample(log: Log, rows: int, most: int) -> Log | None:
    """A part's share of a sample of about `most` of the log's `rows` rows, by user id; None if empty."""
    chosen = one_of_each(log) & (fraction(log.keys, "leaks", 0) < most / rows)
    return log if chosen.all() else log.select(chosen) if chosen.any() else None


@dataclass(frozen=True, eq=False)
class Evidence:
    """The residuals and draws of a log, or of a sample of its users, that columns are tested against."""

    log: Log

    @cached_property
    def fold(self) -> IntArray:
        """Cross-fitting fold of each row's user, [rows]: R² is measured on other users than it is fitted on."""
        return np.repeat(fold(self.log.keys, _FOLDS, "leak folds", seed=0), self.log.lengths)

    @property
    def folds(self) -> int:
        """Number of folds."""
        return _FOLDS

    @cached_property
    def step(self) -> IntArray:
        """Steps counted from 0, [rows]."""
        return (self.log.step - self.log.first_step).astype(np.int64)

    @cached_property
    def action(self) -> IntArray:
        """Actions, with rare ones combined, [rows]."""
        counts = np.bincount(self.log.action)
        if len(counts) <= _ACTIONS:
            return self.log.action.astype(np.int64)
        place = np.full(len(counts), _ACTIONS, dtype=np.int64)
        place[np.argsort(-counts, kind="stable")[:_ACTIONS]] = np.arange(_ACTIONS)
        return place[self.log.action]

    @cached_property
    def following(self) -> IntArray:
        """Indices of rows that have a previous row."""
        first = np.zeros(len(self.log), dtype=bool)
        first[self.log.starts[:-1]] = True
        return np.flatnonzero(~first)

    @property
    def has_past(self) -> bool:
        """Whether enough rows have a previous row to compare with."""
        return len(self.following) >= max(FEWEST_USERS, _FOLLOWING * len(self.log))

    @property
    def drawn(self) -> bool:
        """Whether propensities were logged, rather than estimated from the columns in question."""
        return self.log.propensity_source == "logged"

    @cached_property
    def draws(self) -> Lottery:
        """The draws of all rows."""
        log = self.log
        # With rare actions combined, eligibility is not used.
        few = len(log.catalogue) <= _ACTIONS
        eligible = log.eligible if few else None
        return lottery(self.action, log.propensity, self.step, log.outcomes, self.fold, _FOLDS, eligible)

    @cached_property
    def later_draws(self) -> Lottery:
        """The draws of the rows that have a previous row."""
        return self.draws.at(self.following)

    @cached_property
    def outcomes(self) -> FloatArray:
        """Outcomes minus their means by step, [outcomes, rows]."""
        counts = np.maximum(np.bincount(self.step), 1)
        return np.stack([row - (np.bincount(self.step, weights=row) / counts)[self.step] for row in self.log.outcomes])

    @cached_property
    def left(self) -> FloatArray:
        """Residuals of outcomes given action and step, [outcomes, rows]."""
        cell = self.step * len(self.draws.shares) + self.action
        weights = self.draws.weights  # weighted, so that an action's mean does not absorb what a column predicts
        totals = np.bincount(cell, weights=weights)
        totals[totals == 0] = 1.0
        rests = []
        for row in self.log.outcomes:
            rest = row - (np.bincount(cell, weights=weights * row) / totals)[cell]
            # If action and step determine an outcome, the residual is rounding, and there is nothing to explain.
            rests.append(rest if float(rest @ rest) > ROUNDING * float(row @ row) else np.zeros_like(rest))
        return np.stack(rests)

    @cached_property
    def later_left(self) -> FloatArray:
        """Residuals given also the outcomes of the previous row, [outcomes, following rows]."""
        here, before = self.following, self.following - 1
        known = [number_cells(row[before].astype(np.float32)) for row in self.log.outcomes]
        rest = []
        for row in self.left:
            values = row[here]
            for cells in known:
                values = residuals(values, cells, self.fold[here], _FOLDS)
            rest.append(values)
        return np.stack(rest)

    def columns(self) -> Iterator[Column]:
        """Yield the features in cells."""
        features, here = self.log.features, self.following
        for place, name in enumerate(features.numeric_names):
            values, static = features.numeric[:, place], name in features.static
            change = None
            if not static and len(here):
                change = number_cells(_change(values, here))
            yield Column(name, static, number_cells(values), change)
        for place, name in enumerate(features.category_names):
            cells = category_cells(features.codes[:, place], len(features.labels[place]))
            yield Column(name, name in features.static, cells, None)


def _change(values: NDArray[np.float32], here: IntArray) -> NDArray[np.float32]:
    """The difference of some rows from their previous row, [rows]; 0 where it is rounding of the usual value."""
    change = np.asarray(values[here] - values[here - 1])
    sizes = np.abs(values[np.isfinite(values) & (values != 0)])
    usual = float(np.median(sizes)) if len(sizes) else 0.0
    # A sum from which a term is subtracted again keeps a trace of that term in its last digits.
    change[np.abs(change) <= _LAST_DIGITS * usual] = 0.0
    return change


# How much of an outcome a column explains on held-out users, given action and step.


_PRIOR = 2.0  # rows of mean zero added to every cell, so that a handful of rows counts for little

_VARIES = 0.01  # share of the variance of the most variable step; less is negligible


def cell_means(values: FloatArray, cells: Cells, fold: NDArray[np.int64], folds: int) -> FloatArray:
    """The mean of values [rows] in each cell, over users of the other folds, [folds, cells]."""
    counts, sums = _tables(values, cells, fold, folds)
    means: FloatArray = (sums.sum(axis=0) - sums) / (counts.sum(axis=0) - counts + _PRIOR)
    return means


def residuals(values: FloatArray, cells: Cells, fold: NDArray[np.int64], folds: int) -> FloatArray:
    """Cross-fitted residuals of values given the cells, [rows]."""
    return np.asarray(values - cell_means(values, cells, fold, folds)[fold, cells.of_row])


def share_told(values: FloatArray, cells: Cells, fold: NDArray[np.int64], folds: int) -> float:
    """Held-out R² of values [rows] with mean zero, given the cells; may be negative."""
    total = float((values**2).sum())
    if not total > 0:
        return 0.0
    counts, sums = _tables(values, cells, fold, folds)
    means = cell_means(values, cells, fold, folds)
    return float((2 * means * sums - counts * means**2).sum()) / total


def beyond(now: float, before: float) -> float:
    """The share explained now of what was unexplained before."""
    return 1 - (1 - now) / (1 - max(before, 0.0)) if before < 1 else 0.0


def shares_by_step(
    values: FloatArray, cells: Cells, step: NDArray[np.int64], steps: int, fold: NDArray[np.int64], folds: int
) -> FloatArray:
    """`share_told` at each step separately, [steps]; zero where hardly anything varies."""
    apart = Cells(step * cells.count + cells.of_row, steps * cells.count)
    counts, sums = _tables(values, apart, fold, folds)
    means = cell_means(values, apart, fold, folds)
    gained = (2 * means * sums - counts * means**2).reshape(folds, steps, cells.count).sum(axis=(0, 2))
    total = np.bincount(step, weights=values**2, minlength=steps)
    return np.asarray(np.divide(gained, total, out=np.zeros(steps), where=total > _VARIES * total.max()))


def step_agreement(values: FloatArray, user: NDArray[np.int64]) -> float:
    """Squares of users' sums over sums of squares, values and users [rows]: about 1 if a user's steps are independent,
    more if they are similar, less if they compensate for each other."""
    total = float((values**2).sum())
    sums = np.bincount(user, weights=values)
    return float((sums**2).sum()) / total if total > 0 else 1.0


def _tables(values: FloatArray, cells: Cells, fold: NDArray[np.int64], folds: int) -> tuple[FloatArray, FloatArray]:
    """Rows and sums of each cell, each [folds, cells]."""
    place = fold * cells.count + cells.of_row
    counts = np.bincount(place, minlength=folds * cells.count).reshape(folds, cells.count)
    sums = np.bincount(place, weights=values, minlength=folds * cells.count).reshape(folds, cells.count)
    return counts.astype(np.float64), sums.astype(np.float64, copy=False)
