"""Grow: trees of mean outcomes, once for all prices, inside of a compiled program or level by level."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from redenvelope.arrays import library_of
from redenvelope.models.environment import users_leave
from redenvelope.planning.leaf_values import LeafNodes, LeafValues
from redenvelope.policies.eligibility_state import EligibilityState, allowed
from redenvelope.policies.policy import Constraint

NODE_LIMIT = 10_000
"""Nodes per user at the deepest level. At this size a user takes a few milliseconds."""
MODERATE_TREE = 128
"""The same, of trees whose depth nobody asked for: deeper ones gain little and slow every decision."""


class Tree(NamedTuple):
    """Outcomes along every sequence of actions. No price inside: only the backup knows what a cost counts.

    The nodes of a level are in the order of their users, then of their parents, with their branches beside each other.
    Users and nodes come last: where there is one price, they fill the vector registers.
    """

    levels: tuple[Any, ...]
    """Mean outcomes of every action at every node, [outcomes, actions, users, nodes], from the root, which has one node
    per user, to the last step planned."""
    masks: tuple[Any, ...] | None = None
    """Which actions every node allows, [actions, users, nodes] for each level; None allows all."""
    survival: tuple[Any, ...] | None = None
    """Chance of a next step after every action at every node, [actions, users, nodes] for each level that another, or
    leaves, follow; None where nobody leaves."""
    leaves: LeafNodes | None = None
    """Below the last level, where the campaign goes on; None where what follows is left out."""

    @property
    def users(self) -> int:
        """Number of users."""
        return int(self.levels[0].shape[2])

    @property
    def actions(self) -> int:
        """Number of actions."""
        return int(self.levels[0].shape[1])


class TreeRows(NamedTuple):
    """The users whose trees are grown; arrays of numpy, or of jax inside a compiled program."""

    states: Any
    """[users, width]"""
    steps_left: Any
    """This step included, [users]."""
    always: Any = None
    """What each user may get at this and every later step, [users, actions]; None allows all."""
    memory: Any = None
    """What the constraint remembers of each user, [users, columns]."""


def grow(
    model: Any,
    rows: TreeRows,
    depth: int,
    constraint: Constraint | None,
    ragged: bool,
    leaf_values: LeafValues | None = None,
) -> Tree:
    """The trees of some users to a depth, in a split model: inside of a compiled program, for few enough users that
    they stay in the cache; or, in an `AppliedModel`, with arrays of numpy. With leaves where `leaf_values` are given.

    `ragged` says that some of them may have fewer steps left than the trees are deep: below those nothing happens, and
    nobody gets there.
    """
    library = library_of(rows.states)
    users, first = len(rows.states), model.fixed_width
    fixed, nodes = model.fixed_parts(rows.states), rows.states[:, None, first:]
    masks = None
    if rows.always is not None:
        masks = NodeMasks(EligibilityState(rows.always, rows.memory), rows.steps_left, constraint)
    levels, allowed_actions, survival = [], [], []
    for level in range(depth):
        size = nodes.shape[1]
        if masks is not None:
            allowed_actions.append(masks.at(rows.states[:, :first], nodes))
        if level + 1 == depth and leaf_values is None:
            outcomes = list(model.node_outcomes(fixed[0], nodes))
        else:
            responses, children = model.node_steps(fixed, nodes)
            outcomes = list(responses)
            staying = outcomes.pop().reshape(-1, users, size) if users_leave(model) else None
            if ragged:
                ends = (rows.steps_left <= level + 1)[None, :, None]
                one = library.ones((len(outcomes[0]), users, size)) if staying is None else staying
                staying = library.where(ends, 0.0, one)
            if staying is not None:
                survival.append(staying)
            # A user's nodes are one group: what is fixed is added once per user, at every depth.
            nodes = children.reshape(users, size * children.shape[1], children.shape[2])
            masks = None if masks is None else masks.below(children.shape[1])
        found = library.stack([outcome.reshape(len(outcome), users, size) for outcome in outcomes])
        levels.append(library.where((rows.steps_left > level)[None, None, :, None], found, 0.0) if ragged else found)
    leaves = None
    if leaf_values is not None:
        columns = [nodes[..., leaf_values.layout.step - first :]]
        if leaf_values.masked:
            assert masks is not None
            columns += masks.told(rows.states[:, :first], nodes)
        leaves = LeafNodes(
            rows.states.T[..., None],
            library.moveaxis(library.concatenate(columns, axis=2), 2, 0),
            (rows.steps_left - depth)[:, None],
        )
    return Tree(tuple(levels), tuple(allowed_actions) or None, tuple(survival) or None, leaves)


class NodeMasks(NamedTuple):
    """Which actions the nodes of a level allow: what a user may get, and what a constraint says of predicted states."""

    eligibility: EligibilityState
    """Of the nodes, in the order of their users, then of their parents, then of their branches."""
    steps_left: Any
    """Of each node, [users · nodes]."""
    constraint: Constraint | None

    def at(self, fixed: Any, nodes: Any) -> Any:
        """Of nodes [users, nodes, changing] of users with fixed columns [users, fixed]: [actions, users, nodes].

        A node with nothing left allows the cheapest action that its user may get.
        """
        users, size, _ = nodes.shape
        library = library_of(nodes)
        before = library.broadcast_to(fixed[:, None], (users, size, fixed.shape[1]))
        states = library.concatenate([before, nodes], axis=2).reshape(users * size, fixed.shape[1] + nodes.shape[2])
        own = allowed(self.eligibility, self.constraint, states, self.steps_left)
        return own.T.reshape(own.shape[1], users, size)

    def told(self, fixed: Any, nodes: Any) -> list[Any]:
        """What values of nodes depend on besides their states: what they allow, and what the constraint remembers of
        them, each [users, nodes, columns]."""
        users, size, _ = nodes.shape
        columns = [self.at(fixed, nodes).reshape(-1, users * size).T.astype(np.float32)]
        if self.constraint is not None and self.constraint.remembers:
            columns.append(self.constraint.told(self.eligibility.memory))
        return [column.reshape(users, size, column.shape[1]) for column in columns]

    def below(self, actions: int) -> NodeMasks:
        """The masks of the next level."""
        count = len(self.eligibility)
        nodes = np.repeat(np.arange(count), actions)
        moved = self.eligibility[nodes].after(self.constraint, np.tile(np.arange(actions), count))
        return NodeMasks(moved, self.steps_left[nodes] - 1, self.constraint)


def nodes_at(actions: int, depth: int) -> int:
    """Nodes per user at the last level of a tree."""
    return int(actions ** (depth - 1))


def fit_depth(actions: int, depth: int, node_limit: int = NODE_LIMIT) -> int:
    """The most steps, up to `depth`, whose tree respects the limit."""
    while depth > 1 and nodes_at(actions, depth) > node_limit:
        depth -= 1
    return depth


def power_of_two(most: int) -> int:
    """The largest that is not above `most`, and at least 1."""
    return 1 << max(0, most.bit_length() - 1)
