"""One user at a time decides as the batch planner does."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from redenvelope.errors import ModelError, UsageError
from redenvelope.models.neural_model import NeuralModel
from redenvelope.planning.planner import TreePlanner
from redenvelope.planning.single_user import SinglePlanner, back_up, new_terms
from redenvelope.policies.policy import Constraint
from tests.random_networks import BARE, WIDE, random_model, random_states

USERS, STEPS = 12, 10
ELIGIBLE = np.array([True, False, True, True, False, True])
PRICES = {"one": [0.3], "two": [0.2, 0.5], "one of them infinite": [np.inf, 0.3], "free": [0.0]}


@pytest.fixture(scope="module")
def model() -> NeuralModel:
    return random_model()


def check(planner: TreePlanner, single: SinglePlanner, prices: list[float], left: int, mask: np.ndarray | None) -> None:
    """Both plan in float32 up to the backup: rewards and costs to go are of the order of one, and off by some 1e-7.

    Probabilities are off by that over the temperature, 0.5 here.
    """
    states = random_states(planner.model.layout, USERS, STEPS - left, seed=left)  # type: ignore[attr-defined]
    batch = planner.values(states, left, prices, None if mask is None else np.tile(mask, (USERS, 1)))
    for user, state in enumerate(states):
        found = single.decide(state, left, mask)
        q, probabilities, to_go = found.values
        assert q.shape == (1, len(prices), planner.model.actions) and to_go.shape[0] == 2
        assert np.allclose(q[0], batch.q[user], atol=1e-5)
        assert np.abs(probabilities[0] - batch.probabilities[user]).max() < 1e-6
        assert np.abs(to_go[:, 0] - batch.to_go[:, user]).max() < 1e-5
        assert np.allclose(probabilities.sum(axis=2), 1.0, atol=1e-12)
        now = np.array([np.asarray(outcome)[0] for outcome in planner.model.outcomes(state[None])])
        assert np.abs(found.outcomes - now).max() < 1e-5


@pytest.mark.parametrize("prices", PRICES)
@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_decisions_are_the_batch_planners(model: NeuralModel, prices: str, temperature: float) -> None:
    planner = TreePlanner(model, 3, temperature, STEPS)
    single = SinglePlanner.of(planner, model, PRICES[prices])
    for left, mask in ((1, ELIGIBLE), (2, ELIGIBLE), (3, None), (8, ELIGIBLE)):
        check(planner, single, PRICES[prices], left, mask)


def test_members_are_averaged_as_in_batches() -> None:
    model = random_model(members=4)
    planner = TreePlanner(model, 3, 0.5, STEPS)
    check(planner, SinglePlanner.of(planner, model, [0.2, 0.5]), [0.2, 0.5], 8, None)


def test_thinned_and_discounted_trees() -> None:
    model = random_model(BARE, hidden=((8,), (8,)))
    planner = TreePlanner(model, 4, 0.5, STEPS, discount=0.9, node_limit=54)
    assert not planner.branching.is_full and planner.depth == 4
    single = SinglePlanner.of(planner, model, [0.3])
    for left in (2, 7):
        check(planner, single, [0.3], left, ELIGIBLE)


class NoSplurge(Constraint):
    """Allows the dearer actions only while a number is low, and none of them at the last step."""

    def eligible(self, states: np.ndarray, steps_left: np.ndarray, memory: np.ndarray) -> np.ndarray:
        dear = (states[:, BARE.numbers.start] < 0.2) & (steps_left > 1)
        return np.stack([np.zeros(len(states), dtype=bool), np.ones(len(states), dtype=bool), dear], axis=1)


@eqx.filter_jit
def one_step(model: NeuralModel, state: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Outcomes [outcomes, 1, actions] and successors [1, actions, width] of one state [1, width]."""
    return jnp.stack(list(model.outcomes(state))), model.successors(state)


def best_value(model: NeuralModel, state: np.ndarray, left: int, depth: int, mask: np.ndarray) -> tuple[float, list]:
    """The value of a state and of its actions at a price of 0.3, by plain recursion."""
    outcomes, following = (np.asarray(array, dtype=np.float64) for array in one_step(model, state[None]))
    allowed = mask & NoSplurge().eligible(state[None], np.array([left]), np.zeros((1, 0), np.int16))[0]
    allowed = allowed if allowed.any() else np.arange(3) == mask.argmax()
    worth = []
    for action in range(3):
        later = (
            best_value(model, following[0, action].astype(np.float32), left - 1, depth - 1, mask)
            if depth > 1
            else (0.0,)
        )
        worth.append(outcomes[0, 0, action] - 0.3 * outcomes[1, 0, action] + later[0] if allowed[action] else -np.inf)
    return max(worth), worth


@pytest.mark.parametrize("mask", [[True, True, True], [True, False, True]])
def test_a_constraint_is_asked_at_every_node(mask: list[bool]) -> None:
    model = random_model(BARE, actions=3, hidden=((8,), (8,)))
    single = replace(SinglePlanner.of(TreePlanner(model, 3, 0.0, 3), model, [0.3]), constraint=NoSplurge())
    for state in random_states(BARE, 6, 0):
        found = single.decide(state, 3, np.array(mask)).values.q[0, 0]
        assert np.allclose(found, best_value(model, state, 3, 3, np.array(mask))[1], atol=1e-5)


def test_other_prices_need_no_other_planner(model: NeuralModel) -> None:
    planner = TreePlanner(model, 2, 0.5, STEPS)
    moved = SinglePlanner.of(planner, model, [0.3]).at([[0.7], [0.1]])
    check(planner, moved, [0.7, 0.1], 5, None)
    with pytest.raises(UsageError, match="1 budget"):
        moved.at([[0.7, 0.1]])


def test_ties_go_to_the_least_cost_and_then_to_the_greatest_reward() -> None:
    # Five actions at two nodes: worth 2 at a price of 1 are the first three of the first node, and all but the last of
    # the second.
    reward = np.array([[3.0, 2.0, 2.0, 1.0, 0.0], [2.0, 3.0, 4.0, 4.0, 0.0]])
    cost = np.array([[1.0, 0.0, 0.0, 4.0, 0.0], [0.0, 1.0, 2.0, 2.0, 9.0]])
    nodes = np.stack([reward.T, cost.T])
    (priced,) = new_terms(np.array([[1.0]]), 0.0)
    assert back_up([nodes], None, priced, None, 1.0).probabilities[0].argmax(axis=0).tolist() == [1, 0]
    (free,) = new_terms(np.array([[0.0]]), 0.0)
    assert back_up([nodes], None, free, None, 1.0).probabilities[0].argmax(axis=0).tolist() == [0, 2]
    (infinite,) = new_terms(np.array([[np.inf]]), 0.7)
    assert back_up([nodes], None, infinite, None, 1.0).probabilities[0].argmax(axis=0).tolist() == [1, 0]
    assert (back_up([nodes], None, infinite, None, 1.0).probabilities.sum(axis=1) == 1).all()


def test_several_budgets_are_weighed_one_by_one() -> None:
    """A tree of two steps, two actions and two costs, by plain arithmetic."""
    generator = np.random.default_rng(3)
    root, leaves = generator.normal(size=(3, 2, 1)), generator.normal(size=(3, 2, 2))
    prices = np.array([[0.3, 0.8], [np.inf, 0.5]])
    weights = np.array([[1.0, -0.3, -0.8], [0.0, -1.0, 0.0]])
    groups = new_terms(prices, 0.0)
    assert [group.places.tolist() for group in groups] == [[0], [1]]  # ties are broken otherwise where prices end
    for group, weight in zip(groups, weights, strict=True):
        found = back_up([root, leaves], None, group, None, 1.0)
        for action in range(2):
            below = leaves[:, :, action]
            best = below[:, int((weight @ below).argmax())]
            assert np.allclose(found.worth[1:, 0, action, 0], root[:, action, 0] + best)
            assert found.worth[0, 0, action, 0] == pytest.approx(weight @ (root[:, action, 0] + best))


def test_what_is_wrong_is_said_in_words(model: NeuralModel) -> None:
    columns = tuple(f"feature {number}" for number in range(WIDE.width))
    planner = TreePlanner(model, 2, 0.0, STEPS, columns=columns)
    single = SinglePlanner.of(planner, model, [0.3])
    state = random_states(WIDE, 1, 0)[0]
    for left in (0, 11):
        with pytest.raises(UsageError, match="steps left"):
            single.decide(state, left)
    with pytest.raises(UsageError, match="no eligible action"):
        single.decide(state, 3, np.zeros(6, dtype=bool))
    with pytest.raises(UsageError, match="eligible must be"):
        single.decide(state, 3, np.ones(5, dtype=bool))
    broken = state.copy()
    broken[4] = np.nan
    with pytest.raises(ModelError, match="column 'feature 4'"):
        single.decide(broken, 3)
    diverged = single.model.outcome._replace(amounts=np.full(12, np.nan, np.float32))
    with pytest.raises(ModelError, match="not finite numbers"):
        replace(single, model=replace(single.model, outcome=diverged)).decide(state, 3)
