"""The tree planner: what every first action is worth, for any number of users and prices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.engine.local import LocalEngine
from redenvelope.errors import ModelError, UsageError
from redenvelope.models.apply import apply_outcomes
from redenvelope.models.environment import EnvironmentModel
from redenvelope.planning.backup import backup, expected_backup
from redenvelope.planning.batches import parts, users_per_call
from redenvelope.planning.branching import NODE_LIMIT, Branching, fit_branching
from redenvelope.planning.checks import checked_states
from redenvelope.planning.grow import Tree, grow
from redenvelope.planning.masks import NodeMasks
from redenvelope.planning.one_program import USERS_PER_CALL, DecidedPart, decide_in_one_program
from redenvelope.planning.temperature import is_temperature
from redenvelope.policies.checks import checked_eligible, checked_steps_left, whole_mask
from redenvelope.policies.constraints import Constraint
from redenvelope.policies.values import ActionValues, Decided
from redenvelope.prices import checked_prices

__all__ = ["TreePlanner"]

FloatArray = NDArray[np.float64]
Backed = TypeVar("Backed")
Done = TypeVar("Done")


@dataclass(frozen=True, eq=False)
class TreePlanner:
    """Plans `horizon` steps ahead in a learned model, never past the campaign's last step. A `Valuer`."""

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
    constraint: Constraint | None = None
    """Which actions a state allows; asked at every node of every tree."""

    def __post_init__(self) -> None:
        for name, least in (("horizon", 1), ("steps", 1), ("node_limit", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not is_temperature(self.temperature):
            raise UsageError(f"temperature must be zero or from 1e-30 to 1e30, not {self.temperature}")
        if not 0 < self.discount <= 1:
            raise UsageError(f"discount must be above 0 and at most 1, not {self.discount}")

    @property
    def actions(self) -> int:
        """Number of actions, in the order of the action catalogue."""
        return self.model.actions

    @property
    def budgets(self) -> int:
        """Number of budgets."""
        return self.model.budgets

    @cached_property
    def branching(self) -> Branching:
        """The shape of the tree of a user at the first step."""
        return fit_branching(self.actions, min(self.horizon, self.steps), self.node_limit)

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
                f"{self.branching.branches} of {self.actions} actions are followed, the futures of "
                "the others are interpolated"
            )
        return tuple(notes)

    def values(
        self, states: ArrayLike, steps_left: ArrayLike, prices: ArrayLike, eligible: ArrayLike | None = None
    ) -> ActionValues:
        """Plan for states [users, width] with steps left, a number or [users], at prices [prices, budgets].

        `eligible` [users, actions] rules actions out at every step of a user's tree.
        """
        rows = checked_states(states, self.columns)
        shape = (len(rows), len(checked_prices(prices, self.budgets)), self.actions)
        result = ActionValues(
            np.empty(shape, np.float32),
            np.empty(shape, np.float32),
            np.empty((1 + self.budgets, *shape), np.float32),
        )
        for users, found in self._planned(rows, steps_left, prices, eligible, backup):
            for whole, own in zip(result, found, strict=True):
                whole[..., users, :, :] = own
        return result

    def decided(
        self, states: ArrayLike, steps_left: ArrayLike, prices: ArrayLike, eligible: ArrayLike | None = None
    ) -> Decided:
        """See Valuer. Where every node allows every action, no tree leaves the compiled program."""
        rows = checked_states(states, self.columns)
        if eligible is not None or self.constraint is not None:
            values = self.values(rows, steps_left, prices, eligible)
            return Decided(values.probabilities, apply_outcomes(self.model, rows))
        count = len(checked_prices(prices, self.budgets))
        result = Decided(
            np.empty((len(rows), count, self.actions), np.float32),
            np.empty((1 + self.budgets, len(rows), self.actions), np.float32),
        )
        depths = np.minimum(checked_steps_left(steps_left, len(rows), self.steps), self.depth)

        def decide(users: NDArray[np.intp]) -> tuple[NDArray[np.intp], DecidedPart]:
            shape = self.branching.at_depth(int(depths[users[0]]))
            return users, decide_in_one_program(self.model, rows[users], shape, prices, self.temperature, self.discount)

        for users, part in _mapped(decide, depths, lambda depth: USERS_PER_CALL):
            _require_finite(part.finite, users)
            result.probabilities[users] = part.probabilities
            result.outcomes[:, users] = part.outcomes
        return result

    def expected(
        self, states: ArrayLike, steps_left: ArrayLike, prices: ArrayLike, eligible: ArrayLike | None = None
    ) -> FloatArray:
        """Outcomes [outcomes, users, prices] of following the tree's policy to the tree's end; see `values`."""
        rows = checked_states(states, self.columns)
        result = np.empty((1 + self.budgets, len(rows), len(checked_prices(prices, self.budgets))))
        for users, found in self._planned(rows, steps_left, prices, eligible, expected_backup):
            result[:, users] = found
        return result

    def outcomes(self, states: ArrayLike) -> FloatArray:
        """Expected outcomes of this step alone: [users, width] -> [outcomes, users, actions]."""
        return apply_outcomes(self.model, checked_states(states, self.columns)).astype(np.float64)

    def _planned(
        self,
        rows: NDArray[np.float32],
        steps_left: ArrayLike,
        prices: ArrayLike,
        eligible: ArrayLike | None,
        back_up: Callable[[Tree, ArrayLike, float, float], Backed],
    ) -> Iterator[tuple[NDArray[np.intp], Backed]]:
        """Some users after the others, with what the backup of their trees gives."""
        left = checked_steps_left(steps_left, len(rows), self.steps)
        mask = checked_eligible(eligible, len(rows), self.actions)
        depths = np.minimum(left, self.depth)

        def plan(users: NDArray[np.intp]) -> tuple[NDArray[np.intp], Backed]:
            shape = self.branching.at_depth(int(depths[users[0]]))
            masks = None
            if mask is not None or self.constraint is not None:
                own = whole_mask(None if mask is None else mask[users], len(users), self.actions)
                masks = NodeMasks(own, left[users], self.constraint)
            tree = grow(self.model, rows[users], shape, masks)
            _check_predictions(tree, users)
            return users, back_up(tree, prices, self.temperature, self.discount)

        return _mapped(plan, depths, lambda depth: users_per_call(self.branching.at_depth(depth).deepest_nodes))


def _mapped(
    work: Callable[[NDArray[np.intp]], Done], depths: NDArray[np.int64], size: Callable[[int], int]
) -> Iterator[Done]:
    """Work done for users of one depth [users] after those of another, at most `size(depth)` of them at a time."""
    for depth in np.unique(depths):
        alike = np.flatnonzero(depths == depth)
        first, *others = [alike[part] for part in parts(len(alike), size(int(depth)))]
        # The first part alone, so that only one thread compiles what all of them need.
        yield work(first)
        yield from LocalEngine().map(work, others)


def _check_predictions(tree: Tree, users: NDArray[np.intp]) -> None:
    """Refuse trees of some users [users] that hold anything but numbers."""
    for level in tree.levels:
        # One sum is several times cheaper than a test of each number, and is finite only if all are.
        if not np.isfinite(level.sum()):
            _require_finite(np.isfinite(level).all(axis=(0, 1, 3)), users)


def _require_finite(finite: NDArray[np.bool_], users: NDArray[np.intp]) -> None:
    """Refuse the first of some users [users] for whom not all is finite [users]."""
    wrong = np.flatnonzero(~finite)
    if len(wrong):
        raise ModelError(
            f"the model's predictions for row {users[wrong[0]]} of the states are not finite numbers, although the "
            "state is; the model may have diverged in training, or the state lies far outside its data"
        )
