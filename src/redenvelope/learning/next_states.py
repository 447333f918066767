"""What the next states of a log are worth, at every price, by the networks of their step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.learning.double_value import DoubleValue, double_value
from redenvelope.learning.folds import UserFolds
from redenvelope.learning.late_effects import Ahead, LateEffects
from redenvelope.models.examples import Examples
from redenvelope.models.value_network import ValueNetwork
from redenvelope.planning.learned_passes import block_rows, future, in_blocks
from redenvelope.prices import outcome_weights

__all__ = ["NextStates"]


@dataclass(frozen=True, eq=False)
class NextStates:
    """The rows of a log as states that other rows lead to."""

    examples: Examples
    folds: UserFolds
    outcomes: NDArray[np.float32]
    """Of a step, by every fold, [rows, folds, 2, actions]."""
    allowed: NDArray[np.bool_]
    """[rows, actions]"""
    duals: NDArray[np.float64]
    """[prices]"""
    temperature: float
    explore: float = 0.0
    """Share of later decisions that is drawn evenly among what may be chosen."""

    def targets(self, networks: ValueNetwork | None, rows: NDArray[np.int64], late: LateEffects) -> NDArray[np.float32]:
        """See backward.Targets."""
        after = rows[self.examples.continues[rows]] + 1
        asked = late.asked[after]
        value, ahead = np.empty((len(after), len(self.duals), self._components), np.float32), None
        # More is asked of some than of others, and only of those is it computed.
        if not asked.all():
            value[~asked] = self._ask(_values, networks, after[~asked])
        if asked.any():
            own = after[asked]
            columns = self.examples.action[own], self.folds.strangers(own)
            ahead = Ahead(*self._ask(_ahead, networks, own, *columns))
            value[asked] = ahead.value
        return late.targets(rows, value, ahead)

    @property
    def _components(self) -> int:
        return 3 if self.temperature > 0 else 2

    def _ask(self, program: Any, networks: ValueNetwork | None, rows: NDArray[np.int64], *columns: NDArray[Any]) -> Any:
        """What a program says of rows, given further columns [rows, ...] of theirs."""
        weights = jnp.asarray(outcome_weights(self.duals[:, None]).astype(np.float32))
        temperature, explore = (jnp.asarray(np.float32(number)) for number in (self.temperature, self.explore))
        sizes = (len(self.duals), self._components, self.examples.actions)
        numbers = int(np.prod(sizes))
        shape = (block_rows(len(rows), numbers), self.folds.count, *sizes)
        nothing = jnp.asarray(np.zeros(shape, np.float32) if networks is None else 0.0)

        def block(states: Any, now: Any, allowed: Any, *others: Any) -> Any:
            later = nothing if networks is None else future(networks, states)
            return program(now, later, weights, temperature, explore, allowed, *others)

        own = (self.examples.states[rows], self.outcomes[rows], self.allowed[rows])
        return in_blocks(block, numbers, *own, *columns)


@eqx.filter_jit
def _values(
    now: jax.Array,
    later: jax.Array,
    weights: jax.Array,
    temperature: jax.Array,
    explore: jax.Array,
    allowed: jax.Array,
) -> jax.Array:
    """Values of states, [n, prices, components], where outcomes count by weights [outcomes, prices].

    They are made of what a step gives [n, folds, 2, actions] and what follows, [n, folds, prices, components, actions].
    """
    return _double(now, later, weights, temperature, explore, allowed).value


@eqx.filter_jit
def _ahead(
    now: jax.Array,
    later: jax.Array,
    weights: jax.Array,
    temperature: jax.Array,
    explore: jax.Array,
    allowed: jax.Array,
    action: jax.Array,
    strangers: jax.Array,
) -> Ahead:
    """The same with what is said of the logged action [n]; for `strangers` [n, folds] see UserFolds."""
    found = _double(now, later, weights, temperature, explore, allowed)
    taken = strangers.T[:, :, None] * jax.nn.one_hot(action, later.shape[-1])
    return Ahead(
        found.value,
        (found.others * taken[:, :, None, None]).sum(axis=(0, -1)),
        (found.chosen * taken[:, :, None]).sum(axis=(0, -1)),
    )


def _double(
    now: jax.Array,
    later: jax.Array,
    weights: jax.Array,
    temperature: jax.Array,
    explore: jax.Array,
    allowed: jax.Array,
) -> DoubleValue:
    values = later.at[..., :2, :].add(now[:, :, None])
    return double_value(jnp.swapaxes(values, 0, 1), weights, temperature, allowed, explore)
