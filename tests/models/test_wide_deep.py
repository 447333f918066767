import jax.numpy as jnp
import numpy as np
import pytest

from redenvelope.log.layout import StateLayout
from redenvelope.models.wide_deep import WideDeep


@pytest.mark.parametrize("codes", [(), (5,), (5, 200)])
def test_outputs_with_the_rows_last_are_the_outputs_turned_around(codes: tuple[int, ...]) -> None:
    layout = StateLayout(codes, 2, 1, 1, (3,), step_change=0.5)
    generator = np.random.default_rng(0)
    network = WideDeep(layout, (8, 6), 7, generator)
    leaves = {
        "wide_weights": network.wide_weights,
        "deep_weights": network.deep_weights,
    }
    for name, value in leaves.items():
        object.__setattr__(network, name, jnp.asarray(generator.normal(size=value.shape).astype(np.float32)))
    tables = tuple(jnp.asarray(generator.normal(size=table.shape).astype(np.float32)) for table in network.wide_tables)
    object.__setattr__(network, "wide_tables", tables)
    states = generator.normal(size=(40, layout.width)).astype(np.float32)
    for column, count in enumerate(codes):
        states[:, column] = generator.integers(0, count, 40)
    np.testing.assert_allclose(network.rows_last(states).T, network(states), rtol=1e-4, atol=1e-5)
