from __future__ import annotations

import itertools

import numpy as np
import pytest

from redenvelope.planning.tree import fit_depth
from tests.planning.backing_up import grown


@pytest.mark.parametrize("budgets", [1, 2])
def test_a_node_is_what_its_sequence_of_actions_leads_to(table_world, every_state, budgets):
    model, world = table_world(0, actions=3, budgets=budgets)
    tree = grown(model, every_state(world), 3)
    assert tree.masks is None
    for depth, level in enumerate(tree.levels):
        assert level.shape == (1 + budgets, 3, world.states, 3**depth)
        for node, sequence in enumerate(itertools.product(range(3), repeat=depth)):
            for user in range(world.states):
                state = user
                for action in sequence:
                    state = world.following[state, action]
                np.testing.assert_array_equal(level[:, :, user, node], world.outcomes[:, state].astype(np.float32))


def test_a_tree_that_is_too_large_is_planned_less_far_ahead():
    assert [fit_depth(5, depth, node_limit=30) for depth in (1, 2, 3, 4, 9)] == [1, 2, 3, 3, 3]
    assert fit_depth(120, 4, node_limit=30) == 1
