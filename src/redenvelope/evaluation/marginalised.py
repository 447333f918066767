"""Marginalised ratios, and doubly robust with them: how much likelier the policy meets a state, whatever led there.

The variance of cumulative products of ratios grows with every step; the ratio of state probabilities does not. If users
meet the same states, this estimate has the least variance (double reinforcement learning, Kallus and Uehara).

A state's ratio is the mean weight with which users arrive there: a regression of weights on states, step after step,
cross-fitted over folds of users. A regression bounded below does not keep the mean of its targets, and these errors
would multiply over steps, so its predictions are scaled to the mean weight of the users it was learned from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray, IntArray
from redenvelope.errors import UsageError
from redenvelope.evaluation.data import OffPolicyData, Rows
from redenvelope.evaluation.doubly_robust import doubly_robust
from redenvelope.evaluation.estimators import Estimator, Prepared
from redenvelope.evaluation.jackknife import SparsePrices, learning_factor
from redenvelope.evaluation.partitions import Folds, Partitions, as_partitions
from redenvelope.merging import MAXIMUM, SAME, FieldwiseSums, Mergeable, merged
from redenvelope.randomness import member_of

Features = NDArray[np.floating]


class Arriving(NamedTuple):
    """The users of one fold who arrive at a step."""

    features: Features
    """Features of the states they arrive in, [n, features]."""
    weights: FloatArray
    """Arrival weights by the regressions of each other fold so far, [folds − 1, n, prices]; [n, prices] if all are
    equal. A fold does not learn from its own users."""
    blocks: tuple[int, ...] = ()
    """Ascending widths of nested sets of leading features to choose from; if empty, all are used."""


class Fitted(Protocol):
    """A regression per fold, learned from the users of all other folds; ratios are NaN where nothing is known."""

    @property
    def knows_all(self) -> bool:
        """Whether every state has a ratio."""
        ...

    def by_own(self, features: Features, fold: int) -> FloatArray:
        """Ratios by the regression of one fold, [n, features] -> [n, prices]."""
        ...

    def by_others(self, features: Features, fold: int) -> FloatArray:
        """Ratios by the regressions of all other folds, [n, features] -> [folds − 1, n, prices]."""
        ...


class RegressionSums(Mergeable, Protocol):
    """The mergeable sums over users that a regression needs."""

    def fit(self) -> Fitted:
        """Fit the regression to the sums of all users."""
        ...


class Regression(Protocol):
    """A regression of arrival weights on states."""

    def sums(self, arriving: Sequence[Arriving]) -> RegressionSums:
        """Sums over the users of each fold, [folds]."""
        ...


def others(folds: int, fold: int) -> NDArray[np.int64]:
    """Indices of all folds but one, [folds − 1]."""
    return np.flatnonzero(np.arange(folds) != fold)


@dataclass(frozen=True)
class RidgeOnFeatures:
    """Ridge regression on features; ratios are never negative, and the intercept is not shrunk.

    With nested sets of features, each fold takes the set with the least squared error under cross-validation among the
    folds it learns from: with too many columns for the log, ratios are noisy; with too few, they are biased.
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
class RidgeSums(FieldwiseSums):
    """Products of features with themselves and with weights, by the fold that users are in (members).

    A user's weights differ by the fold that learns from them; no fold learns from its own users.
    """

    penalty: float = field(metadata=SAME)
    blocks: tuple[int, ...] = field(metadata=SAME)
    """Widths of the nested sets of features."""
    squares: FloatArray
    """Products of features, [members, 1 + features, 1 + features]; the same for all folds that learn."""
    products: FloatArray
    """Products of features and weights, [folds, members, 1 + features, prices]."""
    squared_weights: FloatArray
    """[folds, members, prices]."""

    def fit(self) -> Linear:
        """See RegressionSums."""
        users = np.rint(self.squares[:, 0, 0])  # the squared intercept column counts users
        chosen = np.stack([self._chosen(fold, users) for fold in range(len(users))])
        scales = np.zeros((len(users), 1 + int(chosen.max()), self.products.shape[-1]))
        for fold, widths in enumerate(chosen):
            known = others(len(users), fold)
            for width in np.unique(widths):
                solved = self._solved(fold, known, int(width)) if users[known].sum() > 0 else np.nan
                scales[fold, : 1 + width] = np.where(widths == width, solved, scales[fold, : 1 + width])
        return Linear(scales)

    def _chosen(self, fold: int, users: FloatArray) -> NDArray[np.int64]:
        """Width of the best-predicting set of features for a fold, by cross-validation over the other folds, [prices].

        It is chosen separately for each price, so an estimate does not depend on which other prices are evaluated.
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
        """Coefficients for a fold, learned from `members` with the first `width` features, [1 + width, prices]."""
        used = slice(1 + width)
        ridge = self.penalty * np.eye(1 + width)
        ridge[0, 0] = 0.0
        squares = self.squares[members][:, used, used].sum(axis=0)
        return np.asarray(np.linalg.solve(squares + ridge, self.products[fold, members][:, used].sum(axis=0)))

    def _error(self, fold: int, member: int, line: FloatArray) -> FloatArray:
        """Squared error of coefficients [1 + width, prices] on the users of a member, [prices]."""
        used = slice(len(line))
        fitted = np.einsum("wp,wp->p", line, self.squares[member][used, used] @ line)
        return np.asarray(
            self.squared_weights[fold, member]
            - 2 * np.einsum("wp,wp->p", line, self.products[fold, member][used])
            + fitted
        )


@dataclass(frozen=True, eq=False)
class Linear:
    """Linear predictions for each fold and price, clipped at 0."""

    scales: FloatArray
    """Coefficients, [folds, 1 + features used, prices]; NaN for a fold without users to learn from."""

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
    """Prepend an intercept: [n, features] -> [n, 1 + features] in double precision."""
    inputs = np.empty((len(features), 1 + features.shape[1]))
    inputs[:, 0] = 1.0
    inputs[:, 1:] = features
    return inputs


Predict = Callable[[Fitted, Features], FloatArray]
"""The fitted regression of a step, and features [n, features] -> ratios by one fold, [n, prices], or by several."""


@dataclass(frozen=True)
class Marginalised(Estimator):
    """Doubly robust with marginalised ratios: consistent if either the state ratios (with the propensities) or the
    baseline are right.

    Needs features of states in the data, and as many passes as the longest user has steps.
    """

    regression: Regression = field(default_factory=RidgeOnFeatures)
    folds: int = 5
    seed: int = 0
    window: int = 0
    """Number of earlier steps whose ratios are multiplied in, so that their effects on the present step are included
    whether the state shows them or not. 0 relies on the state; all steps give sequential doubly robust."""
    knows_past: bool = False
    """Whether ratios are also regressed on the past (`OffPolicyData.past`), not only on the state."""
    members: int = 1
    """Number of members of the evaluated policy; ratios are learned separately from the users of each."""
    name: str = "marginalised"

    def __post_init__(self) -> None:
        if self.window < 0:
            raise UsageError(f"the window of steps cannot be negative: {self.window}")

    def looking_back(self, window: int) -> Marginalised:
        """The same estimator with a window of `window` steps, named accordingly."""
        return replace(self, window=window, name=f"marginalised {window} before" if window else "marginalised")

    @classmethod
    def named(cls, name: str, seed: int, members: int = 1) -> Marginalised:
        """The estimator of this name, whatever its window."""
        return cls(seed=seed, members=members).looking_back(
            next((int(word) for word in name.split() if word.isdecimal()), 0)
        )

    def prepare(self, users: Partitions, discount: float) -> Prepared:
        """See Estimator."""
        key = ("marginal ratios", self.regression, self.folds, self.seed, self.knows_past, self.members)
        if key not in users.learned:  # estimators that differ only by their window learn the same ratios
            users.learned[key] = tuple(self.ratios(own) for own in _by_member(users, self.members))
        return Prepared(doubly_robust, partial(_weighed, ratios=users.learned[key], window=self.window))

    def learning_factor(self, users: Partitions, discount: float, sparse: SparsePrices) -> FloatArray:
        """See Estimator: the errors of learned ratios are shared by many users."""

        def contributions(own: Partitions) -> FloatArray:
            ready = self.prepare(own, discount)
            return np.concatenate(list(own.each(lambda batch: ready.terms(ready.weigh(batch), discount).plain)), axis=1)

        return learning_factor(contributions, users, sparse)

    def ratios(self, users: Partitions) -> MarginalRatios:
        """Learn the ratios of states, one pass per step.

        A pass sums both what the next regression needs and the predictions of the last one, whose scale is not known
        before. But regressions are linear in the weights, so scales multiply, and are applied at the end.
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
        """One pass over users."""

        def of_part(part: OffPolicyData) -> Arrivals:
            # A pass uses one step at a time, so its batches can have more users.
            columns = ratios.inputs(part, slice(0, 1)).shape[1]
            batches = part.in_batches_of(max(part.prices, columns))
            return merged(ratios.arrivals(batch, self.regression) for batch in batches)

        return users.reduce_parts(of_part)


@dataclass(frozen=True, eq=False)
class Arrivals(FieldwiseSums):
    """Sums over users at a step, and over those who continue to the next one; per fold, over all other users."""

    users: int
    """Number of all users, whichever step they reach."""
    steps: int = field(metadata=MAXIMUM)
    """Number of steps of the longest user."""
    fitted: FloatArray
    """Sums of fitted ratios at the step, before scaling, [folds, prices]."""
    weights: FloatArray
    """Sums of weights with which users arrive at the next step, [folds, prices]."""
    regression: RegressionSums
    """Sums for the regression of the next step."""


@dataclass(frozen=True, eq=False)
class MarginalRatios:
    """Ratios of state probabilities, policy over behaviour policy, learned for the first steps or for all."""

    folds: Folds
    fitted: tuple[Fitted, ...]
    """One per step after the first: a regression per fold, learned from all other users."""
    scales: tuple[FloatArray, ...]
    """The factor of each regression, [folds, prices]."""
    knows_past: bool = False
    """Whether ratios are regressed on states and the past."""

    def inputs(self, data: OffPolicyData, rows: Rows) -> Features:
        """The regression inputs of some rows, [n, columns]."""
        if data.features is None:
            raise UsageError(
                "marginalised ratios are learned from features of states: pass `features` with the off-policy data, or "
                "use another estimator"
            )
        if not self.knows_past:
            return data.features[rows]
        if data.past is None:
            raise UsageError(
                "ratios that know the past need what happened before: pass `past` with the off-policy data"
            )
        return np.concatenate([data.features[rows], data.past[rows]], axis=1)

    def blocks(self, data: OffPolicyData) -> tuple[int, ...]:
        """Widths of the nested sets of inputs to choose from."""
        return () if self.knows_past else data.feature_blocks

    def weigh(self, data: OffPolicyData, window: int = 0) -> OffPolicyData:
        """The data with weights of marginalised ratios: the state's ratio, learned on other folds, times the ratio of
        the step's own action. With a window, the ratio of the state that many steps before, times the ratios of all
        actions since."""
        weights = np.empty((data.steps, data.users, data.prices))
        weights[0] = data.ratio[data.positions[0][1]]
        members, shortest = self.folds.members(data.keys), int(data.lengths.min())
        states = [np.ones((data.users, data.prices))] if window else []
        for position, scale in enumerate(self.scales, start=1):
            if position >= shortest:
                weights[position] = weights[position - 1]
                members = [users[data.lengths[users] > position] for users in members]
            found = np.concatenate(
                [
                    self._unscaled(data, position, users, partial(_by_own, fold=fold)) * scale[fold]
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
                found *= data.ratio[data.starts[users] + earlier]
            weights[position, users] = found
        return replace(data, own_weights=weights)

    def arrivals(self, data: OffPolicyData, regression: Regression) -> Arrivals:
        """Sums over users at the last step learned so far, and over those who continue."""
        position, folds = len(self.fitted), self.folds.count
        fitted, totals = np.zeros((folds, data.prices)), np.zeros((folds, data.prices))
        arriving = []
        for fold, members in enumerate(self.folds.members(data.keys)):
            users = members[data.lengths[members] > position]
            learners = others(folds, fold)
            ratios = self._unscaled(data, position, users, partial(_by_others, fold=fold))
            # A product with ones is several times faster than a sum.
            fitted[learners] += np.ones(len(users)) @ ratios
            ratios *= data.ratio[data.starts[users] + position]
            going = data.lengths[users] > position + 1
            weights = ratios if going.all() else ratios[..., going, :]
            totals[learners] += np.ones(weights.shape[-2]) @ weights
            states = self.inputs(data, data.starts[users[going]] + position + 1)
            arriving.append(Arriving(states, weights, self.blocks(data)))
        return Arrivals(data.users, data.steps, fitted, totals, regression.sums(arriving))

    def _unscaled(self, data: OffPolicyData, position: int, users: IntArray, predict: Predict) -> FloatArray:
        """Ratios of users [n] at a step before scaling, shaped as predicted; ones [n, prices] at the first step."""
        if not position:
            return np.ones((len(users), data.prices))
        fitted = self.fitted[position - 1]
        found = predict(fitted, self.inputs(data, data.starts[users] + position))
        if not fitted.knows_all:
            # No other user met this state, so the user's own arrival weight is used.
            arrived = self._unscaled(data, position - 1, users, predict)
            arrived *= data.ratio[data.starts[users] + position - 1]
            np.copyto(found, arrived, where=np.isnan(found))
        return found


def _by_member(users: Partitions, members: int) -> list[Partitions]:
    """Partition the users by the member of the policy that they follow, without baselines, which ratios do not need."""
    if members == 1:
        return [users]
    found: list[list[OffPolicyData]] = [[] for _ in range(members)]
    for part in users.parts():
        member = member_of(part.keys, members)
        for number in np.unique(member):
            found[number].append(_without_baseline(part).of_users(member == number))
    return [as_partitions(own, users.engine) for own in found]


def _weighed(data: OffPolicyData, ratios: tuple[MarginalRatios, ...], window: int) -> OffPolicyData:
    """The data with weights by the ratios of the member that each user follows."""
    if len(ratios) == 1:
        return ratios[0].weigh(data, window)
    member, weights = member_of(data.keys, len(ratios)), np.empty((data.steps, data.users, data.prices))
    for number in np.unique(member):
        chosen = member == number
        weights[:, chosen] = ratios[number].weigh(_without_baseline(data).of_users(chosen), window).weights
    return replace(data, own_weights=weights)


def _without_baseline(data: OffPolicyData) -> OffPolicyData:
    return replace(data, values=None, action_values=None)


def _by_own(fitted: Fitted, features: Features, fold: int) -> FloatArray:
    return fitted.by_own(features, fold)


def _by_others(fitted: Fitted, features: Features, fold: int) -> FloatArray:
    return fitted.by_others(features, fold)
