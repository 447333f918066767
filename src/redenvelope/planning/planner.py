"""The tree planner: action values for any number of users at any prices, and rollouts of its policy in the model.

`TreePlanner` grows a shallow tree per user (`planning/tree.py`), adds values to go at its leaves
(`planning/leaf_values.py`) and backs it up at all prices in one pass (`planning/choice.py`), in compiled programs for
blocks of users. `ModelPrice` is its price function: the mean outcomes of its policy in the learned model. Without leaf
values, a tree of depth h is the paper's Algorithm 3, and h = 1 the constrained bandit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import chain, product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.arrays import FloatArray
from redenvelope.engine.engine import LocalEngine
from redenvelope.engine.programs import Constants, kept
from redenvelope.errors import ModelError, UsageError
from redenvelope.log.encoding.layout import StateLayout
from redenvelope.models.environment import (
    AppliedModel,
    EnvironmentModel,
    apply_outcomes,
    apply_steps,
    filled,
    split_model,
)
from redenvelope.planning.choice import (
    FEW_PRICES,
    SOME_PRICES,
    Choice,
    Ends,
    PriceBlock,
    Sizes,
    action_values,
    price_blocks,
    state_values,
)
from redenvelope.planning.leaf_values import LeafValues
from redenvelope.planning.temperature import is_temperature
from redenvelope.planning.tree import NODE_LIMIT, Tree, TreeRows, fit_depth, grow, nodes_at, power_of_two
from redenvelope.policies.action_values import ActionValues, Decided
from redenvelope.policies.eligibility_state import EligibilityState, Eligible, eligibility_state
from redenvelope.policies.policy import Constraint, checked_steps_left
from redenvelope.prices import PriceGrid, checked_prices
from redenvelope.randomness import draw, fraction


@dataclass(frozen=True, eq=False)
class TreePlanner:
    """Plans `horizon` steps ahead in a learned model, never past the campaign's last step; `leaf_values`, if given,
    value what follows the tree. A `Valuer`."""

    model: EnvironmentModel
    horizon: int
    """Steps planned ahead; 1 is the constrained bandit."""
    temperature: float
    """Weight of the entropy bonus; 0 takes the best action."""
    steps: int
    """Steps of the campaign."""
    discount: float = 1.0
    node_limit: int = NODE_LIMIT
    """Most nodes per user at the deepest level; the depth is reduced until the tree fits."""
    columns: tuple[str, ...] = ()
    """Names of the columns of a state, for error messages."""
    constraint: Constraint | None = None
    """Which actions a state allows; evaluated at every node of every tree."""
    explore: float = 0.0
    """Exploration share: of decisions, now and later, this share is drawn uniformly from the allowed actions."""
    leaf_values: LeafValues | None = None
    """Values to go where a tree ends before the campaign does."""
    trees: dict[Hashable, tuple[Tree, NDArray[np.float32]]] | None = None
    """Cache of trees with their states, for planning the same arrays repeatedly at other prices or leaf values.

    The arrays must not be changed in place. None caches nothing.
    """

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
    def depth(self) -> int:
        """Depth of the trees: the horizon, limited by the campaign's steps and the node limit."""
        return fit_depth(self.actions, min(self.horizon, self.steps), self.node_limit)

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages about deviations from the settings."""
        notes = []
        if self.horizon > self.steps:
            notes.append(
                f"the horizon of {self.horizon} steps is longer than the campaign: "
                f"planning to its last step, {self.steps} ahead"
            )
        wanted = min(self.horizon, self.steps)
        if self.depth < wanted:
            notes.append(
                f"a tree of {wanted} steps is too large for {self.node_limit} nodes per user: "
                f"planning {self.depth} steps ahead"
            )
        return tuple(notes)

    def values(
        self, states: ArrayLike, steps_left: ArrayLike, prices: ArrayLike, eligible: Eligible = None
    ) -> ActionValues:
        """Action values for states [users, width] with steps left, a number or [users], at prices [prices, budgets].

        `eligible` [users, actions] rules actions out at every step of a user's tree; an `EligibilityState` also holds
        the constraint's memory of the users.
        """
        return ActionValues(*self._run(action_values, states, steps_left, prices, eligible))

    def decided(
        self,
        states: ArrayLike,
        steps_left: ArrayLike,
        prices: ArrayLike,
        eligible: Eligible = None,
        waiting: bool = False,
    ) -> Decided:
        """See Valuer."""
        probabilities, outcomes = self._run(_decision, states, steps_left, prices, eligible, waiting)
        return Decided(probabilities, outcomes[:, :, 0])

    def expected(
        self, states: ArrayLike, steps_left: ArrayLike, prices: ArrayLike, eligible: Eligible = None
    ) -> FloatArray:
        """Outcomes to go of the planner's policy, [outcomes, users, prices], to the end of the tree, or of the campaign
        with leaf values; arguments as in `values`."""
        return self.state_values(states, steps_left, prices, eligible)[1:]

    def state_values(
        self, states: ArrayLike, steps_left: ArrayLike, prices: ArrayLike, eligible: Eligible = None
    ) -> FloatArray:
        """Penalised reward (and entropy bonus) to go, then outcomes as `expected`: [1 + outcomes, users, prices]."""
        (found,) = self._run(_state_values, states, steps_left, prices, eligible)
        return np.asarray(found[..., 0], dtype=np.float64)

    def outcomes(self, states: ArrayLike) -> FloatArray:
        """Expected outcomes of this step alone: [users, width] -> [outcomes, users, actions]."""
        return apply_outcomes(self.model, checked_states(states, self.columns)).astype(np.float64)

    def _run(
        self,
        keep: _Keep,
        states: ArrayLike,
        steps_left: ArrayLike,
        prices: ArrayLike,
        eligible: Eligible,
        waiting: bool = False,
    ) -> list[NDArray[np.float32]]:
        """Apply `keep` to the users' trees: arrays [..., users, prices, any]."""
        rows = checked_states(states, self.columns)
        left = checked_steps_left(steps_left, len(rows), self.steps).astype(np.int32)
        asked = TreeRows(rows, left)
        masked = self.leaf_values is not None and self.leaf_values.masked
        if eligible is not None or self.constraint is not None or masked:
            eligibility = eligibility_state(eligible, len(rows), self.actions, self.constraint)
            asked = TreeRows(rows, left, eligibility.always, eligibility.memory)
        grid = None if self.leaf_values is None else self.leaf_values.grid
        table = np.asarray(prices, dtype=np.float64)
        blocks = _price_blocks(self.budgets, self.temperature, grid, _SIZES[keep], table.tobytes(), table.shape)
        if not len(rows) or (waiting and len(rows) <= FEW_USERS[-1]):  # one call, even if their steps left differ
            return self._call(keep, asked, np.arange(len(rows)), self.depth, blocks, ragged=True)
        result: list[NDArray[np.float32]] = []
        # Users in one call have trees of the same depth and, with leaf values, the same number of steps left.
        kinds = left if self.leaf_values is not None else np.minimum(left, self.depth)
        for steps in np.unique(kinds).tolist():
            alike = np.flatnonzero(kinds == steps)
            depth = min(steps, self.depth)
            most = _MOST_DECIDED if keep is _decision else _users_per_call(nodes_at(self.actions, depth))
            first, *others = [alike[start : start + most] for start in range(0, len(alike), most)]

            def work(users: NDArray[np.intp], depth: int = depth) -> tuple[NDArray[np.intp], list[NDArray[np.float32]]]:
                return users, self._call(keep, asked, users, depth, blocks)

            # The first part runs alone, so that only one thread compiles the programs that all parts need.
            for users, found in chain([work(first)], LocalEngine().map(work, others)):
                if not result:
                    result = [np.empty((*own.shape[:-3], len(rows), *own.shape[-2:]), np.float32) for own in found]
                for whole, own in zip(result, found, strict=True):
                    whole[..., users, :, :] = own
        return result

    def _call(
        self,
        keep: _Keep,
        asked: TreeRows,
        users: NDArray[np.intp],
        depth: int,
        blocks: Sequence[PriceBlock],
        ragged: bool = False,
    ) -> list[NDArray[np.float32]]:
        """The same for the users with positions `users`, whose trees have the same depth.

        For decisions, one program also grows the trees, so that they stay in the cache: several times faster with few
        prices. Otherwise trees are grown once for all prices, by programs that serve every depth.
        """
        rows = asked if len(users) == len(asked.states) else jax.tree.map(lambda array: array[users], asked)
        # A tree that reaches the end of the campaign needs no leaf values.
        goes_on = ragged or (len(users) > 0 and int(rows.steps_left[0]) > depth)
        leaves = self.leaf_values if goes_on and self.depth < self.steps else None
        if keep is _decision:
            size = next(size for size in FEW_USERS if len(users) <= size) if ragged else _MOST_DECIDED
            rows = rows if len(users) == size else filled(rows, size)
            structure, weights = self._weights[True, leaves is not None]
            form = ProgramForm(keep, depth, self.explore > 0, structure, True, self.constraint, ragged)
            # Requests that wait are decided by a program with the weights compiled in, which is faster.
            given = self._constants[leaves is not None] if ragged else weights
            return self._kept(form, (given, rows), users, size, blocks)
        tree = self._grown(asked, rows, users, depth, ragged, leaves)
        size = _users_per_call(nodes_at(self.actions, depth))

        def fill(array: NDArray[Any]) -> NDArray[Any]:
            return np.pad(array, [(0, 0)] * (array.ndim - 2) + [(0, size - len(users)), (0, 0)])

        padded = tree if len(users) == size else jax.tree.map(fill, tree)
        structure, weights = self._weights[False, leaves is not None]
        form = ProgramForm(keep, depth, self.explore > 0, structure, ragged=ragged)
        return self._kept(form, (weights, padded), users, size, blocks)

    def _grown(
        self,
        asked: TreeRows,
        rows: TreeRows,
        users: NDArray[np.intp],
        depth: int,
        ragged: bool,
        leaves: LeafValues | None,
    ) -> Tree:
        """The trees of `rows`, the part of `asked` at positions `users`; from the cache where it has them."""
        # The cache holds the states, so no other array can have the same id.
        key = (id(asked.states), users.tobytes(), asked.steps_left[users].tobytes(), depth, ragged, leaves is None)
        if self.trees is not None and key in self.trees:
            return self.trees[key][0]
        tree = grow(AppliedModel(self.model), rows, depth, self.constraint, ragged, leaves)
        if self.trees is not None:
            self.trees[key] = tree, asked.states
        return tree

    def _kept(
        self,
        form: ProgramForm,
        given: tuple[Any, Any],
        users: NDArray[np.intp],
        size: int,
        blocks: Sequence[PriceBlock],
    ) -> list[NDArray[np.float32]]:
        """Run a program at all blocks of prices: what it keeps, in the order of the requested prices."""
        by_block = []
        nodes = nodes_at(self.actions, form.depth if self.leaf_values is None else form.depth + 1)
        for block in blocks:
            fits = _users_per_block(nodes, block.weights.shape[1], size)
            own = form._replace(soft=block.soft, users=fits)
            prices = (block.weights, block.knots)
            call = program_of_constants if form.ragged and form.grows else program
            is_number, *found = call(own, *given, prices, self._numbers, np.int32(len(users)))
            _require_finite(np.asarray(is_number)[: len(users)], users)
            by_block.append([np.asarray(array)[..., : len(users), : len(block.places), :] for array in found])
        if len(by_block) == 1:
            return by_block[0]
        # Back to the order in which the prices were requested.
        order = np.argsort(np.concatenate([block.places for block in blocks]))
        return [np.concatenate(arrays, axis=-2)[..., order, :] for arrays in zip(*by_block, strict=True)]

    @cached_property
    def _numbers(self) -> tuple[jax.Array, ...]:
        """Temperature, discount and exploration share, on the device."""
        found: tuple[jax.Array, ...] = jax.device_put(
            tuple(np.float32(number) for number in (self.temperature, self.discount, self.explore))
        )
        return found

    @cached_property
    def _weights(self) -> dict[tuple[bool, bool], tuple[Hashable, list[Any]]]:
        """Pytree structure and arrays of (model, leaf values), by which of the two a program has. Programs take the
        arrays as a flat list, which is faster to call."""
        parts = jax.device_put((split_model(self.model), self.leaf_values))
        found = {}
        for grows, ends in product((True, False), repeat=2):
            arrays, structure = jax.tree.flatten((parts[0] if grows else None, parts[1] if ends else None))
            found[grows, ends] = structure, arrays
        return found

    @cached_property
    def _constants(self) -> dict[bool, Constants]:
        """The arrays of the model, and of leaf values under True, for programs with the weights compiled in."""
        return {ends: Constants(self._weights[True, ends][1]) for ends in (True, False)}


def _require_finite(finite: NDArray[np.bool_], users: NDArray[np.intp]) -> None:
    """Raise ModelError for the first of `users` [users] whose predictions are not all `finite` [users]."""
    if not finite.all():
        wrong = np.flatnonzero(~finite)
        raise ModelError(
            f"the model's predictions for row {users[wrong[0]]} of the states are not finite numbers, although the "
            "state is; the model may have diverged in training, or the state lies far outside its data"
        )


@lru_cache(maxsize=64)
def _price_blocks(
    budgets: int, temperature: float, grid: PriceGrid | None, sizes: Sizes, prices: bytes, shape: tuple[int, ...]
) -> tuple[PriceBlock, ...]:
    """See `price_blocks`; cached on the device, because a plan uses the same prices again and again."""
    found = price_blocks(np.frombuffer(prices).reshape(shape), budgets, temperature, grid, sizes)
    return tuple(
        replace(block, weights=jax.device_put(block.weights), knots=jax.device_put(block.knots)) for block in found
    )


# The compiled programs. They back up trees; those for decisions also grow them.
#
# A program is compiled per `ProgramForm` and per shapes of its arrays. Rows and prices are padded, so there are few.

FEW_USERS = (1, 16, 64)
"""Sizes of a call for waiting users: the smallest that suffices, even if their steps left differ. Tables are always
decided in calls of `_MOST_DECIDED` users, so that no decision depends on the other users, to the last bit."""
_MOST_DECIDED = 4_096
# Users whose trees are grown level by level at once: enough to hide the overhead of a call; fewer for the largest
# trees, so that they fit in memory.
_USERS_PER_CALL = 1_024
_NODES_PER_CALL = 262_144
# Blocks stay in the second-level cache. Measured: half or twice as many nodes, or values (nodes times prices), are
# slower by a tenth.
_NODES_PER_BLOCK = 4_608
_VALUES_PER_BLOCK = 32_768


def _users_per_call(deepest_nodes: int) -> int:
    return power_of_two(min(_USERS_PER_CALL, _NODES_PER_CALL // deepest_nodes))


def _users_per_block(deepest_nodes: int, prices: int, most: int) -> int:
    """Users in a block, whose trees are grown and backed up together: a power of two."""
    return power_of_two(min(most, _NODES_PER_BLOCK // deepest_nodes, _VALUES_PER_BLOCK // (deepest_nodes * prices)))


_Keep = Callable[[Tree, jax.Array, Choice, Ends | None], tuple[jax.Array, ...]]
"""A function of trees and outcome weights [outcomes, prices] that backs the trees up and returns what is kept of them:
arrays [..., users, prices, any]."""


class ProgramForm(NamedTuple):
    """Everything that a program is specialised to, besides the shapes of its arrays."""

    keep: _Keep
    depth: int
    explores: bool
    structure: Any
    """Pytree structure of (model or None, leaf values or None)."""
    grows: bool = False
    """Whether the program grows the trees; otherwise they are given."""
    constraint: Constraint | None = None
    ragged: bool = False
    """Whether users may have fewer steps left than the trees are deep."""
    soft: bool = False
    """Whether actions are chosen with entropy."""
    users: int = 1
    """Users per block."""


def _program(
    form: ProgramForm,
    weights: list[jax.Array],
    rows: Any,
    prices: Any,
    numbers: tuple[jax.Array, ...],
    count: jax.Array,
) -> tuple[jax.Array, ...]:
    """Whether all predictions for a user are finite, [users], and then what `form.keep` returns.

    `weights` are the arrays of model and leaf values, `rows` a `TreeRows` or a `Tree`, `prices` the weights of outcomes
    and of the leaf values' grid in a `PriceBlock`, `numbers` temperature, discount and exploration share, and `count`
    the users that are not padding. Blocks of users are processed one after the other, so that each stays in the cache;
    blocks of padding are left at zero.
    """
    size = len(rows.states) if form.grows else rows.levels[0].shape[2]

    # Traced once, although it is used in two places below.
    @partial(jax.jit, inline=True)
    def block(position: jax.Array) -> tuple[jax.Array, ...]:
        return _block(form, position * form.users, weights, rows, prices, numbers)

    if size == form.users:
        found = block(jnp.int32(0))
    else:

        def store(position: jax.Array, results: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            return tuple(
                jax.lax.dynamic_update_slice_in_dim(whole, own, position * form.users, whole.ndim - 3)
                for whole, own in zip(results, block(position), strict=True)
            )

        shapes = jax.eval_shape(block, jnp.int32(0))
        start = tuple(jnp.zeros((*one.shape[:-3], size, *one.shape[-2:]), one.dtype) for one in shapes)
        found = jax.lax.fori_loop(jnp.int32(0), -(-count // form.users), store, start)
    return found[0][:, 0, 0], *found[1:]


program = kept(_program, static=1)
"""The compiled programs; see `_program`."""


def _program_of_constants(form: ProgramForm, weights: Constants, *given: Any) -> tuple[jax.Array, ...]:
    return _program(form, [jnp.asarray(array) for array in weights.arrays], *given)


program_of_constants = kept(_program_of_constants, static=2)
"""The same with one plan's weights compiled in."""


def _block(
    form: ProgramForm, first: jax.Array, weights: list[jax.Array], rows: Any, prices: Any, numbers: Any
) -> tuple[jax.Array, ...]:
    """The same for the block of users that starts at `first`."""
    model, leaf_values = jax.tree.unflatten(form.structure, weights)
    if form.grows:
        some = jax.tree.map(lambda array: _slice(array, first, form.users, 0), rows)
        tree = grow(model, some, form.depth, form.constraint, form.ragged, leaf_values)
    else:
        tree = jax.tree.map(lambda array: _slice(array, first, form.users, array.ndim - 2), rows)
    temperature, discount, explore = numbers
    choice = Choice(temperature if form.soft else None, discount, explore if form.explores else None)
    outcomes, knots = prices
    ends = None if leaf_values is None else leaf_values.at(tree.leaves, knots, form.ragged)
    # The sum is finite only if all terms are.
    total = sum(level.sum(axis=(0, 1, 3)) for level in tree.levels)
    return jnp.isfinite(total)[:, None, None], *form.keep(tree, outcomes, choice, ends)


def _slice(array: jax.Array, first: jax.Array | int, size: int, axis: int) -> jax.Array:
    return array if array.shape[axis] == size else jax.lax.dynamic_slice_in_dim(array, first, size, axis)


def _state_values(tree: Tree, weights: jax.Array, choice: Choice, ends: Ends | None) -> tuple[jax.Array, ...]:
    """State values [1 + outcomes, users, prices, 1]; far less to write to memory than `action_values`."""
    return (state_values(tree, weights, choice, ends)[..., None],)


def _decision(tree: Tree, weights: jax.Array, choice: Choice, ends: Ends | None) -> tuple[jax.Array, ...]:
    """Probabilities [users, prices, actions], and outcomes of this step alone, [outcomes, users, prices, actions]."""
    probabilities = action_values(tree, weights, choice, ends).probabilities
    outcomes = tree.levels[0][..., 0].swapaxes(1, 2)[:, :, None]
    return probabilities, jnp.broadcast_to(outcomes, (len(outcomes), *probabilities.shape))


_SIZES: dict[_Keep, Sizes] = {_decision: FEW_PRICES, _state_values: SOME_PRICES, action_values: SOME_PRICES}
"""Numbers of prices that each is compiled for."""


# Checks of a planner's arguments, with messages for its user.


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


# Outcomes of a planner's policy in its own model.
#
# A tree that reaches the last step yields the outcomes of its policy directly. Otherwise the policy replans at every
# step, so it is rolled out in the model until a tree reaches the end. Actions of a rollout are drawn with common random
# numbers for all prices, so that differences between prices are not noise; the outcomes of a step are averaged over the
# draw. Without entropy and exploration nothing is random, and the result is exact for the model.


PATHS_AT_ONCE = 2**14
"""Rollouts (users × prices) at once: each may be in a state of its own, with a tree of its own."""


@dataclass(frozen=True, eq=False)
class ModelPrice:
    """Price function of a planner: the mean outcomes of its policy in the model, at each price."""

    planner: TreePlanner
    states: NDArray[np.float32]
    """First states, [users, width]."""
    steps_left: NDArray[np.intp] | int | None = None
    """Steps left at those states, one number or [users]; None is the whole campaign."""
    eligible: EligibilityState | NDArray[np.bool_] | None = None
    """The users' eligibility state, or a mask [users, actions]; None allows all."""
    seed: int = 0
    """Seed of rollouts; without a layout it matters only with a random policy and a horizon short of the campaign."""
    paths_at_once: int = PATHS_AT_ONCE
    layout: StateLayout | None = None
    """If given, a rollout draws one state per user and step around the mean state that the model predicts, and goes to
    the last step instead of ending with a tree's own values: slower, but it compares trees of any depth fairly."""

    def __call__(self, prices: ArrayLike, /) -> FloatArray:
        """Mean outcomes [outcomes, prices] at prices [prices, budgets]."""
        return np.asarray(self.by_user(prices).mean(axis=1))

    def by_user(self, prices: ArrayLike) -> FloatArray:
        """Outcomes of each user, [outcomes, users, prices]; draws depend on the seed and a user's position."""
        planner, rows = self.planner, checked_states(self.states, self.planner.columns)
        given = planner.steps if self.steps_left is None else self.steps_left
        left, names = checked_steps_left(given, len(rows), planner.steps), np.arange(len(rows))
        eligibility = None
        if self.eligible is not None or planner.constraint is not None:
            eligibility = eligibility_state(self.eligible, len(rows), planner.actions, planner.constraint)
        table = checked_prices(prices, planner.budgets)
        found = np.zeros((1 + planner.budgets, len(rows), len(table)))
        for steps in np.unique(left):
            alike = np.flatnonzero(left == steps)
            alone = steps <= planner.depth and self.layout is None
            size = len(alike) if alone else max(1, self.paths_at_once // len(table))
            for start in range(0, len(alike), size):
                part = alike[start : start + size]
                own = None if eligibility is None else eligibility[part]
                found[:, part] = _follow(
                    planner, rows[part], int(steps), table, own, names[part], self.seed, self.layout
                )
        return found


def _follow(
    planner: TreePlanner,
    states: NDArray[np.float32],
    steps_left: int,
    prices: FloatArray,
    eligibility: EligibilityState | None,
    names: NDArray[np.integer],
    seed: int,
    layout: StateLayout | None,
) -> FloatArray:
    """Roll the policy out: outcomes to go of every user at every price, [outcomes, users, prices]."""
    users, columns = len(states), np.arange(len(prices))
    everybody = keys = names.astype(np.uint64)  # of the users; `keys` follows the rows of `states` below
    outcomes = np.zeros((1 + planner.budgets, users, len(prices)))
    # Prices under which a user has had the same actions share a state, and so a tree: `place` is its row in `states`.
    place = np.repeat(np.arange(users)[:, None], len(prices), axis=1)  # [users, prices]
    # Weight of a step: discount times the probability that the user is still there, [users, prices].
    weight = np.ones(place.shape)
    believed = planner.depth if layout is None else 0
    for left in range(steps_left, believed, -1):
        probabilities = planner.values(states, left, prices, eligibility).probabilities
        taken = np.asarray(probabilities, dtype=np.float64)[place, columns]
        step, staying, successors = apply_steps(planner.model, states)
        outcomes += weight * np.einsum("upa,oupa->oup", taken, step[:, place])
        weight *= planner.discount
        actions = draw(taken, fraction(everybody, "roll-out", seed, left)[:, None])
        if staying is not None:
            weight *= staying[place, actions]
        moves, place = np.unique(place * planner.actions + actions, return_inverse=True)
        place = place.reshape(users, len(prices))
        parents, moved = np.divmod(moves, planner.actions)
        states = successors[parents, moved]
        if layout is not None:
            keys = keys[parents]
            uniforms = [fraction(keys, f"state {part}", seed, left) for part in range(layout.drawn_parts)]
            states = layout.drawn(states, np.reshape(uniforms, (layout.drawn_parts, len(keys))).T)
        eligibility = None if eligibility is None else eligibility[parents].after(planner.constraint, moved)
    if layout is not None:
        return outcomes
    # `values`, not `expected`, so that the programs compiled for the steps before are used again.
    last = planner.values(states, min(steps_left, planner.depth), prices, eligibility).expected()
    return np.asarray(outcomes + weight * last[:, place, columns])
