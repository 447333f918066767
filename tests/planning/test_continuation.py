"""What comes after the tree, against the exact values of the policy that is planned anew at every step."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope.errors import UsageError
from redenvelope.evaluation.data import OffPolicyData, gather
from redenvelope.evaluation.evaluate import evaluate
from redenvelope.planning.continuation import Continuation
from redenvelope.planning.planner import TreePlanner
from redenvelope.policies.action_values import ActionValues
from tests.planning.exact import World, induction

DUALS = np.array([0.0, 0.4, 1.0, np.inf])
STATES, STEPS = 7, 5


def one_hot(states: np.ndarray) -> np.ndarray:
    return np.eye(STATES)[states[:, 0].astype(int)]


def exact_to_go(world: World, planner: TreePlanner, prices: np.ndarray = DUALS) -> np.ndarray:
    """Outcomes to go of every action, by steps left less one, [steps, outcomes, states, prices, actions]."""
    exact = induction(world, prices, planner.temperature, planner.horizon, planner.discount)
    return np.moveaxis(exact.to_go, 2, 3)


def learned(planner: TreePlanner, states: np.ndarray, copies: int = 60, prices: np.ndarray = DUALS) -> Continuation:
    """Enough users that every state is met on every level of the walk."""
    return Continuation.fit(planner, np.repeat(states, copies, axis=0), planner.steps, prices, one_hot)


@pytest.mark.parametrize(("temperature", "horizon"), [(0.0, 2), (0.3, 1), (0.3, 2)])
def test_complete_values_are_exact_where_the_model_is(table_world, every_state, temperature, horizon):
    model, problem = table_world(0, states=STATES, steps=STEPS)
    planner, states = TreePlanner(model, horizon, temperature, STEPS), every_state(problem)
    exact = exact_to_go(problem, planner)
    continuation = learned(planner, states)
    for left in range(1, STEPS + 1):
        tree = planner.values(states, left, DUALS)
        complete = continuation.extend(tree, states, left)
        # A ridge of 1e-6 and single precision are all that is between the two.
        np.testing.assert_allclose(complete.to_go, exact[left - 1], atol=2e-3)
        if left > horizon:
            assert np.abs(tree.to_go[1] - exact[left - 1, 1]).max() > 0.1
        np.testing.assert_array_equal(complete.q, tree.q)
        np.testing.assert_array_equal(complete.probabilities, tree.probabilities)


@pytest.mark.parametrize("temperature", [0.0, 0.3])
def test_several_costs_are_completed_alike(table_world, every_state, temperature):
    model, problem = table_world(1, states=STATES, steps=4, budgets=2)
    planner, states = TreePlanner(model, 2, temperature, 4), every_state(problem)
    prices = np.array([[0.3, 0.3], [0.0, 1.0], [np.inf, 0.5]])
    continuation = learned(planner, states, prices=prices)
    complete = continuation.extend(planner.values(states, 4, prices), states, 4)
    assert complete.to_go.shape == (3, STATES, 3, 4)
    np.testing.assert_allclose(complete.to_go, exact_to_go(problem, planner, prices)[3], atol=3e-3)


def test_discount(table_world, every_state):
    # Horizon 1 in a world of one state: the same step again and again, discounted.
    model, problem = table_world(0, states=1, steps=STEPS)
    planner = TreePlanner(model, 1, 0.0, STEPS, discount=0.5)
    states = every_state(problem)
    continuation = Continuation.fit(planner, states, STEPS, [1.0])
    complete = continuation.extend(planner.values(states, STEPS, [1.0]), states, STEPS)
    best = problem.costs[0, np.argmax(problem.rewards[0] - problem.costs[0])]
    later = best * (1 - 0.5 ** (STEPS - 1))  # 1/2 + 1/4 + 1/8 + 1/16 of it
    np.testing.assert_allclose(complete.to_go[1, 0, 0], problem.costs[0] + later, rtol=1e-5)


def logged(problem: World, values: ActionValues, path: np.ndarray, action: np.ndarray) -> OffPolicyData:
    """The data of users who met states `path` [users, steps] under a uniform logger, free of noise."""
    state, taken = path.ravel(), action.ravel()
    return gather(
        starts=np.arange(0, len(state) + 1, STEPS),
        keys=np.arange(len(path)),
        action=taken,
        propensity=np.full(len(state), 1 / problem.actions),
        outcomes=[problem.rewards[state, taken], problem.costs[state, taken]],
        probabilities=values.probabilities,
        to_go=values.to_go,
    )


def test_direct_is_the_truth_and_doubly_robust_has_nothing_left_to_correct(table_world, every_state):
    model, problem = table_world(3, states=STATES, steps=STEPS)
    planner, states = TreePlanner(model, 2, 0.3, STEPS), every_state(problem)
    truth = induction(problem, DUALS, 0.3, lookahead=2).expected()
    users = 40 * STATES
    action = np.random.default_rng(0).integers(problem.actions, size=(users, STEPS))
    path = np.empty((users, STEPS), dtype=np.int64)
    path[:, 0] = np.arange(users) % STATES
    for step in range(1, STEPS):
        path[:, step] = problem.following[path[:, step - 1], action[:, step - 1]]
    rows, left = path.reshape(-1, 1).astype(np.float32), np.tile(np.arange(STEPS, 0, -1), users)
    tree = planner.values(rows, left, DUALS)
    complete = learned(planner, states).extend(tree, rows, left)
    before, after = (logged(problem, values, path, action) for values in (tree, complete))
    assert np.abs(evaluate(before, "direct").value - truth).max() > 0.5
    np.testing.assert_allclose(evaluate(after, "direct").value, truth, atol=2e-3)
    np.testing.assert_allclose(evaluate(after).value, truth, atol=5e-3)
    # What is left of the error is the spread of first states, which is exactly balanced here.
    finite = np.isfinite(DUALS)
    assert (evaluate(after).standard_error[:, finite] < 0.5 * evaluate(before).standard_error[:, finite]).all()


def test_smooth_worlds_are_completed_closely(network_world):
    """Regressed on the states as they are: most of what the tree leaves out is found, for users not learned from."""
    model, states = network_world(0, users=700)
    planner = TreePlanner(model, 1, 0.0, 4)
    continuation = Continuation.fit(planner, states[:400], 4, DUALS[:3])
    fresh = states[400:]
    tree = planner.values(fresh, 4, DUALS[:3])
    complete = continuation.extend(tree, fresh, 4)
    # The whole campaign in the same model, step by step: without entropy nothing is drawn.
    now = np.repeat(fresh[:, None], 3, axis=1).reshape(-1, fresh.shape[1])
    dual = np.tile(np.arange(3), len(fresh))
    total = np.zeros(len(now))
    for left in range(4, 0, -1):
        action = planner.values(now, left, DUALS[:3]).probabilities[np.arange(len(now)), dual].argmax(axis=1)
        total += np.asarray(model.outcomes(now)[1])[np.arange(len(now)), action]
        now = np.asarray(model.successors(now))[np.arange(len(now)), action]
    truth = total.reshape(-1, 3)
    errors = [np.abs(values.expected()[1] - truth).mean() for values in (tree, complete)]
    assert errors[1] < 0.15 * errors[0]


def test_users_may_join_late(table_world, every_state):
    model, problem = table_world(1, states=STATES, steps=STEPS)
    planner, states = TreePlanner(model, 2, 0.3, STEPS), every_state(problem)
    many = np.repeat(states, 60, axis=0)
    left = np.where(np.arange(len(many)) % 2, 3, STEPS)
    continuation = Continuation.fit(planner, many, left, DUALS, one_hot)
    mixed = np.tile([3, STEPS, 2, 4], STATES)[:STATES]
    complete = continuation.extend(planner.values(states, mixed, DUALS), states, mixed)
    exact = exact_to_go(problem, planner)
    for row, steps_left in enumerate(mixed):
        np.testing.assert_allclose(complete.to_go[0, row], exact[steps_left - 1, 0, row], atol=3e-3)


def test_a_tree_to_the_end_needs_no_continuation(table_world, every_state):
    model, problem = table_world(0, states=STATES, steps=2)
    planner, states = TreePlanner(model, 2, 0.3, 2), every_state(problem)
    continuation = Continuation.fit(planner, states, 2, DUALS)
    assert not continuation.tails
    tree = planner.values(states, 2, DUALS)
    np.testing.assert_array_equal(continuation.extend(tree, states, 2).to_go, tree.to_go)


def test_more_steps_left_than_anybody_learned_from_had(table_world, every_state):
    """Learned with 4 steps left, asked with 5: what 3 steps after the tree add is taken for what 4 would."""
    model, problem = table_world(0, states=STATES, steps=STEPS)
    planner, states = TreePlanner(model, 1, 0.3, STEPS), every_state(problem)
    continuation = Continuation.fit(planner, np.repeat(states, 60, axis=0), 4, DUALS, one_hot)
    four, five = (continuation.extend(planner.values(states, left, DUALS), states, left) for left in (4, 5))
    np.testing.assert_array_equal(five.to_go, four.to_go)
    nobody = Continuation.fit(planner, states, 1, DUALS)
    tree = planner.values(states, 5, DUALS)
    np.testing.assert_array_equal(nobody.extend(tree, states, 5).to_go, tree.to_go)


def test_wrong_uses(table_world, every_state):
    model, problem = table_world(0, states=STATES, steps=STEPS)
    planner, states = TreePlanner(model, 1, 0.3, STEPS), every_state(problem)
    continuation = Continuation.fit(planner, states, 3, DUALS)
    with pytest.raises(UsageError, match="prices that the continuation was learned for"):
        continuation.extend(planner.values(states, 3, DUALS[:2]), states, 3)
