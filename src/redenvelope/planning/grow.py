"""Grow: every user's tree of mean outcomes, once for all prices."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.models.apply import fixed_parts, fixed_width, node_outcomes, node_steps, users_leave
from redenvelope.models.environment import EnvironmentModel, SplitModel
from redenvelope.planning.branching import Branching, Shares, branch_shares
from redenvelope.planning.masks import NodeMasks

__all__ = ["Tree", "grow", "grow_inside"]

FloatArray = NDArray[np.float32]


class Tree(NamedTuple):
    """Outcomes along every sequence of actions. No price inside: only the backup knows what cost counts.

    The nodes of a level are in the order of their users, then of their parents, with their branches beside each other.
    Users and nodes come last: where there is one price, they fill the vector registers.
    """

    levels: tuple[Any, ...]
    """Mean outcomes of every action at every node, [outcomes, actions, users, nodes], from the root, which has one node
    a user, to the last step planned."""
    masks: tuple[Any, ...] | None
    """Which actions every node allows, [actions, users, nodes] for each level; None allows all."""
    shares: Shares
    """See Branching."""
    survival: tuple[Any, ...] | None = None
    """Chance of a next step after every action at every node, [actions, users, nodes] for each level but the last; None
    where nobody leaves."""

    @property
    def users(self) -> int:
        """Number of users."""
        return int(self.levels[0].shape[2])

    @property
    def deepest_nodes(self) -> int:
        """Nodes a user at the last level."""
        return int(self.levels[-1].shape[3])


def grow(model: EnvironmentModel, states: FloatArray, branching: Branching, masks: NodeMasks | None = None) -> Tree:
    """The trees of that shape for states [users, width]; `masks` say which actions their nodes allow.

    Level by level, with the compiled programs that serve every depth: compiling a whole tree takes far longer. All
    trees are held in memory; a planner grows and backs up some users at a time.
    """
    users, first = len(states), fixed_width(model)
    fixed = fixed_parts(model, states)
    nodes = states[:, None, first:]
    levels, allowed, survival = [], [], []
    for depth in range(branching.depth):
        if masks is not None:
            allowed.append(masks.at(_whole(states[:, :first], nodes)))
            masks = masks.below(branching, depth) if depth + 1 < branching.depth else masks
        if depth + 1 == branching.depth:
            outcomes = node_outcomes(model, fixed[0], nodes)
        else:
            outcomes, staying, children = node_steps(model, fixed, nodes)
            nodes = children if depth == 0 else _followed(children, branching)
            if staying is not None:
                survival.append(staying.reshape(len(staying), users, -1))
        levels.append(outcomes.reshape(*outcomes.shape[:2], users, -1))
    return Tree(
        tuple(levels), tuple(allowed) if masks is not None else None, branching.shares(), tuple(survival) or None
    )


def grow_inside(model: SplitModel, states: jax.Array, branching: Branching) -> Tree:
    """The same trees inside of a compiled program, for few enough states [users, width] that they stay in the cache."""
    users = len(states)
    fixed = model.fixed_parts(states)
    nodes = states[:, None, model.fixed_width :]
    levels, survival = [], []
    for depth in range(branching.depth):
        if depth + 1 == branching.depth:
            outcomes = list(model.node_outcomes(fixed[0], nodes))
        else:
            responses, children = model.node_steps(fixed, nodes)
            outcomes = list(responses)
            if users_leave(model):
                staying = outcomes.pop()
                survival.append(staying.reshape(len(staying), users, -1))
            followed = children if depth == 0 else _followed(children, branching)
            # A user's nodes are one group: what is fixed is added once a user, at every depth.
            nodes = followed.reshape(users, -1, children.shape[2])
        levels.append(jnp.stack([outcome.reshape(len(outcome), users, -1) for outcome in outcomes]))
    return Tree(tuple(levels), None, branching.shares(), tuple(survival) or None)


def _followed(children: Any, branching: Branching) -> Any:
    """The children [nodes, actions, changing] that grow a branch, [nodes, branches, changing]."""
    if branching.is_full:
        return children
    # A branch belongs to the action that takes all its future from it.
    return children[:, np.argmax(branch_shares(branching.actions, branching.branches), axis=0)]


def _whole(fixed: FloatArray, nodes: FloatArray) -> FloatArray:
    """The states of nodes [groups, size, changing] of users whose other columns are fixed [users, fixed columns]."""
    changing = nodes.reshape(-1, nodes.shape[2])
    return np.concatenate([np.repeat(fixed, len(changing) // len(fixed), axis=0), changing], axis=1)
