"""Learned values: what every action is worth in a state, at the prices learned or between them."""

from __future__ import annotations

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
from redenvelope.learning.networks import ValueNetwork, networks_at
from redenvelope.learning.passes import future, in_blocks, present
from redenvelope.learning.settings import LearningReport
from redenvelope.log.layout import StateLayout
from redenvelope.models.examples import require_states
from redenvelope.policies.checks import checked_steps_left, whole_mask

__all__ = ["LearnedValues", "Worth", "scaled_dual", "unscaled_dual", "value_to_go"]

FloatArray = NDArray[np.float64]


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

    def around(self, duals: ArrayLike) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """For each of `duals`, the last learned dual that is not above it, and the share of the next one, [duals]."""
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
        low = np.clip(np.searchsorted(known, place, side="right") - 1, 0, max(0, len(known) - 2))
        gap = np.append(np.diff(known), 1.0)[low]
        return low, np.clip((place - known[low]) / gap, 0.0, 1.0).astype(np.float32)

    def at_knots(
        self, states: ArrayLike, steps_left: ArrayLike, eligible: ArrayLike | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Mean over folds at the duals learned, [n, heads, components, actions], and what may be chosen, [n, actions].

        The arguments are those of a policy. One pass through the networks; every dual can be priced from it.
        """
        rows = np.asarray(states, dtype=np.float32)
        require_states(rows, self.layout)
        left = checked_steps_left(steps_left, len(rows), self.steps)
        mask = whole_mask(eligible, len(rows), self.actions)
        values = np.empty((len(rows), len(self.duals), self.components, self.actions), np.float32)
        allowed = np.empty((len(rows), self.actions), dtype=bool)
        for steps in np.unique(left):
            networks = networks_at(self.futures, self.steps - int(steps))

            def block(chunk: Any, own: Any, networks: ValueNetwork | None = networks) -> Any:
                now, chances = present(self.immediate, chunk)
                later = None if networks is None else future(networks, chunk)
                found = value_to_go(now, later, len(self.duals), self.components)
                return found, supported(np.asarray(chances) >= self.least_chance, own)

            alike = np.flatnonzero(left == steps)
            values[alike], allowed[alike] = in_blocks(block, values[0].size, rows[alike], mask[alike])
        return values, allowed

    def between(self, values: NDArray[np.float32], allowed: NDArray[np.bool_], duals: ArrayLike) -> Worth:
        """Values and decisions at any duals [duals], from what `at_knots` gave."""
        low, share = self.around(duals)
        high, share = np.minimum(low + 1, len(self.duals) - 1), share[:, None, None]
        asked = jnp.asarray(np.atleast_1d(np.asarray(duals)).astype(np.float32))
        temperature = jnp.asarray(np.float32(self.temperature))

        def block(part: Any, own: Any) -> Worth:
            mixed = part[:, low] * (1 - share) + part[:, high] * share
            return _decided(mixed, own, asked, temperature)

        worth: Worth = in_blocks(block, len(low) * self.components * self.actions, values, allowed)
        return worth

    def outcomes(self, states: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Expected reward and cost of this step alone, mean over folds: [n, width] -> [n, actions] each."""
        rows = np.asarray(states, dtype=np.float32)
        require_states(rows, self.layout)
        numbers = len(self.duals) * self.components * self.actions
        folded = in_blocks(lambda block: present(self.immediate, block)[0], numbers, rows)
        both = folded.mean(axis=1, dtype=np.float64)
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


def value_to_go(now: Any, later: Any | None, heads: int, components: int) -> NDArray[np.float32]:
    """Mean over folds of what a step gives [n, folds, 2, actions] and what follows, [n, heads, components, actions].

    What follows is [n, folds, heads, components, actions], or None after the last step.
    """
    alone = np.asarray(now).mean(axis=1)
    values = np.zeros((len(alone), heads, components, alone.shape[-1]), np.float32)
    if later is not None:
        np.mean(np.asarray(later), axis=1, out=values)
    values[:, :, :2] += alone[:, None]
    return values


@eqx.filter_jit
def _decided(mixed: jax.Array, allowed: jax.Array, duals: jax.Array, temperature: jax.Array) -> Worth:
    """Decisions from values [n, duals, components, actions]."""
    bonus = mixed[..., 2, :] if mixed.shape[-2] == 3 else jnp.zeros_like(mixed[..., 0, :])
    return Worth(choose(mixed, duals, temperature, allowed), mixed[..., 0, :], mixed[..., 1, :], bonus)
