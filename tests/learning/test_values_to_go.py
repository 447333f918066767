"""Values to go against exact induction: in worlds whose states are one-hot, a linear regression can be exact."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from redenvelope.learning.values_to_go import KnownStates, ValueLearner, ValueSettings, can_learn
from redenvelope.log.encoding.layout import StateLayout
from redenvelope.models.training import TrainingSettings
from redenvelope.planning.leaf_values import LeafValues
from redenvelope.planning.planner import ModelPrice, TreePlanner
from redenvelope.policies.eligibility_state import EligibilityState
from redenvelope.policies.policy import Constraint
from redenvelope.prices import PriceGrid, unscaled_dual
from tests.planning.exact import World, induction
from tests.quick_programs import quick_programs

STATES, ACTIONS = 6, 3
QUICK = ValueSettings(
    hidden=(8,),
    states=400,
    knots=(9, 4, 3, 3),
    penalty=1e-9,
    training=TrainingSettings(learning_rate=1e-2, batch_rows=64, steps=20, epochs_least=1, epochs_most=1),
)
# What single precision and a penalty of 1e-9 leave.
CLOSE = {"atol": 2e-3}


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with quick_programs():
        yield


class OneHotTable(eqx.Module):
    """Deterministic dynamics; a state is the step on its scale, and which of the states it is."""

    tables: jax.Array
    """[outcomes, states, actions]"""
    following: jax.Array
    """[states, actions]"""
    staying: jax.Array
    """[states, actions]"""
    step_change: float = eqx.field(static=True)
    leaves: bool = eqx.field(static=True)

    @property
    def actions(self) -> int:
        return self.tables.shape[2]

    @property
    def budgets(self) -> int:
        return self.tables.shape[0] - 1

    def outcomes(self, states: jax.Array) -> jax.Array:
        return jnp.einsum("ns,osa->ona", states[:, 1:], self.tables, precision="highest")

    def survival(self, states: jax.Array) -> jax.Array:
        return jnp.einsum("ns,sa->na", states[:, 1:], self.staying, precision="highest")

    def successors(self, states: jax.Array) -> jax.Array:
        moved = jax.nn.one_hot(self.following[states[:, 1:].argmax(axis=1)], self.tables.shape[1])
        step = jnp.broadcast_to(states[:, None, :1] + self.step_change, (*moved.shape[:2], 1))
        return jnp.concatenate([step, moved], axis=2)


class Problem:
    """A world, its model, its layout and states of every step."""

    def __init__(
        self, seed: int, steps: int, budgets: int = 1, leaves: bool = False, lure: float = 0.0, slow: bool = False
    ) -> None:
        """`lure` is what the dearest action earns in addition."""
        generator = np.random.default_rng(seed)
        rewards = generator.normal(size=(STATES, ACTIONS)) + lure * (np.arange(ACTIONS) == ACTIONS - 1)
        costs = [np.sort(generator.uniform(0, 2, size=(STATES, ACTIONS)), axis=1) for _ in range(budgets)]
        following = generator.integers(STATES, size=(STATES, ACTIONS))
        if slow:
            # Only the dearest action leads on to the next state, and only the last of the states earns anything.
            rewards = 2.0 * (np.arange(STATES) == STATES - 1)[:, None] * np.ones(ACTIONS)
            ahead = np.minimum(np.arange(STATES) + 1, STATES - 1)
            following = np.where(np.arange(ACTIONS) == ACTIONS - 1, ahead[:, None], np.arange(STATES)[:, None])
        tables = np.stack([rewards, *costs]).astype(np.float32)
        staying = generator.uniform(0.3, 1.0, size=(STATES, ACTIONS)).astype(np.float32)
        change = 1 / (steps - 1)
        self.steps = steps
        self.world = World(tables.astype(np.float64), following, steps, staying.astype(np.float64) if leaves else None)
        self.model = OneHotTable(*map(jnp.asarray, (tables, following, staying)), change, leaves)
        self.layout = StateLayout((), 0, 0, STATES, (), change)

    def states(self, left: int, copies: int = 1) -> np.ndarray:
        step = np.full((STATES * copies, 1), (self.steps - left) * self.model.step_change)
        return np.concatenate([step, np.tile(np.eye(STATES), (copies, 1))], axis=1).astype(np.float32)

    def logged(self, eligible: np.ndarray | None = None, copies: int = 8) -> KnownStates:
        lefts = range(1, self.steps + 1)
        states = np.concatenate([self.states(left, copies) for left in lefts])
        left = np.repeat(list(lefts), STATES * copies).astype(np.int64)
        eligibility = None
        if eligible is not None:
            always = np.resize(eligible, (len(states), ACTIONS))
            eligibility = EligibilityState(always, np.zeros((len(states), 0), np.int16))
        return KnownStates(states, left, eligibility)

    def planner(self, temperature: float = 0.0, **further) -> TreePlanner:
        return TreePlanner(self.model, 1, temperature, self.steps, **further)

    def learner(self, planner: TreePlanner, eligible: np.ndarray | None = None) -> ValueLearner:
        return ValueLearner.prepare(planner, self.logged(eligible), self.layout, QUICK, seed=0)


def prices_of(learner: ValueLearner) -> np.ndarray:
    """Some of the points of a grid: there nothing is interpolated."""
    table = learner.grid.table
    finite = table[np.isfinite(table).all(axis=1)]
    return finite[:: max(1, len(finite) // 5)]


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.2])
@pytest.mark.parametrize("horizon", [1, 2])
def test_a_shallow_tree_with_values_plans_to_the_end(temperature: float, horizon: int, leaves: bool) -> None:
    problem = Problem(3, steps=6, leaves=leaves)
    planner = problem.planner(temperature)
    learner = problem.learner(planner)
    prices = prices_of(learner)
    ahead = replace(planner, horizon=horizon, leaf_values=learner.optimal(planner))
    exact = induction(problem.world, prices, temperature)
    blind = induction(problem.world, prices, temperature, lookahead=horizon)
    for left in range(1, 7):
        found = ahead.values(problem.states(left), left, prices)
        np.testing.assert_allclose(found.q.swapaxes(0, 1), exact.q[left - 1], **CLOSE)
        np.testing.assert_allclose(np.moveaxis(found.to_go, 1, 2), exact.to_go[left - 1], **CLOSE)
        worth = ahead.state_values(problem.states(left), left, prices)
        np.testing.assert_allclose(worth[1:], found.expected(), **CLOSE)
    # Without them the same trees would be far off.
    assert np.abs(exact.q[5] - blind.q[5]).max() > 0.3


@pytest.mark.parametrize("budgets", [2, 3])
def test_several_budgets_have_values_too(budgets: int) -> None:
    problem = Problem(4, steps=4, budgets=budgets)
    planner = problem.planner(0.1)
    learner = problem.learner(planner)
    prices = prices_of(learner)
    ahead = replace(planner, leaf_values=learner.optimal(planner))
    found = ahead.values(problem.states(4), 4, prices)
    np.testing.assert_allclose(found.q.swapaxes(0, 1), induction(problem.world, prices, 0.1).q[3], **CLOSE)


def test_infinite_prices_take_the_least_cost() -> None:
    problem = Problem(5, steps=5)
    planner = problem.planner()
    learner = problem.learner(planner)
    ahead = replace(planner, leaf_values=learner.optimal(planner))
    found = ahead.values(problem.states(5), 5, [np.inf])
    exact = induction(problem.world, [np.inf], 0.0)
    np.testing.assert_allclose(found.to_go[1, :, 0], exact.to_go[4, 1, 0], **CLOSE)


def test_exploration_is_part_of_what_follows() -> None:
    problem, share = Problem(6, steps=4), 0.3
    planner = problem.planner(explore=share)
    learner = problem.learner(planner)
    prices = prices_of(learner)[1:2]
    ahead = replace(planner, leaf_values=learner.optimal(planner))
    world, price = problem.world, float(prices[0, 0])
    value = np.zeros(STATES)
    for _ in range(4):
        q = world.outcomes[0] - price * world.outcomes[1] + value[world.following]
        value = (1 - share) * q.max(axis=1) + share * q.mean(axis=1)
    np.testing.assert_allclose(ahead.values(problem.states(4), 4, prices).q[:, 0], q, **CLOSE)


class DearestOnce(Constraint):
    """The dearest action is given at most once."""

    actions = ACTIONS
    remembers = 1

    def eligible(self, states, steps_left, memory):
        return ~((memory[:, :1] > 0) & (np.arange(ACTIONS) == ACTIONS - 1))

    def after(self, memory, action):
        return (memory + (action == ACTIONS - 1)[:, None]).clip(0, 1)


def test_what_rules_remember_counts_in_values() -> None:
    problem = Problem(7, steps=5, lure=1.5)
    planner = problem.planner(constraint=DearestOnce())
    logged = problem.logged(np.ones((1, ACTIONS), bool), copies=40)
    memory = np.random.default_rng(0).integers(2, size=(len(logged), 1)).astype(np.int16)
    logged = replace(logged, eligibility=EligibilityState(logged.eligibility.always, memory))
    learner = ValueLearner.prepare(planner, logged, problem.layout, replace(QUICK, hidden=(32,)), seed=0)
    ahead = replace(planner, horizon=2, leaf_values=learner.optimal(planner))
    prices = prices_of(learner)[1:3]
    whole = replace(planner, horizon=5)
    found, exact = (each.values(problem.states(5), 5, prices) for each in (ahead, whole))
    free = replace(problem.planner(), horizon=5).values(problem.states(5), 5, prices)
    # States times what is left of a cap are not linear in both: hidden units do the rest, and leave a little.
    assert np.abs(found.q - exact.q).mean() < 0.1 * np.abs(free.q - exact.q).mean()


def test_lists_of_what_users_may_get_count_in_values() -> None:
    problem = Problem(8, steps=4)
    planner = problem.planner()
    mask = np.array([[True, True, False]])
    learner = problem.learner(planner, mask)
    assert learner.masked
    ahead = replace(planner, leaf_values=learner.optimal(planner))
    prices = prices_of(learner)
    own = np.repeat(mask, STATES, axis=0)
    found = ahead.values(problem.states(4), 4, prices, own)
    exact = induction(problem.world, prices, 0.0, allowed=np.repeat(own[None], 4, axis=0))
    np.testing.assert_allclose(found.q[..., :2].swapaxes(0, 1), exact.q[3, ..., :2], **CLOSE)


@pytest.mark.parametrize("horizon", [1, 2])
def test_values_of_a_policy_that_does_not_look_at_them(horizon: int) -> None:
    problem = Problem(9, steps=5, leaves=True)
    planner = replace(problem.planner(0.3), horizon=horizon)
    learner = problem.learner(planner)
    prices = prices_of(learner)
    baseline = replace(planner, horizon=1, leaf_values=learner.followed(planner))
    exact = induction(problem.world, prices, 0.3, lookahead=horizon)
    for left in (1, 3, 5):
        found = baseline.values(problem.states(left), left, prices)
        np.testing.assert_allclose(np.moveaxis(found.to_go, 1, 2), exact.to_go[left - 1], **CLOSE)


def test_twenty_steps_ahead() -> None:
    problem = Problem(10, steps=20, slow=True)
    planner = problem.planner()
    learner = problem.learner(planner)
    prices = prices_of(learner)[1:4]
    ahead = replace(planner, leaf_values=learner.optimal(planner))
    followed = ModelPrice(ahead, problem.states(20))(prices)
    exact = induction(problem.world, prices, 0.0)
    short = induction(problem.world, prices, 0.0, lookahead=4)

    def worth(outcomes: np.ndarray) -> np.ndarray:
        return outcomes[0] - prices[:, 0] * outcomes[1]

    np.testing.assert_allclose(worth(followed), worth(exact.expected()), atol=1e-2)
    # Five incentives come before the first reward: a tree of four steps sees no reason for them in the first state.
    assert (worth(short.expected()) < worth(exact.expected()) - 1).any()


def test_between_the_knots_values_are_interpolated_and_stay_in_their_range() -> None:
    problem = Problem(11, steps=4)
    planner = problem.planner()
    learner = problem.learner(planner)
    values = learner.optimal(planner)
    low, high = learner.grid.table[3:5, 0]
    unit = learner.grid.units[0]
    middle = unscaled_dual(np.array([3.5 / 8]), unit)[0]
    assert low < middle < high
    found = values.of(problem.states(2), np.full(STATES, 2), np.array([[low], [middle], [high]]))
    np.testing.assert_allclose(found[..., 1], found[..., [0, 2]].mean(axis=2), atol=1e-5)
    wild = values.of(100 * problem.states(2), np.full(STATES, 2), np.array([[low]]))
    assert (wild <= np.asarray(values.greatest)[1].max(axis=1)[:, None, None] + 1e-5).all()


def test_grids_weigh_their_points() -> None:
    grid = PriceGrid((0.5, 2.0), 4)
    np.testing.assert_allclose(grid.weights(grid.table), np.eye(16), atol=1e-9)
    prices = np.random.default_rng(0).exponential(1.0, (50, 2))
    weights = grid.weights(prices)
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    assert (weights >= 0).all()
    assert np.isfinite(grid.finite).all() and (grid.finite[grid.table == np.inf] > 1e3).all()
    with pytest.raises(ValueError, match="at least two knots"):
        PriceGrid((1.0,), 1)


def test_the_same_decisions_alone_and_in_a_table() -> None:
    problem = Problem(12, steps=5)
    planner = problem.planner(0.1)
    learner = problem.learner(planner)
    ahead = replace(planner, horizon=2, leaf_values=learner.optimal(planner))
    prices = prices_of(learner)[1:3]
    states = np.concatenate([problem.states(left) for left in (5, 4, 2, 1)])
    left = np.repeat([5, 4, 2, 1], STATES)
    table = ahead.decided(states, left, prices)
    together = ahead.decided(states, left, prices, waiting=True)
    np.testing.assert_allclose(together.probabilities, table.probabilities, atol=1e-5)
    np.testing.assert_allclose(ahead.values(states, left, prices).probabilities, table.probabilities, atol=1e-5)
    alone = ahead.decided(states[7:8], left[7:8], prices, waiting=True)
    np.testing.assert_allclose(alone.probabilities[0], table.probabilities[7], atol=1e-5)


def test_they_are_stored_and_read() -> None:
    problem = Problem(13, steps=4)
    planner = problem.planner()
    values = problem.learner(planner).optimal(planner)
    again = LeafValues.from_state(*values.state())
    states, left = problem.states(3), np.full(STATES, 3)
    prices = np.array([[0.3]])
    np.testing.assert_array_equal(again.of(states, left, prices), values.of(states, left, prices))
    assert (again.grid, again.layout, again.masked) == (values.grid, values.layout, values.masked)


def test_too_many_budgets_and_single_steps_have_no_values() -> None:
    planner = Problem(1, steps=2).planner()
    assert can_learn(planner, ValueSettings())
    assert not can_learn(replace(planner, steps=1), ValueSettings())
    assert not can_learn(planner, replace(ValueSettings(), knots=()))
