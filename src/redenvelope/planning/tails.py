"""A tail: what a tree leaves out, as a regression on the state that follows and on what the tree itself says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Tail", "fit_tail"]

FloatArray = NDArray[np.float64]
SingleArray = NDArray[np.float32]

# Small enough to change nothing that the data can tell, and large enough for columns that repeat each other.
_RIDGE = 1e-6


@dataclass(frozen=True, eq=False)
class Tail:
    """Linear in inputs and in the tree's own outcomes, for every outcome and price; never beyond what was seen."""

    constant: SingleArray
    """[outcomes, prices]."""
    slopes: SingleArray
    """Of the inputs, [inputs, outcomes, prices]."""
    tree_slopes: SingleArray
    """Of the tree's outcomes, [outcomes, tree outcomes, prices]."""
    least: SingleArray
    """[outcomes, prices]."""
    greatest: SingleArray
    """[outcomes, prices]."""

    def predict(self, inputs: SingleArray, tree: SingleArray) -> SingleArray:
        """[n, actions, inputs], [outcomes, n, prices, actions] -> [outcomes, n, prices, actions]."""
        n, actions, width = inputs.shape
        outcomes, prices = self.constant.shape
        linear = inputs.reshape(-1, width) @ self.slopes.reshape(width, -1)
        result = np.empty((outcomes, n, prices, actions), dtype=np.float32)
        for place, part in enumerate(np.moveaxis(linear.reshape(n, actions, outcomes, prices), 2, 0)):
            found = result[place]
            found[...] = part.transpose(0, 2, 1)
            found += self.constant[place][:, None]
            for source, slope in zip(tree, self.tree_slopes[place], strict=True):
                found += source * slope[:, None]
            np.clip(found, self.least[place][:, None], self.greatest[place][:, None], out=found)
        return result


def fit_tail(inputs: FloatArray, tree: FloatArray, targets: FloatArray, weights: FloatArray) -> Tail:
    """Regress targets [outcomes, n, prices] on inputs [n, inputs] and the tree's own outcomes, of the same shape as the
    targets, price by price.

    `weights` [n, prices] say how much each counts.
    """
    count, _, prices = targets.shape
    width = inputs.shape[1]
    slopes = np.empty((width + len(tree), count, prices))
    constant = np.empty((count, prices))
    for price in range(prices):
        design = np.column_stack([inputs, *tree[:, :, price]])
        slopes[:, :, price], constant[:, price] = _ridge(design, targets[:, :, price].T, weights[:, price])
    return Tail(
        constant=constant.astype(np.float32),
        slopes=slopes[:width].astype(np.float32),
        tree_slopes=np.moveaxis(slopes[width:], 1, 0).astype(np.float32),
        least=targets.min(axis=1).astype(np.float32),
        greatest=targets.max(axis=1).astype(np.float32),
    )


def _ridge(design: FloatArray, outcome: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Slopes [columns, outcomes] and constants [outcomes] of [n, columns], [n, outcomes] and [n]."""
    shares = weights / weights.sum()
    centre, mean = shares @ design, shares @ outcome
    columns = design - centre
    scale = np.sqrt(shares @ columns**2)
    # A column that does not vary says nothing: its slope is left at zero.
    scale[scale <= 1e-6 * np.maximum(np.abs(centre), 1.0)] = np.inf
    columns /= scale
    weighted = (columns * shares[:, None]).T
    gram = weighted @ columns + _RIDGE * np.eye(design.shape[1])
    slopes = np.linalg.solve(gram, weighted @ (outcome - mean)) / scale[:, None]
    return slopes, mean - centre @ slopes
