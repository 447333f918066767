from __future__ import annotations

import itertools

import numpy as np
import pytest

from redenvelope.errors import UsageError
from redenvelope.planning import batches
from redenvelope.planning.expand import expand


def test_a_node_is_what_its_sequence_of_actions_leads_to(table_world, every_state):
    model, problem = table_world(0, actions=3)
    tree = expand(model, every_state(problem), 3)
    following, rewards, costs = (np.asarray(table) for table in (model.following, model.rewards, model.costs))
    for depth, arrays in enumerate(tree.levels):
        level = type(arrays)(*(np.asarray(array) for array in arrays))
        assert level.rewards.shape == level.costs.shape == (problem.states, 3**depth, 3)
        for node, sequence in enumerate(itertools.product(range(3), repeat=depth)):
            for user in range(problem.states):
                state = user
                for action in sequence:
                    state = following[state, action]
                np.testing.assert_array_equal(level.rewards[user, node], rewards[state])
                np.testing.assert_array_equal(level.costs[user, node], costs[state])


def test_users_do_not_depend_on_their_batch(network_world, monkeypatch):
    model, states = network_world(1, users=37)
    whole = expand(model, states, 3)
    monkeypatch.setattr(batches, "NODES_PER_BATCH", 75)
    # Another number of users, so that the program is compiled anew with the smaller batches.
    part = expand(model, states[3:34], 3)
    for all_users, some in zip(whole.levels, part.levels, strict=True):
        np.testing.assert_allclose(np.asarray(all_users.rewards)[3:34], some.rewards, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(np.asarray(all_users.costs)[3:34], some.costs, rtol=1e-5, atol=1e-6)


def test_no_step_to_plan_is_refused(network_world):
    model, states = network_world(1, users=2)
    with pytest.raises(UsageError, match="depth must be at least 1"):
        expand(model, states, 0)
