"""The path that a policy without chance takes is the path of its values, ties included."""

import numpy as np
import pytest

from redenvelope.planning.tree import Tree
from tests.planning.backing_up import backup, path


def drawn(seed: int, budgets: int, users: int = 70, actions: int = 3, depth: int = 3) -> Tree:
    """Trees of small whole numbers and halves: sums are exact, and ties are everywhere."""
    generator = np.random.default_rng(seed)
    nodes = [actions**level for level in range(depth)]
    levels = tuple(
        generator.integers(0, 3, size=(1 + budgets, actions, users, count)).astype(np.float32) for count in nodes
    )
    masks = tuple(generator.random((actions, users, count)) < 0.7 for count in nodes)
    for mask in masks:
        mask[0] |= ~mask.any(axis=0)
    survival = tuple(
        generator.choice(np.array([0.5, 1.0], np.float32), (actions, users, count)) for count in nodes[:-1]
    )
    return Tree(levels, masks if seed % 2 else None, survival if seed % 3 else None)


@pytest.mark.parametrize("budgets", [1, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_the_path_is_that_of_the_values(seed: int, budgets: int) -> None:
    tree = drawn(seed, budgets)
    prices = np.random.default_rng(seed).choice([0.0, 0.5, 1.0, 2.0], size=(30, budgets))
    found = path(tree, prices, discount=0.5)
    values = backup(tree, prices, 0.0, discount=0.5)
    np.testing.assert_array_equal(found, (values.probabilities * values.to_go).sum(axis=-1))


def test_among_equals_who_spends_least_in_all_wins() -> None:
    """At prices of nothing, what brings no more must not be bought."""
    level = np.array([[[1.0, 1.0, 1.0]], [[2.0, 0.0, 1.0]], [[0.0, 1.0, 1.0]]], np.float32).transpose(0, 2, 1)[
        ..., None
    ]
    tree = Tree((level,))
    np.testing.assert_array_equal(path(tree, [[0.0, 0.0]])[:, 0, 0], [1, 0, 1])
    np.testing.assert_array_equal(backup(tree, [[0.0, 0.0]], 0.0).probabilities[0, 0], [0, 1, 0])
