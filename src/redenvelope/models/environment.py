"""What planning needs to know of the world: outcomes and successors of every action at once."""

from __future__ import annotations

from typing import Any, Protocol

import jax

__all__ = ["EnvironmentModel", "LeavingModel", "SplitModel"]


class EnvironmentModel(Protocol):
    """A learned world. One forward pass prices every action, so a node of a tree costs one pass.

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
    """What an environment model may say besides, where users leave before the campaign ends; without it nobody does.

    Successors are then those of the users who stay.
    """

    @property
    def leaves(self) -> bool:
        """Whether users leave."""
        ...

    def survival(self, states: jax.Array) -> jax.Array:
        """Chance of a next step after every action: [n, width] -> [n, actions]."""
        ...


class SplitModel(Protocol):
    """What an environment model may offer besides: to work out once a user what never changes within the user.

    Every node of a user's tree then costs what changes alone. Nodes come in groups of one user. In the outcomes, which
    stay apart, the nodes come last: they fill the vector registers, which a few actions do not.
    """

    @property
    def fixed_width(self) -> int:
        """Number of columns, the first ones of a state, that never change within a user."""
        ...

    def fixed_parts(self, states: jax.Array) -> tuple[Any, Any]:
        """What the columns that never change come to, for outcomes and for successors: [users, width] -> two pytrees of
        arrays [users, ...]."""
        ...

    def node_outcomes(self, fixed: Any, nodes: jax.Array) -> tuple[jax.Array, ...]:
        """Each of the outcomes [actions, groups · size], given the first fixed part [groups, ...] and the other columns
        of nodes [groups, size, changing]."""
        ...

    def node_steps(self, fixed: tuple[Any, Any], nodes: jax.Array) -> tuple[tuple[jax.Array, ...], jax.Array]:
        """The same, given both fixed parts, and the changing columns of the successors,
        [groups · size, actions, changing]. Where users leave, the chance of a next step comes after the outcomes."""
        ...
