"""Constraints: what a state forbids counts in what an action that leads there is worth."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

from redenvelope.errors import UsageError
from redenvelope.planning.planner import ModelPrice, TreePlanner
from redenvelope.policies.eligibility_state import EligibilityState as Standing
from redenvelope.policies.eligibility_state import allowed as allowed_now
from redenvelope.policies.policy import Constraint
from tests.planning.exact import induction
from tests.planning.planned import PlannedPolicy

DUALS = np.array([0.0, 0.4, 1.0, np.inf])
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@dataclass(frozen=True, eq=False)
class ByState(Constraint):
    """A table of what is allowed."""

    table: np.ndarray
    """[steps, states, actions], by steps left less one"""

    def eligible(self, states: np.ndarray, steps_left: np.ndarray, memory: np.ndarray) -> np.ndarray:
        return jnp.asarray(self.table)[steps_left - 1, states[:, 0].astype(int)]


def random_table(world, seed: int) -> np.ndarray:
    """About half of everything is forbidden, in some states all of it."""
    return np.random.default_rng(seed).uniform(size=(world.steps, world.states, world.actions)) < 0.4


def with_the_cheapest(table: np.ndarray, eligible: np.ndarray | None = None) -> np.ndarray:
    """As written in words: where nothing is left, the cheapest that the user may get."""
    own = np.ones(table.shape[1:], dtype=bool) if eligible is None else eligible
    both = table & own
    for index in zip(*np.nonzero(~both.any(axis=2)), strict=True):
        both[(*index, own[index[1]].argmax())] = True
    return both


@pytest.mark.parametrize("temperature", [0.0, 0.2])
@pytest.mark.parametrize("budgets", [1, 2])
def test_equals_induction_with_a_mask_a_state_and_step(table_world, every_state, temperature, budgets):
    for seed in range(3):
        model, world = table_world(seed, budgets=budgets)
        table = random_table(world, seed)
        assert not table.any(axis=2).all()  # some states allow nothing
        planner = TreePlanner(model, 4, temperature, 4, constraint=ByState(table))
        prices = np.repeat(DUALS[:, None], budgets, axis=1)
        exact = induction(world, prices, temperature, allowed=with_the_cheapest(table))
        for left in (4, 2, 1):
            found = planner.values(every_state(world), left, prices)
            finite = np.isfinite(DUALS)
            np.testing.assert_allclose(found.q.swapaxes(0, 1)[finite], exact.q[left - 1][finite], **CLOSE)
            expected = (exact.to_go[left - 1] * exact.probabilities[left - 1]).sum(axis=-1)
            np.testing.assert_allclose(found.expected().mean(axis=1), expected.mean(axis=-1), **CLOSE)
            forbidden = ~with_the_cheapest(table)[left - 1]
            assert (found.probabilities.swapaxes(0, 1)[:, forbidden] == 0).all()


def test_what_is_forbidden_later_changes_what_is_done_now(table_world, every_state):
    model, world = table_world(1, steps=3)
    table = np.ones((3, world.states, world.actions), dtype=bool)
    free = TreePlanner(model, 3, 0.0, 3).values(every_state(world), 3, [0.2])
    # Forbid, at the steps after the first, what the plan would do there.
    later = induction(world, [0.2], 0.0).probabilities[:2, 0] > 0
    table[:2] &= ~later
    bound = TreePlanner(model, 3, 0.0, 3, constraint=ByState(table)).values(every_state(world), 3, [0.2])
    assert (bound.probabilities != free.probabilities).any()
    assert (bound.q <= free.q + 1e-5).all()


def test_a_constraint_holds_besides_what_a_user_may_get(table_world, every_state):
    model, world = table_world(2, steps=3)
    table = random_table(world, 7)
    eligible = np.array([[False, True, True, True]] * world.states)
    found = TreePlanner(model, 3, 0.1, 3, constraint=ByState(table)).values(every_state(world), 3, DUALS, eligible)
    exact = induction(world, DUALS, 0.1, allowed=with_the_cheapest(table, eligible))
    finite = np.isfinite(DUALS)
    np.testing.assert_allclose(found.q.swapaxes(0, 1)[finite], exact.q[2][finite], **CLOSE)
    assert (found.probabilities[..., 0] == 0).all()


@pytest.mark.parametrize("horizon", [1, 2])
def test_roll_outs_keep_to_it(table_world, every_state, horizon):
    model, world = table_world(3)
    table = random_table(world, 5)
    planner = TreePlanner(model, horizon, 0.0, 4, constraint=ByState(table))
    exact = induction(world, DUALS, 0.0, lookahead=horizon, allowed=with_the_cheapest(table))
    np.testing.assert_allclose(ModelPrice(planner, every_state(world))(DUALS), exact.expected(), **CLOSE)


def test_policies_hand_it_on(table_world, every_state):
    model, world = table_world(4)
    table = random_table(world, 1)
    policy = PlannedPolicy(TreePlanner(model, 2, 0.5, 4, constraint=ByState(table)), 0.3)
    probabilities = policy.probabilities(every_state(world), 3)
    assert (probabilities[~with_the_cheapest(table)[2]] == 0).all()


def test_a_mask_of_another_shape_is_named():
    class Wrong(Constraint):
        def eligible(self, states, steps_left, memory):
            return np.ones((len(states), 2), dtype=bool)

    eligibility = Standing(np.ones((6, 4), dtype=bool), np.zeros((6, 0), np.int16))
    with pytest.raises(UsageError, match=r"shape \(6, 4\), not \(6, 2\)"):
        allowed_now(eligibility, Wrong(), np.zeros((6, 1), np.float32), np.full(6, 2))
