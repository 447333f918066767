"""The tree planner: what every first action is worth, for any number of users and duals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.errors import ModelError, UsageError
from redenvelope.models.apply import apply_outcomes, apply_steps
from redenvelope.models.environment import EnvironmentModel
from redenvelope.planning.backup import Backup, Terms, backup_terms, make_terms, split_terms
from redenvelope.planning.batches import calls, in_counted_batches, side_by_side, users_per_batch
from redenvelope.planning.checks import checked_states
from redenvelope.planning.expand import Level, Tree
from redenvelope.planning.thinned import NODE_LIMIT, Branching, branch_shares, fit_branching
from redenvelope.policies.checks import checked_eligible, checked_steps_left

__all__ = ["PlannedValues", "TreePlanner"]

FloatArray = NDArray[np.float64]


class PlannedValues(NamedTuple):
    """A `Backup` in numpy: all [users, duals, actions]."""

    q: NDArray[np.float32]
    """Penalised reward to go (and entropy bonus of later steps); -inf if not eligible."""
    probabilities: NDArray[np.float32]
    """Of each first action."""
    reward_to_go: NDArray[np.float32]
    """Reward of the action and of the policy after it, without entropy bonus."""
    cost_to_go: NDArray[np.float32]
    """Cost of the action and of the policy after it."""


@dataclass(frozen=True, eq=False)
class TreePlanner:
    """Plans `horizon` steps ahead in a learned model, never past the campaign's last step."""

    model: EnvironmentModel
    horizon: int
    """Steps planned ahead; 1 is the constrained bandit."""
    temperature: float
    """Weight of the entropy bonus; 0 takes the best action."""
    steps: int
    """Steps of the campaign."""
    discount: float = 1.0
    node_limit: int = NODE_LIMIT
    """Nodes a user at the deepest level; a larger tree is thinned."""
    columns: tuple[str, ...] = ()
    """Names of the columns of a state, for error messages."""

    def __post_init__(self) -> None:
        for name, least in (("horizon", 1), ("steps", 1), ("node_limit", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not (np.isfinite(self.temperature) and self.temperature >= 0):
            raise UsageError(f"temperature must be zero or a positive number, not {self.temperature}")
        if not 0 < self.discount <= 1:
            raise UsageError(f"discount must be above 0 and at most 1, not {self.discount}")

    @cached_property
    def branching(self) -> Branching:
        """The shape of the tree of a user at the first step."""
        return fit_branching(self.model.actions, min(self.horizon, self.steps), self.node_limit)

    @property
    def depth(self) -> int:
        """Steps that are really planned ahead while that many are left."""
        return self.branching.depth

    @property
    def notes(self) -> tuple[str, ...]:
        """Where the planner does other than it was told, in words for its user."""
        notes = []
        if self.horizon > self.steps:
            notes.append(
                f"the horizon of {self.horizon} steps is longer than the campaign: "
                f"planning to its last step, {self.steps} ahead"
            )
        wanted = min(self.horizon, self.steps)
        if self.depth < wanted:
            notes.append(
                f"a tree of {wanted} steps is too large for {self.node_limit} nodes a user: "
                f"planning {self.depth} steps ahead"
            )
        if not self.branching.is_full:
            notes.append(
                f"a full tree is too large for {self.node_limit} nodes a user: past the first step "
                f"{self.branching.branches} of {self.model.actions} actions are followed, the futures of "
                "the others are interpolated"
            )
        return tuple(notes)

    def plan(
        self,
        states: ArrayLike,
        steps_left: ArrayLike,
        duals: ArrayLike,
        eligible: ArrayLike | None = None,
    ) -> PlannedValues:
        """Plan for states [users, width] with steps left, a number or [users], at duals [duals].

        `eligible` [users, actions] rules actions out at every step of a user's tree.
        """
        return PlannedValues(*self._apply(_everything, states, steps_left, duals, eligible))

    def worth(
        self,
        states: ArrayLike,
        steps_left: ArrayLike,
        duals: ArrayLike,
        eligible: ArrayLike | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """Cost and reward, both [users, duals], of following the tree's policy to the tree's end."""
        costs, rewards = self._apply(_cost_and_reward, states, steps_left, duals, eligible)
        return costs.astype(np.float64), rewards.astype(np.float64)

    def _apply(
        self,
        finish: Callable[..., tuple[NDArray[np.float32], ...]],
        states: ArrayLike,
        steps_left: ArrayLike,
        duals: ArrayLike,
        eligible: ArrayLike | None,
    ) -> tuple[NDArray[np.float32], ...]:
        """What `finish` keeps of every user's backup, users in their order; arrays [users, duals, ...]."""
        rows = checked_states(states, self.columns)
        left = checked_steps_left(steps_left, len(rows), self.steps)
        mask = checked_eligible(eligible, len(rows), self.model.actions)
        terms, order = make_terms(duals, self.temperature, self.discount)
        if len(rows) == 0:
            one = self._apply(finish, np.zeros((1, rows.shape[1])), 1, duals, None)
            return tuple(array[:0] for array in one)
        depths = np.minimum(left, self.depth)
        results: list[NDArray[np.float32]] = []
        for depth in np.unique(depths):
            shape = self.branching.at_depth(int(depth))
            alike = np.flatnonzero(depths == depth)

            def call(
                part: tuple[slice, NDArray[np.intp], NDArray[np.int32]],
                alike: NDArray[np.intp] = alike,
                shape: Branching = shape,
            ) -> None:
                place, index, count = part
                users = alike[place]
                allowed = None if mask is None else mask[index]
                found = finish(*_backed_up_users(self.model, rows[users], allowed, count, terms, shape, index.shape))
                if not results:
                    results.extend(np.empty((len(rows), len(order), *array.shape[2:]), np.float32) for array in found)
                for result, array in zip(results, found, strict=True):
                    result[users] = array[:, order]

            side_by_side(call, list(calls(alike, users_per_batch(shape.deepest_nodes))))
        _check_predictions(results[-2:])
        return tuple(results)


def _backed_up_users(
    model: EnvironmentModel,
    states: NDArray[np.float32],
    eligible: NDArray[np.bool_] | None,
    count: NDArray[np.int32],
    terms: Terms,
    branching: Branching,
    batches: tuple[int, ...],
) -> list[NDArray[np.float32]]:
    """Grow and back up the trees of some users' states [users, width]: a `Backup`, arrays [users, duals, actions].

    They are worked on in `batches` [batches, batch], of which `count` are not empty.
    """
    levels = [_in_batches(level, batches) for level in _grow(model, states, branching)]
    backups = [_backed_up(levels, eligible, count, half, branching) for half in split_terms(terms)]
    joined = [np.concatenate(arrays, axis=2) for arrays in zip(*backups, strict=True)]
    return [array.reshape(-1, *array.shape[2:])[: len(states)] for array in joined]


def _grow(model: EnvironmentModel, states: NDArray[np.float32], branching: Branching) -> list[NDArray[np.float32]]:
    """Rewards and costs of every action at every node of a level, [2, users, nodes, actions], for each level.

    Level by level with the programs that serve every model and depth: compiling a whole tree takes far longer.
    """
    users, width = states.shape
    nodes, levels = states, []
    for depth in range(branching.depth):
        if depth + 1 == branching.depth:
            rewards, costs = apply_outcomes(model, nodes)
        else:
            rewards, costs, children = apply_steps(model, nodes)
            nodes = (children if depth == 0 else _followed(children, branching)).reshape(-1, width)
        levels.append(np.stack([rewards, costs]).reshape(2, users, -1, model.actions))
    return levels


def _followed(children: NDArray[np.float32], branching: Branching) -> NDArray[np.float32]:
    """The children [nodes, actions, width] that grow a branch, [nodes, branches, width]."""
    if branching.is_full:
        return children
    # A branch belongs to the action that takes all its future from it.
    return children[:, np.argmax(branch_shares(branching.actions, branching.branches), axis=0)]


def _in_batches(level: NDArray[np.float32], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """A level [2, users, ...] as [2, batches, batch, ...], filled up with zeros; `shape` is [batches, batch]."""
    whole = np.zeros((2, shape[0] * shape[1], *level.shape[2:]), np.float32)
    whole[:, : level.shape[1]] = level
    return whole.reshape(2, *shape, *level.shape[2:])


@partial(jax.jit, static_argnums=4)
def _backed_up(
    levels: Sequence[jax.Array],
    eligible: jax.Array | None,
    count: NDArray[np.int32],
    terms: Terms,
    branching: Branching,
) -> Backup:
    """Back up one batch after another, so that nothing of a batch ever leaves the cache.

    Takes levels [2, batches, users, nodes, actions] and eligible [batches, users, actions]; arrays come out as
    [batches, users, duals, actions].
    """

    def batch(rows: tuple[tuple[Level, ...], jax.Array | None]) -> Backup:
        return backup_terms(Tree(rows[0], branching.shares()), terms, rows[1])

    return in_counted_batches(batch, (tuple(Level(*level) for level in levels), eligible), count)


def _everything(*backup: NDArray[np.float32]) -> tuple[NDArray[np.float32], ...]:
    return backup


def _cost_and_reward(
    q: NDArray[np.float32], probabilities: NDArray[np.float32], reward: NDArray[np.float32], cost: NDArray[np.float32]
) -> tuple[NDArray[np.float32], ...]:
    """[users, duals] each."""
    return (probabilities * cost).sum(axis=2), (probabilities * reward).sum(axis=2)


def _check_predictions(arrays: Sequence[NDArray[np.float32]]) -> None:
    """Costs and rewards to go, [users, duals, ...]."""
    for array in arrays:
        if not np.isfinite(array).all():
            user = int(np.argwhere(~np.isfinite(array))[0][0])
            raise ModelError(
                f"the model's predictions for row {user} of the states are not finite numbers, although the "
                "state is; the model may have diverged in training, or the state lies far outside its data"
            )
