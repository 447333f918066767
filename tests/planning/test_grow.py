from __future__ import annotations

import itertools

import numpy as np
import pytest

from redenvelope.errors import UsageError
from redenvelope.models import environment as apply
from redenvelope.planning.tree import Branching, grow


@pytest.mark.parametrize("budgets", [1, 2])
def test_a_node_is_what_its_sequence_of_actions_leads_to(table_world, every_state, budgets):
    model, world = table_world(0, actions=3, budgets=budgets)
    tree = grow(model, every_state(world), Branching.full(3, 3))
    assert tree.masks is None
    for depth, level in enumerate(tree.levels):
        assert level.shape == (1 + budgets, 3, world.states, 3**depth)
        for node, sequence in enumerate(itertools.product(range(3), repeat=depth)):
            for user in range(world.states):
                state = user
                for action in sequence:
                    state = world.following[state, action]
                np.testing.assert_array_equal(level[:, :, user, node], world.outcomes[:, state].astype(np.float32))


def test_a_thinned_tree_follows_the_cheapest_the_dearest_and_some_between(table_world, every_state):
    model, world = table_world(0, actions=5)
    full, thin = (grow(model, every_state(world), Branching(5, 3, branches)) for branches in (5, 3))
    np.testing.assert_array_equal(full.levels[1], thin.levels[1])
    kept = full.levels[2].reshape(2, 5, world.states, 5, 5)[..., [0, 2, 4]]
    np.testing.assert_array_equal(thin.levels[2], kept.reshape(2, 5, world.states, 15))


def test_users_do_not_depend_on_their_call(network_world, monkeypatch):
    model, states = network_world(1, users=37)
    shape = Branching.full(5, 3)
    whole = grow(model, states, shape)
    monkeypatch.setattr(apply, "_CALL_GROUPS", 16)
    monkeypatch.setattr(apply, "_BLOCK_NODES", 32)
    part = grow(model, states[3:34], shape)
    for all_users, some in zip(whole.levels, part.levels, strict=True):
        np.testing.assert_allclose(all_users[:, :, 3:34], some, rtol=1e-5, atol=1e-6)


def test_no_step_to_plan_is_refused():
    with pytest.raises(UsageError, match="depth must be at least 1"):
        Branching.full(3, 0)
