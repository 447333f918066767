"""The tree planner: action values of any number of users at any prices, and its rollouts in the learned model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.arrays import FloatArray
from redenvelope.engine.engine import LocalEngine
from redenvelope.errors import ModelError, UsageError
from redenvelope.models.environment import EnvironmentModel, SplitModel, apply_outcomes, apply_steps, split_model
from redenvelope.planning.bellman import PriceBlock, backup, expected_backup, hard_backup, price_blocks, soft_backup
from redenvelope.planning.temperature import is_temperature
from redenvelope.planning.tree import (
    NODE_LIMIT,
    Branching,
    NodeMasks,
    Tree,
    fit_branching,
    grow,
    grow_inside,
    parts,
    power_of_two,
    users_per_call,
)
from redenvelope.policies.action_values import ActionValues, Decided
from redenvelope.policies.eligibility_state import EligibilityState, Eligible, eligibility_state
from redenvelope.policies.policy import Constraint, checked_steps_left
from redenvelope.prices import checked_prices
from redenvelope.randomness import draw, fraction

# The tree planner: what every first action is worth, for any number of users and prices.


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
    explore: float = 0.0
    """Share of the decisions, at this step and all later ones, that is drawn evenly among what is allowed."""

    def __post_init__(self) -> None:
        for name, least in (("horizon", 1), ("steps", 1), ("node_limit", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not is_temperature(self.temperature):
            raise UsageError(f"temperature must be zero or from 1e-30 to 1e30, not {self.temperature}")
        if not 0 <= self.explore <= 1:
            raise UsageError(f"explore is a share from 0 to 1, not {self.explore}")
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
        self, states: ArrayLike, steps_left: ArrayLike, prices: ArrayLike, eligible: Eligible = None
    ) -> ActionValues:
        """Plan for states [users, width] with steps left, a number or [users], at prices [prices, budgets].

        `eligible` [users, actions] rules actions out at every step of a user's tree; an `EligibilityState` also holds
        what constraints remember of the users.
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
        self, states: ArrayLike, steps_left: ArrayLike, prices: ArrayLike, eligible: Eligible = None
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
            terms = (self.temperature, self.discount, self.explore)
            return users, decide_in_one_program(self.model, rows[users], shape, prices, *terms)

        for users, part in _mapped(decide, depths, lambda depth: USERS_PER_CALL):
            _require_finite(part.finite, users)
            result.probabilities[users] = part.probabilities
            result.outcomes[:, users] = part.outcomes
        return result

    def expected(
        self, states: ArrayLike, steps_left: ArrayLike, prices: ArrayLike, eligible: Eligible = None
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
        eligible: Eligible,
        back_up: Callable[[Tree, ArrayLike, float, float, float], Backed],
    ) -> Iterator[tuple[NDArray[np.intp], Backed]]:
        """Some users after the others, with what the backup of their trees gives."""
        left = checked_steps_left(steps_left, len(rows), self.steps)
        standing = None
        if eligible is not None or self.constraint is not None:
            standing = eligibility_state(eligible, len(rows), self.actions, self.constraint)
        depths = np.minimum(left, self.depth)

        def plan(users: NDArray[np.intp]) -> tuple[NDArray[np.intp], Backed]:
            shape = self.branching.at_depth(int(depths[users[0]]))
            masks = None
            if standing is not None:
                masks = NodeMasks.at_root(standing[users], left[users], self.constraint)
            tree = grow(self.model, rows[users], shape, masks)
            _check_predictions(tree, users)
            return users, back_up(tree, prices, self.temperature, self.discount, self.explore)

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


# Grow, back up and decide in one compiled program: no tree leaves the processor's cache.
#
# Several times faster than level by level, where a table of users is long and the prices are few, as they are when a
# plan decides. It is compiled for every depth, number of prices and shape of model; so a fit, which asks for many
# prices of trees that it grows once, works level by level.


# Measured: half and twice as many nodes in a block are slower by a tenth; so are calls of a quarter of the users.
_NODES_PER_BLOCK = 4_608
USERS_PER_CALL = 4_096
"""Most users of one call."""


class DecidedPart(NamedTuple):
    """What deciding needs of some users; arrays of numpy, or of jax inside the program."""

    probabilities: Any
    """[users, prices, actions]"""
    outcomes: Any
    """Of this step alone, [outcomes, users, actions]."""
    finite: Any
    """Whether all that was predicted for a user are numbers, [users]."""


def decide_in_one_program(
    model: EnvironmentModel,
    states: NDArray[np.float32],
    branching: Branching,
    prices: ArrayLike,
    temperature: float,
    discount: float,
    explore: float = 0.0,
    users_per_call: int = USERS_PER_CALL,
    reach: NDArray[np.int32] | None = None,
) -> DecidedPart:
    """Decide for the states [users, width] of one call at prices [prices, budgets].

    A call is always made for `users_per_call` users; of few, it takes less time, and is compiled for itself. `reach`
    says how many steps each user [users] has left, where not all have as many as the trees: nothing follows the last.
    """
    blocks = price_blocks(prices, model.budgets, temperature)
    order = np.argsort(np.concatenate([block.places for block in blocks]))
    by_block = [
        _run(model, states, branching, block, temperature, discount, explore, users_per_call, reach) for block in blocks
    ]
    probabilities = np.concatenate([part.probabilities for part in by_block], axis=1)[:, order]
    return by_block[0]._replace(probabilities=probabilities)


def _run(
    model: EnvironmentModel,
    states: NDArray[np.float32],
    branching: Branching,
    block: PriceBlock,
    temperature: float,
    discount: float,
    explore: float,
    users_per_call: int,
    reach: NDArray[np.int32] | None,
) -> DecidedPart:
    """One call, filled up with states of zeros: one shape, one compilation."""
    users = len(states)
    size = min(users_per_call, power_of_two(_NODES_PER_BLOCK // branching.deepest_nodes))
    filled = states
    if users < users_per_call:
        filled = np.zeros((users_per_call, states.shape[1]), np.float32)
        filled[:users] = states
    ends = None if reach is None else np.resize(reach.astype(np.int32), users_per_call)
    share = np.float32(explore) if explore else None
    numbers = (np.float32(temperature), np.float32(discount), share, np.int32(-(-users // size)))
    whole = _compiled(
        split_model(model),
        filled,
        ends,
        block.weights,
        *numbers,
        branching=branching,
        soft=block.soft,
        finite=block.finite,
        size=size,
    )
    found = jax.tree.map(np.asarray, whole)
    return DecidedPart(
        found.probabilities[:users, : len(block.places)], found.outcomes[:, :users], found.finite[:users]
    )


@partial(jax.jit, static_argnames=("branching", "soft", "finite", "size"))
def _compiled(
    model: SplitModel,
    states: jax.Array,
    reach: jax.Array | None,
    weights: jax.Array,
    temperature: jax.Array,
    discount: jax.Array,
    explore: jax.Array | None,
    count: jax.Array,
    branching: Branching,
    soft: bool,
    finite: bool,
    size: int,
) -> DecidedPart:
    """The first `count` blocks of `size` users one after the other; zeros for the other users."""
    axes = DecidedPart(0, 1, 0)  # that of the users

    def block(position: jax.Array | int) -> DecidedPart:
        tree = grow_inside(model, jax.lax.dynamic_slice_in_dim(states, position * size, size), branching)
        if reach is not None:
            tree = _ending(tree, jax.lax.dynamic_slice_in_dim(reach, position * size, size))
        if soft:
            values = soft_backup(tree, weights, temperature, discount, explore)
        else:
            values = hard_backup(tree, weights, discount, explore, finite)
        # One sum of all is finite only if all are.
        total = sum(level.sum(axis=(0, 1, 3)) for level in tree.levels)
        return DecidedPart(values.probabilities, tree.levels[0][..., 0].swapaxes(1, 2), jnp.isfinite(total))

    def store(position: jax.Array, results: DecidedPart) -> DecidedPart:
        def put(whole: jax.Array, own: jax.Array, axis: int) -> jax.Array:
            return jax.lax.dynamic_update_slice_in_dim(whole, own, position * size, axis)

        stored: DecidedPart = jax.tree.map(put, results, block(position), axes)
        return stored

    def empty(shape: jax.ShapeDtypeStruct, axis: int) -> jax.Array:
        return jnp.zeros((*shape.shape[:axis], len(states), *shape.shape[axis + 1 :]), shape.dtype)

    start: DecidedPart = jax.tree.map(empty, jax.eval_shape(block, 0), axes)
    decided: DecidedPart = jax.lax.fori_loop(0, count, store, start)
    return decided


def _ending(tree: Tree, reach: jax.Array) -> Tree:
    """Trees of users who have so many steps left [users]: below those nothing happens, and nobody gets there."""
    levels = tuple(
        jnp.where((reach > number)[None, None, :, None], level, 0.0) for number, level in enumerate(tree.levels)
    )
    staying = tree.survival or tuple(jnp.ones(level.shape[1:], level.dtype) for level in tree.levels[:-1])
    survival = tuple(
        jnp.where((reach > number + 1)[None, :, None], chance, 0.0) for number, chance in enumerate(staying)
    )
    return Tree(levels, tree.masks, tree.shares, survival)


# Checks of what a planner is given, in words that its user understands.


def checked_states(states: ArrayLike, columns: tuple[str, ...] = ()) -> NDArray[np.float32]:
    """States as finite float32 [users, width]; `columns` [width] names the columns for the message."""
    rows = np.asarray(states, dtype=np.float32)
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise UsageError(f"states must be [users, width], not of shape {rows.shape}")
    wrong = ~np.isfinite(rows)
    if wrong.any():
        row, column = (int(place) for place in np.argwhere(wrong)[0])
        name = f"column '{columns[column]}'" if column < len(columns) else f"column {column}"
        others = int(wrong.sum()) - 1
        more = f", and {others} more cells like it" if others else ""
        raise ModelError(
            f"row {row} of the states holds {rows[row, column]} in {name}{more}: a plan needs a number in "
            "every feature; fill in what is missing as it was done for training, or leave the user out"
        )
    return rows


# What a planner's policy costs and earns in its own model, as sums that batches of users add up to.
#
# A tree that reaches the last step knows its policy's outcomes. One that does not is planned anew at
# every step: its policy is followed through the model until the last tree reaches the end. Actions on the
# way are drawn with the same random number for every price, so that the differences between prices are not
# noise; what a step costs and earns is averaged over the draw. Without entropy nothing is random, and the
# result is exact for the model.


# Users times prices followed at once: each may have come to a state of its own, with a tree of its own.
_PATHS_AT_ONCE = 2**14


@dataclass(frozen=True, eq=False)
class PriceSums:
    """Sums over users, of float64; those of disjoint sets of users merge into those of their union."""

    users: int
    outcomes: FloatArray
    """[outcomes, prices]."""
    squares: FloatArray
    """Of the users' outcomes, [outcomes, prices]."""

    def merge(self, other: PriceSums) -> PriceSums:
        """The sums over both sets of users."""
        return PriceSums(self.users + other.users, self.outcomes + other.outcomes, self.squares + other.squares)

    def means(self) -> FloatArray:
        """Mean outcomes a user, [outcomes, prices]."""
        return self.outcomes / self.users

    def standard_errors(self) -> FloatArray:
        """Of the means as estimates for the population, [outcomes, prices]."""
        spread = np.maximum(self.squares - self.outcomes**2 / self.users, 0.0) / max(self.users - 1, 1)
        return np.asarray(np.sqrt(spread / self.users))


@dataclass(frozen=True, eq=False)
class ModelPrice:
    """A price function: the mean outcomes, in the model, of a planner's policy at each price."""

    planner: TreePlanner
    states: NDArray[np.float32]
    """First states, [users, width]."""
    steps_left: NDArray[np.intp] | int | None = None
    """Steps left at those states, one number or [users]; None is the whole campaign."""
    eligible: EligibilityState | NDArray[np.bool_] | None = None
    """Where users stand, or a mask [users, actions]; None allows all."""
    seed: int = 0
    """Of the actions drawn on the way; matters only with entropy and a horizon short of the campaign."""

    def __call__(self, prices: ArrayLike, /) -> FloatArray:
        """Mean outcomes [outcomes, prices] at prices [prices, budgets]."""
        return self.sums(prices).means()

    def sums(self, prices: ArrayLike, users: slice = slice(None)) -> PriceSums:
        """The sums of some of the users; merged over parts they are those of all."""
        left = self.planner.steps if self.steps_left is None else self.steps_left
        names = np.arange(len(self.states))[users]
        mask = None if self.eligible is None else self.eligible[users]
        left = np.broadcast_to(left, (len(self.states),))[users]
        return price_sums(self.planner, self.states[users], left, prices, mask, names, self.seed)


def price_sums(
    planner: TreePlanner,
    states: ArrayLike,
    steps_left: ArrayLike,
    prices: ArrayLike,
    eligible: Eligible = None,
    users: NDArray[np.integer] | None = None,
    seed: int = 0,
) -> PriceSums:
    """Follow the policy at each of prices [prices, budgets] from states [users, width] to the campaign's end.

    `users` [users] are whole numbers that name the users: a user draws the same actions in any batch.
    """
    rows = checked_states(states, planner.columns)
    left = checked_steps_left(steps_left, len(rows), planner.steps)
    standing = None
    if eligible is not None or planner.constraint is not None:
        standing = eligibility_state(eligible, len(rows), planner.actions, planner.constraint)
    names = np.arange(len(rows)) if users is None else np.asarray(users)
    table = checked_prices(prices, planner.budgets)
    zero = np.zeros((1 + planner.budgets, len(table)))
    parts = [PriceSums(0, zero, zero)]
    for steps in np.unique(left):
        alike = np.flatnonzero(left == steps)
        size = max(1, _PATHS_AT_ONCE // len(table)) if steps > planner.depth else max(1, len(alike))
        for start in range(0, len(alike), size):
            part = alike[start : start + size]
            own = None if standing is None else standing[part]
            outcomes = _follow(planner, rows[part], int(steps), table, own, names[part], seed)
            parts.append(PriceSums(len(part), outcomes.sum(axis=1), (outcomes**2).sum(axis=1)))
    return reduce(PriceSums.merge, parts)


def _follow(
    planner: TreePlanner,
    states: NDArray[np.float32],
    steps_left: int,
    prices: FloatArray,
    standing: EligibilityState | None,
    names: NDArray[np.integer],
    seed: int,
) -> FloatArray:
    """Outcomes to go of every user at every price, [outcomes, users, prices]."""
    users, columns = len(states), np.arange(len(prices))
    outcomes = np.zeros((1 + planner.budgets, users, len(prices)))
    # Prices under which a user was sent the same are in the same state: one tree serves them all.
    place = np.repeat(np.arange(users)[:, None], len(prices), axis=1)  # [users, prices]
    # What a step counts: discounted, and less where a user may have left, [users, prices].
    weight = np.ones(place.shape)
    for left in range(steps_left, planner.depth, -1):
        probabilities = planner.values(states, left, prices, standing).probabilities
        taken = np.asarray(probabilities, dtype=np.float64)[place, columns]
        step, staying, successors = apply_steps(planner.model, states)
        outcomes += weight * np.einsum("upa,oupa->oup", taken, step[:, place])
        weight *= planner.discount
        actions = draw(taken, fraction(names.astype(np.uint64), "roll-out", seed, left)[:, None])
        if staying is not None:
            weight *= staying[place, actions]
        moves, place = np.unique(place * planner.actions + actions, return_inverse=True)
        place = place.reshape(users, len(prices))
        parents, moved = np.divmod(moves, planner.actions)
        states = successors[parents, moved]
        standing = None if standing is None else standing[parents].after(planner.constraint, moved)
    last = planner.expected(states, min(steps_left, planner.depth), prices, standing)
    return np.asarray(outcomes + weight * last[:, place, columns])
