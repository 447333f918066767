"""Two small worlds: a table with known dynamics, and a random network."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.planning.exact import World


class TableModel(eqx.Module):
    """Deterministic dynamics over states given by their index, [n, 1]."""

    tables: jax.Array
    """[outcomes, states, actions]"""
    following: jax.Array
    """[states, actions]"""

    @property
    def actions(self) -> int:
        return self.tables.shape[2]

    @property
    def budgets(self) -> int:
        return self.tables.shape[0] - 1

    def outcomes(self, states: jax.Array) -> jax.Array:
        return self.tables[:, states[:, 0].astype(int)]

    def successors(self, states: jax.Array) -> jax.Array:
        return self.following[states[:, 0].astype(int)].astype(jnp.float32)[..., None]


class NetworkModel(eqx.Module):
    """A smooth world: outcomes that grow with the action, and states that drift with it."""

    inner: jax.Array
    outer: jax.Array
    drift: jax.Array
    actions: int = eqx.field(static=True)

    @property
    def budgets(self) -> int:
        return 1

    def outcomes(self, states: jax.Array) -> jax.Array:
        hidden = jnp.tanh(states @ self.inner) @ self.outer
        dose = jnp.linspace(0.0, 1.0, self.actions)
        rewards = jnp.exp(hidden[:, :1]) * (1 - jnp.exp(-2 * dose))
        return jnp.stack([rewards, jnp.exp(0.3 * hidden[:, 1:2]) * dose])

    def successors(self, states: jax.Array) -> jax.Array:
        dose = jnp.linspace(0.0, 1.0, self.actions)[:, None]
        return 0.9 * states[:, None] + dose * jnp.tanh(states @ self.drift)[:, None]


@pytest.fixture(autouse=True)
def quick_compilation() -> Iterator[None]:
    """Programs here run once on a few users: most of the time goes into optimising them."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="session")
def table_world() -> Callable[..., tuple[TableModel, World]]:
    """A random deterministic problem, as a model and written out."""

    def make(
        seed: int, states: int = 7, actions: int = 4, steps: int = 4, budgets: int = 1
    ) -> tuple[TableModel, World]:
        generator = np.random.default_rng(seed)
        rewards = generator.normal(size=(states, actions)).astype(np.float32)
        costs = [
            np.sort(generator.uniform(0, 2, size=(states, actions)), axis=1).astype(np.float32) for _ in range(budgets)
        ]
        following = generator.integers(states, size=(states, actions))
        tables = np.stack([rewards, *costs])
        return TableModel(jnp.asarray(tables), jnp.asarray(following)), World(
            tables.astype(np.float64), following, steps
        )

    return make


@pytest.fixture
def network_world() -> Callable[..., tuple[NetworkModel, np.ndarray]]:
    """A random smooth model and first states for it."""

    def make(seed: int, actions: int = 5, width: int = 6, users: int = 40) -> tuple[NetworkModel, np.ndarray]:
        generator = np.random.default_rng(seed)
        weights = [generator.normal(size=size) / 3 for size in ((width, 16), (16, 2), (width, width))]
        model = NetworkModel(*(jnp.asarray(array, dtype=jnp.float32) for array in weights), actions)
        return model, generator.normal(size=(users, width)).astype(np.float32)

    return make


@pytest.fixture
def every_state() -> Callable[[World], np.ndarray]:
    """The states of a problem as the model reads them, [states, 1]."""
    return lambda world: np.arange(world.states, dtype=np.float32)[:, None]
