"""Wide & Deep: a linear part that remembers and a deep part that generalises, summed into raw outputs."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from redenvelope.log.layout import StateLayout

__all__ = ["FixedPart", "WideDeep"]

# A one-hot product is faster than a gather (and far faster than its gradient) up to about this many codes.
_ONE_HOT_CODES = 64
_LARGEST_EMBEDDING = 16
# A campaign of so many steps gets one input a step; a longer one, so many hats over its length.
_LARGEST_HATS = 12


class FixedPart(NamedTuple):
    """What a network makes of what never changes within a user."""

    units: jax.Array
    """Of the first hidden layer, before its activation, [users, units]."""
    raw: jax.Array
    """Of the raw outputs, [users, outputs]."""


class WideDeep(eqx.Module):
    """States [n, width] -> raw outputs [n, outputs].

    Wide: every feature and every code of a static category has a weight an output. Deep: the categories'
    embeddings and the numbers go through a trunk of hidden layers. Outputs start at zero.
    """

    wide_tables: tuple[jax.Array, ...]
    """A weight a code and output, [codes, outputs] for each static category."""
    wide_weights: jax.Array
    """[numbers, outputs]"""
    embedding_tables: tuple[jax.Array, ...]
    """[codes, dimensions] for each static category."""
    trunk_weights: tuple[jax.Array, ...]
    """[inputs, units] for each hidden layer."""
    trunk_biases: tuple[jax.Array, ...]
    """[units] for each hidden layer."""
    deep_weights: jax.Array
    """[units of the last hidden layer, outputs]"""
    layout: StateLayout = eqx.field(static=True)

    def __init__(
        self, layout: StateLayout, hidden: tuple[int, ...], outputs: int, generator: np.random.Generator
    ) -> None:

        def draw(rows: int, columns: int, scale: float) -> jax.Array:
            return jnp.asarray(generator.normal(0.0, scale, (rows, columns)).astype(np.float32))

        sizes = [embedding_size(codes) for codes in layout.static_categories]
        widths = [number_width(layout) + sum(sizes), *hidden]
        self.layout = layout
        self.wide_tables = tuple(_zeros(codes, outputs) for codes in layout.static_categories)
        self.wide_weights = _zeros(number_width(layout), outputs)
        self.embedding_tables = tuple(
            draw(codes, size, 1.0 / np.sqrt(size)) for codes, size in zip(layout.static_categories, sizes, strict=True)
        )
        self.trunk_weights = tuple(draw(rows, columns, np.sqrt(2.0 / rows)) for rows, columns in pairwise(widths))
        self.trunk_biases = tuple(jnp.asarray(np.zeros(units, np.float32)) for units in hidden)
        self.deep_weights = _zeros(widths[-1], outputs)

    def __call__(self, states: jax.Array) -> jax.Array:
        """Raw outputs: [n, width] -> [n, outputs]."""
        numbers, codes = number_inputs(states, self.layout), self._codes(states)
        raw = numbers @ self.wide_weights
        for code, table in zip(codes, self.wide_tables, strict=True):
            raw = raw + _look_up(code, table)
        embedded = [_look_up(code, table) for code, table in zip(codes, self.embedding_tables, strict=True)]
        units = jnp.concatenate([numbers, *embedded], axis=1)
        for weights, biases in zip(self.trunk_weights, self.trunk_biases, strict=True):
            units = jax.nn.silu(units @ weights + biases)
        return raw + units @ self.deep_weights

    def fixed_part(self, states: jax.Array) -> FixedPart:
        """What the columns before the step come to, which never change within a user: of [users, width]."""
        codes = self._codes(states)
        embedded = [_look_up(code, table) for code, table in zip(codes, self.embedding_tables, strict=True)]
        numbers = states[:, len(codes) : self.layout.static_width]
        head, tail = self.layout.static_numbers, number_width(self.layout)
        first = self.trunk_weights[0] if self.trunk_weights else self.deep_weights
        # What follows the numbers in the first layer's inputs are the embeddings.
        known = jnp.concatenate([numbers, *embedded], axis=1) @ jnp.concatenate([first[:head], first[tail:]])
        raw = numbers @ self.wide_weights[:head]
        for code, table in zip(codes, self.wide_tables, strict=True):
            raw = raw + _look_up(code, table)
        if not self.trunk_weights:  # without a hidden layer, the deep part is linear too
            return FixedPart(jnp.zeros((len(states), 0)), raw + known)
        return FixedPart(known + self.trunk_biases[0], raw)

    def at(self, fixed: FixedPart, nodes: jax.Array) -> jax.Array:
        """Raw outputs [groups · size, outputs] of nodes [groups, size, columns from the step on] that share the fixed
        part of their group."""
        groups, size, _ = nodes.shape

        def with_own(values: jax.Array, own: jax.Array) -> jax.Array:
            """Values [groups · size, columns] with their group's own [groups, columns] added."""
            return (values.reshape(groups, size, own.shape[1]) + own[:, None]).reshape(values.shape)

        head, tail = self.layout.static_numbers, number_width(self.layout)
        inputs = changing_inputs(nodes.reshape(groups * size, -1), self.layout)
        if not self.trunk_weights:
            return with_own(inputs @ (self.deep_weights[head:tail] + self.wide_weights[head:]), fixed.raw)
        units = self._deeper(jax.nn.silu(with_own(inputs @ self.trunk_weights[0][head:tail], fixed.units)))
        # One product for both parts, deep and wide.
        weights = jnp.concatenate([self.deep_weights, self.wide_weights[head:]])
        return with_own(jnp.concatenate([units, inputs], axis=1) @ weights, fixed.raw)

    def _codes(self, states: jax.Array) -> list[jax.Array]:
        """The codes of each static category, [n] each."""
        return [states[:, column].astype(jnp.int32) for column in range(len(self.layout.static_categories))]

    def _deeper(self, units: jax.Array) -> jax.Array:
        """The last hidden layer, from the first: both [n, units]."""
        for weights, biases in zip(self.trunk_weights[1:], self.trunk_biases[1:], strict=True):
            units = jax.nn.silu(units @ weights + biases)
        return units


def embedding_size(codes: int) -> int:
    """Dimensions of a category's embedding: the square root of its codes, two to sixteen."""
    return int(np.clip(round(np.sqrt(codes)), 2, _LARGEST_EMBEDDING))


def number_width(layout: StateLayout) -> int:
    """Number of columns `number_inputs` gives."""
    return layout.width - len(layout.static_categories) - 1 + _hats(layout)


def number_inputs(states: jax.Array, layout: StateLayout) -> jax.Array:
    """All of a state but its static codes, [n, width] -> [n, number_width]."""
    fixed = states[:, len(layout.static_categories) : layout.static_width]
    return jnp.concatenate([fixed, changing_inputs(states[:, layout.step :], layout)], axis=1)


def changing_inputs(columns: jax.Array, layout: StateLayout) -> jax.Array:
    """The columns of states from the step on, the step spread over hats, so that an effect may differ freely from
    step to step: [n, changing] -> [n, changing inputs]."""
    hats = _hats(layout)
    place = columns[:, :1] * (hats - 1)
    spread = jnp.maximum(0.0, 1.0 - jnp.abs(place - jnp.arange(hats)))
    return jnp.concatenate([spread, columns[:, 1:]], axis=1)


def _zeros(rows: int, columns: int) -> jax.Array:
    return jnp.asarray(np.zeros((rows, columns), np.float32))


def _hats(layout: StateLayout) -> int:
    return min(round(1.0 / layout.step_change) + 1, _LARGEST_HATS)


def _look_up(code: jax.Array, table: jax.Array) -> jax.Array:
    """Rows of a table, [n] -> [n, columns]."""
    if table.shape[0] <= _ONE_HOT_CODES:
        return jax.nn.one_hot(code, table.shape[0]) @ table
    return table[code]
