"""What thinning a tree costs: a thinned tree's values against those of the full tree."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from redenvelope.models.environment import EnvironmentModel
from redenvelope.planning.backup import backup
from redenvelope.planning.branching import NODE_LIMIT, Branching
from redenvelope.planning.checks import checked_states
from redenvelope.planning.grow import grow

__all__ = ["ThinningError", "thinning_error"]


class ThinningError(NamedTuple):
    """How far the action values of a thinned tree are from those of the full tree."""

    depth: int
    """Steps at which the two were compared."""
    mean: float
    """Mean absolute difference of q over users, prices and actions."""
    largest: float
    """Largest absolute difference."""
    loss: float
    """Mean value lost, by the full tree, by choosing the first action of the thinned one."""
    spread: float
    """Mean difference between the best and the worst action in the full tree: the scale of the others."""


def thinning_error(
    model: EnvironmentModel,
    states: ArrayLike,
    branching: Branching,
    prices: ArrayLike,
    node_limit: int = 100 * NODE_LIMIT,
) -> ThinningError:
    """Compare with the full tree on a sample of states [users, width] at prices [prices, budgets], without entropy.

    The comparison goes as deep as a full tree within `node_limit` nodes a user: the same branching is
    compared at that depth where the whole depth is out of reach.
    """
    reach = branching.depth
    while reach > 1 and branching.actions ** (reach - 1) > node_limit:
        reach -= 1
    rows = checked_states(states)
    thin = backup(grow(model, rows, branching.at_depth(reach)), prices, 0.0)
    full = backup(grow(model, rows, Branching.full(branching.actions, reach)), prices, 0.0)
    exact = full.q.astype(np.float64)
    difference = np.abs(thin.q - exact)
    loss = exact.max(axis=2) - (exact * thin.probabilities).sum(axis=2)
    return ThinningError(
        depth=reach,
        mean=float(difference.mean()),
        largest=float(difference.max()),
        loss=float(loss.mean()),
        spread=float(np.ptp(exact, axis=2).mean()),
    )
