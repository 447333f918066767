"""Which actions the nodes of trees allow: what a user may get, and what a constraint says of each state on the way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.planning.branching import Branching, branch_shares
from redenvelope.policies.constraints import Constraint
from redenvelope.policies.standing import Standing, allowed

__all__ = ["NodeMasks"]


@dataclass(frozen=True, eq=False)
class NodeMasks:
    """The masks of some users' trees, level after level."""

    standing: Standing
    """Of the nodes of a level, in the order of their users, then of their parents, then of their branches."""
    steps_left: NDArray[np.intp]
    """Of each node, [users · nodes]."""
    users: int
    constraint: Constraint | None = None
    """Asked at every node."""

    @classmethod
    def at_root(cls, standing: Standing, steps_left: NDArray[np.intp], constraint: Constraint | None) -> NodeMasks:
        """Of users who stand there, with so many steps left, [users]."""
        return cls(standing, steps_left, len(standing), constraint)

    def at(self, states: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Of this level's nodes, whose states are [users · nodes, width]: [actions, users, nodes].

        A node with nothing left allows the cheapest action that its user may get.
        """
        own = allowed(self.standing, self.constraint, states, self.steps_left)
        return np.ascontiguousarray(own.T).reshape(own.shape[1], self.users, -1)

    def below(self, branching: Branching, depth: int) -> NodeMasks:
        """The masks of the next level, one step on from nodes at a depth."""
        actions = np.arange(branching.actions)
        if depth and not branching.is_full:
            # A branch belongs to the action that takes all its future from it.
            actions = np.argmax(branch_shares(branching.actions, branching.branches), axis=0)
        nodes = np.repeat(np.arange(len(self.standing)), len(actions))
        moved = self.standing[nodes].after(self.constraint, np.tile(actions, len(self.standing)))
        return NodeMasks(moved, self.steps_left[nodes] - 1, self.users, self.constraint)
