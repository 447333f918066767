import jax
import jax.numpy as jnp
import numpy as np
import pytest

from redenvelope.models.environment import apply_outcomes, apply_steps


class Doubling:
    """Two actions: the first keeps a state, the second doubles it; the reward is the sum, the cost the first column."""

    actions, budgets = 2, 1

    def outcomes(self, states: jax.Array) -> jax.Array:
        rewards = jnp.stack([states.sum(axis=1), 2 * states.sum(axis=1)], axis=1)
        return jnp.stack([rewards, jnp.stack([states[:, 0]] * 2, axis=1)])

    def successors(self, states: jax.Array) -> jax.Array:
        return jnp.stack([states, 2 * states], axis=1)


jax.tree_util.register_static(Doubling)


@pytest.mark.parametrize("rows", [1, 1_023, 1_024, 1_025, 3_000])
def test_any_number_of_states_is_applied_in_order(rows: int) -> None:
    """A call of the compiled program takes 1,024 states."""
    states = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
    outcomes, staying, following = apply_steps(Doubling(), states)
    np.testing.assert_allclose(outcomes[0], states.sum(axis=1)[:, None] * [1, 2])
    np.testing.assert_allclose(outcomes[1], np.repeat(states[:, :1], 2, axis=1))
    np.testing.assert_allclose(following, np.stack([states, 2 * states], axis=1))
    assert staying is None
    np.testing.assert_array_equal(apply_outcomes(Doubling(), states), outcomes)


def test_no_states_give_no_rows() -> None:
    outcomes, staying, following = apply_steps(Doubling(), np.zeros((0, 3), np.float32))
    assert outcomes.shape == (2, 0, 2) and staying is None
    assert following.shape == (0, 2, 3)
