"""Grow: every user's tree of mean outcomes, once for all prices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import Float32Array
from redenvelope.errors import UsageError
from redenvelope.models.environment import (
    EnvironmentModel,
    SplitModel,
    fixed_parts,
    fixed_width,
    node_outcomes,
    node_steps,
    users_leave,
)
from redenvelope.policies.eligibility_state import EligibilityState, allowed
from redenvelope.policies.policy import Constraint


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


def grow(model: EnvironmentModel, states: Float32Array, branching: Branching, masks: NodeMasks | None = None) -> Tree:
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


def _whole(fixed: Float32Array, nodes: Float32Array) -> Float32Array:
    """The states of nodes [groups, size, changing] of users whose other columns are fixed [users, fixed columns]."""
    changing = nodes.reshape(-1, nodes.shape[2])
    return np.concatenate([np.repeat(fixed, len(changing) // len(fixed), axis=0), changing], axis=1)


# The shape of a tree: when a full one would be too large, past the first step only some actions grow a branch.
#
# An action without a branch of its own leads to its two neighbours' branches, in proportion to its place
# between them in the catalogue. That is planning in a slightly different world, where such an action has a
# random successor: every guarantee of a full tree holds there (cost cannot rise with its price, for one), no
# price is involved, and the outcomes of every action at every node are still its own. What differs is the
# future of the actions in between; `thinned.thinning_error` measures by how much.


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


# Which actions the nodes of trees allow: what a user may get, and what a constraint says of each state on the way.


@dataclass(frozen=True, eq=False)
class NodeMasks:
    """The masks of some users' trees, level after level."""

    standing: EligibilityState
    """Of the nodes of a level, in the order of their users, then of their parents, then of their branches."""
    steps_left: NDArray[np.intp]
    """Of each node, [users · nodes]."""
    users: int
    constraint: Constraint | None = None
    """Asked at every node."""

    @classmethod
    def at_root(
        cls, standing: EligibilityState, steps_left: NDArray[np.intp], constraint: Constraint | None
    ) -> NodeMasks:
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


# How many users are planned for at once: in a call of a compiled program, and within it.


# Users in one call of a compiled program: long enough to hide what a call costs. Every call has this size, so that
# nothing is compiled twice; those of the largest trees are smaller, so that the trees of a call fit in memory.
_USERS_PER_CALL = 1_024
_NODES_PER_CALL = 262_144
# Nodes at the deepest level times prices that are backed up at once. Each carries a value and its outcomes: a dozen
# bytes, so that a block stays within the second-level cache. Measured: half of it is as fast, twice as much is not.
_VALUES_PER_BLOCK = 32_768


def users_per_call(deepest_nodes: int) -> int:
    """Users whose trees, with so many nodes at the last level, are in memory at once: a power of two."""
    return power_of_two(min(_USERS_PER_CALL, _NODES_PER_CALL // deepest_nodes))


def users_per_block(deepest_nodes: int, prices: int) -> int:
    """Users whose trees are backed up at once at so many prices: a power of two, never more than in a call."""
    wanted = min(users_per_call(deepest_nodes), _VALUES_PER_BLOCK // (deepest_nodes * prices))
    return power_of_two(wanted)


def parts(users: int, size: int) -> Iterator[slice]:
    """Cut users into parts of at most so many."""
    for first in range(0, users, size):
        yield slice(first, min(first + size, users))


def power_of_two(most: int) -> int:
    """The largest that is not above `most`, and at least 1."""
    return 1 << max(0, most.bit_length() - 1)
