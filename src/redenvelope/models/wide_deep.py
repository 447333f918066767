"""Wide & Deep: a linear part that remembers and a deep part that generalises, summed into raw outputs."""

from __future__ import annotations

from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from redenvelope.log.layout import StateLayout

__all__ = ["WideDeep", "number_inputs", "number_width"]

# A one-hot product is faster than a gather (and far faster than its gradient) up to about this many codes.
_ONE_HOT_CODES = 64
_LARGEST_EMBEDDING = 16
# A campaign of so many steps gets one input a step; a longer one, so many hats over its length.
_LARGEST_HATS = 12


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
        numbers, codes = self._parts(states)
        raw = numbers @ self.wide_weights
        for code, table in zip(codes, self.wide_tables, strict=True):
            raw = raw + _look_up(code, table)
        return raw + self._units(numbers, codes) @ self.deep_weights

    def rows_last(self, states: jax.Array) -> jax.Array:
        """Raw outputs, the rows last: [n, width] -> [outputs, n].

        For many outputs that are then worked on column by column: one product writes them in this order, where
        turning around what `__call__` gives would take longer than making it.
        """
        numbers, codes = self._parts(states)
        small = [place for place, table in enumerate(self.wide_tables) if table.shape[0] <= _ONE_HOT_CODES]
        large = [place for place in range(len(codes)) if place not in small]
        spread = [jax.nn.one_hot(codes[place], self.wide_tables[place].shape[0]) for place in small]
        inputs = jnp.concatenate([numbers, *spread, self._units(numbers, codes)], axis=1)
        weights = [self.wide_weights, *(self.wide_tables[place] for place in small), self.deep_weights]
        raw = jax.lax.dot_general(jnp.concatenate(weights, axis=0), inputs, (((0,), (1,)), ((), ())))
        for place in large:
            raw = raw + self.wide_tables[place][codes[place]].T
        return raw

    def _parts(self, states: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        """Numbers [n, numbers], and the codes of each static category, [n] each."""
        codes = [states[:, column].astype(jnp.int32) for column in range(len(self.layout.static_categories))]
        return number_inputs(states, self.layout), codes

    def _units(self, numbers: jax.Array, codes: list[jax.Array]) -> jax.Array:
        """The last hidden layer, [n, units]."""
        embedded = [_look_up(code, table) for code, table in zip(codes, self.embedding_tables, strict=True)]
        units = jnp.concatenate([numbers, *embedded], axis=1)
        for weights, biases in zip(self.trunk_weights, self.trunk_biases, strict=True):
            units = jax.nn.silu(units @ weights + biases)
        return units


def embedding_size(codes: int) -> int:
    """Dimensions of a category's embedding: the square root of its codes, two to sixteen."""
    return int(np.clip(round(np.sqrt(codes)), 2, _LARGEST_EMBEDDING))


def number_width(layout: StateLayout) -> int:
    """Number of columns `number_inputs` gives."""
    return layout.width - len(layout.static_categories) - 1 + _hats(layout)


def number_inputs(states: jax.Array, layout: StateLayout) -> jax.Array:
    """All of a state but its static codes, [n, width] -> [n, number_width].

    The step is spread over hats, so that an effect may differ freely from step to step.
    """
    hats = _hats(layout)
    place = states[:, layout.step, None] * (hats - 1)
    spread = jnp.maximum(0.0, 1.0 - jnp.abs(place - jnp.arange(hats)))
    fixed = states[:, len(layout.static_categories) : layout.static_width]
    return jnp.concatenate([fixed, spread, states[:, layout.step + 1 :]], axis=1)


def _zeros(rows: int, columns: int) -> jax.Array:
    return jnp.asarray(np.zeros((rows, columns), np.float32))


def _hats(layout: StateLayout) -> int:
    return min(round(1.0 / layout.step_change) + 1, _LARGEST_HATS)


def _look_up(code: jax.Array, table: jax.Array) -> jax.Array:
    """Rows of a table, [n] -> [n, columns]."""
    if table.shape[0] <= _ONE_HOT_CODES:
        return jax.nn.one_hot(code, table.shape[0]) @ table
    return table[code]
