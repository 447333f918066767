"""Which actions the nodes of trees allow: what a user may get, and what a constraint says of each state on the way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import UsageError
from redenvelope.policies.constraints import Constraint

__all__ = ["NodeMasks"]


@dataclass(frozen=True, eq=False)
class NodeMasks:
    """The masks of some users' trees."""

    eligible: NDArray[np.bool_]
    """What each user may get at every step, [users, actions]; at least one action each."""
    steps_left: NDArray[np.intp]
    """At the root, [users]."""
    constraint: Constraint | None = None
    """Asked at every node."""

    def at(self, states: NDArray[np.float32], depth: int) -> NDArray[np.bool_]:
        """Of the nodes at a depth, whose states are [users · nodes, width]: [actions, users, nodes].

        A node with nothing left allows the cheapest action that its user may get.
        """
        users, actions = self.eligible.shape
        nodes = len(states) // users
        own = np.repeat(self.eligible, nodes, axis=0)
        if self.constraint is not None:
            left = np.repeat(self.steps_left - depth, nodes)
            said = np.asarray(self.constraint.eligible(states, left), dtype=bool)
            if said.shape != own.shape:
                raise UsageError(f"a constraint must answer with a mask of shape {own.shape}, not {said.shape}")
            both = own & said
            nothing = np.flatnonzero(~both.any(axis=1))
            both[nothing, own[nothing].argmax(axis=1)] = True
            own = both
        return np.ascontiguousarray(own.T).reshape(actions, users, nodes)
