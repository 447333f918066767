"""The shape of a tree: when a full one would be too large, past the first step only some actions grow a branch.

An action without a branch of its own leads to its two neighbours' branches, in proportion to its place
between them in the catalogue. That is planning in a slightly different world, where such an action has a
random successor: every guarantee of a full tree holds there (cost cannot rise with its price, for one), no
price is involved, and the outcomes of every action at every node are still its own. What differs is the
future of the actions in between; `thinned.thinning_error` measures by how much.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import UsageError

__all__ = ["NODE_LIMIT", "Branching", "Shares", "branch_shares", "fit_branching"]

Shares = tuple[NDArray[np.float32] | None, ...]
"""For each level but the last, what each action's future takes from the branches below it, [actions, branches]; None
where every action has a branch of its own."""

# Nodes a user at the deepest level. At this size a user takes a few milliseconds and about 20 MB.
NODE_LIMIT = 10_000

# With one branch the future would not depend on the action at all.
_LEAST_BRANCHES = 2


@dataclass(frozen=True)
class Branching:
    """Every action branches at the root, `branches` of them below."""

    actions: int
    depth: int
    branches: int

    @classmethod
    def full(cls, actions: int, depth: int) -> Branching:
        """Every action branches at every step but the last."""
        return cls(actions, depth, actions)

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise UsageError(f"depth must be at least 1 step, not {self.depth}")

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
        """One entry for each level but the last."""
        if self.is_full:
            return (None,) * (self.depth - 1)
        below = branch_shares(self.actions, self.branches)
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
