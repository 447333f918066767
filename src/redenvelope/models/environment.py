"""Environment models: outcomes and successors of every action at once, and how to apply a model to many states.

A few compiled programs serve predictions, roll-outs and trees: states and nodes are processed in blocks that fit the
cache, and rows are padded to few shapes (`bucket`, `filled`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import Float32Array
from redenvelope.engine.programs import kept


class EnvironmentModel(Protocol):
    """A learned environment. One forward pass covers every action, so a node of a tree costs one pass.

    Implementations are JAX pytrees, so that they can be passed through `jax.jit` as arguments.
    """

    @property
    def actions(self) -> int:
        """Number of actions, in the order of the action catalogue."""
        ...

    @property
    def budgets(self) -> int:
        """Number of costs."""
        ...

    def outcomes(self, states: jax.Array) -> jax.Array:
        """Mean reward, then one mean cost for each budget: [n, width] -> [outcomes, n, actions]."""
        ...

    def successors(self, states: jax.Array) -> jax.Array:
        """Expected next state after every action: [n, width] -> [n, actions, width]."""
        ...


class LeavingModel(Protocol):
    """An environment model in which users may leave before the campaign ends; optional.

    Successors are those of the users who stay.
    """

    @property
    def leaves(self) -> bool:
        """Whether users leave."""
        ...

    def survival(self, states: jax.Array) -> jax.Array:
        """Survival: the probability of a next step after every action, [n, width] -> [n, actions]."""
        ...


class SplitModel(Protocol):
    """An environment model that computes once per user what never changes within the user; optional.

    A node of a user's tree then costs only what changes. Nodes come in groups that share a user. Outcomes are separate
    arrays with the nodes last: they fill the vector registers, which a few actions do not.
    """

    @property
    def fixed_width(self) -> int:
        """Number of columns, the first ones of a state, that never change within a user."""
        ...

    def fixed_parts(self, states: jax.Array) -> tuple[Any, Any]:
        """The fixed parts for outcomes and for successors: [users, width] -> two pytrees of arrays [users, ...]."""
        ...

    def node_outcomes(self, fixed: Any, nodes: jax.Array) -> tuple[jax.Array, ...]:
        """The outcomes, [actions, groups · size] each, given the first fixed part [groups, ...] and the other columns
        of nodes [groups, size, changing]."""
        ...

    def node_steps(self, fixed: tuple[Any, Any], nodes: jax.Array) -> tuple[tuple[jax.Array, ...], jax.Array]:
        """The same, given both fixed parts, and the changing columns of the successors,
        [groups · size, actions, changing]. Where users leave, survival follows the outcomes."""
        ...


# Nodes per block: few enough that their hidden units fit the cache, enough to keep the matrix units busy.
_BLOCK_NODES = 1_024
# Groups of nodes per call of a program: enough to make the overhead of a call small.
_CALL_GROUPS = 1_024


@partial(jax.tree_util.register_dataclass, data_fields=["model"], meta_fields=[])
@dataclass(frozen=True)
class _Unsplit:
    """Any environment model as a split one with an empty fixed part."""

    model: EnvironmentModel

    @property
    def leaves(self) -> bool:
        return users_leave(self.model)

    @property
    def fixed_width(self) -> int:
        return 0

    def fixed_parts(self, states: jax.Array) -> tuple[Any, Any]:
        return (), ()

    def node_outcomes(self, fixed: Any, nodes: jax.Array) -> tuple[jax.Array, ...]:
        rows = nodes.reshape(-1, nodes.shape[2])
        return tuple(outcome.T for outcome in self.model.outcomes(rows))

    def node_steps(self, fixed: tuple[Any, Any], nodes: jax.Array) -> tuple[tuple[jax.Array, ...], jax.Array]:
        rows = nodes.reshape(-1, nodes.shape[2])
        staying = (cast(LeavingModel, self.model).survival(rows).T,) if users_leave(self.model) else ()
        return (*self.node_outcomes(fixed, nodes), *staying), self.model.successors(rows)


def users_leave(model: EnvironmentModel | SplitModel) -> bool:
    """Whether users may leave before the campaign ends; false for a model without `leaves`."""
    return bool(getattr(model, "leaves", False))


def apply_outcomes(model: EnvironmentModel, states: Float32Array) -> Float32Array:
    """Mean outcomes of every action: [n, width] -> [outcomes, n, actions]."""
    applied = AppliedModel(model)
    outcomes = np.empty((1 + model.budgets, len(states), model.actions), np.float32)
    # One call at a time, because the fixed parts of all users would not fit the cache.
    for place in _calls(len(states), 1):
        some = states[place]
        found = applied.node_outcomes(applied.fixed_parts(some)[0], some[:, None, applied.fixed_width :])
        outcomes[:, place] = np.swapaxes(found, 1, 2)
    return outcomes


def apply_steps(
    model: EnvironmentModel, states: Float32Array
) -> tuple[Float32Array, Float32Array | None, Float32Array]:
    """Mean outcomes [outcomes, n, actions], survival [n, actions] (None if nobody leaves) and expected next states
    [n, actions, width] of every action, from states [n, width]."""
    applied = AppliedModel(model)
    first = applied.fixed_width
    responses, changed = applied.node_steps(applied.fixed_parts(states), states[:, None, first:])
    outcomes = np.swapaxes(responses[: 1 + model.budgets], 1, 2)
    successors = np.empty((*changed.shape[:2], states.shape[1]), np.float32)
    successors[..., :first] = states[:, None, :first]
    successors[..., first:] = changed
    return np.ascontiguousarray(outcomes), responses[-1].T if applied.leaves else None, successors


@dataclass(frozen=True)
class AppliedModel:
    """A model as a split one outside compiled programs: numpy arrays in and out, with a compiled program inside.

    The same few programs serve every level of every tree, so growing trees level by level compiles little.
    """

    model: EnvironmentModel

    @property
    def leaves(self) -> bool:
        """See LeavingModel."""
        return users_leave(self.model)

    @property
    def fixed_width(self) -> int:
        """See SplitModel."""
        return split_model(self.model).fixed_width

    def fixed_parts(self, states: Float32Array) -> tuple[Any, Any]:
        """See SplitModel."""
        split = split_model(self.model)
        if isinstance(split, _Unsplit):
            return (), ()
        if not len(states):
            one = self.fixed_parts(np.zeros((1, states.shape[1]), np.float32))
            nobody: tuple[Any, Any] = jax.tree.map(lambda array: array[:0], one)
            return nobody
        parts = []
        for place in _calls(len(states), 1):
            found = _fixed(split, *_blocks(states[place], 1))
            parts.append(jax.tree.map(lambda array, place=place: np.asarray(array)[: place.stop - place.start], found))
        joined: tuple[Any, Any] = jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)
        return joined

    def node_outcomes(self, fixed: Any, nodes: Float32Array) -> tuple[Float32Array, ...]:
        """See SplitModel; each user of the fixed part has the same number of groups, one after the other."""
        return tuple(_apply(_outcomes, self.model, fixed, nodes, 1 + self.model.budgets)[0])

    def node_steps(self, fixed: tuple[Any, Any], nodes: Float32Array) -> tuple[tuple[Float32Array, ...], Float32Array]:
        """See SplitModel."""
        responses, changed = _apply(_steps, self.model, fixed, nodes, 1 + self.model.budgets + self.leaves)
        return tuple(responses), changed


def split_model(model: EnvironmentModel) -> SplitModel:
    """The model itself if it is split, otherwise wrapped as a split one."""
    # Looked up on the class: an equinox module creates a method object at every access.
    return cast(SplitModel, model if hasattr(type(model), "node_steps") else _Unsplit(model))


def _apply(
    program: Any, model: EnvironmentModel, fixed: Any, nodes: Float32Array, responses: int
) -> tuple[Float32Array, Float32Array]:
    """Responses and successors of all nodes; the latter are undefined where the program returns none."""
    split, (groups, size, columns) = split_model(model), nodes.shape
    outcomes = np.empty((responses, model.actions, groups * size), np.float32)
    changed = np.empty((groups * size, model.actions, columns), np.float32)
    for place in _calls(groups, size):
        own = jax.tree.map(lambda array, place=place: _of_groups(array, place, groups), fixed)
        found, successors = program(split, *_blocks((own, nodes[place]), size))
        rows = slice(place.start * size, place.stop * size)
        count = rows.stop - rows.start
        for outcome, array in zip(outcomes, found, strict=True):
            outcome[:, rows] = np.asarray(array)[:, :count]
        if successors is not None:
            changed[rows] = np.asarray(successors)[:count]
    return outcomes, changed


def _of_groups(fixed: NDArray[Any], place: slice, groups: int) -> NDArray[Any]:
    """The fixed parts of some groups, from those of their users: [users, ...] -> [some groups, ...]."""
    if groups == len(fixed):
        return fixed[place]
    return np.asarray(fixed[np.arange(place.start, place.stop) // (groups // len(fixed))])


def _groups_per_block(size: int) -> int:
    """Groups per block: a power of two, so that a few thousand users fill whole blocks at every level of trees."""
    return min(_CALL_GROUPS, 1 << max(0, (_BLOCK_NODES // size).bit_length() - 1))


def _calls(groups: int, size: int) -> Iterator[slice]:
    """The groups of nodes of each call of a program."""
    for first in range(0, groups, _CALL_GROUPS):
        yield slice(first, min(first + _CALL_GROUPS, groups))


def _blocks(rows: Any, size: int) -> tuple[Any, np.int32]:
    """A pytree of arrays [groups, ...] as blocks [blocks, groups per block, ...], padded with zeros to one shape, and
    the number of blocks that are not padding."""
    block = _groups_per_block(size)

    def blocked(array: NDArray[Any]) -> NDArray[Any]:
        padded = filled(array, max(len(array), _CALL_GROUPS))
        # The number of blocks is explicit, because an array may have no columns (nothing to predict).
        return padded.reshape(len(padded) // block, block, *array.shape[1:])

    count = -(-len(jax.tree.leaves(rows)[0]) // block)
    return jax.tree.map(blocked, rows), np.int32(count)


@kept
def _fixed(model: SplitModel, states: jax.Array, count: jax.Array) -> Any:
    return _by_block(lambda block: (model.fixed_parts(block),), states, count, axes=(0,))[0]


@kept
def _outcomes(model: SplitModel, groups: tuple[Any, jax.Array], count: jax.Array) -> tuple[Any, None]:
    return _by_block(lambda block: (model.node_outcomes(*block),), groups, count, axes=(1,))[0], None


@kept
def _steps(model: SplitModel, groups: tuple[Any, jax.Array], count: jax.Array) -> tuple[Any, ...]:
    return _by_block(lambda block: model.node_steps(*block), groups, count, axes=(1, 0))


def _by_block(
    function: Callable[[Any], tuple[Any, ...]], inputs: Any, count: jax.Array, axes: tuple[int, ...]
) -> tuple[Any, ...]:
    """Apply a function to the first `count` blocks of inputs [blocks, ...] and concatenate each result along its axis;
    zeros for the other blocks.

    Blocks are processed one after the other, so that each stays in the cache.
    """
    blocks = jax.tree.leaves(inputs)[0].shape[0]
    if blocks == 1:
        return function(jax.tree.map(lambda array: array[0], inputs))
    shapes = jax.eval_shape(lambda rows: function(jax.tree.map(lambda array: array[0], rows)), inputs)

    def empty(shape: jax.ShapeDtypeStruct, axis: int) -> jax.Array:
        return jnp.zeros((*shape.shape[:axis], blocks * shape.shape[axis], *shape.shape[axis + 1 :]), shape.dtype)

    def store(position: jax.Array, results: tuple[Any, ...]) -> tuple[Any, ...]:
        def put(all_blocks: jax.Array, one: jax.Array, axis: int) -> jax.Array:
            return jax.lax.dynamic_update_slice_in_dim(all_blocks, one, position * one.shape[axis], axis)

        found = function(jax.tree.map(lambda array: array[position], inputs))
        return tuple(
            jax.tree.map(partial(put, axis=axis), result, one)
            for result, one, axis in zip(results, found, axes, strict=True)
        )

    start = tuple(jax.tree.map(partial(empty, axis=axis), part) for part, axis in zip(shapes, axes, strict=True))
    stored: tuple[Any, ...] = jax.lax.fori_loop(0, count, store, start)
    return stored


Rows = TypeVar("Rows")

_LEAST_ROWS = 64
_LARGEST_STEP = 2**17  # beyond this, doubling wastes more memory than a compilation costs


def bucket(rows: int) -> int:
    """The length to which a number of rows is padded: a power of two, or a multiple of a large one."""
    if rows > _LARGEST_STEP:
        return -(-rows // _LARGEST_STEP) * _LARGEST_STEP
    return max(_LEAST_ROWS, 1 << (rows - 1).bit_length())


def filled(rows: Rows, length: int) -> Rows:
    """A pytree of arrays [rows, ...] padded with zeros to [length, ...], in numpy."""

    def fill(column: Any) -> NDArray[Any]:
        values = np.asarray(column)
        if len(values) == length:
            return values
        padded = np.zeros((length, *values.shape[1:]), values.dtype)
        padded[: len(values)] = values
        return padded

    full: Rows = jax.tree.map(fill, rows)
    return full
