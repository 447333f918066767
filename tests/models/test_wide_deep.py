from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from redenvelope.log.encoding.layout import StateLayout
from redenvelope.models.dataset import Examples
from redenvelope.models.networks import WideDeep, new_pieces, piece_counts, state_pieces


@pytest.mark.parametrize("hidden", [(8, 6), (8,), ()])
@pytest.mark.parametrize("codes", [(), (5,), (5, 200)])
@pytest.mark.parametrize("counts", [((), ()), ((3, 2), (4,)), ((0, 2), (0,))])
def test_the_fixed_part_once_a_user_changes_nothing(
    codes: tuple[int, ...], hidden: tuple[int, ...], counts: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    layout = StateLayout(codes, 2, 1, 1, (3,), step_change=0.5)
    generator = np.random.default_rng(0)
    network = WideDeep(layout, hidden, 7, generator, (new_pieces(counts[0]), new_pieces(counts[1])))
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


def test_numbers_are_cut_at_their_values_or_quantiles(draw: Callable[[int, int], Examples]) -> None:
    examples = draw(2_000, 0)
    layout, states = examples.layout, examples.states.copy()
    states[:, 1] = np.random.default_rng(0).integers(1, 5, len(states))  # the static number: four values
    examples = replace(examples, states=states)
    static, dynamic = pieces = state_pieces(examples, np.arange(len(examples)), 8, 96)
    assert piece_counts(pieces) == ((3,), (8,))
    # A number with few values is as good as a category: the pieces of every value differ from those of all others.
    np.testing.assert_allclose(static(jnp.array([[1.0], [2.0], [3.0], [4.0]])), np.tri(4, 3, -1), atol=1e-6)
    # Every piece of another number has the same share of the users in it.
    found = np.asarray(dynamic(states[:, layout.numbers]))
    inside = ((found > 0) & (found < 1)).mean(axis=0)
    np.testing.assert_allclose(inside, 1 / 8, atol=0.02)
    assert piece_counts(state_pieces(examples, np.arange(len(examples)), 8, 6)) == ((3,), (3,))  # at most six in all
    assert state_pieces(examples, np.arange(len(examples)), 0, 96) == (None, None)
