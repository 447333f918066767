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
from redenvelope.log.layout import StateLayout
from redenvelope.models.examples import require_states
from redenvelope.models.immediate import Immediate
from redenvelope.models.value_network import ValueNetwork, networks_at
from redenvelope.planning.learned_decisions import action_scores, choose, exploring, supported
from redenvelope.planning.learned_passes import future, in_blocks, present
from redenvelope.policies.checks import checked_steps_left
from redenvelope.policies.constraints import Constraint
from redenvelope.policies.standing import Eligible, standing_of
from redenvelope.policies.standing import allowed as allowed_now
from redenvelope.policies.values import ActionValues, Decided
from redenvelope.prices import checked_prices, outcome_weights

__all__ = ["LearnedValues", "LearningReport", "checked_duals", "scaled_dual", "unscaled_dual", "value_to_go"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LearningReport:
    """How learning went."""

    bellman_error: FloatArray
    """Root mean square of the held-out Bellman error of what follows an action, in units of the target's own
    standard deviation (1 is no better than a constant), [steps - 1]: of the first step first."""
    epochs: tuple[int, ...]
    """Epochs run for each step but the last."""
    excluded: FloatArray
    """Share of the rows in which the guard rules an action out, [actions]."""
    late: tuple[str, ...] = ()
    """Outcomes that actions change later than the next state tells: there, values follow the log."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the guard did and what was found, in words."""
        rare = tuple(
            f"action {action} is too rare in the log to be valued in {share:.1%} of the rows, and left out there"
            for action, share in enumerate(self.excluded)
            if share > 0
        )
        return rare + tuple(
            f"what actions do to the {name} shows later than the next state tells: it was learned along the log"
            for name in self.late
        )


@dataclass(frozen=True, eq=False)
class LearnedValues:
    """Values learned from a log at some prices of one budget; between two of them, they are interpolated."""

    immediate: Immediate
    futures: ValueNetwork | None
    """What follows an action, every array with leading axes [steps - 1, folds]; None in a campaign of one step."""
    duals: FloatArray
    """The prices learned, rising, [heads]."""
    temperature: float
    unit: float
    """Sets the scale of interpolation, see `scaled_dual`."""
    steps: int
    """Steps of the campaign."""
    layout: StateLayout
    least_chance: float
    """The guard: an action that the logger gives in a state with less than this probability is not chosen there."""
    report: LearningReport
    constraint: Constraint | None = None
    """Which actions a state allows."""
    explore: float = 0.0
    """Share of the decisions that is drawn evenly among what may be chosen."""

    @property
    def actions(self) -> int:
        """Number of actions."""
        return self.immediate.actions

    @property
    def budgets(self) -> int:
        """One: values are learned for one price."""
        return 1

    @property
    def depth(self) -> int:
        """Steps that its values look ahead: to the end of the campaign."""
        return self.steps

    @property
    def notes(self) -> tuple[str, ...]:
        """What the guard left out and what shows late, in words."""
        return self.report.notes

    @property
    def components(self) -> int:
        """Reward and cost; with a temperature, entropy bonus too."""
        return 3 if self.temperature > 0 else 2

    def values(
        self, states: ArrayLike, steps_left: ArrayLike, prices: ArrayLike, eligible: Eligible = None
    ) -> ActionValues:
        """States [users, width], steps left (a number, or [users]) and prices [prices, 1] -> values.

        `eligible` [users, actions] rules actions out; so does the guard, unless nothing else is left.
        """
        return self.between(*self.at_knots(states, steps_left, eligible), prices)

    def decided(
        self, states: ArrayLike, steps_left: ArrayLike, prices: ArrayLike, eligible: Eligible = None
    ) -> Decided:
        """See Valuer."""
        probabilities = self.values(states, steps_left, prices, eligible).probabilities
        return Decided(probabilities, self.outcomes(states).astype(np.float32))

    def outcomes(self, states: ArrayLike) -> FloatArray:
        """Expected outcomes of this step alone, mean over folds: [n, width] -> [outcomes, n, actions]."""
        rows = np.asarray(states, dtype=np.float32)
        require_states(rows, self.layout)
        numbers = len(self.duals) * self.components * self.actions
        folded = in_blocks(lambda block: present(self.immediate, block)[0], numbers, rows)
        return np.ascontiguousarray(np.moveaxis(folded.mean(axis=1, dtype=np.float64), 1, 0))

    def at_knots(
        self, states: ArrayLike, steps_left: ArrayLike, eligible: Eligible = None
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Mean over folds at the prices learned, [n, heads, components, actions], and what may be chosen, [n, actions].

        The arguments are those of `values`. One pass through the networks; every price can be asked from it.
        """
        rows = np.asarray(states, dtype=np.float32)
        require_states(rows, self.layout)
        left = checked_steps_left(steps_left, len(rows), self.steps)
        standing = standing_of(eligible, len(rows), self.actions, self.constraint)
        mask = allowed_now(standing, self.constraint, rows, left)
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

    def between(self, values: NDArray[np.float32], allowed: NDArray[np.bool_], prices: ArrayLike) -> ActionValues:
        """Values and decisions at any prices [prices, 1], from what `at_knots` gave."""
        duals = checked_duals(prices)
        low, share = self.around(duals)
        high, share = np.minimum(low + 1, len(self.duals) - 1), share[:, None, None]
        weights = jnp.asarray(outcome_weights(duals[:, None]).astype(np.float32))
        temperature, explore = (jnp.asarray(np.float32(number)) for number in (self.temperature, self.explore))

        def block(part: Any, own: Any) -> Any:
            mixed = part[:, low] * (1 - share) + part[:, high] * share
            return _decided(mixed, own, weights, temperature, explore)

        q, probabilities, to_go = in_blocks(block, len(low) * self.components * self.actions, values, allowed)
        return ActionValues(q, probabilities, np.moveaxis(to_go, 2, 0))

    def around(self, duals: FloatArray) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """For each of `duals`, the last learned price that is not above it, and the share of the next one, [duals]."""
        known, place = scaled_dual(self.duals, self.unit), scaled_dual(duals, self.unit)
        outside = (place < known[0] - 1e-9) | (place > known[-1] + 1e-9)
        if outside.any():
            raise UsageError(
                f"values were learned for duals from {self.duals[0]:g} to {self.duals[-1]:g}, not for "
                f"{duals[outside][0]:g}; learn them for that dual, or for all prices"
            )
        low = np.clip(np.searchsorted(known, place, side="right") - 1, 0, max(0, len(known) - 2))
        gap = np.append(np.diff(known), 1.0)[low]
        return low, np.clip((place - known[low]) / gap, 0.0, 1.0).astype(np.float32)


def checked_duals(prices: ArrayLike) -> FloatArray:
    """Prices [prices, 1], or a plain list, as the prices of one budget, [prices]."""
    table = np.asarray(prices, dtype=np.float64)
    if table.ndim == 2 and table.shape[1] > 1:
        raise UsageError(
            f"values are learned for one budget, and these are prices of {table.shape[1]}; plan with a model"
        )
    duals = checked_prices(table, 1)[:, 0]
    # Beyond what a network's numbers can hold, a price is as good as infinite.
    return np.where(duals > np.finfo(np.float32).max, np.inf, duals)


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
def _decided(
    mixed: jax.Array, allowed: jax.Array, weights: jax.Array, temperature: jax.Array, explore: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Decisions from values [n, prices, components, actions]: q, probabilities, and outcomes to go of the same shape
    but [n, prices, outcomes, actions]."""
    q = jnp.where(allowed[:, None], action_scores(mixed, weights), -jnp.inf)
    chosen = exploring(choose(mixed, weights, temperature, allowed), allowed, explore)
    return q, chosen, mixed[..., :2, :]
