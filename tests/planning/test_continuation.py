"""What comes after the tree, against the exact values of the policy that is planned anew at every step."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope.errors import UsageError
from redenvelope.evaluation.evaluate import evaluate
from redenvelope.evaluation.evidence import Evidence
from redenvelope.evaluation.gather import gather
from redenvelope.finite.induction import backward_induction
from redenvelope.finite.problem import FiniteProblem
from redenvelope.planning.continuation import Continuation
from redenvelope.planning.tree import PlannedValues, TreePlanner

DUALS = np.array([0.0, 0.4, 1.0, np.inf])
STATES, STEPS = 7, 5


def one_hot(states: np.ndarray) -> np.ndarray:
    return np.eye(STATES)[states[:, 0].astype(int)]


def exact_to_go(problem: FiniteProblem, planner: TreePlanner) -> np.ndarray:
    """Reward and cost to go of every action, [2, duals, steps, states, actions], by induction over the tables."""
    plans = backward_induction(problem, DUALS, planner.temperature, lookahead=planner.horizon)
    result = np.zeros((2, *plans.probabilities.shape))
    for target, outcome in enumerate(problem.outcomes):
        after = np.zeros((len(DUALS), problem.states))
        for step in reversed(range(problem.steps)):
            following = np.einsum("sat,dt->dsa", problem.transitions, after)
            result[target, :, step] = outcome + planner.discount * following
            after = (plans.probabilities[:, step] * result[target, :, step]).sum(axis=2)
    return result


def learned(planner: TreePlanner, states: np.ndarray, copies: int = 60) -> Continuation:
    """Enough users that every state is met on every level of the walk."""
    return Continuation.fit(planner, np.repeat(states, copies, axis=0), planner.steps, DUALS, one_hot)


@pytest.mark.parametrize(("temperature", "horizon"), [(0.0, 2), (0.3, 1), (0.3, 2)])
def test_complete_values_are_exact_where_the_model_is(table_world, every_state, temperature, horizon):
    model, problem = table_world(0, states=STATES, steps=STEPS)
    planner, states = TreePlanner(model, horizon, temperature, STEPS), every_state(problem)
    exact = exact_to_go(problem, planner)
    continuation = learned(planner, states)
    for left in range(1, STEPS + 1):
        tree = planner.plan(states, left, DUALS)
        complete = continuation.extend(tree, states, left)
        truth = np.moveaxis(exact[:, :, STEPS - left], 1, 2)
        # A ridge of 1e-6 and single precision are all that is between the two.
        np.testing.assert_allclose(complete.reward_to_go, truth[0], atol=2e-3)
        np.testing.assert_allclose(complete.cost_to_go, truth[1], atol=2e-3)
        if left > horizon:
            assert np.abs(tree.cost_to_go - truth[1]).max() > 0.1
        np.testing.assert_array_equal(complete.q, tree.q)
        np.testing.assert_array_equal(complete.probabilities, tree.probabilities)


def test_discount(table_world, every_state):
    # Horizon 1 in a world of one state: the same step again and again, discounted.
    model, problem = table_world(0, states=1, steps=STEPS)
    planner = TreePlanner(model, 1, 0.0, STEPS, discount=0.5)
    states = every_state(problem)
    continuation = Continuation.fit(planner, states, STEPS, [1.0])
    complete = continuation.extend(planner.plan(states, STEPS, [1.0]), states, STEPS)
    costs = problem.costs[0, 0]
    best = costs[np.argmax(problem.rewards[0] - costs)]
    later = best * (1 - 0.5 ** (STEPS - 1))  # 1/2 + 1/4 + 1/8 + 1/16 of it
    np.testing.assert_allclose(complete.cost_to_go[0, 0], costs + later, rtol=1e-5)


def logged(problem: FiniteProblem, values: PlannedValues, path: np.ndarray, action: np.ndarray) -> Evidence:
    """The evidence of users who met states `path` [users, steps] under a uniform logger, free of noise."""
    state, taken = path.ravel(), action.ravel()
    return gather(
        starts=np.arange(0, len(state) + 1, STEPS),
        keys=np.arange(len(path)),
        action=taken,
        propensity=np.full(len(state), 1 / problem.actions),
        outcomes=[problem.rewards[state, taken], problem.costs[0, state, taken]],
        probabilities=values.probabilities,
        to_go=np.stack([values.reward_to_go, values.cost_to_go]),
    )


def test_direct_is_the_truth_and_doubly_robust_has_nothing_left_to_correct(table_world, every_state):
    model, problem = table_world(3, states=STATES, steps=STEPS)
    planner, states = TreePlanner(model, 2, 0.3, STEPS), every_state(problem)
    plans = backward_induction(problem, DUALS, 0.3, lookahead=2)
    truth = plans.outcomes
    users = 40 * STATES
    action = np.random.default_rng(0).integers(problem.actions, size=(users, STEPS))
    path = np.empty((users, STEPS), dtype=np.int64)
    path[:, 0] = np.arange(users) % STATES
    for step in range(1, STEPS):
        path[:, step] = problem.transitions[path[:, step - 1], action[:, step - 1]].argmax(axis=1)
    rows, left = path.reshape(-1, 1).astype(np.float32), np.tile(np.arange(STEPS, 0, -1), users)
    tree = planner.plan(rows, left, DUALS)
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
    tree = planner.plan(fresh, 4, DUALS[:3])
    complete = continuation.extend(tree, fresh, 4)
    # The whole campaign in the same model, step by step: without entropy nothing is drawn.
    now = np.repeat(fresh[:, None], 3, axis=1).reshape(-1, fresh.shape[1])
    dual = np.tile(np.arange(3), len(fresh))
    total = np.zeros(len(now))
    for left in range(4, 0, -1):
        action = planner.plan(now, left, DUALS[:3]).probabilities[np.arange(len(now)), dual].argmax(axis=1)
        total += np.asarray(model.outcomes(now)[1])[np.arange(len(now)), action]
        now = np.asarray(model.successors(now))[np.arange(len(now)), action]
    truth = total.reshape(-1, 3)
    errors = [
        np.abs((values.probabilities * values.cost_to_go).sum(axis=2) - truth).mean() for values in (tree, complete)
    ]
    assert errors[1] < 0.15 * errors[0]


def test_users_may_join_late(table_world, every_state):
    model, problem = table_world(1, states=STATES, steps=STEPS)
    planner, states = TreePlanner(model, 2, 0.3, STEPS), every_state(problem)
    many = np.repeat(states, 60, axis=0)
    left = np.where(np.arange(len(many)) % 2, 3, STEPS)
    continuation = Continuation.fit(planner, many, left, DUALS, one_hot)
    mixed = np.tile([3, STEPS, 2, 4], STATES)[:STATES]
    complete = continuation.extend(planner.plan(states, mixed, DUALS), states, mixed)
    exact = exact_to_go(problem, planner)
    for row, steps_left in enumerate(mixed):
        np.testing.assert_allclose(complete.reward_to_go[row], exact[0, :, STEPS - steps_left, row], atol=3e-3)


def test_a_tree_to_the_end_needs_no_continuation(table_world, every_state):
    model, problem = table_world(0, states=STATES, steps=2)
    planner, states = TreePlanner(model, 2, 0.3, 2), every_state(problem)
    continuation = Continuation.fit(planner, states, 2, DUALS)
    assert not continuation.tails
    tree = planner.plan(states, 2, DUALS)
    np.testing.assert_array_equal(continuation.extend(tree, states, 2).reward_to_go, tree.reward_to_go)


def test_more_steps_left_than_anybody_learned_from_had(table_world, every_state):
    """Learned with 4 steps left, asked with 5: what 3 steps after the tree add is taken for what 4 would."""
    model, problem = table_world(0, states=STATES, steps=STEPS)
    planner, states = TreePlanner(model, 1, 0.3, STEPS), every_state(problem)
    continuation = Continuation.fit(planner, np.repeat(states, 60, axis=0), 4, DUALS, one_hot)
    four, five = (continuation.extend(planner.plan(states, left, DUALS), states, left) for left in (4, 5))
    np.testing.assert_array_equal(five.cost_to_go, four.cost_to_go)
    nobody = Continuation.fit(planner, states, 1, DUALS)
    tree = planner.plan(states, 5, DUALS)
    np.testing.assert_array_equal(nobody.extend(tree, states, 5).cost_to_go, tree.cost_to_go)


def test_wrong_uses(table_world, every_state):
    model, problem = table_world(0, states=STATES, steps=STEPS)
    planner, states = TreePlanner(model, 1, 0.3, STEPS), every_state(problem)
    continuation = Continuation.fit(planner, states, 3, DUALS)
    with pytest.raises(UsageError, match="duals that the continuation was learned for"):
        continuation.extend(planner.plan(states, 3, DUALS[:2]), states, 3)
