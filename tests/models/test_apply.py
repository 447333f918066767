import jax
import jax.numpy as jnp
import numpy as np
import pytest

from redenvelope.models import apply
from redenvelope.models.apply import apply_outcomes, apply_steps


class Doubling:
    """Two actions: the first keeps a state, the second doubles it; the reward is the sum, the cost the first column."""

    actions = 2

    def outcomes(self, states: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.stack([states.sum(axis=1), 2 * states.sum(axis=1)], axis=1), jnp.stack([states[:, 0]] * 2, axis=1)

    def successors(self, states: jax.Array) -> jax.Array:
        return jnp.stack([states, 2 * states], axis=1)


jax.tree_util.register_static(Doubling)


@pytest.mark.parametrize("rows", [1, 4, 5, 12, 29])
def test_any_number_of_states_is_applied_in_order(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "_BATCH_ROWS", 4)
    states = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
    rewards, costs, following = apply_steps(Doubling(), states)
    np.testing.assert_allclose(rewards, states.sum(axis=1)[:, None] * [1, 2])
    np.testing.assert_allclose(costs, np.repeat(states[:, :1], 2, axis=1))
    np.testing.assert_allclose(following, np.stack([states, 2 * states], axis=1))
    for one, other in zip(apply_outcomes(Doubling(), states), (rewards, costs), strict=True):
        np.testing.assert_array_equal(one, other)


def test_no_states_give_no_rows() -> None:
    rewards, _, following = apply_steps(Doubling(), np.zeros((0, 3), np.float32))
    assert rewards.shape == (0, 2)
    assert following.shape == (0, 2, 3)
