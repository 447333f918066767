"""Regressions of arrival weights on states, for all folds at once, by sums that merge over partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from redenvelope.evaluation.tabular import cell_sums

__all__ = [
    "Arriving",
    "CellMeans",
    "CellSums",
    "Fitted",
    "MeansByCell",
    "Regression",
    "RegressionSums",
    "others",
]

FloatArray = NDArray[np.float64]
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
