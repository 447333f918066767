"""Ridge regression of arrival weights on features of states, which of them chosen on held-out users, all from sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import UsageError
from redenvelope.evaluation.regressions import Arriving, Features, others

__all__ = ["Linear", "RidgeOnFeatures", "RidgeSums"]

FloatArray = NDArray[np.float64]


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
