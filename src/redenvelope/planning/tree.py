"""Trees of expected outcomes: every sequence of actions from a user's state, with mean predicted successors.

Outcomes and transitions do not depend on prices, so a tree is grown once (`grow`) and backed up for any number of
prices (`planning/choice.py`). `NodeMasks` carries eligibility down the tree; `fit_depth` keeps its size in bounds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from redenvelope.arrays import library_of
from redenvelope.models.environment import users_leave
from redenvelope.planning.leaf_values import LeafNodes, LeafValues
from redenvelope.policies.eligibility_state import EligibilityState, allowed
from redenvelope.policies.policy import Constraint

NODE_LIMIT = 10_000
"""Most nodes per user at the deepest level. At this size a user takes a few milliseconds."""
MODERATE_TREE = 128
"""The same for trees whose depth is a default: deeper ones gain little and slow every decision."""


class Tree(NamedTuple):
    """Expected outcomes along every sequence of actions, before any price is applied.

    The nodes of a level are ordered by user, then by parent, then by branch. Users and nodes are the last axes, so that
    they fill the vector registers when there is a single price.
    """

    levels: tuple[Any, ...]
    """Mean outcomes of every action at every node, [outcomes, actions, users, nodes], from the root, which has one node
    per user, to the last step planned."""
    masks: tuple[Any, ...] | None = None
    """Allowed actions at every node, [actions, users, nodes] per level; None allows all."""
    survival: tuple[Any, ...] | None = None
    """Survival probability after every action at every node, [actions, users, nodes] for each level that is followed by
    another level or by leaves; None if nobody leaves."""
    leaves: LeafNodes | None = None
    """The successors of the last level, for leaf values; None without them."""

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
    """Steps left, including this one, [users]."""
    always: Any = None
    """Actions eligible at this and every later step, [users, actions]; None allows all."""
    memory: Any = None
    """The constraint's memory of each user, [users, columns]."""


def grow(
    model: Any,
    rows: TreeRows,
    depth: int,
    constraint: Constraint | None,
    ragged: bool,
    leaf_values: LeafValues | None = None,
) -> Tree:
    """Grow the trees of some users to a depth, with leaves if `leaf_values` are given.

    With a split model it runs inside a compiled program, for few enough users that they stay in the cache; with an
    `AppliedModel`, on numpy arrays. `ragged` means that some users may have fewer steps left than the depth: outcomes
    beyond their last step are 0, and so is the probability of reaching them.
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
            # A user's nodes stay together, so that the fixed columns' part is added once per user at every depth.
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
    """Allowed actions at the nodes of a level: by the users' eligibility, and by the constraint in predicted states."""

    eligibility: EligibilityState
    """One row per node, ordered by user, then by parent, then by branch."""
    steps_left: Any
    """Steps left at each node, [users · nodes]."""
    constraint: Constraint | None

    def at(self, fixed: Any, nodes: Any) -> Any:
        """Allowed actions [actions, users, nodes] at nodes [users, nodes, changing] of users with fixed columns
        [users, fixed].

        A node at which nothing is allowed allows the cheapest action that its user may get.
        """
        users, size, _ = nodes.shape
        library = library_of(nodes)
        before = library.broadcast_to(fixed[:, None], (users, size, fixed.shape[1]))
        states = library.concatenate([before, nodes], axis=2).reshape(users * size, fixed.shape[1] + nodes.shape[2])
        own = allowed(self.eligibility, self.constraint, states, self.steps_left)
        return own.T.reshape(own.shape[1], users, size)

    def told(self, fixed: Any, nodes: Any) -> list[Any]:
        """The inputs of leaf values besides states: allowed actions and the constraint's memory, each
        [users, nodes, columns]."""
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
    """The largest depth, up to `depth`, whose tree respects the limit; at least 1."""
    while depth > 1 and nodes_at(actions, depth) > node_limit:
        depth -= 1
    return depth


def power_of_two(most: int) -> int:
    """The largest power of two not above `most`, at least 1."""
    return 1 << max(0, most.bit_length() - 1)
