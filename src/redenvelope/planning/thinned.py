"""Thinned trees: when a full tree would be too large, past the first step only some actions grow a branch.

An action without a branch of its own leads to its two neighbours' branches, in proportion to its place
between them in the catalogue. That is planning in a slightly different world, where such an action has a
random successor: every guarantee of a full tree holds there (cost cannot rise with the dual, for one), no
dual is involved, and the outcomes of every action at every node are still its own. What differs is the
future of the actions in between; `thinning_error` measures by how much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.errors import UsageError
from redenvelope.models.environment import EnvironmentModel
from redenvelope.planning.backup import backup
from redenvelope.planning.expand import Shares, Tree, expand, expand_shared

__all__ = [
    "NODE_LIMIT",
    "Branching",
    "ThinningError",
    "branch_shares",
    "expand_thinned",
    "fit_branching",
    "thinning_error",
]

# Nodes a user at the deepest level. At this size a user takes a few milliseconds and about 20 MB.
NODE_LIMIT = 10_000

# With one branch the future would not depend on the action at all.
_LEAST_BRANCHES = 2


@dataclass(frozen=True)
class Branching:
    """The shape of a tree: every action branches at the root, `branches` of them below."""

    actions: int
    depth: int
    branches: int

    @property
    def deepest_nodes(self) -> int:
        """Nodes a user at the last level."""
        return 1 if self.depth == 1 else self.actions * self.branches ** (self.depth - 2)

    @property
    def is_full(self) -> bool:
        """Whether every action has a branch wherever there is a next step."""
        return self.depth <= 2 or self.branches == self.actions

    def at_depth(self, depth: int) -> Branching:
        """The same branching, to fewer steps."""
        return Branching(self.actions, depth, self.branches)

    def shares(self) -> Shares:
        """What `grow` needs: one entry for each level but the last."""
        if self.is_full:
            return (None,) * (self.depth - 1)
        below = jnp.asarray(branch_shares(self.actions, self.branches))
        return (None, *(below,) * (self.depth - 2))


def fit_branching(actions: int, depth: int, node_limit: int = NODE_LIMIT) -> Branching:
    """The tree with the most steps, up to `depth`, and then the most branches, that respects the limit.

    Two steps are always planned if asked for: their tree has no more nodes than there are actions.
    """
    least = min(_LEAST_BRANCHES, actions)
    while depth > 2 and Branching(actions, depth, least).deepest_nodes > node_limit:
        depth -= 1
    branches = actions
    while branches > least and Branching(actions, depth, branches).deepest_nodes > node_limit:
        branches -= 1
    return Branching(actions, depth, branches)


def branch_shares(actions: int, branches: int) -> NDArray[np.float32]:
    """How much of each action's future each branch supplies, [actions, branches]; rows sum to one.

    The branches belong to actions evenly spread over the catalogue, the cheapest and the dearest included.
    """
    if not min(_LEAST_BRANCHES, actions) <= branches <= actions:
        raise UsageError(f"branches must be between 2 and the number of actions, {actions}; not {branches}")
    own = np.round(np.linspace(0, actions - 1, branches))
    columns = [np.interp(np.arange(actions), own, column) for column in np.eye(branches)]
    return np.stack(columns, axis=1).astype(np.float32)


def expand_thinned(model: EnvironmentModel, states: ArrayLike, branching: Branching) -> Tree:
    """The tree of that shape for states [users, width]."""
    return expand_shared(model, states, branching.shares(), branching.deepest_nodes)


class ThinningError(NamedTuple):
    """How far the action values of a thinned tree are from those of the full tree."""

    depth: int
    """Steps at which the two were compared."""
    mean: float
    """Mean absolute difference of q over users, duals and actions."""
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
    duals: ArrayLike,
    node_limit: int = 100 * NODE_LIMIT,
) -> ThinningError:
    """Compare with the full tree on a sample of states [users, width], without entropy.

    The comparison goes as deep as a full tree within `node_limit` nodes a user: the same branching is
    compared at that depth where the whole depth is out of reach.
    """
    reach = branching.depth
    while reach > 1 and branching.actions ** (reach - 1) > node_limit:
        reach -= 1
    thin = backup(expand_thinned(model, states, branching.at_depth(reach)), duals, 0.0)
    full = backup(expand(model, states, reach), duals, 0.0)
    difference = np.abs(np.asarray(thin.q, dtype=np.float64) - np.asarray(full.q))
    exact = np.asarray(full.q, dtype=np.float64)
    loss = exact.max(axis=2) - (exact * np.asarray(thin.probabilities)).sum(axis=2)
    return ThinningError(
        depth=reach,
        mean=float(difference.mean()),
        largest=float(difference.max()),
        loss=float(loss.mean()),
        spread=float(np.ptp(exact, axis=2).mean()),
    )
