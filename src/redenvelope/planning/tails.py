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
    """Linear in inputs and in the tree's own reward and cost, for every target and dual; never beyond what was seen."""

    constant: SingleArray
    """[targets, duals]."""
    slopes: SingleArray
    """Of the inputs, [inputs, targets, duals]."""
    tree_slopes: SingleArray
    """Of the tree's reward and cost, [targets, 2, duals]."""
    least: SingleArray
    """[targets, duals]."""
    greatest: SingleArray
    """[targets, duals]."""

    def predict(self, inputs: SingleArray, tree: SingleArray) -> SingleArray:
        """[n, actions, inputs], [2, n, duals, actions] -> [targets, n, duals, actions]."""
        n, actions, width = inputs.shape
        targets, duals = self.constant.shape
        linear = inputs.reshape(-1, width) @ self.slopes.reshape(width, -1)
        result = np.empty((targets, n, duals, actions), dtype=np.float32)
        for target, part in enumerate(np.moveaxis(linear.reshape(n, actions, targets, duals), 2, 0)):
            found = result[target]
            found[...] = part.transpose(0, 2, 1)
            found += self.constant[target][:, None]
            for source, slope in zip(tree, self.tree_slopes[target], strict=True):
                found += source * slope[:, None]
            np.clip(found, self.least[target][:, None], self.greatest[target][:, None], out=found)
        return result


def fit_tail(inputs: FloatArray, tree: FloatArray, targets: FloatArray, weights: FloatArray) -> Tail:
    """Regress targets [targets, n, duals] on inputs [n, inputs] and the tree's values [2, n, duals], dual by dual.

    `weights` [n, duals] say how much each counts.
    """
    count, _, duals = targets.shape
    width = inputs.shape[1]
    slopes = np.empty((width + len(tree), count, duals))
    constant = np.empty((count, duals))
    for dual in range(duals):
        design = np.column_stack([inputs, *tree[:, :, dual]])
        slopes[:, :, dual], constant[:, dual] = _ridge(design, targets[:, :, dual].T, weights[:, dual])
    return Tail(
        constant=constant.astype(np.float32),
        slopes=slopes[:width].astype(np.float32),
        tree_slopes=np.moveaxis(slopes[width:], 1, 0).astype(np.float32),
        least=targets.min(axis=1).astype(np.float32),
        greatest=targets.max(axis=1).astype(np.float32),
    )


def _ridge(design: FloatArray, outcome: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Slopes [columns, targets] and constants [targets] of [n, columns], [n, targets] and [n]."""
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
