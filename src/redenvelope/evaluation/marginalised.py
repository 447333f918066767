"""Doubly robust with marginalised ratios: how much likelier the policy meets a state, whatever led there.

Products of ratios grow with every step; the ratio of a state's probabilities does not. Where users meet the same
states, this is the estimate with the least variance (double reinforcement learning, Kallus and Uehara).

The ratio of a state is the mean weight with which users arrive there: a regression on states, step after step, each
learned from the users of other folds. A regression bounded below does not keep the mean of what it is fitted to, and
step after step the errors multiply: so it is scaled to the mean of the weights, over the users it was learned from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from redenvelope.arrays import FloatArray, IntArray
from redenvelope.errors import UsageError
from redenvelope.evaluation.data import OffPolicyData, Rows
from redenvelope.evaluation.doubly_robust import doubly_robust
from redenvelope.evaluation.estimators import Estimator, Prepared
from redenvelope.evaluation.partitions import Folds, Partitions

# Regressions of arrival weights on states, for all folds at once, by sums that merge over partitions.

Features = NDArray[np.floating]


class Arriving(NamedTuple):
    """Users of one fold who arrive at a step."""

    features: Features
    """Of the states they arrive in, [n, features]."""
    weights: FloatArray
    """By what each other fold has learned so far, [folds − 1, n, prices]; [n, prices] where that is the same. A fold
    does not learn from its own users."""
    blocks: tuple[int, ...] = ()
    """Widths of nested sets of leading features to choose from, rising; none is all of them."""


class Fitted(Protocol):
    """What was learned for each fold from the users of all others; ratios are not a number where nothing is known."""

    @property
    def knows_all(self) -> bool:
        """Whether it has a ratio for every state."""
        ...

    def by_own(self, features: Features, fold: int) -> FloatArray:
        """Ratios by the regression of one fold, [n, features] -> [n, prices]."""
        ...

    def by_others(self, features: Features, fold: int) -> FloatArray:
        """Ratios by the regressions of all folds but one, [n, features] -> [folds − 1, n, prices]."""
        ...


class RegressionSums(Protocol):
    """All that a regression needs to know of users."""

    def merge(self, other: Self) -> Self:
        """The sums of two batches of users as those of all."""
        ...

    def fit(self) -> Fitted:
        """Learn from the sums of all users."""
        ...


class Regression(Protocol):
    """How arrival weights are regressed on states."""

    def sums(self, arriving: Sequence[Arriving]) -> RegressionSums:
        """Sums over the users of each fold, [folds]."""
        ...


@dataclass(frozen=True)
class MeansByCell:
    """Means by cell: states with the same features are of one cell."""

    def sums(self, arriving: Sequence[Arriving]) -> CellSums:
        """See Regression."""
        cells, place = _numbered([part.features for part in arriving])
        folds, prices = len(arriving), arriving[0].weights.shape[-1]
        sizes = np.stack([np.bincount(mine, minlength=len(cells)) for mine in place])
        sums = np.zeros((folds, len(cells), prices))
        for fold, (part, mine) in enumerate(zip(arriving, place, strict=True)):
            weights = np.broadcast_to(part.weights, (folds - 1, len(mine), prices))
            for other, learned in zip(others(folds, fold), weights, strict=True):
                sums[other] += cell_sums(mine, len(cells), learned)
        return CellSums(cells, sizes, sums)


@dataclass(frozen=True, eq=False)
class CellSums:
    """Users and weights by cell."""

    cells: Features
    """[cells, features], none twice."""
    sizes: NDArray[np.int64]
    """Users *in* each fold, [folds, cells]."""
    sums: FloatArray
    """Weights of the users of all other folds, [folds, cells, prices]."""

    def merge(self, other: CellSums) -> CellSums:
        """See RegressionSums."""
        cells, place = _numbered([self.cells, other.cells])
        sizes = np.zeros((len(self.sizes), len(cells)), dtype=np.int64)
        sums = np.zeros((len(self.sums), len(cells), self.sums.shape[2]))
        for mine, part in zip(place, (self, other), strict=True):
            sizes[:, mine] += part.sizes
            sums[:, mine] += part.sums
        return CellSums(cells, sizes, sums)

    def fit(self) -> CellMeans:
        """See RegressionSums."""
        learned = (self.sizes.sum(axis=0) - self.sizes)[:, :, None]
        means = np.full_like(self.sums, np.nan)
        np.divide(self.sums, learned, out=means, where=learned > 0)
        return CellMeans(self.cells, means)


@dataclass(frozen=True, eq=False)
class CellMeans:
    """The mean weight of users who arrive in a cell."""

    cells: Features
    """[cells, features], none twice."""
    means: FloatArray
    """[folds, cells, prices]; not a number where no user of another fold was."""

    @property
    def knows_all(self) -> bool:
        """See Fitted: a cell may be asked for that nobody was in."""
        return False

    def by_own(self, features: Features, fold: int) -> FloatArray:
        """See Fitted."""
        return np.asarray(self._means(features, np.array([fold]))[0])

    def by_others(self, features: Features, fold: int) -> FloatArray:
        """See Fitted."""
        return self._means(features, others(len(self.means), fold))

    def _means(self, features: Features, folds: NDArray[np.int64]) -> FloatArray:
        """[folds, n, prices]; not a number in cells that nobody was in."""
        cells, (known, asked) = _numbered([self.cells, features])
        means = np.full((len(folds), len(cells), self.means.shape[2]), np.nan)
        means[:, known] = self.means[folds]
        return means[:, asked]


def _numbered(parts: Sequence[Features]) -> tuple[Features, list[NDArray[np.int64]]]:
    """The cells of all parts [n, features] together, [cells, features], and which of them each row is of, [n] each."""
    cells, place = np.unique(np.concatenate(parts), axis=0, return_inverse=True)
    edges = np.cumsum([len(part) for part in parts])[:-1]
    return cells, np.split(place.reshape(-1).astype(np.int64), edges)


def others(folds: int, fold: int) -> NDArray[np.int64]:
    """All folds but one, [folds − 1]."""
    return np.flatnonzero(np.arange(folds) != fold)


# Ridge regression of arrival weights on features of states, which of them chosen on held-out users, all from sums.


@dataclass(frozen=True)
class RidgeOnFeatures:
    """Ridge regression on features; ratios are never negative, and the mean itself is not shrunk.

    Where the features are nested sets of columns, each fold takes the set with the least squared error on users that
    were held out from those it learns from: more columns than the log can tell apart make ratios, and so estimates,
    noisy; too few make them wrong.
    """

    penalty: float = 1.0

    def __post_init__(self) -> None:
        if not self.penalty > 0:
            raise UsageError(f"the penalty of a ridge regression must be above 0, not {self.penalty}")

    def sums(self, arriving: Sequence[Arriving]) -> RidgeSums:
        """See Regression."""
        inputs = [_with_constant(part.features) for part in arriving]
        folds, width, prices = len(arriving), inputs[0].shape[1], arriving[0].weights.shape[-1]
        products = np.zeros((folds, folds, width, prices))
        squared_weights = np.zeros((folds, folds, prices))
        for member, (part, columns) in enumerate(zip(arriving, inputs, strict=True)):
            learners = others(folds, member)
            products[learners, member] = columns.T @ part.weights
            squared_weights[learners, member] = np.einsum("...np,...np->...p", part.weights, part.weights)
        squares = np.stack([columns.T @ columns for columns in inputs])
        return RidgeSums(self.penalty, arriving[0].blocks or (width - 1,), squares, products, squared_weights)


@dataclass(frozen=True, eq=False)
class RidgeSums:
    """Products of features with themselves and with weights, by the fold that users are in (members).

    Weights of the same users differ by the fold that learns from them; none learns from its own.
    """

    penalty: float
    blocks: tuple[int, ...]
    """Widths of the nested sets of features."""
    squares: FloatArray
    """Of features: one pass serves all folds that learn, [members, 1 + features, 1 + features]."""
    products: FloatArray
    """Of features and weights, [folds, members, 1 + features, prices]."""
    squared_weights: FloatArray
    """[folds, members, prices]."""

    def merge(self, other: RidgeSums) -> RidgeSums:
        """See RegressionSums."""
        return RidgeSums(
            self.penalty,
            self.blocks,
            self.squares + other.squares,
            self.products + other.products,
            self.squared_weights + other.squared_weights,
        )

    def fit(self) -> Linear:
        """See RegressionSums."""
        users = np.rint(self.squares[:, 0, 0])  # the constant's square counts users
        chosen = np.stack([self._chosen(fold, users) for fold in range(len(users))])
        scales = np.zeros((len(users), 1 + int(chosen.max()), self.products.shape[-1]))
        for fold, widths in enumerate(chosen):
            known = others(len(users), fold)
            for width in np.unique(widths):
                solved = self._solved(fold, known, int(width)) if users[known].sum() > 0 else np.nan
                scales[fold, : 1 + width] = np.where(widths == width, solved, scales[fold, : 1 + width])
        return Linear(scales)

    def _chosen(self, fold: int, users: FloatArray) -> NDArray[np.int64]:
        """Width of the set of features that predicts best for a fold, judged on each other fold by the rest, [prices].

        Each price on its own: what is estimated at a price must not depend on which others are asked for.
        """
        members = [int(member) for member in others(len(users), fold) if users[member] > 0]
        if len(self.blocks) == 1 or len(members) < 2:
            return np.full(self.products.shape[-1], self.blocks[0])
        errors = np.zeros((len(self.blocks), self.products.shape[-1]))
        for member in members:
            rest = np.array([other for other in members if other != member])
            for place, width in enumerate(self.blocks):
                errors[place] += self._error(fold, member, self._solved(fold, rest, width))
        widths: NDArray[np.int64] = np.asarray(self.blocks)[errors.argmin(axis=0)]
        return widths

    def _solved(self, fold: int, members: NDArray[np.int64], width: int) -> FloatArray:
        """The line learned for a fold from some members by the first so many features, [1 + width, prices]."""
        used = slice(1 + width)
        ridge = self.penalty * np.eye(1 + width)
        ridge[0, 0] = 0.0
        squares = self.squares[members][:, used, used].sum(axis=0)
        return np.asarray(np.linalg.solve(squares + ridge, self.products[fold, members][:, used].sum(axis=0)))

    def _error(self, fold: int, member: int, line: FloatArray) -> FloatArray:
        """Squared error of a line [1 + width, prices] on the users of a member, [prices]."""
        used = slice(len(line))
        fitted = np.einsum("wp,wp->p", line, self.squares[member][used, used] @ line)
        return np.asarray(
            self.squared_weights[fold, member]
            - 2 * np.einsum("wp,wp->p", line, self.products[fold, member][used])
            + fitted
        )


@dataclass(frozen=True, eq=False)
class Linear:
    """A line for each fold and price, cut off at 0."""

    scales: FloatArray
    """[folds, 1 + features used, prices]; not a number for a fold that had nobody to learn from."""

    @cached_property
    def knows_all(self) -> bool:
        """See Fitted."""
        return not bool(np.isnan(self.scales).any())

    def by_own(self, features: Features, fold: int) -> FloatArray:
        """See Fitted."""
        found: FloatArray = self._inputs(features) @ self.scales[fold]
        return np.maximum(found, 0.0, out=found)

    def by_others(self, features: Features, fold: int) -> FloatArray:
        """See Fitted."""
        found: FloatArray = self._inputs(features) @ self.scales[others(len(self.scales), fold)]
        return np.maximum(found, 0.0, out=found)

    def _inputs(self, features: Features) -> FloatArray:
        return _with_constant(features[:, : self.scales.shape[1] - 1])


def _with_constant(features: Features) -> FloatArray:
    """[n, features] -> [n, 1 + features] in double precision, the constant first."""
    inputs = np.empty((len(features), 1 + features.shape[1]))
    inputs[:, 0] = 1.0
    inputs[:, 1:] = features
    return inputs


Predict = Callable[[Fitted, Features], FloatArray]
"""What was fitted for a step, and features [n, features] -> ratios by one fold, [n, prices], or by several."""


@dataclass(frozen=True)
class Marginalised(Estimator):
    """Right if either the ratios of states (with the propensities) or the baseline are right.

    Needs the features of states with the evidence, and as many passes as the longest user has steps.
    """

    regression: Regression = field(default_factory=RidgeOnFeatures)
    folds: int = 5
    seed: int = 0
    window: int = 0
    """Steps before the present one whose own actions are weighed too: what they do to the present is then known,
    whether the state shows it or not. 0 trusts the state; as many as there are is sequential doubly robust."""
    knows_past: bool = False
    """Whether ratios are also regressed on what happened before (`Evidence.past`), not on the state alone."""
    name: str = "marginalised"
    caution: float = 1.15
    """Ratios are learned, and what they are off by is shared by many users, which the spread of users does not show.
    Measured on 2,000 users (`benchmarks/honesty.py --kinds coverage`): the error is 1.05 to 1.14 plain standard errors,
    root mean square; of 160 bounds in campaigns whose state tells all, 146 cover if they are not widened, 153 so."""

    def __post_init__(self) -> None:
        if self.window < 0:
            raise UsageError(f"the window of steps cannot be negative: {self.window}")

    def looking_back(self, window: int) -> Marginalised:
        """The same with a window of so many steps, and a name that says so."""
        return replace(self, window=window, name=f"marginalised {window} before" if window else "marginalised")

    @classmethod
    def named(cls, name: str, seed: int) -> Marginalised:
        """The one of that name, whatever its window."""
        return cls(seed=seed).looking_back(next((int(word) for word in name.split() if word.isdecimal()), 0))

    def prepare(self, users: Partitions, discount: float) -> Prepared:
        """See Estimator."""
        key = ("marginal ratios", self.regression, self.folds, self.seed, self.knows_past)
        if key not in users.learned:  # estimators that differ by their window learn the same
            users.learned[key] = self.ratios(users)
        return Prepared(doubly_robust, partial(users.learned[key].weigh, window=self.window))

    def ratios(self, users: Partitions) -> MarginalRatios:
        """Learn the ratios of states, one pass a step.

        A pass sums up both what the next regression needs and what the last one gave. The last one's scale is not
        known then; but regressions are linear in the weights, so scales multiply, and are put on at the end.
        """
        folds = Folds(self.folds, self.seed)
        ratios = MarginalRatios(folds, (), (), self.knows_past)
        arrivals = self._arrivals(users, ratios)
        folds.check(arrivals.users)
        scale = np.ones_like(arrivals.weights)
        while len(ratios.fitted) < arrivals.steps - 1:
            ratios = replace(ratios, fitted=(*ratios.fitted, arrivals.regression.fit()))
            following = self._arrivals(users, ratios)
            change = np.divide(arrivals.weights, following.fitted, out=np.ones_like(scale), where=following.fitted > 0)
            scale = scale * change
            ratios = replace(ratios, scales=(*ratios.scales, scale))
            arrivals = following
        return ratios

    def _arrivals(self, users: Partitions, ratios: MarginalRatios) -> Arrivals:
        """One pass."""

        def of_part(part: OffPolicyData) -> Arrivals:
            # A pass looks at one step, so its batches may be of more users.
            columns = ratios.seen(part, slice(0, 1)).shape[1]
            batches = part.in_batches_of(max(part.prices, columns))
            return reduce(_merged, (ratios.arrivals(batch, self.regression) for batch in batches))

        return users.reduce_parts(of_part, _merged)


@dataclass(frozen=True, eq=False)
class Arrivals:
    """Sums over users at a step, and over those who arrive at the next one; for each fold, over all other users."""

    users: int
    """All of them, wherever they are."""
    steps: int
    """Steps of the longest user."""
    fitted: FloatArray
    """Fitted ratios of the step, before they are scaled, [folds, prices]."""
    weights: FloatArray
    """Weights with which users arrive at the next step, [folds, prices]."""
    regression: RegressionSums
    """What the regression of the next step needs."""


@dataclass(frozen=True, eq=False)
class MarginalRatios:
    """Ratios of state probabilities, policy over logger, as learned for the first steps or for all."""

    folds: Folds
    fitted: tuple[Fitted, ...]
    """For every step after the first: for each fold, a regression that was learned from all other users."""
    scales: tuple[FloatArray, ...]
    """What each of them is multiplied by, [folds, prices]."""
    knows_past: bool = False
    """Whether they are of states and what happened before."""

    def seen(self, evidence: OffPolicyData, rows: Rows) -> Features:
        """What ratios are regressed on, of some rows, [n, columns]."""
        if evidence.features is None:
            raise UsageError(
                "marginalised ratios are learned from features of states: give `features` to the evidence, or use "
                "another estimator"
            )
        if not self.knows_past:
            return evidence.features[rows]
        if evidence.past is None:
            raise UsageError("the evidence does not tell what happened before: give `past` to it")
        return np.concatenate([evidence.features[rows, : self._state_columns(evidence)], evidence.past[rows]], axis=1)

    def blocks(self, evidence: OffPolicyData) -> tuple[int, ...]:
        """Widths of nested sets of what is seen, to choose from."""
        return () if self.knows_past else evidence.feature_blocks

    def _state_columns(self, evidence: OffPolicyData) -> int | None:
        """Columns of the state alone, without products: with the past there would be too many of them."""
        return evidence.feature_blocks[0] if evidence.feature_blocks else None

    def weigh(self, evidence: OffPolicyData, window: int = 0) -> OffPolicyData:
        """The evidence with weights that are ratios of states times that of the step's own action; those of a user
        come from other folds. With a window, ratios of the states so many steps before, times those of all actions
        since."""
        weights = np.empty((evidence.steps, evidence.users, evidence.prices))
        weights[0] = evidence.ratio[evidence.positions[0][1]]
        members, shortest = self._members(evidence), int(evidence.lengths.min())
        states = [np.ones((evidence.users, evidence.prices))] if window else []
        for position, scale in enumerate(self.scales, start=1):
            if position >= shortest:
                weights[position] = weights[position - 1]
                members = [users[evidence.lengths[users] > position] for users in members]
            found = np.concatenate(
                [
                    self._unscaled(evidence, position, users, partial(_by_own, fold=fold)) * scale[fold]
                    for fold, users in enumerate(members)
                ]
            )
            users = np.concatenate(members)
            first = max(position - window, 0)
            if window:
                states.append(np.empty_like(states[0]))
                states[position][users] = found
                found = states[first][users]
            for earlier in range(first, position + 1):
                found *= evidence.ratio[evidence.starts[users] + earlier]
            weights[position, users] = found
        return replace(evidence, own_weights=weights)

    def arrivals(self, evidence: OffPolicyData, regression: Regression) -> Arrivals:
        """Sums over users at the last step that was learned, and over those of them who go on."""
        position, folds = len(self.fitted), self.folds.count
        fitted, totals = np.zeros((folds, evidence.prices)), np.zeros((folds, evidence.prices))
        arriving = []
        for fold, everybody in enumerate(self._members(evidence)):
            users = everybody[evidence.lengths[everybody] > position]
            others = np.flatnonzero(np.arange(folds) != fold)
            ratios = self._unscaled(evidence, position, users, partial(_by_others, fold=fold))
            # A product with ones is several times faster than a sum.
            fitted[others] += np.ones(len(users)) @ ratios
            ratios *= evidence.ratio[evidence.starts[users] + position]
            going = evidence.lengths[users] > position + 1
            weights = ratios if going.all() else ratios[..., going, :]
            totals[others] += np.ones(weights.shape[-2]) @ weights
            states = self.seen(evidence, evidence.starts[users[going]] + position + 1)
            arriving.append(Arriving(states, weights, self.blocks(evidence)))
        return Arrivals(evidence.users, evidence.steps, fitted, totals, regression.sums(arriving))

    def _members(self, evidence: OffPolicyData) -> list[IntArray]:
        """The users of each fold, [folds] lists of [n]."""
        fold = self.folds.of(evidence.keys)
        return [np.flatnonzero(fold == number) for number in range(self.folds.count)]

    def _unscaled(self, evidence: OffPolicyData, position: int, users: IntArray, predict: Predict) -> FloatArray:
        """Ratios of users [n] at a step before they are scaled, as predicted, or [n, prices] at the first."""
        if not position:
            return np.ones((len(users), evidence.prices))
        fitted = self.fitted[position - 1]
        found = predict(fitted, self.seen(evidence, evidence.starts[users] + position))
        if not fitted.knows_all:
            # A state that no other user met: the user's own arrival is all there is.
            arrived = self._unscaled(evidence, position - 1, users, predict)
            arrived *= evidence.ratio[evidence.starts[users] + position - 1]
            np.copyto(found, arrived, where=np.isnan(found))
        return found


def _by_own(fitted: Fitted, features: Features, fold: int) -> FloatArray:
    return fitted.by_own(features, fold)


def _by_others(fitted: Fitted, features: Features, fold: int) -> FloatArray:
    return fitted.by_others(features, fold)


def _merged(first: Arrivals, second: Arrivals) -> Arrivals:
    """The sums of two batches of users as those of all."""
    return Arrivals(
        users=first.users + second.users,
        steps=max(first.steps, second.steps),
        fitted=first.fitted + second.fitted,
        weights=first.weights + second.weights,
        regression=first.regression.merge(second.regression),
    )


# Baselines from the log itself, for states that fall into cells: fitted Q evaluation, cross-fitted over users.


def fitted_values(
    evidence: OffPolicyData,
    cells: NDArray[np.integer],
    action: NDArray[np.integer],
    probabilities: NDArray[np.floating],
    *,
    discount: float = 1.0,
    folds: int = 5,
    seed: int = 0,
) -> OffPolicyData:
    """The same evidence with a baseline learned from it: mean outcomes and followers by step, cell and action.

    `cells` [rows] is the cell of each row's state, `action` [rows] the logged one, `probabilities` [rows, prices,
    actions] (or [rows, actions]) the policy's. A user's baseline comes from the other folds' users.
    """
    shares = probabilities.reshape(evidence.rows, -1, probabilities.shape[-1])
    if shares.shape[1] != evidence.prices or cells.shape != (evidence.rows,):
        raise UsageError("cells must be [rows] and probabilities [rows, prices, actions], as in the evidence")
    crossed = Folds(folds, seed)
    crossed.check(evidence.users)
    fold_of_row = np.repeat(crossed.of(evidence.keys), evidence.lengths)
    places = np.unique(cells, return_inverse=True)[1]
    size = (len(evidence.outcomes), evidence.rows, evidence.prices)
    values, action_values = np.empty(size), np.empty(size)
    for fold in range(folds):
        fitted_state, fitted_action = _fit(evidence, places, action, shares, fold_of_row != fold, discount)
        held = fold_of_row == fold
        values[:, held], action_values[:, held] = fitted_state[:, held], fitted_action[:, held]
    return evidence.with_baseline(values, action_values)


def cell_sums(cells: IntArray, count: int, values: FloatArray) -> FloatArray:
    """Sums of values [n, columns] by cell [n], [count, columns]."""
    members = csr_array((np.ones(len(cells)), (cells, np.arange(len(cells)))), shape=(count, len(cells)))
    return np.asarray(members @ values)


def cell_means(cells: IntArray, count: int, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Means of values [n, columns] by cell [n], [count, columns], and how many each cell has, [count]."""
    sizes = np.bincount(cells, minlength=count).astype(np.float64)
    return cell_sums(cells, count, values) / np.maximum(sizes, 1.0)[:, None], sizes


def _fit(
    evidence: OffPolicyData,
    cells: IntArray,
    action: NDArray[np.integer],
    shares: NDArray[np.floating],
    train: NDArray[np.bool_],
    discount: float,
) -> tuple[FloatArray, FloatArray]:
    """Values of states and of logged actions, [outcomes, rows, prices], learned from the rows of `train` [rows]."""
    outcomes, prices, actions = len(evidence.outcomes), evidence.prices, shares.shape[2]
    count = int(cells.max()) + 1
    values = np.zeros((outcomes, evidence.rows, prices))
    action_values = np.zeros_like(values)
    following = np.zeros((outcomes, evidence.users, prices))
    for users, rows in reversed(evidence.positions):
        ahead = evidence.outcomes[:, rows, None] + discount * following[:, users]
        pair = cells[rows] * actions + action[rows]
        known = train[rows]
        columns = np.moveaxis(ahead, 0, 1).reshape(len(pair), -1)
        table = _table(pair[known], columns[known], action[rows][known], count, actions)
        table = table.reshape(count * actions, outcomes, prices)
        action_values[:, rows] = np.moveaxis(table[pair], 1, 0)
        by_action = table.reshape(count, actions, outcomes, prices)[cells[rows]]
        values[:, rows] = np.einsum("nda,natd->tnd", shares[rows], by_action, optimize=True)
        following[:, users] = values[:, rows]
    return values, action_values


def _table(pair: IntArray, columns: FloatArray, action: NDArray[np.integer], count: int, actions: int) -> FloatArray:
    """Means by cell and action, [cells × actions, columns]; where none was seen, those of the action, then of all."""
    if not len(pair):
        return np.zeros((count * actions, columns.shape[1]))
    means, sizes = cell_means(pair, count * actions, columns)
    by_action, seen = cell_means(action.astype(np.int64), actions, columns)
    by_action[seen == 0] = columns.mean(axis=0)
    return np.where(sizes[:, None] > 0, means, np.tile(by_action, (count, 1)))
