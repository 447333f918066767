from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from redenvelope.planning.backup import backup
from redenvelope.planning.branching import Branching, branch_shares, fit_branching
from redenvelope.planning.grow import grow
from redenvelope.planning.thinned import thinning_error
from redenvelope.planning.tree import TreePlanner

DUALS = [0.0, 0.4, 0.8, 1.5]


def test_shares_are_distributions_over_neighbours():
    for actions in range(2, 12):
        for branches in range(2, actions + 1):
            shares = branch_shares(actions, branches)
            np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-6)
            assert ((shares > 0).sum(axis=1) <= 2).all()
            assert (shares.max(axis=0) == 1).all()
            assert shares[0, 0] == shares[-1, -1] == 1


@pytest.mark.parametrize(("actions", "depth"), [(10, 3), (10, 5), (10, 6), (10, 12), (1, 9), (50, 30), (3000, 3)])
def test_the_limit_is_respected(actions, depth):
    shape = fit_branching(actions, depth, 10_000)
    assert shape.deepest_nodes <= 10_000
    assert shape.depth <= depth
    assert shape.is_full == (shape.branches == actions or shape.depth <= 2)
    if actions ** (depth - 1) <= 10_000:
        assert shape == Branching(actions, depth, actions)
    elif shape.depth == depth:
        assert Branching(actions, depth, shape.branches + 1).deepest_nodes > 10_000


@pytest.mark.parametrize("temperature", [0.0, pytest.param(0.1, marks=pytest.mark.slow)])
def test_all_branches_is_the_full_tree(network_world, temperature):
    model, states = network_world(0)
    full = grow(model, states, Branching.full(5, 4))
    # Shares written out, each action's own branch, must do what no shares do.
    written = full._replace(shares=(None, *[branch_shares(5, 5)] * 2))
    for one, other in zip(backup(full, DUALS, temperature), backup(written, DUALS, temperature), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_exact_where_the_future_is_linear_in_the_action(network_world):
    # A linear world without choice below: reward = cost = first feature, which moves with the dose.
    model, states = network_world(1)

    class Linear(type(model)):
        def outcomes(self, states):
            value = states[:, :1] * np.ones(self.actions, dtype=np.float32)
            return jnp.stack([value, 0 * value])

    linear = Linear(model.inner, model.outer, model.drift * 0.01, 5)
    full = backup(grow(linear, states, Branching.full(5, 4)), DUALS, 0.0)
    thin = backup(grow(linear, states, Branching(5, 4, 3)), DUALS, 0.0)
    np.testing.assert_allclose(thin.q, full.q, rtol=1e-4, atol=1e-4)


def test_error_is_small_and_falls_with_branches(network_world):
    model, states = network_world(2, actions=9, users=12)
    errors = [thinning_error(model, states, Branching(9, 4, branches), DUALS) for branches in (2, 3, 9)]
    means = [error.mean for error in errors]
    assert means == sorted(means, reverse=True)
    assert errors[-1].mean == pytest.approx(0, abs=1e-6)
    # In a smooth world three branches of nine decide almost as well as all.
    assert errors[1].loss < 0.005 * errors[1].spread
    assert all(error.depth == 4 for error in errors)


def test_error_is_measured_as_deep_as_a_full_tree_goes(network_world):
    model, states = network_world(2, actions=9, users=3)
    assert thinning_error(model, states, Branching(9, 8, 2), [0.5], node_limit=100).depth == 3


@pytest.mark.parametrize("temperature", [0.0, 0.1])
def test_cost_never_rises_with_the_dual(network_world, temperature):
    model, states = network_world(3, actions=7)
    duals = np.append(np.linspace(0, 3, 30), np.inf)
    cost = backup(grow(model, states, Branching(7, 4, 3)), duals, temperature).expected()[1]
    assert (np.diff(cost, axis=1) <= 2e-5).all()


def test_a_planner_thins_instead_of_running_out_of_memory(network_world):
    model, states = network_world(4, actions=10, users=4)
    planner = TreePlanner(model, horizon=9, temperature=0.0, steps=9, node_limit=200)
    assert np.isfinite(planner.expected(states, 9, [0.5])).all()
    assert planner.branching.deepest_nodes <= 200
    assert any("interpolated" in note for note in planner.notes)
    assert any("too large" in note for note in planner.notes)
