"""What planning needs to know of the world: outcomes and successors of every action at once."""

from __future__ import annotations

from typing import Protocol

import jax

__all__ = ["EnvironmentModel"]


class EnvironmentModel(Protocol):
    """A learned world. One forward pass prices every action, so a node of a tree costs one pass.

    Implementations are JAX pytrees, so that they can be passed through `jax.jit` as arguments.
    """

    @property
    def actions(self) -> int:
        """Number of actions, in the order of the action catalogue."""
        ...

    def outcomes(self, states: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean reward and mean cost of every action: [n, width] -> ([n, actions], [n, actions])."""
        ...

    def successors(self, states: jax.Array) -> jax.Array:
        """Expected next state after every action: [n, width] -> [n, actions, width]."""
        ...
