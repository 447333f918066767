"""What a state becomes after every action: a network for the dynamic features; the rest is known."""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.log.layout import StateLayout
from redenvelope.models.events import logged_events
from redenvelope.models.examples import Examples, Rows
from redenvelope.models.response import LowRankResponse
from redenvelope.models.wide_deep import FixedPart, WideDeep

__all__ = ["TailScale", "TransitionNetwork", "tail_scale"]

_LARGEST_RANK = 3
_STATISTICS_ROWS = 200_000  # enough for a scale and a range; a log larger than memory is not read for them


class TailScale(eqx.Module):
    """How far the dynamic numbers move and range in the log, each [dynamic numbers]."""

    change: jax.Array
    """Standard deviation of the change over one step."""
    low: jax.Array
    high: jax.Array


def tail_scale(examples: Examples, rows: NDArray[np.int64]) -> TailScale:
    """Measure the dynamic numbers on some rows of a log."""
    rows = rows[:: max(1, len(rows) // _STATISTICS_ROWS)]
    numbers = examples.layout.numbers
    values = np.asarray(examples.states[rows, numbers], dtype=np.float64)
    moving = rows[examples.continues[rows]]
    change = np.zeros(numbers.stop - numbers.start)
    if len(moving):
        change = (examples.states[moving + 1, numbers].astype(np.float64) - examples.states[moving, numbers]).std(0)
    return TailScale(
        change=_float32(np.where(change > 1e-6, change, 1.0)),
        low=_float32(values.min(0, initial=np.inf, where=True) if len(values) else change),
        high=_float32(values.max(0, initial=-np.inf, where=True) if len(values) else change),
    )


def _float32(values: NDArray[np.float64]) -> jax.Array:
    # Narrowed by numpy: jax would compile a program for that, for every shape.
    return jnp.asarray(values.astype(np.float32))


class TransitionNetwork(eqx.Module):
    """Scores of the next tail after every event and action, for states [n, width].

    The score of a number is its change in units of `TailScale.change`; of a binary, log odds; of a category,
    log odds of its codes up to a constant. The actions share a low-rank structure.
    """

    network: WideDeep
    shapes: jax.Array
    """[rank, actions]"""
    level: jax.Array
    """[events, actions, tail]"""
    layout: StateLayout = eqx.field(static=True)

    def __init__(
        self, layout: StateLayout, actions: int, events: int, hidden: tuple[int, ...], generator: np.random.Generator
    ) -> None:
        response = LowRankResponse(actions, _LARGEST_RANK)
        tail = layout.predicted_width
        self.layout = layout
        self.shapes = response.shapes
        self.level = jnp.asarray(np.zeros((events, actions, tail), np.float32))
        self.network = WideDeep(layout, hidden, tail * events * response.outputs, generator)

    def of_action(self, states: jax.Array, action: jax.Array, event: jax.Array) -> jax.Array:
        """Scores after one action [n] and one event, one-hot [n, events], each -> [n, tail]: cheaper than all."""
        events, actions, tail = self.level.shape
        taken = jax.nn.one_hot(action, actions)
        both = (event[:, :, None] * taken[:, None, :]).reshape(len(states), events * actions)
        raw = (self._raw(states) * event[:, :, None, None]).sum(axis=1)
        shares = jnp.concatenate([jnp.ones((len(states), 1)), taken @ self.shapes.T], axis=1)
        return both @ self.level.reshape(events * actions, tail) + (raw * shares[:, :, None]).sum(axis=1)

    def _raw(self, states: jax.Array) -> jax.Array:
        """Base and weights of the shapes after every event, [n, events, 1 + rank, tail]."""
        events, rank = self.level.shape[0], self.shapes.shape[0]
        return self.network(states).reshape(len(states), events, 1 + rank, self.layout.predicted_width)

    def loss(self, rows: Rows, scale: TailScale) -> jax.Array:
        """Loss of what followed the logged action and event, summed over the dynamic features, [rows]."""
        states, next_tail = jnp.asarray(rows.states), jnp.asarray(rows.next_tail)
        event = logged_events(rows, self.level.shape[0])
        scores = self.of_action(states, jnp.asarray(rows.action), event)
        numbers, binaries, categories = _places(self.layout)
        change = (next_tail[:, numbers] - states[:, self.layout.numbers]) / scale.change
        total = 0.5 * jnp.square(scores[:, numbers] - change).sum(axis=1)
        total += (jax.nn.softplus(scores[:, binaries]) - next_tail[:, binaries] * scores[:, binaries]).sum(axis=1)
        for block in categories:
            total -= (next_tail[:, block] * jax.nn.log_softmax(scores[:, block], axis=1)).sum(axis=1)
        return total * rows.continues

    def followed(self, fixed: FixedPart, nodes: jax.Array, chances: Sequence[jax.Array], scale: TailScale) -> jax.Array:
        """Expected tail after every action, [actions, tail, n], of n = groups · size nodes [groups, size, changing].

        `fixed` is the fixed part of the groups [groups, ...]; `chances` are those of each event, [actions, n].
        """
        # The rows come last: they fill the vector registers, which the few events, actions and columns do not.
        events, actions, tail = self.level.shape
        columns = nodes.reshape(-1, nodes.shape[2])
        raw = self.network.at(fixed, nodes).T.reshape(events, 1 + len(self.shapes), tail * len(columns))
        now = columns[:, 1 : 1 + self.layout.dynamic_numbers].T
        shares = jnp.concatenate([jnp.ones((actions, 1)), self.shapes.T], axis=1)
        expected = jnp.zeros(())
        for event, chance in enumerate(chances):
            # A product of small matrices: a sum fused with the exponentials after it would not be vectorised.
            scores = (shares @ raw[event]).reshape(actions, tail, len(columns)) + self.level[event][..., None]
            expected = expected + self._tail(now, scores, scale) * chance[:, None]
        return expected

    def _tail(self, now: jax.Array, scores: jax.Array, scale: TailScale) -> jax.Array:
        """What scores [actions, tail, n] make of the dynamic numbers `now` [numbers, n]: [actions, tail, n]."""
        numbers, binaries, categories = _places(self.layout)
        moved = now + scale.change[:, None] * scores[:, numbers]
        parts = [jnp.clip(moved, scale.low[:, None], scale.high[:, None]), jax.nn.sigmoid(scores[:, binaries])]
        parts += [jax.nn.softmax(scores[:, block], axis=1) for block in categories]
        return jnp.concatenate(parts, axis=1)


def _places(layout: StateLayout) -> tuple[slice, slice, tuple[slice, ...]]:
    """Where numbers, binaries and each category stand in the tail."""
    first = layout.step + 1

    def shift(part: slice) -> slice:
        return slice(part.start - first, part.stop - first)

    return shift(layout.numbers), shift(layout.binaries), tuple(shift(block) for block in layout.categories)
