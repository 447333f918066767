"""Doubly robust with marginalised ratios: how much likelier the policy meets a state, whatever led there.

Products of ratios grow with every step; the ratio of a state's probabilities does not. Where users meet the same
states, this is the estimate with the least variance (double reinforcement learning, Kallus and Uehara).

The ratio of a state is the mean weight with which users arrive there: a regression on states, step after step, each
learned from the users of other folds. A regression bounded below does not keep the mean of what it is fitted to, and
step after step the errors multiply: so it is scaled to the mean of the weights, over the users it was learned from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial, reduce

import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import UsageError
from redenvelope.evaluation.doubly_robust import doubly_robust
from redenvelope.evaluation.estimator import Estimator, Prepared
from redenvelope.evaluation.evidence import Evidence, Rows
from redenvelope.evaluation.folds import Folds
from redenvelope.evaluation.partitions import Partitions
from redenvelope.evaluation.regressions import Arriving, Features, Fitted, Regression, RegressionSums
from redenvelope.evaluation.ridge import RidgeOnFeatures

__all__ = ["MarginalRatios", "Marginalised"]

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.int64]
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

        def of_part(part: Evidence) -> Arrivals:
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

    def seen(self, evidence: Evidence, rows: Rows) -> Features:
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

    def blocks(self, evidence: Evidence) -> tuple[int, ...]:
        """Widths of nested sets of what is seen, to choose from."""
        return () if self.knows_past else evidence.feature_blocks

    def _state_columns(self, evidence: Evidence) -> int | None:
        """Columns of the state alone, without products: with the past there would be too many of them."""
        return evidence.feature_blocks[0] if evidence.feature_blocks else None

    def weigh(self, evidence: Evidence, window: int = 0) -> Evidence:
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

    def arrivals(self, evidence: Evidence, regression: Regression) -> Arrivals:
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

    def _members(self, evidence: Evidence) -> list[IndexArray]:
        """The users of each fold, [folds] lists of [n]."""
        fold = self.folds.of(evidence.keys)
        return [np.flatnonzero(fold == number) for number in range(self.folds.count)]

    def _unscaled(self, evidence: Evidence, position: int, users: IndexArray, predict: Predict) -> FloatArray:
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
