"""Learned values: what every action is worth in a state, at the prices learned or between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.errors import UsageError
from redenvelope.learning.decide import choose, supported
from redenvelope.learning.immediate import Immediate
from redenvelope.learning.networks import ValueNetwork
from redenvelope.learning.settings import LearningReport
from redenvelope.log.layout import StateLayout
from redenvelope.models.examples import require_states

__all__ = [
    "LearnedValues",
    "Worth",
    "checked_eligible",
    "checked_steps_left",
    "in_blocks",
    "scaled_dual",
    "stage_values",
    "unscaled_dual",
]

FloatArray = NDArray[np.float64]

_BLOCK_NUMBERS = 2**21  # numbers in the largest array of a block of rows: more falls out of the cache


class Worth(eqx.Module):
    """What some users' first actions are worth, [n, duals, actions] each."""

    probabilities: Any
    reward_to_go: Any
    """Without entropy bonus."""
    cost_to_go: Any
    bonus_to_go: Any
    """Entropy bonus of later steps; zero without a temperature."""


@dataclass(frozen=True, eq=False)
class LearnedValues:
    """Values learned from a log at some duals; between two of them, they are interpolated."""

    immediate: Immediate
    futures: ValueNetwork | None
    """What follows an action, every array with leading axes [steps - 1, folds]; None in a campaign of one step."""
    duals: FloatArray
    """The duals learned, rising, [heads]."""
    temperature: float
    unit: float
    """Sets the scale of interpolation, see `scaled_dual`."""
    steps: int
    """Steps of the campaign."""
    layout: StateLayout
    least_chance: float
    report: LearningReport

    @property
    def actions(self) -> int:
        """Number of actions."""
        return self.immediate.actions

    @property
    def components(self) -> int:
        """Reward and cost; with a temperature, entropy bonus too."""
        return 3 if self.temperature > 0 else 2

    def weights(self, duals: ArrayLike) -> NDArray[np.float32]:
        """Share of every learned dual in each of `duals`, [duals, heads]: one or two are not zero."""
        asked = np.atleast_1d(np.asarray(duals, dtype=np.float64))
        if asked.ndim != 1 or not (asked >= 0).all():
            raise UsageError("duals must be a list of numbers of at least 0 (infinity plans on cost alone)")
        known, place = scaled_dual(self.duals, self.unit), scaled_dual(asked, self.unit)
        outside = (place < known[0] - 1e-9) | (place > known[-1] + 1e-9)
        if outside.any():
            raise UsageError(
                f"values were learned for duals from {self.duals[0]:g} to {self.duals[-1]:g}, not for "
                f"{asked[outside][0]:g}; learn them for that dual, or for all prices"
            )
        identity = np.eye(len(known))
        columns = [np.interp(place, known, identity[head]) for head in range(len(known))]
        return np.stack(columns, axis=1).astype(np.float32)

    def at_knots(
        self, states: ArrayLike, steps_left: ArrayLike, eligible: ArrayLike | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Mean over folds at the duals learned, [n, heads, components, actions], and what may be chosen, [n, actions].

        The arguments are those of a policy. One pass through the networks; every dual can be priced from it.
        """
        rows = np.asarray(states, dtype=np.float32)
        require_states(rows, self.layout)
        left = checked_steps_left(steps_left, len(rows), self.steps)
        mask = checked_eligible(eligible, len(rows), self.actions)
        values = np.empty((len(rows), len(self.duals), self.components, self.actions), np.float32)
        allowed = np.empty((len(rows), self.actions), dtype=bool)
        for steps in np.unique(left):
            place = jnp.asarray(self.steps - steps, jnp.int32)

            def block(chunk: Any, own: Any, place: jax.Array = place) -> Any:
                shape = (len(self.duals), self.components, self.least_chance)
                return _at_knots(self.immediate, self.futures, place, *shape, chunk, own)

            alike = np.flatnonzero(left == steps)
            values[alike], allowed[alike] = in_blocks(block, values[0].size, rows[alike], mask[alike])
        return values, allowed

    def between(self, values: NDArray[np.float32], allowed: NDArray[np.bool_], duals: ArrayLike) -> Worth:
        """Values and decisions at any duals [duals], from what `at_knots` gave."""
        weights, asked = jnp.asarray(self.weights(duals)), jnp.asarray(np.atleast_1d(duals), jnp.float32)
        temperature = jnp.asarray(self.temperature, jnp.float32)

        def block(part: Any, own: Any) -> Worth:
            return _between(part, own, weights, asked, temperature)

        worth: Worth = in_blocks(block, len(weights) * self.components * self.actions, values, allowed)
        return worth

    def outcomes(self, states: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Expected reward and cost of this step alone, mean over folds: [n, width] -> [n, actions] each."""
        rows = np.asarray(states, dtype=np.float32)
        require_states(rows, self.layout)
        both = in_blocks(lambda block: _outcomes(self.immediate, block), 2 * self.actions, rows).astype(np.float64)
        return both[:, 0], both[:, 1]

    def worth(
        self, states: ArrayLike, steps_left: ArrayLike, duals: ArrayLike, eligible: ArrayLike | None = None
    ) -> Worth:
        """Values and decisions at duals [duals]; the other arguments are those of a policy."""
        return self.between(*self.at_knots(states, steps_left, eligible), duals)


def scaled_dual(duals: FloatArray, unit: float) -> FloatArray:
    """Duals from 0 to infinity on a scale from 0 to 1, [duals]: the root of dual / (dual + unit).

    The root spreads out small duals, where a policy's cost falls fastest.
    """
    return np.asarray(np.sqrt(1.0 - unit / (np.asarray(duals, np.float64) + unit)))


def unscaled_dual(places: FloatArray, unit: float) -> FloatArray:
    """The duals at places of that scale, [places]; 1 is infinity."""
    squares = np.square(places)
    finite = squares < 1.0
    return np.where(finite, unit * squares / np.where(finite, 1.0 - squares, 1.0), np.inf)


def stage_values(
    immediate: Immediate,
    futures: ValueNetwork | None,
    stage: jax.Array,
    heads: int,
    components: int,
    states: jax.Array,
) -> jax.Array:
    """Reward, cost (and bonus) to go of every action: [n, width] -> [folds, n, heads, components, actions].

    `stage` is the number of steps before this one. After the last step nothing follows.
    """
    now = immediate.outcomes(states)[:, :, None]
    if futures is None:
        alone = jnp.pad(now, ((0, 0), (0, 0), (0, 0), (0, components - 2), (0, 0)))
        return jnp.broadcast_to(alone, (*alone.shape[:2], heads, *alone.shape[3:]))
    last = futures.centre.shape[0]
    network = jax.tree.map(lambda array: array[jnp.minimum(stage, last - 1)], futures)
    later: jax.Array = jax.vmap(lambda one: one(states))(network) * (stage < last)
    return later.at[..., :2, :].add(now)


@eqx.filter_jit
def _at_knots(
    immediate: Immediate,
    futures: ValueNetwork | None,
    stage: jax.Array,
    heads: int,
    components: int,
    least_chance: float,
    states: jax.Array,
    eligible: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    values = stage_values(immediate, futures, stage, heads, components, states).mean(axis=0)
    return values, supported(immediate.chances(states), eligible, jnp.asarray(least_chance))


@eqx.filter_jit
def _outcomes(immediate: Immediate, states: jax.Array) -> jax.Array:
    """[n, width] -> [n, 2, actions]."""
    return immediate.outcomes(states).mean(axis=0)


@eqx.filter_jit
def _between(
    values: jax.Array, allowed: jax.Array, weights: jax.Array, duals: jax.Array, temperature: jax.Array
) -> Worth:
    """`values` [n, heads, components, actions] mixed by `weights` [duals, heads], and decided on."""
    mixed = jnp.einsum("nhca,dh->ndca", values, weights)
    bonus = mixed[..., 2, :] if mixed.shape[-2] == 3 else jnp.zeros_like(mixed[..., 0, :])
    return Worth(choose(mixed, duals, temperature, allowed), mixed[..., 0, :], mixed[..., 1, :], bonus)


def in_blocks(function: Callable[..., Any], numbers_a_row: int, *columns: NDArray[Any]) -> Any:
    """Apply a function to rows [n, ...] in blocks of one shape; arrays come out [n, ...] in numpy."""
    rows = len(columns[0])
    size = int(np.clip(_BLOCK_NUMBERS // max(1, numbers_a_row), 64, 8_192))
    size = min(size, 1 << max(0, rows - 1).bit_length())  # few lengths: few compilations
    parts = []
    for first in range(0, max(rows, 1), size):
        pieces = [column[first : first + size] for column in columns]
        padded = [np.concatenate([p, np.ones((size - len(p), *p.shape[1:]), p.dtype)]) for p in pieces]
        parts.append(jax.tree.map(np.asarray, function(*padded)))
    return jax.tree.map(lambda *arrays: np.concatenate(arrays)[:rows], *parts)


def checked_steps_left(steps_left: ArrayLike, users: int, steps: int) -> NDArray[np.int64]:
    """Steps left as [users], between 1 and the steps of the campaign."""
    left = np.broadcast_to(np.asarray(steps_left), (users,))
    wrong = (left < 1) | (left > steps) | (left != np.floor(left))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise UsageError(f"row {row} has {left[row]} steps left; it must be a whole number between 1 and {steps}")
    return left.astype(np.int64)


def checked_eligible(eligible: ArrayLike | None, rows: int, actions: int) -> NDArray[np.bool_]:
    """A mask [rows, actions] in which every row has an action left; None allows all."""
    if eligible is None:
        return np.ones((rows, actions), dtype=bool)
    mask = np.asarray(eligible, dtype=bool)
    if mask.shape != (rows, actions):
        raise UsageError(f"eligible must be [rows, actions] = {(rows, actions)}, not {mask.shape}")
    if not mask.any(axis=1).all():
        row = int(np.flatnonzero(~mask.any(axis=1))[0])
        raise UsageError(f"row {row} has no eligible action; allow at least one, such as sending nothing")
    return mask
