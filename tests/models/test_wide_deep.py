import jax.numpy as jnp
import numpy as np
import pytest

from redenvelope.log.encoding.layout import StateLayout
from redenvelope.models.networks import WideDeep


@pytest.mark.parametrize("hidden", [(8, 6), (8,), ()])
@pytest.mark.parametrize("codes", [(), (5,), (5, 200)])
def test_the_fixed_part_once_a_user_changes_nothing(codes: tuple[int, ...], hidden: tuple[int, ...]) -> None:
    layout = StateLayout(codes, 2, 1, 1, (3,), step_change=0.5)
    generator = np.random.default_rng(0)
    network = WideDeep(layout, hidden, 7, generator)
    leaves = {
        "wide_weights": network.wide_weights,
        "deep_weights": network.deep_weights,
    }
    for name, value in leaves.items():
        object.__setattr__(network, name, jnp.asarray(generator.normal(size=value.shape).astype(np.float32)))
    tables = tuple(jnp.asarray(generator.normal(size=table.shape).astype(np.float32)) for table in network.wide_tables)
    object.__setattr__(network, "wide_tables", tables)
    users = generator.normal(size=(40, layout.width)).astype(np.float32)
    for column, count in enumerate(codes):
        users[:, column] = generator.integers(0, count, 40)
    nodes = np.repeat(users[:, None], 3, axis=1)
    nodes[..., layout.step :] = generator.normal(size=(40, 3, layout.width - layout.step))
    found = network.at(network.fixed_part(users), nodes[..., layout.step :])
    # Sums of some thirty products of order one, in another order.
    np.testing.assert_allclose(found, network(nodes.reshape(120, -1)), rtol=1e-4, atol=1e-5)
