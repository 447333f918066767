"""Leaf values: the reward and costs to go of a tree's leaves, for any number of steps left and any prices.

`LeafValues` holds one small network per number of steps left, with outputs at a grid of prices and interpolation
between them. `learning/values_to_go.py` fits them inside the learned model; the planner adds them below shallow trees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import Float32Array, FloatArray, IntArray
from redenvelope.engine.programs import kept
from redenvelope.log.encoding.layout import StateLayout
from redenvelope.models.environment import bucket, filled
from redenvelope.models.networks import WideDeep, stack
from redenvelope.models.neural_model import named_arrays, require_sizes, restored
from redenvelope.prices import PriceGrid
from redenvelope.serialization import from_plain, to_plain

LEAF_VALUES = "leaf_values"
"""Name of the leaf values among the parts of a plan folder."""


class LeafNodes(NamedTuple):
    """The leaves of trees, with users and nodes as the last axes, as in a `Tree`."""

    roots: Any
    """The users' states at the root, [width, users, 1]; only the columns before the step are used."""
    nodes: Any
    """The columns of the leaves from the step on, [columns, users, leaves]."""
    steps_left: Any
    """Steps left at the leaves, [users, 1]; the value is 0 where it is not above 0."""


class LeafValues(eqx.Module):
    """Values to go of states at a grid of prices: reward, costs and, with a temperature, entropy bonus.

    There is one network per number of steps left; they share hidden units and differ in the linear last layer.
    """

    networks: WideDeep
    """Arrays with a leading axis [steps − 1], one step left first. Outputs are [components · points]; hidden units and
    embeddings are the same in all."""
    least: jax.Array
    """Smallest training targets, [steps − 1, components, points]; predictions are clipped to their range."""
    greatest: jax.Array
    """Largest training targets, [steps − 1, components, points]."""
    grid: PriceGrid = eqx.field(static=True)
    masked: bool = eqx.field(static=True)
    """Whether a state's columns are followed by its allowed actions and the constraint's memory."""

    @property
    def layout(self) -> StateLayout:
        """The columns of a state; those that follow it count as binaries."""
        return self.networks.layout

    def at(self, leaves: LeafNodes, weights: jax.Array, ragged: bool) -> tuple[jax.Array, ...]:
        """The components, [users · leaves, prices] each, at prices that weight the grid's points by [points, prices].

        Without `ragged`, all users must have as many steps left as the first.
        """
        roots, nodes = leaves.roots[..., 0].T, jnp.moveaxis(leaves.nodes, 0, 2)
        if ragged:
            found = self._of_each(roots, nodes, weights, leaves.steps_left[:, 0])
        else:
            stage = jnp.maximum(leaves.steps_left[0, 0] - 1, 0)
            own = eqx.combine(jax.tree.map(lambda array: array[stage], eqx.filter(self, eqx.is_array)), self)
            found = own._of(roots, nodes, weights)
        return tuple(jnp.moveaxis(found, 1, 0))

    def of(self, columns: Float32Array, steps_left: IntArray, prices: FloatArray) -> FloatArray:
        """The components at prices [prices, budgets] of states with steps left [n]: [components, n, prices].

        `columns` [n, columns] are the states, where `masked` followed by their allowed actions and memory.
        """
        weights = self.grid.weights(prices).T.astype(np.float32)
        found = np.zeros((self.least.shape[1], len(columns), len(prices)))
        for left in np.unique(steps_left):
            alike = np.flatnonzero(steps_left == left)
            padded = filled(columns[alike], bucket(len(alike)))
            found[:, alike] = _components(self, padded, np.int32(left), weights)[:, : len(alike)]
        return found

    def _of(self, roots: jax.Array, nodes: jax.Array, weights: jax.Array) -> jax.Array:
        """Components [users · leaves, components, prices] from the network of one number of steps left."""
        components, points = self.least.shape
        parts = jax.tree.map(lambda part: _priced(part, points, weights), _last_layer(self.networks))
        network = eqx.tree_at(_last_layer, self.networks, parts)
        found = network.at(network.fixed_part(roots), nodes).reshape(-1, components, weights.shape[1])
        return jnp.clip(found, self.least @ weights, self.greatest @ weights)

    def _of_each(self, roots: jax.Array, nodes: jax.Array, weights: jax.Array, left: jax.Array) -> jax.Array:
        """The same for users with different numbers of steps left, [users]; 0 where it is not above 0.

        Hidden units are shared, so all networks' outputs are computed at once and each user's own are selected.
        """
        stages, components, points = self.least.shape
        users, (prices, leaves) = len(roots), (weights.shape[1], nodes.shape[1])

        def side_by_side(part: jax.Array) -> jax.Array:
            """[stages, rows, components · points] -> [rows, stages · components · prices]"""
            priced = _priced(part, points, weights).reshape(stages, part.shape[1], components * prices)
            return jnp.moveaxis(priced, 0, 1).reshape(part.shape[1], -1)

        first = jax.tree.map(lambda array: array[0], self.networks)
        network = eqx.tree_at(_last_layer, first, jax.tree.map(side_by_side, _last_layer(self.networks)))
        outputs = network.at(network.fixed_part(roots), nodes).reshape(users, leaves, stages, components, prices)
        stage = jnp.maximum(left - 1, 0)
        found = jnp.take_along_axis(outputs, stage[:, None, None, None, None], axis=2)[:, :, 0]
        least, greatest = ((ends @ weights)[stage, None] for ends in (self.least, self.greatest))
        found = jnp.where(left[:, None, None, None] > 0, jnp.clip(found, least, greatest), 0.0)
        return found.reshape(users * leaves, components, prices)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
        """Plain data for JSON, and the weights by name."""
        written = _Written(
            self.layout,
            tuple(int(weights.shape[-1]) for weights in self.networks.trunk_weights),
            int(self.least.shape[0]),
            int(self.least.shape[1]),
            self.grid,
            self.masked,
        )
        return to_plain(written), named_arrays({LEAF_VALUES: eqx.filter(self, eqx.is_array)})

    @classmethod
    def from_state(cls, config: dict[str, Any], arrays: dict[str, NDArray[np.float32]]) -> LeafValues:
        """The values that `state` wrote; parts that do not fit together are refused before anything is built."""
        written = from_plain(_Written, config, "the values to go")
        points = written.grid.knots ** len(written.grid.units)
        outputs = written.components * points
        require_sizes(
            {
                "values to go": (written.stages, written.layout.width, outputs),
                "codes of static categories": (written.stages, sum(written.layout.static_categories), outputs),
                "hidden units of values to go": (written.stages, sum(written.hidden), outputs),
            },
            arrays,
        )
        network = WideDeep(written.layout, written.hidden, outputs, np.random.default_rng(0))
        ends = jax.device_put(np.zeros((written.stages, written.components, points), np.float32))
        skeleton = cls(stack([network] * written.stages), ends, ends, written.grid, written.masked)
        found: LeafValues = restored({LEAF_VALUES: skeleton}, arrays)[LEAF_VALUES]
        return found


def _last_layer(networks: WideDeep) -> tuple[Any, jax.Array, jax.Array]:
    """The weights of the linear last layer, [..., rows, outputs] each."""
    return networks.wide_tables, networks.wide_weights, networks.deep_weights


def _priced(part: jax.Array, points: int, weights: jax.Array) -> jax.Array:
    """Last-layer weights interpolated from the grid's points to prices by `weights` [points, prices]:
    [..., rows, components · points] -> [..., rows, components · prices]."""
    rows = part.shape[:-1]
    return (part.reshape(-1, points) @ weights).reshape(*rows, -1)


@kept
def _components(values: LeafValues, columns: jax.Array, left: jax.Array, weights: jax.Array) -> jax.Array:
    """Components of states [n, columns] with the same steps left, [components, n, prices]."""
    nodes = columns.T[values.layout.step :, :, None]
    leaves = LeafNodes(columns.T[..., None], nodes, jnp.full((len(columns), 1), left))
    return jnp.stack(values.at(leaves, weights, ragged=False))


@dataclass(frozen=True)
class _Written:
    """Leaf values as plain data, without their weights."""

    layout: StateLayout
    hidden: tuple[int, ...]
    stages: int
    components: int
    grid: PriceGrid
    masked: bool

    def __post_init__(self) -> None:
        if min(self.stages, self.components, *self.hidden) < 1 or self.grid.knots ** len(self.grid.units) > 10_000:
            raise ValueError("values to go need at least one step, component and unit, and not too many prices")
